//! Pinning of measuring threads.

use stag_runtime::{CoreId, affinity};

/// Pins this thread, or leaves it where it is: the scenario was checked, and a core that is taken away in
/// between only makes the figures worse.
pub(crate) fn pin(core: usize) {
    let _ = affinity::pin(CoreId(core));
}
