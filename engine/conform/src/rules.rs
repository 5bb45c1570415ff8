//! Which rules a run checks, and why it cannot check the others.

use std::collections::BTreeMap;

use crate::check::{Check, CheckText};
use crate::client_checks::ClientCheck;
use crate::{requester, responder};

/// Rules that no peer can be seen to keep or break, one a line: the number, and the reason.
const UNOBSERVED: &str = include_str!("unobserved.txt");

/// What is known of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleCoverage {
    /// These checks check it.
    Checked(Vec<&'static str>),
    /// None does, and why.
    Unobserved(&'static str),
}

/// All checks, of both roles.
pub fn checks() -> impl Iterator<Item = CheckText> {
    requester::checks().map(Check::text).chain(responder::checks().map(ClientCheck::text))
}

/// Whether there is a check of that name.
#[must_use]
pub fn is_check(name: &str) -> bool {
    checks().any(|check| check.name == name)
}

/// The rules that cannot be observed, and why.
pub fn unobserved() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = UNOBSERVED.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(' ')).map(|(rule, why)| (rule, why.trim()))
}

/// Every rule that this program knows, in the order of their numbers.
#[must_use]
pub fn coverage() -> BTreeMap<&'static str, RuleCoverage> {
    let mut rules = BTreeMap::new();
    for (rule, why) in unobserved() {
        rules.insert(rule, RuleCoverage::Unobserved(why));
    }
    for check in checks() {
        for rule in check.rules {
            match rules.entry(*rule).or_insert_with(|| RuleCoverage::Checked(Vec::new())) {
                RuleCoverage::Checked(names) => names.push(check.name),
                // What a check checks can be observed; a test finds a rule that stands in both places.
                unobserved @ RuleCoverage::Unobserved(_) => {
                    *unobserved = RuleCoverage::Checked(vec![check.name]);
                }
            }
        }
    }
    rules
}
