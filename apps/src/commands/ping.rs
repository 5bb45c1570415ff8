//! `stag ping`.

use clap::Args;

use crate::failure::Failure;
use crate::output::Output;
use crate::remote::Remote;
use crate::url::Url;

/// Times NULL Calls to a server
#[derive(Debug, Args)]
#[command(after_help = "Examples: stag ping shm://NAME\n          stag ping -c 100000 shm://NAME")]
pub struct Ping {
    /// Server: shm://NAME
    pub url: Url,
    /// Number of Calls
    #[arg(short = 'c', long, default_value_t = 10, value_name = "N")]
    pub count: u32,
}

impl Ping {
    /// Runs it.
    pub fn run(&self, _out: &mut Output) -> Result<(), Failure> {
        Remote::connect(&self.url).map(drop)
    }
}
