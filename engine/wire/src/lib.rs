//! Wire formats: bytes to values and back.
//!
//! Nothing here allocates, blocks, recurses on a peer's input, or can panic because of it. Views borrow the Receive buffer; one
//! check makes their accessors infallible. Emitters write into a buffer that the caller owns and say when it is too small.
//!
//! From the bottom up: [`xdr`] reads and writes the basic types (RFC 4506), [`rpc`] the headers of ONC RPC version 2 (RFC
//! 5531), [`record`] their marks on a byte stream, [`rpcrdma`] the transport header in front of them (RFC 8166), [`rpcrdma2`]
//! that of version 2 with its extensions, [`cm_private_data`] the private data of connection set-up (RFC 8797),
//! [`reliable_reply`] Stag's addition to it. The programs are [`nfs3`] and [`mount3`] (RFC 1813), [`nfs4`] (RFC 7530, 8881, 7862), and their companions [`nfsacl`],
//! [`nlm4`] and [`nsm`]; [`rpcbind`] tells where programs are (RFC 1833).
//!
//! iWARP, which carries RDMA over TCP, is three layers: [`mpa`] frames the stream (RFC 5044, RFC 6581), [`ddp`] says where
//! octets go (RFC 5041), [`rdmap`] what they are (RFC 5040). [`roce`] has the packets of RoCEv2, to read them in captures.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod cm_private_data;
pub mod ddp;
pub mod mount3;
pub mod mpa;
pub mod nfs3;
pub mod nfs4;
pub mod nfsacl;
pub mod nlm4;
pub mod nsm;
pub mod rdmap;
pub mod record;
pub mod reliable_reply;
pub mod roce;
pub mod rpc;
pub mod rpcbind;
pub mod rpcrdma;
pub mod rpcrdma2;
pub mod xdr;
