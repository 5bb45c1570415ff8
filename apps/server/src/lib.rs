//! `stagd` as a library, and what `stag` shares with it: flags, configuration, output, and a server's files. The engine is
//! elsewhere; so are the commands of `stag`, which no figure is made of and which are compiled without optimising.
//!
//! | module | subject |
//! |---|---|
//! | [`stagd`] | the server: options, plan, run, report |
//! | [`remote`] | a server's files, as the commands use them |
//! | [`copy`] | copies between this machine and servers |
//! | [`admin`] | the control socket of `stagd` |
//! | `programs` | the programs that an engine serves |
//! | [`arguments`] | clap, with every error on one line |
//! | [`failure`] | why a command fails, and its exit status |
//! | [`nearest`] | names that were probably meant |
//! | [`version`] | which build this is |
//! | [`wrapped`] | text on as many lines as a terminal needs |
//! | [`output`] | lines for people, objects for programs (`--json`) |
//! | [`logging`] | warnings on standard error (`STAG_LOG`) |
//! | [`limits`], [`descriptors`] | `ulimit -f`, met with an error; `ulimit -n`, raised |
//! | [`values`] | sizes and the like, as flags and configuration keys take them |
//! | [`url`] | `shm://NAME/path`: a fabric, a server, a file |
//! | [`flags`] | flags that only some fabrics use |
//! | [`locality`] | which cores suit an RDMA device |
//! | [`machine`] | the files that describe a machine |
//! | [`options`] | options of every connection to a server |
//! | [`attributes`] | prints a file's attributes |
//! | [`timings`], [`counters`] | measured times, and counters |
//! | [`seed`] | random seeds |
#![forbid(unsafe_code)]

pub mod admin;
pub mod arguments;
pub mod attributes;
pub mod copy;
pub mod counters;
pub mod descriptors;
pub mod failure;
pub mod flags;
pub mod limits;
pub mod locality;
pub mod logging;
pub mod machine;
pub mod nearest;
pub mod options;
pub mod output;
mod programs;
pub mod remote;
pub mod seed;
pub mod stagd;
pub mod timings;
pub mod url;
pub mod values;
pub mod version;
pub mod wrapped;
