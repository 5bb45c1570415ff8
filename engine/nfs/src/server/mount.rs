//! MOUNT version 3. It keeps no list of who mounted what: the list could not be trusted (clients come and go
//! without a word), and peers could make it grow. DUMP shows an empty one.

use std::time::Duration;

use stag_fabric::{LogLimiter, Withheld};
use stag_rpc::{Call, Home, Outcome, Procedure as Bound, Reply, Service, Token};
use stag_vfs::{Blocked, FsError, ObjectKind, ObjectStat, Timestamp};
use stag_wire::mount3::{
    self, Flavors, MntOk, MntReply, PATH_LEN_MAX, PathArguments, Procedure, Status, encode_export,
    encode_exports_end,
};
use stag_wire::nfs3::{Handle, Name};
use stag_wire::rpc::flavor;

use super::rerun::Again;
use super::waiting::{Pending, Program, Waiter, WaitsFor};
use super::{CallContext, ExportTable, SharedExports, decode};
use crate::binding;
use crate::export::Export;
use crate::handle::HANDLE_LEN;
use stag_vfs::Store;
use stag_vfs::UserIdentity;

/// Lines a second about clients that mount.
const LINES_MAX: u32 = 50;

/// Characters of a path that a line shows.
const PATH_SHOWN_MAX: usize = 256;

/// The lines of the log that say which client mounts what.
#[derive(Debug)]
pub(super) struct MountLog {
    limit: LogLimiter,
    /// When the pass began that last answered a Call.
    now: Duration,
}

impl Default for MountLog {
    fn default() -> MountLog {
        MountLog { limit: LogLimiter::new(LINES_MAX), now: Duration::ZERO }
    }
}

impl MountLog {
    pub(super) fn note_time(&mut self, now: Duration) {
        self.now = now;
    }
}

/// The service MOUNT version 3.
pub struct Mount<S: Store + ?Sized> {
    exports: SharedExports<S>,
}

static BOUND: [Bound; Procedure::COUNT] = {
    let mut bound = [Bound::plain(""); Procedure::COUNT];
    let mut index = 0;
    while index < bound.len() {
        bound[index] = Bound::plain(binding::MOUNT3[index].name);
        index += 1;
    }
    bound
};

/// The flavors that NFS takes, in wire order; the preferred one first.
const FLAVORS: &[[u8; 4]] = &[flavor::AUTH_SYS.to_be_bytes(), flavor::AUTH_NONE.to_be_bytes()];

impl<S: Store + ?Sized> Mount<S> {
    pub(super) fn new(exports: SharedExports<S>) -> Mount<S> {
        Mount { exports }
    }
}

impl<S: Store + ?Sized> Service for Mount<S> {
    fn program(&self) -> u32 {
        mount3::PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (mount3::VERSION, mount3::VERSION)
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<&'static Bound> {
        BOUND.get(usize::try_from(procedure).ok()?)
    }

    fn home(&self, call: &Call<'_>) -> Home {
        match Procedure::from_number(call.procedure) {
            Some(Procedure::Mnt) => self.exports.borrow().home_of_path(call),
            _ => Home::Here,
        }
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        let mut exports = self.exports.borrow_mut();
        let asker = CallContext::of(call);
        exports.mount_log.note_time(call.now());
        match Procedure::from_number(call.procedure) {
            Some(Procedure::Mnt) => return mnt(&mut exports, &asker, call, reply),
            Some(Procedure::Umnt) => {
                if decode::<PathArguments<'_>>(call, reply).is_some() {
                    reply.success(|_| Ok(()));
                }
            }
            Some(Procedure::Null | Procedure::Umntall) => reply.success(|_| Ok(())),
            Some(Procedure::Dump) => reply.success(|writer| mount3::encode_mounts(writer, [])),
            Some(Procedure::Export) => export(&exports, reply),
            // The engine calls only what `procedure` knows.
            None => reply.system_error(),
        }
        Outcome::Done
    }

    fn subject(&self, call: &Call<'_>) -> Option<String> {
        let path = call.arguments().value::<PathArguments<'_>>().ok()?.path;
        Some(String::from_utf8_lossy(path.0).into_owned())
    }

    fn stage(&self, token: Token) -> &'static str {
        self.exports.borrow().stage(token)
    }

    // What becomes readable meanwhile, and how long nothing happens, NFS says of the same stores.

    fn poll_later(&mut self, now: Duration) -> Option<Token> {
        // Nothing is changed here, so it does not matter what time of day it is.
        self.exports.borrow_mut().poll_later(Program::Mount, now, Timestamp::default)
    }

    fn finish(&mut self, token: Token, reply: &mut Reply<'_>) {
        self.exports.borrow_mut().finish(token, reply, &mut Vec::new());
    }

    fn abandoned(&mut self, token: Token) {
        self.exports.borrow_mut().abandon(token, &mut Vec::new());
    }
}

fn mnt<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    call: &Call<'_>,
    reply: &mut Reply<'_>,
) -> Outcome {
    let Some(arguments) = decode::<PathArguments<'_>>(call, reply) else { return Outcome::Done };
    match find(exports, asker, arguments.path.0) {
        Ok(found) => {
            log(exports, asker, arguments.path.0, &found);
            send(&found, reply);
        }
        Err(waits) => {
            let again = Again::of_mount(arguments.path.0, asker);
            return exports.keep(waits, Waiter::of(Program::Mount, call), Pending::Again(again));
        }
    }
    Outcome::Done
}

/// Says in the log which export the client mounts, if it may.
pub(super) fn log<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    path: &[u8],
    found: &Result<[u8; HANDLE_LEN], Status>,
) {
    if found.is_err() || !tracing::enabled!(tracing::Level::INFO) {
        return;
    }
    let (Some(peer), Ok((share, rest))) = (asker.peer, place(exports, asker, path)) else { return };
    let MountLog { limit, now } = &mut exports.mount_log;
    let Some(withheld) = limit.admit(*now).map(Withheld) else { return };
    let export = &exports.shares[share].export().path;
    let below = if rest.is_empty() { String::new() } else { format!(" at {}", shown(path)) };
    tracing::info!("client {peer} mounts {export}{below}{withheld}");
}

/// A path as a client sent it, on one line and of bounded length.
fn shown(path: &[u8]) -> String {
    let path = String::from_utf8_lossy(path);
    path.chars().take(PATH_SHOWN_MAX).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Answers MNT.
pub(super) fn send(found: &Result<[u8; HANDLE_LEN], Status>, reply: &mut Reply<'_>) {
    let results: MntReply<'_> = match found {
        Ok(handle) => Ok(MntOk { handle: Handle(handle), flavors: Flavors::new(FLAVORS) }),
        Err(status) => Err(*status),
    };
    reply.success(|writer| writer.value(&results));
    if let Err(status) = found {
        reply.refuses_caller();
        reply.failed_with(status.number());
    }
}

/// The handle of a directory at or below an export.
pub(super) fn find<S: Store + ?Sized>(
    exports: &ExportTable<S>,
    asker: &CallContext<'_>,
    path: &[u8],
) -> Result<Result<[u8; HANDLE_LEN], Status>, WaitsFor> {
    let (share, rest) = match place(exports, asker, path) {
        Ok(place) => place,
        Err(status) => return Ok(Err(status)),
    };
    let volume = exports.shares[share].volume();
    let fsid = volume.profile().fsid;
    let mut found = volume.store().check_place().and_then(|()| volume.stat(volume.profile().root));
    // As the superuser: what a user may do there, each of its Calls will be asked.
    for name in rest {
        found = found.and_then(|directory| volume.lookup(&UserIdentity::ROOT, &directory, name));
    }
    Ok(match found {
        Ok(ObjectStat { kind: ObjectKind::Directory, object, .. }) => Ok(exports.handles.seal(fsid, object)),
        Ok(_) => Err(Status::NotDir),
        Err(Blocked::Fails(error)) => Err(mount_status(error)),
        Err(Blocked::Waits(ticket)) => return Err(WaitsFor { share, ticket }),
    })
}

/// The place of the export that a path is at or below, and the names below that.
fn place<'p, S: Store + ?Sized>(
    exports: &ExportTable<S>,
    asker: &CallContext<'_>,
    path: &'p [u8],
) -> Result<(usize, Vec<&'p [u8]>), Status> {
    if path.len() > PATH_LEN_MAX as usize {
        return Err(Status::NameTooLong);
    }
    let (names, climbs) = names(path).ok_or(Status::NoEnt)?;
    // The longest export that the path is at or below.
    let below = exports
        .served()
        .map(|(place, share)| (place, share.export()))
        .filter_map(|(place, export)| Some((place, export, below(export, &names)?)));
    // Who climbs out of an export asks for what is not exported, whether or not it is there.
    let unknown = if climbs { Status::Acces } else { Status::NoEnt };
    let (share, export, rest) = below.max_by_key(|(_, export, _)| export.path.len()).ok_or(unknown)?;
    if !asker.is_allowed(export) {
        return Err(Status::Acces);
    }
    Ok((share, rest.to_vec()))
}

/// The names of a path, without those that lead nowhere: `//a/./b/../c` is `a`, `c`. And whether it has a `..`. `None`: it does
/// not begin at the top.
fn names(path: &[u8]) -> Option<(Vec<&[u8]>, bool)> {
    let (mut names, mut climbs) = (Vec::new(), false);
    for name in path.strip_prefix(b"/")?.split(|octet| *octet == b'/') {
        match name {
            b"" | b"." => {}
            b".." => {
                climbs = true;
                names.pop();
            }
            name => names.push(name),
        }
    }
    Some((names, climbs))
}

/// What of these names is below an export; `None` if they lead elsewhere.
fn below<'n, 'p>(export: &Export, names: &'n [&'p [u8]]) -> Option<&'n [&'p [u8]]> {
    let mut rest = names;
    for name in export.path.as_bytes().split(|octet| *octet == b'/').filter(|name| !name.is_empty()) {
        rest = rest.split_first().filter(|(first, _)| **first == name)?.1;
    }
    Some(rest)
}

/// How many octets the path of an export has that `path` is at or below; 0 if it is elsewhere.
pub(super) fn depth(export: &Export, path: &[u8]) -> usize {
    names(path).and_then(|(names, _)| below(export, &names).map(|_| export.path.len())).unwrap_or(0)
}

fn mount_status(error: FsError) -> Status {
    match error {
        FsError::NotFound | FsError::Stale => Status::NoEnt,
        FsError::NotDirectory => Status::NotDir,
        // It is not exported.
        FsError::AccessDenied | FsError::CrossDevice => Status::Acces,
        FsError::NameTooLong => Status::NameTooLong,
        FsError::Invalid => Status::Inval,
        FsError::Io => Status::Io,
        _ => Status::ServerFault,
    }
}

fn export<S: Store + ?Sized>(exports: &ExportTable<S>, reply: &mut Reply<'_>) {
    // Groups are text on the wire; made here, not per Call of importance.
    let all = exports.all();
    let groups: Vec<Vec<String>> = all
        .iter()
        .map(|export| export.clients.iter().map(|rule| rule.client.to_string()).collect())
        .collect();
    reply.success(|writer| {
        for (export, groups) in all.iter().zip(&groups) {
            let groups = groups.iter().map(|group| Name(group.as_bytes()));
            encode_export(writer, Name(export.path.as_bytes()), groups)?;
        }
        encode_exports_end(writer)
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_shown_on_one_line() {
        assert_eq!(shown(b"/a/b\n\x1b[31m\xff"), "/a/b??[31m\u{fffd}");
        assert_eq!(shown(&[b'n'; 1024]).len(), PATH_SHOWN_MAX);
    }

    #[test]
    fn paths_at_and_below_an_export() {
        for (path, mounted, expected) in [
            ("/data", "/data", Some("")),
            ("/data", "/data/x/y", Some("x y")),
            ("/data", "/data/", Some("")),
            ("/data", "/data/./x//y/.", Some("x y")),
            ("/data", "//data", Some("")),
            ("/data", "/./data", Some("")),
            ("/data", "data", None),
            ("/data", "", None),
            ("/data", "/data/../data", Some("")),
            ("/data", "/data/x/../y", Some("y")),
            ("/data", "/data/..", None),
            ("/data", "/../data", Some("")),
            ("/data", "/database", None),
            ("/data", "/", None),
            ("/srv/data", "/srv//data/x", Some("x")),
            ("/srv/data", "/srv", None),
            ("/", "/any", Some("any")),
            ("/", "/..", Some("")),
        ] {
            let export = Export::new(path);
            let found = names(mounted.as_bytes());
            let found = found.and_then(|(names, _)| Some(below(&export, &names)?.join(&b' ')));
            assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{mounted} below {path}");
        }
    }
}
