//! `stag df`.

use clap::Args;
use serde::Serialize;
use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::remote::Remote;
use stag_server::url::Url;
use stag_server::values::Size;
use stag_server::wrapped::{beside_or_below, columns};

/// Shows the space of exports
#[derive(Debug, Args)]
#[command(after_help = "Examples: stag df shm://NAME\n          stag df --json shm://NAME/data")]
pub struct Df {
    /// shm://NAME for all exports, or shm://NAME/EXPORT for one
    pub(crate) url: Url,
}

/// A line of `--json`.
#[derive(Serialize)]
struct Space {
    url: String,
    bytes_total: u64,
    bytes_free: u64,
    files_total: u64,
    files_free: u64,
}

impl Df {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let mut remote = Remote::connect(&self.url)?;
        let mut urls = vec![self.url.clone()];
        if let Some(exports) = remote.exports_at(&self.url)? {
            urls.clear();
            for export in exports {
                let path: Vec<_> =
                    export.split('/').filter(|name| !name.is_empty()).map(Into::into).collect();
                urls.push(Url { is_root: path.is_empty(), path, ..self.url.clone() });
            }
        }
        let (is_one, mut has_header, mut result) = (urls.len() == 1, false, Ok(()));
        for url in urls {
            let space = remote.find(&url.path).and_then(|node| remote.space(&node.handle));
            let space = match space.map_err(|error| error.at(&url)) {
                Err(failure) if is_one || remote.is_useless() => return Err(failure),
                Err(failure) => {
                    out.complain(&failure);
                    result = Err(CommandFailure::Told);
                    continue;
                }
                Ok(space) => space,
            };
            // Not above a complaint.
            if !std::mem::replace(&mut has_header, true) {
                out.line(format_args!("{:>10} {:>10} {:>10} {:>5}  export", "size", "used", "free", "use"))?;
            }
            let used = space.bytes_total.saturating_sub(space.bytes_free);
            let percent = 100.0 * used as f64 / space.bytes_total.max(1) as f64;
            let [total, used, free] =
                [space.bytes_total, used, space.bytes_free].map(|n| Size(n).to_string());
            let figures = format!("{total:>10} {used:>10} {free:>10} {percent:>4.0}%  ");
            out.line(beside_or_below(&figures, &url.to_string(), columns()))?;
            out.object(&Space {
                url: url.to_string(),
                bytes_total: space.bytes_total,
                bytes_free: space.bytes_free,
                files_total: space.files_total,
                files_free: space.files_free,
            })?;
        }
        result
    }
}
