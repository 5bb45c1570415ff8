//! GETATTR, VERIFY and NVERIFY; and what attributes need to know of where an object is.

use stag_vfs::{ObjectStat, Store, StoreLimits, Usage};
use stag_wire::nfs4::attributes::{Attribute, AttributeList, ChangeAttributeType};
use stag_wire::nfs4::files::GetattrArguments4;
use stag_wire::nfs4::{Bitmap, Status4};

use super::fattr::{self, Described, FileSystemFacts};
use super::pseudo::PSEUDO_FSID;
use super::{At, Cursor, Server, Step};
use crate::handle::HANDLE_LEN;
use crate::server::ResolvedHandle;

/// The limits of the pseudo file system, in which nothing can be made.
const PSEUDO_LIMITS: StoreLimits =
    StoreLimits { file_len_max: i64::MAX as u64, links_max: u32::MAX, name_len_max: 255, path_len_max: 4095 };

/// The usage of the pseudo file system.
const PSEUDO_USAGE: Usage = Usage { bytes_total: 0, bytes_free: 0, files_total: 0, files_free: 0 };

/// What a request for attributes needs beside [`ObjectStat`]s.
pub(super) struct Needs {
    /// Space and objects of the file system, if they are asked for.
    usage: Option<Usage>,
    /// Whether handles are asked for.
    handles: bool,
    of: FileSystemFacts,
}

impl<S: Store + ?Sized> Server<'_, S> {
    /// What the file system of an object or node is.
    fn facts(&self, at: &At) -> FileSystemFacts {
        let lease_time = u32::try_from(self.state.config.clients.lease_term.as_secs()).unwrap_or(u32::MAX);
        match at {
            At::Object(opened) => {
                let profile = self.exports.volume(opened).profile();
                let changes = if profile.can.counts_changes {
                    ChangeAttributeType::MonotonicIncrement
                } else {
                    ChangeAttributeType::TimeMetadata
                };
                FileSystemFacts { fsid: profile.fsid, limits: profile.limits, changes, lease_time }
            }
            At::Pseudo(_) => FileSystemFacts {
                fsid: PSEUDO_FSID,
                limits: PSEUDO_LIMITS,
                changes: ChangeAttributeType::Undefined,
                lease_time,
            },
        }
    }

    /// What an object or node is.
    pub(super) fn stat(&self, at: &At) -> Step<ObjectStat> {
        match at {
            At::Object(opened) => opened.known(self.exports.stat(opened)),
            At::Pseudo(node) => Ok(self.state.pseudo.stat(*node)),
        }
    }

    /// What a request needs that is for objects of the file system of `at`.
    pub(super) fn needs(&self, at: &At, request: &Bitmap<'_>) -> Step<Needs> {
        let usage = match at {
            _ if !fattr::needs_usage(request) => None,
            At::Object(opened) => Some(opened.known(self.exports.volume(opened).store().usage())?),
            At::Pseudo(_) => Some(PSEUDO_USAGE),
        };
        let handles = request.contains(Attribute::FileHandle.number());
        Ok(Needs { usage, handles, of: self.facts(at) })
    }

    /// Hands `tell` an object or node as its attributes are told; `seen` is what it is.
    pub(super) fn describe<T>(
        &self,
        at: &At,
        seen: &ObjectStat,
        needs: &Needs,
        minor: u32,
        tell: impl FnOnce(&Described<'_>) -> T,
    ) -> T {
        let handle: [u8; HANDLE_LEN];
        let handle: &[u8] = if needs.handles {
            handle = self.handle(at);
            &handle
        } else {
            &[]
        };
        let covers = match at {
            At::Object(opened) if self.is_root(opened) => Some(self.mounted_on(opened)),
            _ => None,
        };
        tell(&Described { seen, handle, covers, of: &needs.of, usage: needs.usage.as_ref(), minor })
    }

    /// Whether it is the root of its export.
    pub(super) fn is_root(&self, opened: &ResolvedHandle) -> bool {
        self.exports.volume(opened).profile().root == opened.object
    }
}

pub(super) fn getattr<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &GetattrArguments4<'_>,
) -> Step {
    let Cursor { current, results, minor, .. } = cursor;
    let at = current.as_ref().ok_or(Status4::NoFilehandle)?.at()?;
    let request = &arguments.request;
    fattr::check_request(request, *minor)?;
    let seen = server.stat(at)?;
    let needs = server.needs(at, &request.0)?;
    server.describe(at, &seen, &needs, *minor, |object| {
        results.append(|writer| fattr::encode(writer, request, object))
    })?;
    Ok(())
}

/// Whether the current object has these attributes.
fn compare<S: Store + ?Sized>(
    server: &Server<'_, S>,
    cursor: &Cursor<'_>,
    wanted: &AttributeList<'_>,
) -> Step<bool> {
    let at = cursor.place()?.at()?;
    let seen = server.stat(at)?;
    let needs = server.needs(at, &wanted.mask)?;
    Ok(server.describe(at, &seen, &needs, cursor.minor, |object| fattr::compare(wanted, object))?)
}

pub(super) fn verify<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    wanted: &AttributeList<'_>,
) -> Step {
    if compare(server, cursor, wanted)? { Ok(()) } else { Err(Status4::NotSame.into()) }
}

pub(super) fn nverify<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    wanted: &AttributeList<'_>,
) -> Step {
    if compare(server, cursor, wanted)? { Err(Status4::Same.into()) } else { Ok(()) }
}
