//! NFS over TCP: NULL Calls of version 4 by one client, to `stagd` and to NFS-Ganesha, whose NFS does no RDMA in Debian's build.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use stag_bench::null_over_tcp::{self, NullOverTcp};
use stag_server::values::Poll;

use super::super::peer_row::{MissingProgram, PeerRow, PeerSetup};
use super::tools::{Running, find, free_port, pinned, version, wait_for};
use crate::demo::server::{Server, ServerConfig};

/// What is compared.
pub(super) const SHAPE: &str = "NULL of NFS version 4, TCP";

/// Calls outstanding.
const DEPTHS: [usize; 2] = [1, 32];

/// Memory of `stagd`, which serves no data here.
const MEMORY: u64 = 128 << 20;

/// The rows of both servers.
pub(super) fn rows(setup: &PeerSetup) -> Vec<Result<PeerRow, MissingProgram>> {
    let mut rows = stagd(setup);
    rows.extend(ganesha(setup));
    rows
}

/// Rows of a server at `address`.
fn measured(who: &str, differs: &str, address: &str, setup: &PeerSetup) -> Vec<PeerRow> {
    let row = |depth| {
        let found = null_over_tcp::measure(address, setup.cores[0], depth, setup.duration);
        let row = PeerRow {
            who: format!("{who}, depth {depth}"),
            differs: differs.to_owned(),
            ..PeerRow::default()
        };
        match found {
            Ok(NullOverTcp { calls_per_second, latency }) => PeerRow {
                round_trip_ns: (!latency.is_empty()).then(|| latency.value_at_quantile(0.5) as f64),
                per_second: Some(calls_per_second),
                ..row
            },
            Err(error) => PeerRow { error: Some(format!("{error:#}")), ..row },
        }
    };
    DEPTHS.into_iter().map(row).collect()
}

fn failed(who: &str, error: String) -> Vec<Result<PeerRow, MissingProgram>> {
    vec![Ok(PeerRow { who: who.to_owned(), error: Some(error), ..PeerRow::default() })]
}

fn stagd(setup: &PeerSetup) -> Vec<Result<PeerRow, MissingProgram>> {
    let config = ServerConfig {
        url: "tcp://127.0.0.1:0".to_owned(),
        export: "mem:/data".to_owned(),
        memory: MEMORY,
        cores: vec![setup.cores[1]],
        poll: Poll::Busy,
        state_dir: None,
    };
    let server = match Server::start(&config) {
        Ok(server) => server,
        Err(error) => return failed("stagd", error.to_string()),
    };
    let address = server.ready["url"].as_str().and_then(|url| url.strip_prefix("tcp://")).unwrap_or_default();
    let version = Some(crate::version::VERSION.to_owned());
    let rows = measured("stagd", "", address, setup).into_iter();
    rows.map(|row| Ok(PeerRow { version: version.clone(), ..row })).collect()
}

fn ganesha(setup: &PeerSetup) -> Vec<Result<PeerRow, MissingProgram>> {
    const WHO: &str = "Ganesha";
    let program = match find("ganesha.nfsd", "nfs-ganesha nfs-ganesha-mem") {
        Ok(program) => program,
        Err(missing) => return vec![Err(missing)],
    };
    match start(&program, setup) {
        Ok((_server, _folder, port)) => {
            let differs = "the same client, which calls nothing but NULL. Ganesha's threads sleep and wake each other, \
                           all on the server's core; stagd polls.";
            let address = format!("127.0.0.1:{port}");
            let version = version(&program, "-v", "Release");
            let rows = measured(WHO, differs, &address, setup).into_iter();
            rows.map(|row| Ok(PeerRow { version: version.clone(), ..row })).collect()
        }
        Err(error) => failed(WHO, error),
    }
}

/// A folder that goes with the server.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts Ganesha on an export in memory, version 4 only: version 3 would want rpcbind.
fn start(program: &Path, setup: &PeerSetup) -> Result<(Running, Folder, u16), String> {
    let port = free_port()?;
    let folder = Folder(std::env::temp_dir().join(format!("stag-bench-ganesha-{}", std::process::id())));
    let fail = |error: std::io::Error| format!("{}: {error}", folder.0.display());
    fs::create_dir_all(&folder.0).map_err(fail)?;
    let file = |name: &str| folder.0.join(name);
    fs::write(file("ganesha.conf"), configuration(port)).map_err(fail)?;
    let mut command = pinned(setup.cores[1], program);
    command.arg("-F").arg("-f").arg(file("ganesha.conf"));
    command.arg("-L").arg(file("log")).arg("-p").arg(file("pid"));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Running(command.spawn().map_err(|error| format!("it does not start: {error}"))?);
    wait_for(port, &mut server).map_err(|problem| {
        let log = fs::read_to_string(file("log")).unwrap_or_default();
        format!("{problem}; its log ends with: {}", log.lines().last().unwrap_or("nothing"))
    })?;
    Ok((server, folder, port))
}

fn configuration(port: u16) -> String {
    format!(
        "NFS_CORE_PARAM {{ NFS_Port = {port}; Bind_addr = 127.0.0.1; Protocols = 4; Enable_NLM = false; \
         Enable_RQUOTA = false; }}\n\
         NFSv4 {{ Graceless = true; }}\n\
         EXPORT {{ Export_Id = 1; Path = /mem; Pseudo = /mem; Access_Type = RW; Protocols = 4; Transports = TCP; \
         SecType = sys; FSAL {{ Name = MEM; }} }}\n\
         LOG {{ Default_Log_Level = WARN; }}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_has_its_port_and_one_export() {
        let text = configuration(20_490);
        assert!(text.contains("NFS_Port = 20490;") && text.matches("EXPORT").count() == 1, "{text}");
        assert_eq!(text.matches('{').count(), text.matches('}').count(), "{text}");
    }
}
