//! Stag: a userspace, polled-mode RPC-over-RDMA engine. This is the crate an embedder depends on.
//!
//! Each module is one crate of the engine, whole.

pub use stag_fabric as fabric;
pub use stag_hugepages as hugepages;
pub use stag_memory as memory;
pub use stag_nfs as nfs;
pub use stag_proto as proto;
pub use stag_rpc as rpc;
pub use stag_runtime as runtime;
pub use stag_wire as wire;
