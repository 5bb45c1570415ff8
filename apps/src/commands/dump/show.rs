//! What the shapes of a capture have in common: text, and JSON.

use std::time::Duration;

use stag_dump::{CapturedEvent, Totals};

use stag_server::failure::CommandFailure;
use stag_server::output::Output;

/// Shows what an analyzer reports. Output that fails ends it: what is behind is not looked at any more.
pub(super) trait Show {
    /// Takes the time of the first frame.
    fn begin(&mut self, _time: Duration) {}
    /// Shows one event.
    fn event(&mut self, event: &CapturedEvent<'_>, out: &mut Output) -> Result<(), CommandFailure>;
    /// Shows what was counted.
    fn totals(&mut self, totals: &Totals, out: &mut Output) -> Result<(), CommandFailure>;
}
