//! `stag conform`: our own server and client keep every rule that it checks, and each check catches a peer that breaks its rule.

mod chunk_client;
mod clients;
mod flaws;
mod proxy;
mod runs;
mod version2_proxy;
