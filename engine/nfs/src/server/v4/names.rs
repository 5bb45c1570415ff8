//! Operations on names: LOOKUP, LOOKUPP, READDIR, CREATE, REMOVE, RENAME, LINK, READLINK, SETATTR, SECINFO.

use stag_vfs::{Finished, FsError, Store};
use stag_wire::nfs4::directory::ReaddirArguments4;
use stag_wire::nfs4::files::{CreateArguments4, RenameArguments4, SetattrArguments4};
use stag_wire::nfs4::{Name4, Status4};

use super::{Cursor, Server, Step};

/// The rest of one of these operations, once a store is done with its change.
pub(super) enum Resume {}

pub(super) fn resume<S: Store + ?Sized>(
    _: &mut Server<'_, S>,
    _: &mut Cursor<'_>,
    resume: Resume,
    _: Result<Finished, FsError>,
) -> Step {
    match resume {}
}

macro_rules! todo_operations {
    ($($name:ident($arguments:ty);)*) => {$(
        pub(super) fn $name<S: Store + ?Sized>(
            _: &mut Server<'_, S>,
            _: &mut Cursor<'_>,
            _: &$arguments,
        ) -> Step {
            Err(Status4::NotSupp.into())
        }
    )*};
}

todo_operations! {
    lookup(Name4<'_>);
    lookupp(());
    readdir(ReaddirArguments4<'_>);
    readlink(());
    create(CreateArguments4<'_>);
    remove(Name4<'_>);
    rename(RenameArguments4<'_>);
    link(Name4<'_>);
    setattr(SetattrArguments4<'_>);
    secinfo(Name4<'_>);
}
