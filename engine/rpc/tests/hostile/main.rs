//! Peers that do not keep to the rules, against a server's engine and a client's. Whatever they send: a protocol
//! answer or the end of that connection alone, and all memory back.

#[path = "../engine/support/mod.rs"]
mod support;

mod clients;
mod credits;
mod duplicates;
#[allow(dead_code, reason = "each test target uses its part")]
mod ends;
mod greedy;
mod long;
#[allow(dead_code, reason = "each test target uses its part")]
mod raw;
mod recorded;
mod servers;
mod shares;
