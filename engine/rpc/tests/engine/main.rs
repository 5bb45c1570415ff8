//! Whole engines over a simulated fabric, and over sockets: one program, so that what they share is compiled once.
//!
//! Peers that break the rules are in `hostile`, and version 2 is in `version2`.

mod both_ways;
mod calls;
mod carried;
#[path = "../hostile/ends.rs"]
#[allow(dead_code, reason = "each test target uses its part")]
mod ends;
mod exposed;
#[path = "../hostile/raw.rs"]
#[allow(dead_code, reason = "each test target uses its part")]
mod raw;
mod reconnect;
mod security;
mod sim;
mod stream;
mod support;
