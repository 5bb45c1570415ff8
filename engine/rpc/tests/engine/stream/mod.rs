//! RPC over TCP: whole servers, and clients that write octets.

mod call_back;
mod calls;
mod client;
mod datagrams;
mod duplicates;
mod hostile;
mod peer;
mod shares;
mod sweep;
