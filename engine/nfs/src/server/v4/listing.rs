//! READDIR: as many entries as the client's limits, and the room for results, hold.

use stag_vfs::{Blocked, EntryName, ListStart, Listed, Store, is_dots};
use stag_wire::nfs4::attributes::AttributeSet;
use stag_wire::nfs4::directory::{DirectoryWriter, EntryRefused, ReaddirArguments4};
use stag_wire::nfs4::{Status4, Verifier4};

use super::attributes::Needs;
use super::fattr::{self, numbered};
use super::pseudo::NodeIndex;
use super::{At, Cursor, Server, Step, Stop};
use crate::server::ResolvedHandle;

/// The most octets of one list.
const LIST_LEN_MAX: u32 = 1 << 20;
/// Octets of a list without entries.
const LIST_LEN_MIN: u32 = 16;

/// What is added to the cookies of stores: they have 1 and 2 as well, which clients keep for `.` and `..` (8881-18.23.3).
const COOKIE_SHIFT: u64 = 2;

pub(super) fn readdir<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &ReaddirArguments4<'_>,
) -> Step {
    let at = cursor.at()?;
    fattr::check_request(&arguments.request, cursor.minor)?;
    let cookie = arguments.cookie;
    if matches!(cookie, 1..=COOKIE_SHIFT) || cookie == 0 && arguments.verifier != Verifier4::default() {
        return Err(Status4::BadCookie.into());
    }
    match at {
        At::Pseudo(node) => list_node(server, cursor, node, arguments),
        At::Object(opened) => list_directory(server, cursor, &opened, arguments),
    }
}

/// Writes a list: `list` shows entries until `push` refuses one, and tells whether the last entry was shown.
fn write<S: Store + ?Sized>(
    server: &Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &ReaddirArguments4<'_>,
    verifier: Verifier4,
    list: impl FnOnce(&mut Entries<'_, '_, '_, '_, S>) -> Step<bool>,
) -> Step {
    let maxcount = arguments.maxcount.min(LIST_LEN_MAX);
    if maxcount < LIST_LEN_MIN {
        return Err(Status4::TooSmall.into());
    }
    // Else it is the room that is too small, not what the client takes.
    let is_room_enough = cursor.results.room() >= maxcount as usize;
    let Cursor { results, minor, .. } = cursor;
    results.append_within(maxcount as usize, |writer| {
        let directory = DirectoryWriter::begin_fields(writer, verifier, arguments.dircount, maxcount)?;
        let (request, minor) = (&arguments.request, *minor);
        let mut entries = Entries { server, directory, request, minor, failed: None };
        let is_over = list(&mut entries)?;
        let Entries { directory, failed, .. } = entries;
        if let Some(stop) = failed {
            return Err(stop);
        }
        if directory.is_empty() && !is_over {
            return Err(if is_room_enough { Status4::TooSmall.into() } else { Stop::TooBig });
        }
        Ok(directory.finish(is_over)?)
    })
}

/// A list that is written.
struct Entries<'e, 'r, 'w, 'b, S: Store + ?Sized> {
    server: &'e Server<'e, S>,
    directory: DirectoryWriter<'w, 'b>,
    request: &'r AttributeSet<'r>,
    minor: u32,
    /// Why there is no list at all.
    failed: Option<Stop>,
}

/// An entry of a list.
struct Shown<'s> {
    name: &'s [u8],
    cookie: u64,
    /// The number of the entry itself, whatever lies over it.
    fileid: u64,
}

impl<S: Store + ?Sized> Entries<'_, '_, '_, '_, S> {
    /// Appends an entry that leads to `at`, which was seen so. `false`: it does not fit.
    fn push(&mut self, shown: &Shown<'_>, at: &At, seen: &stag_vfs::ObjectStat, needs: &Needs) -> bool {
        let Entries { server, directory, request, minor, .. } = self;
        let pushed = server.describe(at, seen, needs, *minor, |object| {
            directory.push(shown.cookie, shown.name, |writer| fattr::encode(writer, request, object))
        });
        is_pushed(pushed)
    }

    /// Appends an entry whose attributes are not known, because of `error`. `false`: it does not fit, or the client wants no
    /// such entry: then there is no list (8881-18.23.3).
    fn push_error(&mut self, shown: &Shown<'_>, at: &At, needs: &Needs, error: Status4) -> bool {
        if !fattr::takes_errors(self.request) {
            self.failed = Some(error.into());
            return false;
        }
        let Entries { server, directory, request, minor, .. } = self;
        let seen = numbered(shown.fileid);
        let pushed = server.describe(at, &seen, needs, *minor, |object| {
            directory
                .push(shown.cookie, shown.name, |writer| fattr::encode_error(writer, request, object, error))
        });
        is_pushed(pushed)
    }

    /// Appends an entry that leads to another file system: to the export that begins at `node`, or is below it.
    fn push_junction(
        &mut self,
        shown: &Shown<'_>,
        cursor_caller: &super::CallContext<'_>,
        node: NodeIndex,
    ) -> Step<bool> {
        let server = self.server;
        let (request, here) = (&self.request.0, At::Pseudo(node));
        match server.enter(cursor_caller, node) {
            Ok(at) => {
                let seen = server.stat(&at)?;
                let needs = server.needs(&at, request)?;
                Ok(self.push(shown, &at, &seen, &needs))
            }
            // Another reactor has its files: clients hear all when they go there.
            Err(error) => {
                let needs = server.needs(&here, request)?;
                if request.is_empty() {
                    return Ok(self.push(shown, &here, &numbered(shown.fileid), &needs));
                }
                Ok(self.push_error(shown, &here, &needs, error))
            }
        }
    }
}

fn is_pushed(pushed: Result<(), EntryRefused>) -> bool {
    pushed.is_ok()
}

/// Lists a directory of the pseudo file system.
fn list_node<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    node: NodeIndex,
    arguments: &ReaddirArguments4<'_>,
) -> Step {
    let pseudo = &server.state.pseudo;
    let verifier = Verifier4 { 0: pseudo.stat(node).change.to_be_bytes() };
    if arguments.cookie != 0 && arguments.verifier != verifier {
        return Err(Status4::NotSame.into());
    }
    let caller = cursor.caller.clone();
    write(server, cursor, arguments, verifier, |entries| {
        for entry in pseudo.entries(&caller, node, arguments.cookie) {
            let fileid = pseudo.fileid(entry.node);
            let shown = Shown { name: entry.name, cookie: entry.cookie, fileid };
            if !entries.push_junction(&shown, &caller, entry.node)? {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

/// Cookies from here on are of entries that an export has only because other exports lie in it. They come last: no store's cookie is
/// one of these.
const INNER_COOKIES: u64 = (1 << 63) - (1 << 20);

/// What lies in a directory of an export because of other exports.
#[derive(Default)]
struct InnerEntries {
    /// Where an entry leads to another export.
    junctions: Vec<(Box<[u8]>, NodeIndex)>,
    /// What the directory has no entry for.
    added: Vec<(Box<[u8]>, NodeIndex)>,
}

impl<S: Store + ?Sized> Server<'_, S> {
    fn inner_entries(
        &self,
        cursor: &Cursor<'_>,
        opened: &ResolvedHandle,
        seen: &stag_vfs::ObjectStat,
    ) -> Step<InnerEntries> {
        let mut inner = InnerEntries::default();
        let Some(node) = self.node_at(opened)? else { return Ok(inner) };
        for entry in self.state.pseudo.entries(&cursor.caller, node, 0) {
            let at = EntryName { directory: seen, name: entry.name };
            let is_there = match self.exports.volume(opened).store().entry(at) {
                Ok(_) => true,
                Err(Blocked::Fails(_)) => false,
                Err(Blocked::Waits(ticket)) => return Err(Stop::Waits(opened.waits(ticket))),
            };
            let leads = (entry.name.into(), entry.node);
            if !is_there {
                inner.added.push(leads);
            } else if self.state.pseudo.export(entry.node).is_some() {
                inner.junctions.push(leads);
            }
        }
        Ok(inner)
    }
}

/// Lists a directory of an export.
fn list_directory<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    opened: &ResolvedHandle,
    arguments: &ReaddirArguments4<'_>,
) -> Step {
    let request = &arguments.request;
    let seen = server.stat(&At::Object(*opened))?;
    let volume = server.exports.volume(opened);
    let verifier = volume.list_verifier(&seen)?;
    if arguments.cookie != 0 && arguments.verifier.0 != verifier {
        return Err(Status4::NotSame.into());
    }
    let needs = server.needs(&At::Object(*opened), &request.0)?;
    let attributes = fattr::needs_stat(request, cursor.minor);
    let start = ListStart { cookie: arguments.cookie.saturating_sub(COOKIE_SHIFT), attributes };
    let caller = cursor.caller.clone();
    let (server, time) = (&*server, server.time);
    let inner = server.inner_entries(cursor, opened, &seen)?;
    let added = arguments.cookie.checked_sub(INNER_COOKIES);
    let added = added.and_then(|at| usize::try_from(at).ok()).filter(|at| *at < inner.added.len());
    write(server, cursor, arguments, Verifier4 { 0: verifier }, |entries| {
        if let Some(last) = added {
            return list_added(entries, &caller, &inner, last + 1);
        }
        let listed = volume.list(&opened.caller, &seen, start, verifier, time, &mut |entry| {
            if is_dots(entry.name) {
                return true;
            }
            let Listed { object, name, cookie, .. } = entry;
            let cookie = cookie.wrapping_add(COOKIE_SHIFT);
            let shown = Shown { name, cookie, fileid: object.fileid };
            if let Some((_, junction)) = inner.junctions.iter().find(|(other, _)| **other == *name) {
                return entries.push_junction(&shown, &caller, *junction).unwrap_or_else(|stop| {
                    entries.failed = Some(stop);
                    false
                });
            }
            let at = At::Object(ResolvedHandle { object, ..*opened });
            match entry.attributes {
                Some(seen) => entries.push(&shown, &at, &seen, &needs),
                None if attributes => entries.push_error(&shown, &at, &needs, Status4::Access),
                None => entries.push(&shown, &at, &numbered(object.fileid), &needs),
            }
        });
        Ok(opened.known(listed)? && list_added(entries, &caller, &inner, 0)?)
    })
}

/// Lists what a directory of an export has no entry for, from the entry number `first` on.
fn list_added<S: Store + ?Sized>(
    entries: &mut Entries<'_, '_, '_, '_, S>,
    caller: &super::CallContext<'_>,
    inner: &InnerEntries,
    first: usize,
) -> Step<bool> {
    for (number, (name, node)) in inner.added.iter().enumerate().skip(first) {
        let fileid = entries.server.state.pseudo.fileid(*node);
        let shown = Shown { name, cookie: INNER_COOKIES + number as u64, fileid };
        if !entries.push_junction(&shown, caller, *node)? {
            return Ok(false);
        }
    }
    Ok(true)
}
