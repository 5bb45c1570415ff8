//! Attributes (fattr4): GETATTR, VERIFY, NVERIFY.

use stag_vfs::Store;
use stag_wire::nfs4::Status4;
use stag_wire::nfs4::attributes::AttributeList;
use stag_wire::nfs4::files::GetattrArguments4;

use super::{Cursor, Server, Step};

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
    getattr(GetattrArguments4<'_>);
    verify(AttributeList<'_>);
    nverify(AttributeList<'_>);
}
