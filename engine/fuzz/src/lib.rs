//! Fuzz targets: each a plain function of octets that panics when a promise is broken.
//!
//! `ci/fuzz.sh SECONDS [TARGET...]` runs them under libFuzzer: one program has all of them, and `STAG_FUZZ_TARGET` names the one
//! that it runs. `cargo test -p stag-fuzz` runs them over the kept corpus, `corpus/TARGET/`, with nothing but a Rust toolchain.
//!
//! To add a target: write the function, list it in [`TARGETS`], and put a few seeds into `corpus/TARGET/`. To keep a crash from
//! coming back, add its input there.
#![forbid(unsafe_code)]

mod dump;
mod iwarp;
mod nfs;
mod nfs4;
mod programs;
mod proto;
mod server4;
mod state;
mod stream;
mod version2;
mod version2_machines;
mod wire;

pub use dump::dump;
pub use iwarp::iwarp_receive;
pub use nfs::{mount3, nfs3_call, nfs3_reply};
pub use nfs4::{nfs4_attributes, nfs4_call, nfs4_callback, nfs4_reply};
pub use programs::{nfsacl, nlm4, nsm, rpcbind};
pub use proto::{requester, responder};
pub use server4::nfs4_server;
pub use state::nfs4_state;
pub use stream::record_marking;
pub use version2::{reliable_reply, rpcrdma2_message};
pub use version2_machines::{requester2, responder2};
pub use wire::{cm_private_data, rpc_header, rpcrdma_header, xdr_reader};

/// A target: it takes any octets, and returns.
pub type Target = fn(&[u8]);

/// All targets, by name.
pub const TARGETS: &[(&str, Target)] = &[
    ("rpcrdma_header", rpcrdma_header),
    ("rpcrdma2_message", rpcrdma2_message),
    ("reliable_reply", reliable_reply),
    ("rpc_header", rpc_header),
    ("cm_private_data", cm_private_data),
    ("xdr_reader", xdr_reader),
    ("nfs3_call", nfs3_call),
    ("nfs3_reply", nfs3_reply),
    ("nfs4_call", nfs4_call),
    ("nfs4_reply", nfs4_reply),
    ("nfs4_callback", nfs4_callback),
    ("nfs4_attributes", nfs4_attributes),
    ("nfs4_state", nfs4_state),
    ("nfs4_server", nfs4_server),
    ("mount3", mount3),
    ("rpcbind", rpcbind),
    ("nfsacl", nfsacl),
    ("nlm4", nlm4),
    ("nsm", nsm),
    ("requester", requester),
    ("responder", responder),
    ("requester2", requester2),
    ("responder2", responder2),
    ("record_marking", record_marking),
    ("dump", dump),
    ("iwarp_receive", iwarp_receive),
];
