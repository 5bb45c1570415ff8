//! Operations on files: OPEN, OPEN_DOWNGRADE, CLOSE, READ, WRITE, COMMIT, SEEK, ALLOCATE, DEALLOCATE, IO_ADVISE.

use stag_vfs::{Finished, FsError, Store};
use stag_wire::nfs4::Status4;
use stag_wire::nfs4::extended::{IoAdviseArguments, SeekArguments, SpaceArguments};
use stag_wire::nfs4::files::{CommitArguments4, ReadArguments4, WriteArguments4};
use stag_wire::nfs4::open::{CloseArguments4, OpenArguments4, OpenDowngradeArguments};

use super::{Cursor, Server, Step};

/// The rest of one of these operations, once a store is done with it.
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
    open(OpenArguments4<'_>);
    open_downgrade(OpenDowngradeArguments);
    close(CloseArguments4);
    read(ReadArguments4);
    write(WriteArguments4<'_>);
    commit(CommitArguments4);
    seek(SeekArguments);
    allocate(SpaceArguments);
    deallocate(SpaceArguments);
    io_advise(IoAdviseArguments<'_>);
}
