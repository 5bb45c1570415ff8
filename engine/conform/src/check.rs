//! A check: the messages it sends, the rule, and the verdict.

use crate::probe::Probe;

/// What every check has, whatever its role.
#[derive(Clone, Copy, Debug)]
pub struct CheckText {
    /// Its name, unique among all checks.
    pub name: &'static str,
    /// The rules that it checks, the main one first.
    pub rules: &'static [&'static str],
    /// What is sent.
    pub sent: &'static str,
    /// What has to come.
    pub expected: &'static str,
}

/// Why a check ends early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The rule is broken: what came instead.
    Fail(String),
    /// The check does not apply, and why.
    NotApplicable(String),
}

/// What came, or why there is no pass.
pub type CheckOutcome = Result<String, Stop>;

impl Stop {
    /// What came, or why the check does not apply.
    #[must_use]
    pub fn why(self) -> String {
        match self {
            Stop::Fail(why) | Stop::NotApplicable(why) => why,
        }
    }
}

/// A failure, as a check returns it.
pub fn fail<T>(came: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Fail(came.into()))
}

/// That a check does not apply, as it returns it.
pub fn not_applicable<T>(why: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::NotApplicable(why.into()))
}

/// `Ok` if `holds`; else a failure with `came`.
pub fn ensure(holds: bool, came: impl FnOnce() -> String) -> Result<(), Stop> {
    if holds { Ok(()) } else { Err(Stop::Fail(came())) }
}

/// What a check needs besides a peer that answers NULL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckNeeds {
    /// Nothing.
    Null,
    /// Files of its own on a scratch export (`--export`).
    Files,
    /// That somebody said so (`--dangerous`): it is known to crash a server.
    Consent,
}

/// A check of the peer as Responder.
pub struct Check {
    /// Its name, unique among all checks.
    pub name: &'static str,
    /// The rules that it checks, the main one first.
    pub rules: &'static [&'static str],
    /// What is sent.
    pub sent: &'static str,
    /// What has to come.
    pub expected: &'static str,
    /// What it needs.
    pub needs: CheckNeeds,
    /// Does it.
    pub run: fn(&mut Probe) -> CheckOutcome,
}

impl Check {
    /// What it has in common with checks of the other role.
    #[must_use]
    pub const fn text(&self) -> CheckText {
        CheckText { name: self.name, rules: self.rules, sent: self.sent, expected: self.expected }
    }
}
