//! One file for each command of `stag`: its flags and what it does.

pub mod admin;
pub mod bench;
pub mod cat;
pub mod cp;
pub mod df;
pub mod doctor;
pub mod dump;
pub mod explain;
pub mod fabrics;
pub mod generate;
pub mod get;
pub mod hugepages;
pub mod ls;
pub mod mkdir;
pub mod mv;
pub mod perf;
pub mod ping;
pub mod put;
pub mod rm;
pub mod stat;
pub mod top;
pub mod translate;
