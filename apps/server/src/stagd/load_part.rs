//! What a server has to be large enough for, as `--plan` takes it.

use std::str::FromStr;

use crate::values::Size;

/// A part of what a server has to be large enough for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadPart {
    /// RDMA clients at once, and as many over TCP.
    Clients(u32),
    /// Octets of files in memory.
    Files(Size),
}

impl FromStr for LoadPart {
    type Err = String;

    fn from_str(text: &str) -> Result<LoadPart, String> {
        let part = match text.split_once('=') {
            Some(("clients", number)) => number.parse().ok().map(LoadPart::Clients),
            Some(("files", size)) => size.parse().ok().map(LoadPart::Files),
            _ => None,
        };
        part.ok_or_else(|| format!("{text:?} is no load; write clients=200 or files=500G"))
    }
}
