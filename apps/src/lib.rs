//! The commands of `stag`. The server, and what both programs share, is [`stag_server`]; the engine is elsewhere.
//!
//! | module | subject |
//! |---|---|
//! | [`tool`] | `stag`: the list of its commands |
//! | [`commands`] | one file for each command |
//! | [`demo`] | `stag demo` |
//! | [`conform`] | `stag conform` |
//! | [`exports_file`] | knfsd's `/etc/exports`, translated |
//! | [`repair`] | commands that repair, as this user has to type them |
//! | `time_left` | how long rounds still take |
//! | [`version`] | which build this is |
#![forbid(unsafe_code)]

pub mod commands;
pub mod conform;
pub mod demo;
pub mod exports_file;
pub mod repair;
mod time_left;
pub mod tool;
pub mod version;
