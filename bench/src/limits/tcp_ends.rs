//! What all limits of TCP are measured with: a connection, the length of messages, and their CRC.

use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use stag_fabric::iwarp::CongestionControl;

/// How long each of them is measured.
pub(super) const TIME: Duration = Duration::from_millis(150);

/// Length, untagged header, padding and CRC.
pub(super) const fn fpdu_len(message: usize) -> usize {
    (2 + 18 + message).next_multiple_of(4) + 4
}

/// The two ends of a connection over the loopback.
pub(super) fn connect(congestion: Option<CongestionControl>) -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").context("a TCP listener")?;
    if let Some(congestion) = congestion {
        set_congestion_control(&listener, congestion)?;
    }
    let one = TcpStream::connect(listener.local_addr()?).context("a TCP connection")?;
    let (other, _) = listener.accept()?;
    for end in [&one, &other] {
        if let Some(congestion) = congestion {
            set_congestion_control(end, congestion)?;
        }
        end.set_nodelay(true)?;
        end.set_nonblocking(true)?;
    }
    Ok((one, other))
}

fn set_congestion_control(socket: &impl AsRawFd, name: CongestionControl) -> Result<()> {
    let text = name.as_str();
    // SAFETY: the option's value is `text.len()` octets that live until the call returns; the socket is open.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            text.as_ptr().cast(),
            text.len() as libc::socklen_t,
        )
    };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(anyhow!(
        "congestion control {text}: {error}; net.ipv4.tcp_available_congestion_control lists those that there are"
    ))
}

pub(super) fn crc32c(octets: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, octets)
}
