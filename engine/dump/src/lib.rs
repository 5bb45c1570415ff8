//! What is in a capture: RPC-over-RDMA over iWARP and RoCEv2.
#![forbid(unsafe_code)]

pub mod capture;
pub mod packet;
