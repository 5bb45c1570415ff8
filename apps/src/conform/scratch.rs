//! Starts the scratch service of a run as responder: a `stagd` of the run's own, with one export in memory.

use stag_conform::scratch::StartScratch;
use stag_server::values::Poll;

use crate::demo::server::{Server, ServerConfig};

/// The name of its export.
const EXPORT: &str = "scratch";

/// Memory of the service, files included.
const MEMORY: u64 = 96 << 20;

/// Starts it when it is asked to.
pub(super) fn start() -> StartScratch {
    let mut server = None;
    Box::new(move || {
        let config = ServerConfig {
            url: "tcp://127.0.0.1:0".to_owned(),
            export: format!("mem:/{EXPORT},root_squash=no"),
            memory: MEMORY,
            cores: Vec::new(),
            poll: Poll::Adaptive,
            state_dir: None,
        };
        let server = server.insert(Server::start(&config).map_err(|error| error.to_string())?);
        let address = server.ready["url"].as_str().and_then(|url| url.strip_prefix("tcp://"));
        Ok(address.ok_or("the scratch service does not say where it listens")?.to_owned())
    })
}
