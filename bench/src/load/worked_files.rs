//! The folder and the files that a load on names works on.

/// What a client core works on.
pub(super) struct Names {
    /// Where its folder is: the folder above, and the name.
    pub(super) place: (Vec<u8>, String),
    pub(super) folder: Vec<u8>,
    pub(super) files: Vec<WorkedFile>,
    /// The file of the next Call.
    pub(super) next: usize,
    /// The file that each lane's Call is at.
    pub(super) at: Vec<usize>,
    /// Where each lane's listing goes on.
    pub(super) listings: Vec<(u64, [u8; 8])>,
    /// Entries that READDIRPLUS returned, and its Calls.
    pub(super) entries: u64,
    pub(super) listed: u64,
}

impl Names {
    /// Entries that READDIRPLUS returned, for each Call.
    pub(super) fn entries_per_call(&self) -> f64 {
        self.entries as f64 / self.listed.max(1) as f64
    }
}

/// One of them.
#[derive(Clone, Default)]
pub(super) struct WorkedFile {
    /// Its handle; empty while it is not there.
    pub(super) handle: Vec<u8>,
    /// Whether it has its second name.
    pub(super) is_renamed: bool,
    /// Whether it has its second mode.
    pub(super) is_open: bool,
    /// Whether a Call is at it.
    pub(super) is_busy: bool,
}
