//! Operations on the current and the saved handle: PUTFH, GETFH, SAVEFH, RESTOREFH; and ACCESS.

use stag_vfs::{ObjectKind, Store, access};
use stag_wire::nfs4::files::{AccessArguments4, AccessOk4};
use stag_wire::nfs4::{Handle4, Opaque, Status4};

use super::results::OPERATION_LEN;
use super::{At, Cursor, Place, Server, Step};
use crate::handle::HANDLE_LEN;

/// Octets of GETFH's results, number and status included.
pub(super) const GETFH_LEN: usize = OPERATION_LEN + 4 + HANDLE_LEN;

pub(super) fn putfh<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    handle: &Handle4<'_>,
) -> Step {
    match (server.open_handle(&cursor.caller, handle.0), handle.0.try_into()) {
        (Ok(at), _) => cursor.go(at),
        (Err(Status4::XDev), Ok(handle)) => {
            (cursor.current, cursor.current_state) = (Some(Place::Elsewhere(handle)), None);
        }
        (Err(status), _) => return Err(status.into()),
    }
    Ok(())
}

pub(super) fn getfh<S: Store + ?Sized>(server: &mut Server<'_, S>, cursor: &mut Cursor<'_>, _: &()) -> Step {
    let handle = match cursor.place()? {
        Place::Here(at) => server.handle(at),
        Place::Elsewhere(handle) => *handle,
    };
    let handle: Handle4<'_> = Opaque(&handle);
    cursor.results.value(&handle)?;
    Ok(())
}

pub(super) fn savefh<S: Store + ?Sized>(_: &mut Server<'_, S>, cursor: &mut Cursor<'_>, _: &()) -> Step {
    cursor.saved = Some(*cursor.place()?);
    cursor.saved_state = cursor.current_state;
    Ok(())
}

pub(super) fn restorefh<S: Store + ?Sized>(_: &mut Server<'_, S>, cursor: &mut Cursor<'_>, _: &()) -> Step {
    // Version 4.0 had NFS4ERR_RESTOREFH for that (8881-15.1.16.4).
    cursor.current = Some(cursor.saved.ok_or(Status4::NoFilehandle)?);
    cursor.current_state = cursor.saved_state;
    Ok(())
}

/// Accesses that say something of an object of this kind.
const fn meaningful(kind: ObjectKind) -> u32 {
    match kind {
        ObjectKind::Directory => {
            access::READ | access::LOOKUP | access::MODIFY | access::EXTEND | access::DELETE
        }
        _ => access::READ | access::MODIFY | access::EXTEND | access::EXECUTE,
    }
}

pub(super) fn access<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    arguments: &AccessArguments4,
) -> Step {
    const CHANGES: u32 = access::MODIFY | access::EXTEND | access::DELETE;
    let wanted = arguments.access;
    let (supported, granted) = match cursor.at()? {
        At::Pseudo(_) => {
            let supported = wanted & meaningful(ObjectKind::Directory);
            (supported, supported & !CHANGES)
        }
        At::Object(opened) => {
            let exports = &server.exports;
            let seen = opened.known(exports.stat(&opened))?;
            let supported = wanted & meaningful(seen.kind);
            let takes_no_changes = supported & CHANGES != 0 && exports.takes_no_changes(&opened);
            let asked = if takes_no_changes { supported & !CHANGES } else { supported };
            let granted = exports.volume(&opened).access(&opened.caller, &seen, asked);
            (supported, opened.known(granted)?)
        }
    };
    cursor.results.value(&AccessOk4 { supported, access: granted })?;
    Ok(())
}
