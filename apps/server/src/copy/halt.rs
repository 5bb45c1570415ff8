//! Why work ends early, and what it leaves behind.

use std::io;
use std::path::Path;

use crate::failure::CommandFailure;
use crate::url::Place;

/// Why a part of the work ended early.
pub(super) enum Halt {
    /// It failed.
    Failed(CommandFailure),
    /// Another part failed, or a signal came.
    Stopped,
}

impl From<CommandFailure> for Halt {
    fn from(failure: CommandFailure) -> Halt {
        Halt::Failed(failure)
    }
}

/// What is left of incomplete files, behind the reason why they are so.
pub(super) fn remains(places: impl IntoIterator<Item = (Place, &'static str)>) -> String {
    places.into_iter().map(|(place, what)| format!("; {place} {what}")).collect()
}

/// The failure of a system call on a file of this machine.
pub(super) fn local(path: &Path, error: &io::Error) -> CommandFailure {
    CommandFailure::run(format_args!("{}: {error}", path.display()))
}
