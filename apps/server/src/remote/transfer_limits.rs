//! How much a server gives and takes at once.

use stag_wire::nfs3::FsinfoOk;

/// Octets of one READ or WRITE at most, however much a server takes.
const TRANSFER_LEN: usize = 1 << 20;

/// How much a server gives and takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Octets of one READ.
    pub(super) read: usize,
    /// Octets of one WRITE.
    pub(super) write: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { read: TRANSFER_LEN, write: TRANSFER_LEN }
    }
}

impl Limits {
    /// With those of one more export: the smaller ones count, for a handle does not tell its export.
    pub(super) fn with(self, info: FsinfoOk) -> Limits {
        // Whole pages where possible; a server that says 0 takes something all the same.
        let limit = |so_far: usize, max: u32| match max as usize {
            0 => so_far,
            max @ 1..PAGE_LEN => so_far.min(max),
            max => so_far.min(max / PAGE_LEN * PAGE_LEN),
        };
        Limits { read: limit(self.read, info.read_max), write: limit(self.write, info.write_max) }
    }
}

/// Octets of a page.
const PAGE_LEN: usize = 4096;
