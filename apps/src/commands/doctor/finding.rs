//! The result of a check.

use serde::Serialize;
use stag_server::machine::Machine;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// It works; it could be better, or is worth knowing.
    Note,
    /// It works, but much slower than it could, or not under load.
    Warning,
    /// It does not work.
    Error,
}

impl State {
    /// As it is printed.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            State::Ok => "ok",
            State::Note => "note",
            State::Warning => "warning",
            State::Error => "error",
        }
    }

    /// How bad it is that something of verbs is missing: where it is wanted, where there is hardware for it, and elsewhere.
    pub(super) fn of_missing(machine: &Machine) -> State {
        if machine.needs_verbs() {
            State::Error
        } else if machine.rdma_devices().is_empty() {
            State::Note
        } else {
            State::Warning
        }
    }
}

/// One line: the thing, the limit, the value found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// How bad it is.
    pub state: State,
    /// What was found, in words.
    pub found: String,
    /// The command that repairs it. None only if there is nothing to repair.
    pub repair: Option<String>,
}

impl Diagnosis {
    /// All is well.
    pub(super) fn ok(found: impl Into<String>) -> Diagnosis {
        Diagnosis { state: State::Ok, found: found.into(), repair: None }
    }

    /// Something is not as it should be.
    pub(super) fn bad(state: State, found: impl Into<String>, repair: impl Into<String>) -> Diagnosis {
        Diagnosis { state, found: found.into(), repair: Some(repair.into()) }
    }
}
