//! RPC over TCP: whole servers, and clients that write octets.

#[path = "../support/mod.rs"]
mod support;

mod calls;
mod hostile;
mod peer;
