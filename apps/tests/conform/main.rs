//! `stag conform`: our own server and client keep every rule that it checks, each check catches a peer that breaks its rule, and
//! its rules are complete against the numbers of `engine/spec`.

mod chunk_client;
mod clients;
#[allow(dead_code, reason = "each test program uses some of it")]
#[path = "../common/mod.rs"]
mod common;
mod coverage;
mod flaws;
mod proxy;
mod rules_table;
mod runs;
mod version2_proxy;
