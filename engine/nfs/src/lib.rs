//! NFS version 3 and MOUNT over RPC-over-RDMA.
//!
//! - [`binding`]: the Upper-Layer Binding (RFC 8267): which items may go by chunk, how long a Reply can be.
//! - [`export`]: an export's files, clients and users, and its form on a command line.
//! - [`caller`]: who a Call is from; [`acl`]: access control lists; [`handle`]: file handles that cannot be forged.
//! - [`store`]: the interface between the server and the files; [`memory`]: files in pool memory;
//!   [`directory`]: a directory of the machine; [`stores`]: either.
//! - [`lock`]: locks on ranges of files; [`callout`]: Calls that the server makes to its clients; [`state`]:
//!   the hosts to notify after a restart.
//! - [`server`]: the services NFS and MOUNT; [`client`]: typed Calls that do not block.
//!
//! A READ hands out the stored pages themselves, by reference count; a WRITE replaces them by the very buffer
//! that its data was placed in. Neither copies what it need not, and neither is ever torn.
#![forbid(unsafe_code)]

pub mod acl;
pub mod binding;
pub mod caller;
pub mod callout;
pub mod client;
pub mod directory;
pub mod export;
pub mod handle;
pub mod lock;
pub mod memory;
mod name;
pub mod server;
pub mod state;
pub mod store;
pub mod stores;
