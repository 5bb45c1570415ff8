//! NFS version 3 and MOUNT over RPC-over-RDMA.
//!
//! - [`binding`]: the Upper-Layer Binding (RFC 8267): which items may go by chunk, how long a Reply can be.
//! - [`export`]: an export's files, clients and users, and its form on a command line.
//! - [`handle`]: file handles that cannot be forged. The files are those of a [`stag_vfs::Store`].
//! - [`callout`]: Calls that the server makes to its clients; [`state`]:
//!   the hosts to notify after a restart; [`known_clients`]: the clients of version 4 that may reclaim after it.
//! - [`server`]: the services NFS and MOUNT; [`client`]: typed Calls that do not block.
//!
//! A store hands out the pages of a READ by reference count, and may keep the very buffer that the data of a WRITE was placed
//! in: neither is copied here.
#![forbid(unsafe_code)]

pub mod binding;
pub mod callout;
pub mod client;
pub mod export;
pub mod handle;
mod journal;
pub mod known_clients;
pub mod server;
pub mod state;
mod sync;
