//! How a check ends: it passes, it fails, or it does not apply, each with its explanation.

/// Why a check ends early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The peer broke the rule; the text says what it did.
    Fail(String),
    /// The check does not apply; the text says why.
    NotApplicable(String),
}

/// What a check that passed saw, or why it did not pass.
pub type CheckOutcome = Result<String, Stop>;

impl Stop {
    /// What the peer did wrong, or why the check does not apply.
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
