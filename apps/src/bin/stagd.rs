//! The `stagd` server.
fn main() {}
