//! Calls between engines that speak version 2 of RPC-over-RDMA: with rtrext, and as the tests of version 1 have them.

#[path = "../engine/reconnect/alive.rs"]
mod alive;
#[path = "../engine/calls/answers.rs"]
mod answers;
mod both_ways;
#[path = "../engine/reconnect/calls.rs"]
mod calls;
#[path = "../engine/reconnect/death.rs"]
mod death;
#[path = "../engine/calls/deferred.rs"]
mod deferred;
#[path = "../engine/calls/endings.rs"]
mod endings;
#[allow(dead_code, reason = "each test target uses its part")]
#[path = "../hostile/ends.rs"]
mod ends;
mod hostile;
mod placement;
#[allow(dead_code, reason = "each test target uses its part")]
#[path = "../hostile/raw.rs"]
mod raw;
#[path = "../engine/calls/recorded.rs"]
mod recorded;
mod servers;
#[path = "../engine/support/mod.rs"]
mod support;
mod told;
