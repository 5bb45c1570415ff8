//! Calls between engines that speak version 2 of RPC-over-RDMA: with rtrext, and as the tests of version 1 have them.

#[path = "../reconnect/alive.rs"]
mod alive;
#[path = "../calls/answers.rs"]
mod answers;
#[path = "../reconnect/calls.rs"]
mod calls;
#[path = "../reconnect/death.rs"]
mod death;
#[path = "../calls/deferred.rs"]
mod deferred;
#[path = "../calls/endings.rs"]
mod endings;
#[allow(dead_code, reason = "each test target uses its part")]
#[path = "../hostile/ends.rs"]
mod ends;
mod hostile;
mod placement;
#[allow(dead_code, reason = "each test target uses its part")]
#[path = "../hostile/raw.rs"]
mod raw;
mod servers;
#[path = "../support/mod.rs"]
mod support;
mod told;
