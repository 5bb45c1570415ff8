//! Tests of `stagd` and `stag` as users run them. One program, because each takes long to link.

mod common;

mod admin;
mod bench;
mod command_line;
mod conform;
mod copy;
mod cores;
mod demo;
mod directories;
mod doctor;
mod dump;
mod explain;
mod files;
mod fragmented;
mod greedy;
mod logs;
mod memory;
mod other_servers;
mod package;
mod perf;
mod planning;
mod recordings;
mod replay;
mod restart;
mod server;
mod several_cores;
mod signals;
mod tcp;
mod verbs;
mod version4;
