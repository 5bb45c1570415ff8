//! A check: the messages it sends, the rule, and the verdict.

pub use crate::outcome::{CheckOutcome, Stop, ensure, fail, not_applicable};
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
