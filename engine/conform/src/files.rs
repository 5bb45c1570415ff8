//! Files of a run on a scratch export, and the NFS Calls on them. Nothing else there is changed.

use stag_wire::nfs3::{PROGRAM, VERSION};
use stag_wire::rpc::{ReplyHeader, flavor};
use stag_wire::xdr::Reader;

use crate::message::Words;

/// Octets of the file: odd, and more than any threshold that checks agree on.
pub const FILE_LEN: usize = 20_001;

/// What the symbolic link says.
pub const LINK_TARGET: &[u8] = b"nowhere-in-particular";

/// The octets of the file.
#[must_use]
pub fn content() -> Vec<u8> {
    (0..FILE_LEN).map(|index| (index * 7 + index / 251) as u8).collect()
}

/// Files in a folder of this run's own, and the credential to use them with.
pub struct ScratchFiles {
    /// Handle of the folder.
    pub folder: Vec<u8>,
    /// Handle of a file that holds [`content`].
    pub file: Vec<u8>,
    /// Handle of a file that checks write into.
    pub target: Vec<u8>,
    /// Handle of a symbolic link to [`LINK_TARGET`].
    pub link: Vec<u8>,
    /// Body of the AUTH_SYS credential of every Call.
    pub credential: Vec<u8>,
}

/// Octets of a file's attributes.
const ATTRIBUTES_LEN: usize = 84;

impl ScratchFiles {
    /// The start of a Call of NFS version 3: the RPC header, with [`ScratchFiles::credential`].
    #[must_use]
    pub fn call(&self, xid: u32, number: u32) -> Words {
        Words::default()
            .words(&[xid, 0, 2, PROGRAM, VERSION, number, flavor::AUTH_SYS])
            .opaque(&self.credential)
            .words(&[0, 0])
    }
}

/// What a READ's results say, as far as the transport is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadResults {
    /// NFS status.
    pub status: u32,
    /// Octets read, by the count.
    pub count: u32,
    /// Octets of the data, by its own length word.
    pub length: u32,
    /// What stands behind the length word.
    pub inline: Vec<u8>,
}

impl ReadResults {
    /// Reads the results of a READ whose data may be elsewhere. `None`: they are not so.
    #[must_use]
    pub fn of(payload: &[u8]) -> Option<ReadResults> {
        let mut reader = Reader::new(payload);
        ReplyHeader::parse(&mut reader).ok()?;
        let status = reader.u32().ok()?;
        if reader.u32().ok()? != 0 {
            reader.opaque_fixed(ATTRIBUTES_LEN).ok()?;
        }
        if status != 0 {
            return Some(ReadResults { status, count: 0, length: 0, inline: reader.rest().to_vec() });
        }
        let (count, _, length) = (reader.u32().ok()?, reader.u32().ok()?, reader.u32().ok()?);
        Some(ReadResults { status, count, length, inline: reader.rest().to_vec() })
    }
}

/// The NFS status of any Reply. `None`: there are no results.
#[must_use]
pub fn status(payload: &[u8]) -> Option<u32> {
    let mut reader = Reader::new(payload);
    ReplyHeader::parse(&mut reader).ok()?.is_success().then(|| reader.u32().ok())?
}
