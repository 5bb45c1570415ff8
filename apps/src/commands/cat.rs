//! `stag cat`.

use clap::Args;
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::remote::Remote;
use stag_server::url::Url;

/// Writes a server's files to standard output
#[derive(Debug, Args)]
#[command(after_help = "--json makes no difference: it writes the same bytes.\n\n\
    Examples: stag cat shm://NAME/data/notes\n          stag cat shm://NAME/data/a.tar | tar t")]
pub struct Cat {
    /// Files: shm://NAME/EXPORT/PATH
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<Url>,
}

/// Octets fetched at once.
const WINDOW: usize = 4 << 20;

impl Cat {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let mut buffer = vec![0; WINDOW];
        let mut result = Ok(());
        for url in &self.urls {
            match cat(url, &mut buffer, out) {
                Err(failure @ CommandFailure::Run(_)) if self.urls.len() > 1 => {
                    out.complain(&failure);
                    result = Err(CommandFailure::Told);
                }
                done => done?,
            }
        }
        result
    }
}

fn cat(url: &Url, buffer: &mut [u8], out: &mut Output) -> Result<(), CommandFailure> {
    let mut remote = Remote::connect(url)?;
    let node = remote.find(&url.path).map_err(|error| error.at(url))?;
    let mut offset = 0;
    loop {
        let len = remote.read(&node.handle, offset, buffer).map_err(|error| error.at(url))?;
        out.bytes(&buffer[..len])?;
        offset += len as u64;
        if len < buffer.len() {
            return Ok(());
        }
    }
}
