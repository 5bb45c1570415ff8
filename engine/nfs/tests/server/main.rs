//! Clients and a server of version 3, over the simulated fabric. The same tests run in several settings, each a module with its constants.
#![expect(clippy::duplicate_mod, reason = "each setting has a copy of the tests, with its constants")]

mod carried;
mod late;
mod late_locks;
mod plain;
mod version2;
