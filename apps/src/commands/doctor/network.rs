//! TCP settings that iWARP needs.

use stag_server::machine::Machine;
use stag_server::values::Size;
use stag_wire::rpcbind;
use stag_wire::rpcrdma::NFS_PORT;

use super::finding::{Diagnosis, State};

/// The port of NFS over TCP.
const NFS_TCP_PORT: u32 = 2049;

/// Connections that come at once, while a stagd is busy with others.
const BACKLOG: u32 = 1024;

/// What a fast network has on its way: 100 Gbit/s for a third of a millisecond.
const BUFFER_LEN: u64 = 4 << 20;

/// Whether the ports of NFS are free, and rpcbind is there.
pub(super) fn ports(machine: &Machine) -> Vec<Diagnosis> {
    let listening = listening(machine);
    let is_taken = |port: u32| listening.contains(&port);
    let who = |port: u32| format!("`sudo ss -ltnp 'sport = :{port}'`");
    let rdma_port = u32::from(NFS_PORT);
    let nfsd = machine.read("proc/fs/nfsd/portlist").unwrap_or_default();
    let mut findings = Vec::new();
    findings.push(if nfsd.lines().any(|line| line == format!("rdma {NFS_PORT}")) {
        let found = format!("{NFS_PORT} is taken over RDMA by the kernel's NFS server");
        Diagnosis::bad(
            State::Warning,
            found,
            "`sudo systemctl stop nfs-server`; or another port for stagd: --listen iwarp://0.0.0.0:PORT",
        )
    } else if is_taken(rdma_port) {
        let (state, by) = match machine.process("stagd") {
            Some(process) => (State::Note, format!("; a stagd runs, process {process}")),
            None => (State::Warning, String::new()),
        };
        let found = format!("{NFS_PORT} is taken, the port of NFS over RDMA{by}");
        let repair = format!(
            "{} shows by whom; or another port for stagd: --listen iwarp://0.0.0.0:PORT",
            who(rdma_port)
        );
        Diagnosis::bad(state, found, repair)
    } else {
        Diagnosis::ok(format!("{NFS_PORT} is free, the port of NFS over RDMA"))
    });
    findings.push(if is_taken(NFS_TCP_PORT) {
        let found = format!("{NFS_TCP_PORT} is taken, the port of NFS over TCP");
        Diagnosis::bad(
            State::Note,
            found,
            format!("{} shows by whom; stagd --listen tcp:// takes any port", who(NFS_TCP_PORT)),
        )
    } else {
        Diagnosis::ok(format!("{NFS_TCP_PORT} is free, the port of NFS over TCP"))
    });
    let port = rpcbind::PORT;
    findings.push(if is_taken(port.into()) || machine.has("run/rpcbind.sock") {
        Diagnosis::ok(format!("{port}: rpcbind is there, for stagd --rpcbind"))
    } else {
        let found = format!(
            "{port}: no rpcbind; without it stagd --rpcbind does not start, and clients need mountport="
        );
        Diagnosis::bad(
            State::Note,
            found,
            "`sudo systemctl start rpcbind` (Debian: `sudo apt install rpcbind`)",
        )
    });
    findings
}

/// The TCP ports that somebody listens on.
fn listening(machine: &Machine) -> Vec<u32> {
    /// TCP_LISTEN, as the kernel prints it.
    const LISTEN: &str = "0A";
    let tables = ["proc/net/tcp", "proc/net/tcp6"].map(|path| machine.read(path).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    let ports = lines.filter_map(|line| {
        // "0: 00000000:4E51 00000000:0000 0A …"
        let mut words = line.split_ascii_whitespace().skip(1);
        let (local, state) = (words.next()?, words.nth(1)?);
        let port = u32::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
        (state == LISTEN).then_some(port)
    });
    ports.collect()
}

/// The algorithm that new connections get.
pub(super) fn congestion_control(machine: &Machine) -> Vec<Diagnosis> {
    let name = machine.read("proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
    vec![match name.as_str() {
        "bbr" => {
            let found = "bbr, which paces even the loopback";
            let repair = "--congestion-control reno of stag and of stagd; or `sudo sysctl -w net.ipv4.tcp_congestion_control=cubic`";
            Diagnosis::bad(State::Note, found, repair)
        }
        "" => {
            Diagnosis::bad(State::Note, "not in /proc/sys/net/ipv4", "sysctl net.ipv4.tcp_congestion_control")
        }
        name => Diagnosis::ok(name),
    }]
}

/// How many connections may wait to be taken.
pub(super) fn backlog(machine: &Machine) -> Vec<Diagnosis> {
    let Some(limit) = machine.value::<u32>("proc/sys/net/core/somaxconn") else {
        return vec![Diagnosis::bad(State::Note, "not in /proc/sys/net/core", "sysctl net.core.somaxconn")];
    };
    let found = format!("{limit} connections may wait (net.core.somaxconn); a stagd asks for {BACKLOG}");
    vec![if limit >= BACKLOG {
        Diagnosis::ok(found)
    } else {
        Diagnosis::bad(State::Note, found, format!("sudo sysctl -w net.core.somaxconn={}", 4 * BACKLOG))
    }]
}

/// How large the kernel may make the buffers of a connection.
pub(super) fn buffers(machine: &Machine) -> Vec<Diagnosis> {
    let largest = |name: &str| -> Option<u64> {
        machine.read(&format!("proc/sys/net/ipv4/{name}"))?.split_ascii_whitespace().nth(2)?.parse().ok()
    };
    let each = ["tcp_wmem", "tcp_rmem"].map(|name| match largest(name) {
        Some(len) if len >= BUFFER_LEN => Diagnosis::ok(format!("{name} up to {}", Size(len))),
        Some(len) => {
            let found = format!("{name} up to {}; a fast network wants {}", Size(len), Size(BUFFER_LEN));
            let repair = format!("sudo sysctl -w net.ipv4.{name}='4096 131072 {}'", 4 * BUFFER_LEN);
            Diagnosis::bad(State::Note, found, repair)
        }
        None => {
            let found = format!("{name} is not in /proc/sys/net/ipv4");
            Diagnosis::bad(State::Note, found, format!("sysctl net.ipv4.{name}"))
        }
    });
    each.into()
}
