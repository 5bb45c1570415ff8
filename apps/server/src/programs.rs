//! The programs that an engine of these binaries serves.

use stag_nfs::server::ServicesWithLocks;
use stag_rpc::Observed;
use stag_vfs::Store;

/// All that `stagd` serves, with its Calls counted; or nothing: a client's. One type for both, because each is a copy of the engine's code for every
/// fabric, and those copies are most of what it takes to compile this crate.
pub(crate) type Programs = Option<Observed<ServicesWithLocks<dyn Store>>>;
