//! Calls both ways on one connection (RFC 8167), between whole engines and against peers that break the rules.

mod ends;
mod hostile;
mod rules;
mod services;
mod storm;
