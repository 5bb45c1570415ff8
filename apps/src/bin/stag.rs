//! The `stag` tool.
fn main() {}
