//! Operations that look names up: LOOKUP, LOOKUPP, SECINFO; and READLINK.

use stag_vfs::{Blocked, FsError, LINK_SPACE, ObjectKind, ObjectStat, Store, is_dots};
use stag_wire::nfs4::{Name4, Status4};

use super::session::append_flavors;
use super::{At, Cursor, Server, Step};
use crate::server::ResolvedHandle;

/// The longest name that any store here has.
const NAME_LEN_MAX: usize = stag_vfs::NAME_LEN_MAX as usize;

/// Fails unless an entry can have this name (8881-14.5). UTF-8 is not asked for, as by other servers.
pub(super) fn check_name(name: &[u8]) -> Result<(), Status4> {
    if name.is_empty() {
        Err(Status4::Inval)
    } else if name.len() > NAME_LEN_MAX {
        Err(Status4::NameTooLong)
    } else if is_dots(name) || name.contains(&b'/') {
        Err(Status4::BadName)
    } else if name.contains(&0) {
        Err(Status4::BadChar)
    } else {
        Ok(())
    }
}

/// Fails unless it is a directory.
pub(super) fn check_directory(seen: &ObjectStat) -> Result<(), Status4> {
    if seen.kind == ObjectKind::Directory { Ok(()) } else { Err(Status4::NotDir) }
}

/// As [`check_directory`], for operations that tell symbolic links apart.
fn check_directory_or_symlink(seen: &ObjectStat) -> Result<(), Status4> {
    if seen.kind == ObjectKind::Symlink { Err(Status4::Symlink) } else { check_directory(seen) }
}

impl<S: Store + ?Sized> Server<'_, S> {
    /// Looks a name up in a directory, which was seen so, or in a node.
    fn enter_entry(
        &self,
        cursor: &Cursor<'_>,
        opened: &ResolvedHandle,
        seen: &ObjectStat,
        name: &[u8],
    ) -> Step<At> {
        if let Some(junction) = self.junction(opened, name)? {
            return Ok(self.enter(&cursor.caller, junction)?);
        }
        match self.exports.volume(opened).lookup(&opened.caller, seen, name) {
            // The way to an export that lies in this one, which has no such directory.
            Err(Blocked::Fails(FsError::NotFound)) => {
                let node = self.node_at(opened)?.ok_or(Status4::NoEnt)?;
                Ok(self.enter_named(&cursor.caller, node, name)?)
            }
            found => Ok(At::Object(ResolvedHandle { object: opened.known(found)?.object, ..*opened })),
        }
    }
}

pub(super) fn lookup<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    name: &Name4<'_>,
) -> Step {
    let at = cursor.at()?;
    let found = match at {
        At::Pseudo(node) => {
            check_name(name.0)?;
            server.enter_named(&cursor.caller, node, name.0)?
        }
        At::Object(opened) => {
            let seen = server.stat(&at)?;
            check_directory_or_symlink(&seen)?;
            check_name(name.0)?;
            server.enter_entry(cursor, &opened, &seen, name.0)?
        }
    };
    cursor.go(found);
    Ok(())
}

pub(super) fn lookupp<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    _: &(),
) -> Step {
    let at = cursor.at()?;
    let above = match at {
        At::Pseudo(node) => match server.state.pseudo.parent(node) {
            Some(above) => Some(server.enter(&cursor.caller, above)?),
            None => None,
        },
        At::Object(opened) => {
            let seen = server.stat(&at)?;
            check_directory_or_symlink(&seen)?;
            if !server.is_root(&opened) {
                let volume = server.exports.volume(&opened);
                let found = opened.known(volume.lookup(&opened.caller, &seen, b".."))?;
                cursor.go(At::Object(ResolvedHandle { object: found.object, ..opened }));
                return Ok(());
            }
            server.above_export(&cursor.caller, &opened)?
        }
    };
    // Nothing is above the root of all.
    cursor.go(above.ok_or(Status4::NoEnt)?);
    Ok(())
}

pub(super) fn secinfo<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    name: &Name4<'_>,
) -> Step {
    let at = cursor.at()?;
    match at {
        At::Pseudo(node) => {
            check_name(name.0)?;
            server.enter_named(&cursor.caller, node, name.0)?;
        }
        At::Object(opened) => {
            let seen = server.stat(&at)?;
            check_directory(&seen)?;
            check_name(name.0)?;
            server.enter_entry(cursor, &opened, &seen, name.0)?;
        }
    }
    append_flavors(cursor)
}

pub(super) fn readlink<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    _: &(),
) -> Step {
    let opened = cursor.object_or(Status4::Inval)?;
    let seen = server.stat(&At::Object(opened))?;
    let mut space = [0; LINK_SPACE];
    let volume = server.exports.volume(&opened);
    let path = opened.known(volume.read_link(&seen, &mut space, server.time))?;
    cursor.results.text(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8881 sections 14.5 and 15.1.7.
    #[test]
    fn names_that_no_entry_has() {
        for (name, expected) in [
            (&b"a"[..], Ok(())),
            (b"...", Ok(())),
            (&[b'n'; NAME_LEN_MAX], Ok(())),
            (b"\xff\xfe", Ok(())),
            (b"", Err(Status4::Inval)),
            (&[b'n'; NAME_LEN_MAX + 1], Err(Status4::NameTooLong)),
            (b".", Err(Status4::BadName)),
            (b"..", Err(Status4::BadName)),
            (b"a/b", Err(Status4::BadName)),
            (b"a\0", Err(Status4::BadChar)),
        ] {
            assert_eq!(check_name(name), expected, "{name:?}");
        }
    }
}
