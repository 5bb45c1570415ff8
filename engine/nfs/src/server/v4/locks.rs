//! Byte-range locks and state ids: LOCK, LOCKT, LOCKU, TEST_STATEID, FREE_STATEID.

use stag_vfs::Store;
use stag_wire::nfs4::lock::{LockArguments4, LocktArguments, LockuArguments};
use stag_wire::nfs4::session::TestStateidArguments;
use stag_wire::nfs4::{StateId, Status4};

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
    lock(LockArguments4<'_>);
    lockt(LocktArguments<'_>);
    locku(LockuArguments);
    test_stateid(TestStateidArguments<'_>);
    free_stateid(StateId);
}
