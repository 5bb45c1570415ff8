//! The output of a run: a line for each check, the totals, and the expected deviations.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Serialize;
use stag_conform::check::{CheckOutcome, CheckText, Stop};
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::wrapped::{columns, wrapped};

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum CheckResult {
    /// The peer keeps the rule.
    Pass,
    /// It does not.
    Fail,
    /// It cannot be said here, and the line says why.
    NotApplicable,
}

impl CheckResult {
    /// The word of a line.
    const fn word(self) -> &'static str {
        match self {
            CheckResult::Pass => "pass",
            CheckResult::Fail => "FAIL",
            CheckResult::NotApplicable => "n/a",
        }
    }
}

/// The object of `--json` for a check.
#[derive(Serialize)]
struct CheckObject<'a> {
    check: &'a str,
    rule: &'a str,
    rules: &'a [&'a str],
    sent: &'a str,
    expected: &'a str,
    came: &'a str,
    result: CheckResult,
    /// Why it is known to fail.
    known: Option<&'a str>,
}

/// The object of `--json` at the end.
#[derive(Serialize)]
struct TotalsObject {
    passed: usize,
    failed: usize,
    not_applicable: usize,
    known: usize,
    surprises: usize,
}

/// Deviations of a peer that are known, by the check that finds each: `NAME: REASON` in each line of a file.
///
/// `NAME?: REASON` is for what depends on the peer's timing: the check may pass as well.
#[derive(Debug, Default)]
pub(super) struct Deviations(BTreeMap<String, Deviation>);

/// Why a check is known to fail.
#[derive(Debug)]
struct Deviation {
    reason: String,
    /// Whether it does not always.
    may_pass: bool,
}

impl Deviations {
    /// Reads them. Lines that are empty or begin with `#` say nothing.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or a line of it; or it names a check that `is_check` does not know.
    pub(super) fn read(path: &Path, is_check: impl Fn(&str) -> bool) -> Result<Deviations, CommandFailure> {
        let shown = path.display();
        let text = fs::read_to_string(path)
            .map_err(|error| CommandFailure::usage(format_args!("{shown}: {error}")))?;
        let mut found = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let line_number = index + 1;
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let Some((name, reason)) = line.split_once(": ").filter(|(_, reason)| !reason.trim().is_empty())
            else {
                return Err(CommandFailure::usage(format_args!(
                    "{shown}, line {line_number}: write NAME: REASON"
                )));
            };
            let (name, may_pass) = match name.strip_suffix('?') {
                Some(name) => (name, true),
                None => (name, false),
            };
            if !is_check(name) {
                return Err(CommandFailure::usage(format_args!(
                    "{shown}, line {line_number}: there is no check {name:?}; `stag conform --rules` lists them"
                )));
            }
            found.insert(name.to_owned(), Deviation { reason: reason.trim().to_owned(), may_pass });
        }
        Ok(Deviations(found))
    }
}

/// Writes the lines of a run, and counts.
pub(super) struct ConformReport<'a> {
    out: &'a mut Output,
    deviations: Deviations,
    passed: usize,
    failed: usize,
    not_applicable: usize,
    known: usize,
    surprises: usize,
}

impl<'a> ConformReport<'a> {
    /// Of a run that is to find these deviations.
    pub(super) fn new(out: &'a mut Output, deviations: Deviations) -> ConformReport<'a> {
        ConformReport { out, deviations, passed: 0, failed: 0, not_applicable: 0, known: 0, surprises: 0 }
    }

    /// Says a line that belongs to no check.
    pub(super) fn say(&mut self, line: &str) -> Result<(), CommandFailure> {
        self.out.line(wrapped("", line, columns()))?;
        self.out.flush()
    }

    /// Notes what a check found.
    pub(super) fn note(&mut self, check: CheckText, outcome: &CheckOutcome) -> Result<(), CommandFailure> {
        let (result, came) = match outcome {
            Ok(came) => (CheckResult::Pass, came),
            Err(Stop::Fail(came)) => (CheckResult::Fail, came),
            Err(Stop::NotApplicable(why)) => (CheckResult::NotApplicable, why),
        };
        let deviation = self.deviations.0.get(check.name);
        let known = deviation.map(|deviation| deviation.reason.as_str());
        let remark = match (result, deviation) {
            (CheckResult::Fail, Some(Deviation { reason, .. })) => {
                self.known += 1;
                format!("; known: {reason}")
            }
            (CheckResult::Pass, Some(Deviation { reason, may_pass: false })) => {
                self.surprises += 1;
                format!("; expected to fail: {reason}; take it off the list")
            }
            _ => String::new(),
        };
        match result {
            CheckResult::Pass => self.passed += 1,
            CheckResult::Fail => self.failed += 1,
            CheckResult::NotApplicable => self.not_applicable += 1,
        }
        let CheckText { name, rules, sent, expected } = check;
        let rule = rules[0];
        self.out.object(&CheckObject { check: name, rule, rules, sent, expected, came, result, known })?;
        let word = result.word();
        let found = format!("{name}: sent: {sent}; expected: {expected}; came: {came}{remark}");
        self.out.line(wrapped(&format!("{word:<4} {rule:<14} "), &found, columns()))?;
        self.out.flush()
    }

    /// Says the totals, and fails if a rule was broken in a way that was not expected.
    pub(super) fn finish(self) -> Result<(), CommandFailure> {
        let ConformReport { out, passed, failed, not_applicable, known, surprises, .. } = self;
        out.object(&TotalsObject { passed, failed, not_applicable, known, surprises })?;
        let mut line = format!("{passed} passed, {failed} failed, {not_applicable} not applicable");
        if known + surprises > 0 {
            line = format!("{line}; of the failures {known} are known, {surprises} known ones did not fail");
        }
        out.line(wrapped("", &line, columns()))?;
        if failed > known || surprises > 0 { Err(CommandFailure::Told) } else { Ok(()) }
    }
}
