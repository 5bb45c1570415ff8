//! Finds the process that already listens at the server's address.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::Path;

use stag_fabric::resolve;

use super::listen::Listen;
use crate::url::FabricName;

/// A warning for each place that is taken.
pub(super) fn taken(places: &[Listen]) -> Vec<String> {
    let is_taken = |place: &&Listen| match place {
        Listen::Fabric(url) if url.fabric == FabricName::Iwarp => is_in_use(&url.address),
        Listen::Fabric(url) if url.fabric == FabricName::Shm => socket_of_name(&url.address).is_some(),
        // Of a device's ports only the device knows.
        Listen::Fabric(_) => false,
        Listen::Tcp(address) => is_in_use(address),
    };
    let taken = places.iter().filter(is_taken);
    taken
        .map(|place| {
            let by = holder(place).map_or_else(String::new, |by| format!(" ({by})"));
            format!("{place} is in use{by}: a server cannot start there now")
        })
        .collect()
}

/// Whether no other program can listen at `HOST:PORT`. Whatever else may be wrong with it is not asked here.
fn is_in_use(address: &str) -> bool {
    let Ok(address) = resolve(address) else { return false };
    TcpListener::bind(address).is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
}

/// The process that listens at a place, if this one may know: `stagd, PID 77`.
pub(super) fn holder(place: &Listen) -> Option<String> {
    let inode = match place {
        Listen::Fabric(url) if !url.fabric.is_network() => socket_of_name(&url.address)?,
        Listen::Fabric(url) if url.fabric == FabricName::Iwarp => socket_of_port(&url.address)?,
        Listen::Fabric(_) => return None,
        Listen::Tcp(address) => socket_of_port(address)?,
    };
    let (pid, name) = process_with(&format!("socket:[{inode}]"))?;
    Some(format!("{name}, PID {pid}"))
}

/// The inode of the socket that listens for shm under this name.
fn socket_of_name(name: &str) -> Option<String> {
    let wanted = format!("@stag/shm/{name}");
    let sockets = fs::read_to_string("/proc/net/unix").ok()?;
    // Num RefCount Protocol Flags Type St Inode Path; a flag says that it listens.
    sockets.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let flags = u32::from_str_radix(words.get(3)?, 16).ok()?;
        let is_it = words.get(7) == Some(&wanted.as_str()) && flags & LISTENS != 0;
        is_it.then(|| words[6].to_owned())
    })
}

/// `__SO_ACCEPTCON` of the kernel.
const LISTENS: u32 = 0x1_0000;

/// TCP_LISTEN, as the kernel prints it.
const TCP_LISTEN: &str = "0A";

/// The inode of the socket that listens at a TCP port.
fn socket_of_port(address: &str) -> Option<String> {
    let port: u16 = address.rsplit_once(':')?.1.parse().ok()?;
    let port = format!(":{port:04X}");
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().find_map(|file| {
        let sockets = fs::read_to_string(file).ok()?;
        // sl local_address rem_address st queues timer retransmits uid timeout inode
        sockets.lines().skip(1).find_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let is_it = words.get(1)?.ends_with(&port) && *words.get(3)? == TCP_LISTEN;
            is_it.then(|| words.get(9).map(|inode| (*inode).to_owned()))?
        })
    })
}

/// The process that has an open descriptor of this kind.
fn process_with(link: &str) -> Option<(u32, String)> {
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // Those of other users are not shown.
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        let has_it = |path: &Path| fs::read_link(path).is_ok_and(|target| target == Path::new(link));
        if descriptors.flatten().any(|descriptor| has_it(&descriptor.path())) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some((pid, name.trim().to_owned()));
        }
    }
    None
}
