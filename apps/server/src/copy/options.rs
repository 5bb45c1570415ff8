//! The flags of a copy.

use clap::Args;

/// How `stag cp`, `get` and `put` copy.
#[derive(Clone, Copy, Debug, Args)]
pub struct CopyOptions {
    /// Copy folders with everything in them
    #[arg(short, long)]
    pub(super) recursive: bool,
    /// Keep modes with set-ID and sticky bits, owners, times and hard links
    #[arg(short, long)]
    pub(super) preserve: bool,
    /// The target is the copy's name, even if it is a folder
    #[arg(short = 'T', long)]
    pub(super) no_target_directory: bool,
    /// Files in flight at once, over one connection
    #[arg(short, long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(super) jobs: u16,
}
