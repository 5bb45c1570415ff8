//! How a check ends: what came, what came instead, or why the check does not apply.

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
