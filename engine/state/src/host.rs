//! Who asks for locks and other state: hosts, their sites and owners, and what share of the room each may have.

use std::rc::Rc;

use stag_vfs::ObjectId;

use crate::range::Range;

/// Names a client: the server's start, and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// A file, whichever export it was reached by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileKey {
    /// The file system of this machine ([`StoreProfile::volume`](stag_vfs::StoreProfile::volume)), not that of an export.
    pub volume: u64,
    /// The file.
    pub object: ObjectId,
}

/// A client host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostId {
    /// Which.
    pub number: HostNumber,
    /// Where it is.
    pub site: HostSite,
}

impl HostId {
    /// The client of NFS version 4 that it is, if it is one.
    #[must_use]
    pub const fn client(&self) -> Option<ClientId> {
        match self.number {
            HostNumber::Client(client) => Some(client),
            HostNumber::Nlm(_) => None,
        }
    }
}

/// Names a host. Each protocol has names of its own, and all of them lock the same files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HostNumber {
    /// A host of NLM: a small number, given out by who knows the hosts.
    Nlm(u32),
    /// A client of NFS version 4.
    Client(ClientId),
}

/// Where hosts are, in a way that they cannot make up: an address. What the number means is the business of who knows the
/// hosts; it is the same for those that share limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HostSite(pub u128);

/// A process of a host, or a lock owner of a client of NFS version 4.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its host.
    pub host: HostId,
    /// What tells it apart from other processes; 0 for a lock owner of version 4.
    pub svid: u32,
    /// What tells it apart besides.
    pub handle: Box<[u8]>,
}

/// Whose lock, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRequest<'a> {
    /// The file.
    pub file: FileKey,
    /// The host that asks.
    pub host: HostId,
    /// The process of the host.
    pub svid: u32,
    /// The process of the host, again.
    pub handle: &'a [u8],
    /// Where.
    pub range: Range,
    /// Whether it is to exclude shared locks too.
    pub exclusive: bool,
}

impl LockRequest<'_> {
    pub(crate) fn is_by(&self, owner: &Owner) -> bool {
        self.host == owner.host && self.svid == owner.svid && *self.handle == *owner.handle
    }

    pub(crate) fn owner(&self) -> Rc<Owner> {
        Rc::new(Owner { host: self.host, svid: self.svid, handle: self.handle.into() })
    }
}

/// Whether an owner of `own` of `all` may have `growth` more: there is room, and as much is still free as it has afterwards.
pub const fn has_share(own: u64, all: u64, growth: u64, max: u64) -> bool {
    let free = max.saturating_sub(all);
    growth <= free && own + growth <= free
}
