//! Values of flags and configuration keys, and how they are printed.
//!
//! Sizes and times are parsed here and not by a crate: the same few units are printed again, exactly where they are whole, so that
//! what `stagd` prints can be given back to it.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::str::FromStr;
use std::time::Duration;

use rustix::net::sockopt::set_tcp_congestion;
use serde::de::{Deserialize, Deserializer, Error as _};
use socket2::{Domain, Socket, Type};
use stag_fabric::ExposureKind;
use stag_fabric::shm::{Admit, BadAdmit};
use stag_memory::PageChoice;
use stag_rpc::{PlacementChoice, ProtocolChoice, ReplyMode};

/// A number of bytes: `4096`, `64K`, `512M`, `1G`, `1GiB`. Units are powers of 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let shift = match text[digits..].to_ascii_lowercase().as_str() {
            "" | "b" => Some(0),
            "k" | "kib" => Some(10),
            "m" | "mib" => Some(20),
            "g" | "gib" => Some(30),
            "t" | "tib" => Some(40),
            _ => None,
        };
        let number = text[..digits].parse::<u64>().ok();
        let bytes = number.zip(shift).and_then(|(number, shift)| number.checked_mul(1 << shift));
        bytes.map(Size).ok_or_else(|| format!("{text:?} is not a size; write 4096, 64K, 512M or 1G"))
    }
}

/// Exact where it is a whole number of a unit, else rounded to a tenth.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
            if self.0 >> shift != 0 {
                let exact = self.0.trailing_zeros() >= shift;
                let precision = usize::from(!exact);
                return write!(f, "{:.precision$} {unit}", self.0 as f64 / (1_u64 << shift) as f64);
            }
        }
        write!(f, "{} B", self.0)
    }
}

/// In a configuration file: a text as on the command line, or a number of bytes.
impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(
            untagged,
            expecting = "a size is a number of bytes, or a text such as \"64K\", \"512M\", \"1G\""
        )]
        enum Value {
            Number(u64),
            Text(String),
        }
        match Value::deserialize(deserializer)? {
            Value::Number(number) => Ok(Size(number)),
            Value::Text(text) => text.parse().map_err(D::Error::custom),
        }
    }
}

/// The pages that memory is put on: see [`PageChoice`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages(pub PageChoice);

impl FromStr for Pages {
    type Err = String;

    fn from_str(text: &str) -> Result<Pages, String> {
        text.parse().map(Pages).map_err(|error| format!("{text:?}: {error}"))
    }
}

impl<'de> Deserialize<'de> for Pages {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pages, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// A time that something may take: `800us`, `50ms`, `2s`, `5m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay(pub Duration);

impl FromStr for Delay {
    type Err = String;

    fn from_str(text: &str) -> Result<Delay, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let unit: Option<fn(u64) -> Duration> = match &text[digits..] {
            "m" => Some(|minutes| Duration::from_secs(minutes.saturating_mul(60))),
            "s" => Some(Duration::from_secs),
            "ms" => Some(Duration::from_millis),
            "us" => Some(Duration::from_micros),
            _ => None,
        };
        let number = text[..digits].parse::<u64>().ok();
        let delay = number.zip(unit).map(|(number, unit)| Delay(unit(number)));
        delay.ok_or_else(|| format!("{text:?} is not a time; write 800us, 50ms, 2s or 5m"))
    }
}

/// As it is written, in whole units.
impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, microseconds) = (self.0.as_secs(), self.0.subsec_micros());
        match (seconds, microseconds) {
            (1.., 0) if seconds.is_multiple_of(60) => write!(f, "{}m", seconds / 60),
            (1.., 0) => write!(f, "{seconds}s"),
            (_, microseconds) if microseconds.is_multiple_of(1000) => write!(f, "{}ms", self.0.as_millis()),
            _ => write!(f, "{}us", self.0.as_micros()),
        }
    }
}

impl<'de> Deserialize<'de> for Delay {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Delay, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// A congestion control algorithm of TCP, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CongestionControlName(pub stag_fabric::iwarp::CongestionControl);

impl FromStr for CongestionControlName {
    type Err = String;

    fn from_str(text: &str) -> Result<CongestionControlName, String> {
        let parsed = text.parse().map(CongestionControlName).map_err(|bad| format!("{text:?}: {bad}"))?;
        try_congestion_control(text)?;
        Ok(parsed)
    }
}

/// Lets the kernel say whether it has the algorithm, and whether this user may choose it: it may load a module for it.
fn try_congestion_control(name: &str) -> Result<(), String> {
    let list = |file: &str| {
        let text = fs::read_to_string(format!("/proc/sys/net/ipv4/{file}")).unwrap_or_default();
        text.split_whitespace().collect::<Vec<_>>().join(", ")
    };
    // A failure to make a socket is reported where one is needed.
    let Ok(socket) = Socket::new(Domain::IPV4, Type::STREAM, None) else { return Ok(()) };
    match set_tcp_congestion(&socket, name).map_err(|error| std::io::Error::from(error).kind()) {
        Ok(()) => Ok(()),
        Err(ErrorKind::NotFound) => {
            let known = list("tcp_available_congestion_control");
            Err(format!("{name:?}: this kernel has no such algorithm; it has: {known}"))
        }
        Err(ErrorKind::PermissionDenied) => {
            let allowed = list("tcp_allowed_congestion_control");
            Err(format!("{name:?}: it is for root; this user may choose: {allowed}"))
        }
        Err(_) => Ok(()),
    }
}

impl<'de> Deserialize<'de> for CongestionControlName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<CongestionControlName, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// Who is admitted over shm besides processes of the same user: see [`Admit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmAllow(pub Admit);

impl FromStr for ShmAllow {
    type Err = BadAdmit;

    fn from_str(text: &str) -> Result<ShmAllow, BadAdmit> {
        text.parse().map(ShmAllow)
    }
}

impl<'de> Deserialize<'de> for ShmAllow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ShmAllow, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// What a reactor does when it is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Poll {
    /// Polls on: the lowest latency, and a core that no other program can use.
    Busy,
    /// Polls for a moment, then sleeps until there is work.
    #[default]
    Adaptive,
}

impl fmt::Display for Poll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Poll::Busy => "busy",
            Poll::Adaptive => "adaptive",
        })
    }
}

/// Which versions of RPC-over-RDMA are spoken: see [`ProtocolChoice`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
pub enum Protocol {
    /// Version 1.
    #[default]
    #[value(name = "1")]
    #[serde(rename = "1")]
    One,
    /// Version 2 with every peer that speaks it.
    #[value(name = "2")]
    #[serde(rename = "2")]
    Two,
    /// Version 2 with a peer that announces it, too.
    #[serde(rename = "auto")]
    Auto,
}

impl From<Protocol> for ProtocolChoice {
    fn from(protocol: Protocol) -> ProtocolChoice {
        match protocol {
            Protocol::One => ProtocolChoice::One,
            Protocol::Two => ProtocolChoice::Two,
            Protocol::Auto => ProtocolChoice::Auto,
        }
    }
}

/// Where bulk data goes in version 2: see [`PlacementChoice`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataPlacement {
    /// Into the messages, if it fits.
    Send,
    /// By chunks.
    Rdma,
    /// Where it costs less over this fabric.
    #[default]
    Auto,
}

impl From<DataPlacement> for PlacementChoice {
    fn from(placement: DataPlacement) -> PlacementChoice {
        match placement {
            DataPlacement::Send => PlacementChoice::Send,
            DataPlacement::Rdma => PlacementChoice::Rdma,
            DataPlacement::Auto => PlacementChoice::Auto,
        }
    }
}

/// Who provides the memory of a long Reply: see [`ReplyMode`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ReplyMemory {
    /// The client, by a Reply chunk.
    Chunk,
    /// The server, which exposes it.
    Responder,
    /// As the engine likes, which knows the size.
    #[default]
    Auto,
}

impl From<ReplyMemory> for ReplyMode {
    fn from(memory: ReplyMemory) -> ReplyMode {
        match memory {
            ReplyMemory::Chunk => ReplyMode::Chunk,
            ReplyMemory::Responder => ReplyMode::Responder,
            ReplyMemory::Auto => ReplyMode::Auto,
        }
    }
}

/// Whether a feature is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// It is.
    #[value(alias = "true")]
    On,
    /// It is not.
    #[value(alias = "false")]
    Off,
}

/// How an RDMA device is to expose memory: see [`ExposureKind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exposure {
    /// By memory windows of type 2: a work request each way.
    Window,
    /// By a registration for each exposure: a system call each way.
    Registration,
    /// By nothing: peers may read and write all that is registered, for good.
    Standing,
}

impl From<Exposure> for ExposureKind {
    fn from(exposure: Exposure) -> ExposureKind {
        match exposure {
            Exposure::Window => ExposureKind::MemoryWindow,
            Exposure::Registration => ExposureKind::Registration,
            Exposure::Standing => ExposureKind::Standing,
        }
    }
}

/// A time for people, in the unit that suits it: `870 ns`, `12.3 µs`, `4.50 ms`, `1.20 s`.
#[derive(Clone, Copy, Debug)]
pub struct Time(pub Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanoseconds = self.0.as_nanos();
        let text = match nanoseconds {
            0..1_000 => format!("{nanoseconds} ns"),
            1_000..1_000_000 => format!("{:.1} µs", nanoseconds as f64 / 1e3),
            1_000_000..1_000_000_000 => format!("{:.2} ms", nanoseconds as f64 / 1e6),
            _ => format!("{:.2} s", self.0.as_secs_f64()),
        };
        f.pad(&text)
    }
}

/// A number with what it counts, in the singular or the plural: `1 file`, `2 files`.
#[must_use]
pub fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// Octets within a time, as a rate for people: `2 kB/s`, `1.3 GB/s`. Units are powers of 1000.
#[derive(Clone, Copy, Debug)]
pub struct Rate(pub u64, pub Duration);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.0 as f64 / self.1.as_secs_f64().max(1e-9);
        for (unit, size) in [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)] {
            if rate >= size {
                let precision = usize::from(rate < 10.0 * size);
                return write!(f, "{:.precision$} {unit}/s", rate / size);
            }
        }
        write!(f, "{rate:.0} B/s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_rates_are_shown() {
        assert_eq!(
            (count(0, "file"), count(1, "file"), count(2, "file")),
            ("0 files".into(), "1 file".into(), "2 files".into())
        );
        for (bytes, milliseconds, shown) in [
            (138, 67, "2.1 kB/s"),
            (0, 1, "0 B/s"),
            (5 << 30, 2000, "2.7 GB/s"),
            (90_000_000, 1000, "90 MB/s"),
        ] {
            assert_eq!(Rate(bytes, Duration::from_millis(milliseconds)).to_string(), shown);
        }
    }

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes, shown) in [
            ("0", 0, "0 B"),
            ("4096", 4096, "4 KiB"),
            ("1536", 1536, "1.5 KiB"),
            ("64K", 65536, "64 KiB"),
            ("512m", 512 << 20, "512 MiB"),
            ("1GiB", 1 << 30, "1 GiB"),
        ] {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.0, size.to_string().as_str()), (bytes, shown), "{text}");
        }
        for text in ["", "K", "12Q", "-1", "1.5G", "99999999999T", "18446744073709551616"] {
            assert!(text.parse::<Size>().unwrap_err().contains("is not a size"), "{text}");
        }
    }
}
