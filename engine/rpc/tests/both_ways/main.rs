//! Calls both ways on one connection (RFC 8167), between whole engines and against peers that break the rules.

#[path = "../support/mod.rs"]
mod support;

#[allow(dead_code, reason = "each test target uses its part")]
#[path = "../hostile/raw.rs"]
mod raw;

mod ends;
mod hostile;
mod rules;
mod services;
mod storm;
