//! Lists folders: by READDIRPLUS, or by READDIR and a LOOKUP of each name at a server that has no READDIRPLUS.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use stag_nfs::client::FinishedCall;
use stag_wire::nfs3::{
    Handle as WireHandle, PostOpAttributes, ReaddirArguments, ReaddirplusArguments, Status, VERIFIER_LEN,
};

use super::error::{RemoteError, answer};
use super::node::{RemoteEntry, RemoteHandle};
use super::session::Session;

/// Octets of a Reply that lists.
const LISTING_LEN: u32 = 64 << 10;

/// How far a folder was listed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Listing {
    cookie: u64,
    verifier: [u8; VERIFIER_LEN],
    /// Nothing is left.
    pub(crate) is_over: bool,
}

/// A name as the server lists it, with what it tells of the file.
struct Listed {
    name: OsString,
    handle: Option<RemoteHandle>,
    attributes: PostOpAttributes,
}

impl Session {
    /// The next part of a listing, without `.` and `..`, in the server's order. What was removed meanwhile is left out;
    /// what the server refuses to tell of another one is the failure of that entry alone.
    pub(crate) async fn list(
        &self,
        folder: &RemoteHandle,
        from: &mut Listing,
    ) -> Result<Vec<RemoteEntry>, RemoteError> {
        let (listed, next) = self.names(folder, *from).await?;
        let mut entries = Vec::new();
        for Listed { name, handle, attributes } in listed {
            if name == "." || name == ".." {
                continue;
            }
            let node = match (is_one_name(&name), handle) {
                // It may become a path of this machine: it must not lead anywhere else.
                (false, _) => Err(RemoteError::Broken("is listed, which is no file's name".to_owned())),
                (true, Some(handle)) => self.node(handle, attributes).await,
                (true, None) => self.child(folder, &name).await,
            };
            match node {
                Err(error) if error.is_gone() => {}
                // Without a connection there is no rest.
                Err(error) if self.is_useless() => return Err(error),
                node => entries.push(RemoteEntry { name, node }),
            }
        }
        *from = next;
        Ok(entries)
    }

    /// The next names of a folder.
    async fn names(
        &self,
        folder: &RemoteHandle,
        from: Listing,
    ) -> Result<(Vec<Listed>, Listing), RemoteError> {
        let (directory, cookie, verifier) = (WireHandle(folder), from.cookie, from.verifier);
        if !self.inner.borrow().lists_names_only {
            let (dircount, maxcount) = (LISTING_LEN, LISTING_LEN);
            let arguments = ReaddirplusArguments { directory, cookie, verifier, dircount, maxcount };
            match self.call(&arguments).await.and_then(|finished| listed_with_attributes(&finished, from)) {
                Err(RemoteError::Status(Status::NotSupp)) => self.inner.borrow_mut().lists_names_only = true,
                listed => return listed,
            }
        }
        let arguments = ReaddirArguments { directory, cookie, verifier, count: LISTING_LEN };
        let finished = self.call(&arguments).await?;
        let ok = answer(finished.reply::<ReaddirArguments<'_>>())?;
        let entries = ok.entries.into_iter().map(|entry| {
            let name = OsStr::from_bytes(entry.name.0).to_owned();
            (entry.cookie, Listed { name, handle: None, attributes: None })
        });
        advanced(entries, from, ok.verifier, ok.eof)
    }
}

/// What a READDIRPLUS found.
fn listed_with_attributes(
    finished: &FinishedCall,
    from: Listing,
) -> Result<(Vec<Listed>, Listing), RemoteError> {
    let ok = answer(finished.reply::<ReaddirplusArguments<'_>>())?;
    let entries = ok.entries.into_iter().map(|entry| {
        let name = OsStr::from_bytes(entry.name.0).to_owned();
        let handle = entry.handle.map(|handle| handle.0.to_vec());
        (entry.cookie, Listed { name, handle, attributes: entry.attributes })
    });
    advanced(entries, from, ok.verifier, ok.eof)
}

/// The names, and where the listing goes on behind them.
fn advanced(
    entries: impl Iterator<Item = (u64, Listed)>,
    from: Listing,
    verifier: [u8; VERIFIER_LEN],
    is_over: bool,
) -> Result<(Vec<Listed>, Listing), RemoteError> {
    let (mut listed, mut cookie) = (Vec::new(), from.cookie);
    for (next, entry) in entries {
        cookie = next;
        listed.push(entry);
    }
    if !is_over && cookie == from.cookie {
        return Err(RemoteError::Broken("the server's listing has no end".to_owned()));
    }
    Ok((listed, Listing { cookie, verifier, is_over }))
}

/// Whether a folder can have a file of this name.
fn is_one_name(name: &OsStr) -> bool {
    !name.is_empty() && !name.as_bytes().iter().any(|octet| matches!(octet, 0 | b'/'))
}
