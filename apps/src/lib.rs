//! The parts of the binaries `stag` and `stagd`: flags, configuration and output. The engine is elsewhere.
//!
//! | module | subject |
//! |---|---|
//! | [`arguments`] | clap, with every error on one line |
//! | [`failure`] | why a command fails, and its exit status |
//! | [`nearest`] | names that were probably meant |
//! | [`version`] | which build this is |
//! | [`wrapped`] | text on as many lines as a terminal needs |
//! | [`output`] | lines for people, objects for programs (`--json`) |
//! | `time_left` | how long rounds still take |
//! | [`repair`] | commands that repair, as this user has to type them |
//! | [`logging`] | warnings on standard error (`STAG_LOG`) |
//! | [`limits`] | `ulimit -f`, met with an error |
//! | [`values`] | sizes and the like, as flags and configuration keys take them |
//! | [`url`] | `shm://NAME/path`: a fabric, a server, a file |
//! | [`flags`] | flags that only some fabrics use |
//! | [`locality`] | which cores suit an RDMA device |
//! | [`options`] | options of every connection to a server |
//! | [`tool`] | `stag`: the list of its commands |
//! | [`commands`] | one file for each command |
//! | [`attributes`] | prints a file's attributes |
//! | [`copy`] | copies between this machine and servers |
//! | `programs` | the programs that an engine serves |
//! | [`admin`] | the control socket of `stagd` |
//! | [`exports_file`] | knfsd's `/etc/exports`, translated |
//! | [`remote`] | a server's files, as the commands use them |
//! | [`timings`], [`counters`] | measured times, and counters |
//! | [`stagd`] | the server: options, plan, run, report |
//! | [`demo`] | `stag demo` |
//! | [`conform`] | `stag conform` |
#![forbid(unsafe_code)]

pub mod admin;
pub mod arguments;
pub mod attributes;
pub mod commands;
pub mod conform;
pub mod copy;
pub mod counters;
pub mod demo;
mod descriptors;
pub mod exports_file;
pub mod failure;
pub mod flags;
pub mod limits;
pub mod locality;
pub mod logging;
pub mod nearest;
pub mod options;
pub mod output;
mod programs;
pub mod remote;
pub mod repair;
pub mod seed;
pub mod stagd;
mod time_left;
pub mod timings;
pub mod tool;
pub mod url;
pub mod values;
pub mod version;
pub mod wrapped;
