//! `ucx_perftest`, `fi_pingpong` and `iperf3`: run at both ends, pinned, and what they print read.

use std::env;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::super::peer_row::{MissingProgram, PeerRow, PeerSetup};

/// How long a server may take to listen, in looks of [`LOOK_TIME`].
const LOOKS: u32 = 100;
const LOOK_TIME: Duration = Duration::from_millis(50);

/// Longer than any measurement takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Transports of UCX, and their name.
pub(super) const SHARED_MEMORY: [&str; 2] = ["posix,self", "shm"];
pub(super) const TCP: [&str; 2] = ["tcp,self", "tcp"];

/// The path of a program, or the package that has it.
pub(super) fn find(program: &str, package: &str) -> Result<PathBuf, MissingProgram> {
    let path = env::var_os("PATH").unwrap_or_default();
    // Servers stand where only root looks.
    let places = env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/bin".into()]);
    places
        .map(|place| place.join(program))
        .find(|file| file.is_file())
        .ok_or_else(|| MissingProgram { program: program.to_owned(), package: package.to_owned() })
}

/// A process that is killed when this is dropped.
pub(super) struct Running(pub(super) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program on one core.
pub(super) fn pinned(core: usize, program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.arg("-c").arg(core.to_string()).arg(program);
    command.stdin(Stdio::null());
    command
}

/// A port that nothing listens at.
pub(super) fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    listener.map(|address| address.port()).map_err(|error| format!("no port is free: {error}"))
}

/// Waits until something listens at a port, without connecting: some servers serve their first client only.
pub(super) fn wait_for(port: u16, server: &mut Running) -> Result<(), String> {
    let wanted = format!(":{port:04X} ");
    for _ in 0..LOOKS {
        let listens = |path: &str| {
            let table = std::fs::read_to_string(path).unwrap_or_default();
            // sl local_address rem_address st ...; 0A is listening.
            table.lines().any(|line| {
                let mut words = line.split_ascii_whitespace();
                let local = words.nth(1).is_some_and(|local| format!("{local} ").contains(&wanted));
                local && words.nth(1) == Some("0A")
            })
        };
        if listens("/proc/net/tcp") || listens("/proc/net/tcp6") {
            return Ok(());
        }
        if let Ok(Some(status)) = server.0.try_wait() {
            return Err(format!("its server ended: {status}"));
        }
        thread::sleep(LOOK_TIME);
    }
    Err(format!("its server does not listen within {} s", (LOOK_TIME * LOOKS).as_secs()))
}

/// Runs a client to its end: what it printed.
fn output_of(mut client: Command) -> Result<String, String> {
    client.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = client.spawn().map_err(|error| format!("it does not start: {error}"))?;
    let mut waited = Duration::ZERO;
    // What they print fits the pipe.
    while child.try_wait().map_err(|error| error.to_string())?.is_none() {
        if waited > PATIENCE {
            drop(Running(child));
            return Err(format!("it does not end within {} s", PATIENCE.as_secs()));
        }
        thread::sleep(LOOK_TIME);
        waited += LOOK_TIME;
    }
    let Output { status, stdout, stderr } = child.wait_with_output().map_err(|error| error.to_string())?;
    if !status.success() {
        let last = String::from_utf8_lossy(&stderr).lines().last().unwrap_or("it said nothing").to_owned();
        return Err(format!("{status}: {last}"));
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

/// Runs a server and its client, each given what listens and what connects: what the client printed.
fn between(
    program: &Path,
    setup: &PeerSetup,
    adjust: impl Fn(&mut Command, u16, bool),
) -> Result<String, String> {
    let port = free_port()?;
    let [client_core, server_core] = setup.cores;
    let mut server = pinned(server_core, program);
    adjust(&mut server, port, true);
    server.stdout(Stdio::null()).stderr(Stdio::null());
    let server = server.spawn().map_err(|error| format!("its server does not start: {error}"))?;
    let mut server = Running(server);
    wait_for(port, &mut server)?;
    let mut client = pinned(client_core, program);
    adjust(&mut client, port, false);
    output_of(client)
}

/// What a program says of its version: the first line that has `name` in it.
pub(super) fn version(program: &Path, flag: &str, name: &str) -> Option<String> {
    let output = Command::new(program).arg(flag).stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.contains(name))?;
    Some(line.trim_start_matches('#').trim().to_owned())
}

/// The version of UCX. `ucx_perftest` itself does not tell: its `-v` is another form of its results.
fn ucx_version() -> Option<String> {
    let program = find("ucx_info", "ucx-utils").ok()?;
    version(&program, "-v", "Version").map(|line| format!("UCX {line}"))
}

fn row(who: String, differs: &str, found: Result<PeerRow, String>) -> PeerRow {
    let differs = differs.to_owned();
    match found {
        Ok(row) => PeerRow { who, differs, ..row },
        Err(error) => PeerRow { who, differs, error: Some(error), ..PeerRow::default() },
    }
}

/// What `ucx_perftest -f` says at its end.
#[derive(Clone, Copy, Debug, PartialEq)]
struct UcxResult {
    /// Half a round trip: the median, in microseconds.
    one_way_us: f64,
    /// Units of 2^20 octets a second.
    mebibytes_per_second: f64,
    messages_per_second: f64,
}

/// Reads the last line: iterations; latency as median, mean, overall; bandwidth and message rate as mean, overall. Without `-f` it begins
/// with "Final:".
fn ucx_result(text: &str) -> Result<UcxResult, String> {
    let line = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    let words = line.strip_prefix("Final:").unwrap_or(line).split_ascii_whitespace();
    let numbers: Option<Vec<f64>> = words.map(|word| word.parse().ok()).collect();
    match numbers.as_deref() {
        Some(&[_, one_way_us, _, _, _, mebibytes_per_second, _, messages_per_second]) => {
            Ok(UcxResult { one_way_us, mebibytes_per_second, messages_per_second })
        }
        _ => Err("its last line is not eight numbers".to_owned()),
    }
}

fn ucx(
    setup: &PeerSetup,
    transports: &str,
    test: &str,
    size: usize,
    count: usize,
) -> Result<UcxResult, String> {
    let program = find("ucx_perftest", "ucx-utils").map_err(|missing| missing.program)?;
    let text = between(&program, setup, |command, port, is_server| {
        command.env("UCX_TLS", transports).env("UCX_WARN_UNUSED_ENV_VARS", "n");
        if !is_server {
            command.arg("127.0.0.1");
        }
        command.args(["-t", test, "-f", "-p", &port.to_string()]);
        command.args(["-s", &size.to_string(), "-n", &count.to_string(), "-w", &(count / 10).to_string()]);
    })?;
    ucx_result(&text)
}

/// UCX's tagged messages of 64 octets, one at a time.
pub(super) fn ucx_round_trip(
    setup: &PeerSetup,
    [transports, name]: [&str; 2],
) -> Result<PeerRow, MissingProgram> {
    find("ucx_perftest", "ucx-utils")?;
    let found = ucx(setup, transports, "tag_lat", 64, 100_000).map(|found| PeerRow {
        version: ucx_version(),
        round_trip_ns: Some(2e3 * found.one_way_us),
        ..PeerRow::default()
    });
    let differs = "a tagged message of 64 octets there and one back: no RPC header, no credits, no Call to look up. It \
                   prints half a round trip, doubled here.";
    Ok(row(format!("UCX tag_lat, {name}"), differs, found))
}

/// UCX's tagged messages of 1 MiB, one way.
pub(super) fn ucx_data(setup: &PeerSetup, [transports, name]: [&str; 2]) -> Result<PeerRow, MissingProgram> {
    find("ucx_perftest", "ucx-utils")?;
    let found = ucx(setup, transports, "tag_bw", 1 << 20, 2_000).map(|found| PeerRow {
        version: ucx_version(),
        per_second: Some(found.messages_per_second),
        bytes_per_second: Some(found.mebibytes_per_second * f64::from(1 << 20)),
        ..PeerRow::default()
    });
    let differs = "messages one way into one buffer, with as many under way as it chooses; there are no requests and no \
                   look-ups.";
    Ok(row(format!("UCX tag_bw, {name}"), differs, found))
}

/// Microseconds of one transfer, half a round trip: the last column but one of `fi_pingpong`.
fn pingpong_one_way(text: &str) -> Result<f64, String> {
    let mut lines = text.lines().skip_while(|line| !line.contains("usec/xfer"));
    let heading = lines.next().unwrap_or_default();
    let column = heading.split_ascii_whitespace().position(|word| word == "usec/xfer");
    let value = column.zip(lines.find(|line| !line.trim().is_empty()));
    let value = value.and_then(|(column, line)| line.split_ascii_whitespace().nth(column)?.parse().ok());
    value.ok_or_else(|| "it printed no column usec/xfer".to_owned())
}

/// libfabric's ping-pong of 64 octets.
pub(super) fn fabric_round_trip(setup: &PeerSetup, provider: &str) -> Result<PeerRow, MissingProgram> {
    let program = find("fi_pingpong", "libfabric-bin")?;
    let found = between(&program, setup, |command, port, is_server| {
        let endpoint = if provider == "tcp" { "msg" } else { "rdm" };
        command.args(["-p", provider, "-e", endpoint, "-S", "64", "-I", "100000"]);
        if is_server {
            command.args(["-B", &port.to_string()]);
        } else {
            command.args(["-P", &port.to_string(), "127.0.0.1"]);
        }
    });
    let found = found.and_then(|text| pingpong_one_way(&text)).map(|one_way| PeerRow {
        version: find("fi_info", "libfabric-bin")
            .ok()
            .and_then(|info| version(&info, "--version", "libfabric")),
        round_trip_ns: Some(2e3 * one_way),
        ..PeerRow::default()
    });
    let differs = "a message of 64 octets there and one back, the mean and not the median. It prints half a round trip, \
                   doubled here.";
    Ok(row(format!("fi_pingpong, {provider}"), differs, found))
}

/// Octets a second that arrived, of `iperf3 --json`.
fn iperf_result(text: &str) -> Result<f64, String> {
    let found: Value = serde_json::from_str(text).map_err(|error| format!("its JSON: {error}"))?;
    let bits = found.pointer("/end/sum_received/bits_per_second").and_then(Value::as_f64);
    bits.map(|bits| bits / 8.0).ok_or_else(|| match found["error"].as_str() {
        Some(error) => error.to_owned(),
        None => "it printed no end/sum_received/bits_per_second".to_owned(),
    })
}

/// A stream of iperf3.
pub(super) fn iperf(setup: &PeerSetup) -> Result<PeerRow, MissingProgram> {
    let program = find("iperf3", "iperf3")?;
    let seconds = setup.duration.as_secs().max(1).to_string();
    let found = between(&program, setup, |command, port, is_server| {
        if is_server {
            command.args(["-s", "-1", "-B", "127.0.0.1"]);
        } else {
            command.args(["-c", "127.0.0.1", "-J", "-l", "1M", "-t", &seconds]);
        }
        command.args(["-p", &port.to_string()]);
    });
    let found = found.and_then(|text| iperf_result(&text)).map(|octets| PeerRow {
        version: version(&program, "--version", "iperf"),
        bytes_per_second: Some(octets),
        ..PeerRow::default()
    });
    let differs =
        "a stream one way without messages, requests and CRC; it sleeps in the kernel where stag polls.";
    Ok(row("iperf3".to_owned(), differs, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As UCX 1.13 prints it with `-f`.
    const UCX: &str = "\
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
|     Test     | # iterations | 50.0%ile | average | overall |  average |  overall |  average  |  overall  |
+--------------+--------------+----------+---------+---------+----------+----------+-----------+-----------+
                      100000      0.210     0.245     0.251      249.11     243.17     4081389     3984102
";

    /// As libfabric 1.17 prints it.
    const PINGPONG: &str = "\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
64      100k    =100k    12m         0.11s    117.11    0.55        1.83
";

    #[test]
    fn what_they_print_is_read() {
        let found = ucx_result(UCX).unwrap();
        let expected =
            UcxResult { one_way_us: 0.21, mebibytes_per_second: 243.17, messages_per_second: 3_984_102.0 };
        assert_eq!(found, expected);
        // Without `-f`.
        let last = UCX.lines().last().unwrap();
        assert_eq!(ucx_result(&format!("Final: {last}\n\n")).unwrap(), expected);
        assert_eq!(pingpong_one_way(PINGPONG), Ok(0.55));
        let iperf = r#"{"end": {"sum_received": {"bits_per_second": 8e9}}}"#;
        assert_eq!(iperf_result(iperf), Ok(1e9));
    }

    #[test]
    fn what_they_do_not_print_is_said() {
        assert!(ucx_result("Final: 1 2 3\n").unwrap_err().contains("eight numbers"));
        assert!(ucx_result("1 2 3 4 5 6 7 eight\n").is_err());
        assert!(ucx_result("").is_err());
        assert!(pingpong_one_way("bytes\n64\n").is_err());
        assert_eq!(iperf_result(r#"{"error": "unable to connect"}"#), Err("unable to connect".to_owned()));
        assert!(iperf_result("no json").is_err());
    }

    #[test]
    fn a_port_that_listens_is_seen_without_connecting() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let sleeper = || Running(Command::new("sleep").arg("60").spawn().unwrap());
        assert_eq!(wait_for(port, &mut sleeper()), Ok(()));
        let mut ended = Running(Command::new("true").spawn().unwrap());
        let free = free_port().unwrap();
        assert!(wait_for(free, &mut ended).unwrap_err().contains("its server ended"));
    }
}
