//! Files of a server.

use std::ffi::OsString;

use stag_wire::nfs3::{Attributes, FileType, SetAttributes};

use super::error::RemoteError;

/// The server's name for a file.
pub type RemoteHandle = Vec<u8>;

/// A file of the server.
#[derive(Clone, Debug)]
pub struct RemoteNode {
    /// The server's name for it.
    pub handle: RemoteHandle,
    /// What it is.
    pub attributes: Attributes,
}

impl RemoteNode {
    /// Whether it is a folder.
    #[must_use]
    pub fn is_folder(&self) -> bool {
        self.attributes.file_type == FileType::Directory
    }
}

/// A file in a listing.
#[derive(Clone, Debug)]
pub struct RemoteEntry {
    /// Its name: a single one, neither `.` nor `..`, if `node` is a file.
    pub name: OsString,
    /// The file; or why the server tells nothing of it.
    pub node: Result<RemoteNode, RemoteError>,
}

/// Sets the mode alone.
pub(crate) fn with_mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}
