//! `stag dump`: shows the messages of a capture.

mod json;
mod show;
mod text;
mod version2;

use std::fs::File;
use std::io::{self, BufReader, Read};

use clap::Args;
use stag_dump::capture::CaptureReader;
use stag_dump::{Analyzer, IpProtocol, Options, Totals};

use stag_server::failure::CommandFailure;
use stag_server::output::Output;
use stag_server::values::count;

use self::show::Show;

/// Shows the RPC-over-RDMA in a capture, and the rules it breaks
#[derive(Debug, Args)]
#[command(
    after_help = "Reads pcap and pcapng; iWARP over TCP and RoCEv2. A line shows frame, seconds, connection and \
    direction of a message (> from the client, < from the server), then its header and what it carries; lines below, the operations of NFSv4. \
    RPC-over-RDMA 1 in both directions, with Replies that their Requester pulls; and 2 as of June 2016 with its \
    characteristics and transmissions. \
    A broken rule is named by its number in engine/spec behind a !. Status: 0, no rule is broken; 1, one is; 2, the \
    file cannot be read, or has no RPC-over-RDMA to check.\n\n\
    Examples: stag dump nfs.pcap\n          tcpdump -w - port 20049 | stag dump -\n          stag dump --json nfs.pcapng | jq .rpc"
)]
pub struct Dump {
    /// The capture; - is standard input
    #[arg(value_name = "FILE")]
    file: String,
    /// Only the totals
    #[arg(short, long)]
    quiet: bool,
    /// End with status 0 even if a rule is broken
    #[arg(long)]
    quiet_violations: bool,
    /// What is the default
    // Scripts have it.
    #[arg(long, hide = true, conflicts_with = "quiet_violations")]
    check: bool,
}

/// Octets read from the file at once.
const READ_LEN: usize = 256 << 10;

impl Dump {
    /// Runs it.
    pub fn run(&self, out: &mut Output) -> Result<(), CommandFailure> {
        let unreadable = |error: &dyn std::fmt::Display| CommandFailure::usage(error).of(&self.file);
        let input: Box<dyn Read> = match self.file.as_str() {
            "-" => Box::new(io::stdin().lock()),
            path => Box::new(File::open(path).map_err(|error| unreadable(&error))?),
        };
        let mut capture = CaptureReader::new(BufReader::with_capacity(READ_LEN, input))
            .map_err(|error| unreadable(&error))?;
        let mut show: Box<dyn Show> =
            if out.json() { Box::new(json::Json::default()) } else { Box::new(text::Text::default()) };
        let mut analyzer = Analyzer::new(Options::default());
        let mut shown = Ok(());
        // The frames up to there are shown, even if the file ends too early.
        let ended = loop {
            let frame = match capture.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break Ok(()),
                Err(error) => break Err(unreadable(&error)),
            };
            if frame.number == 1 {
                show.begin(frame.time);
            }
            analyzer.frame(&frame, &mut |event| {
                if shown.is_ok() && !self.quiet {
                    shown = show.event(event, out);
                }
            });
            shown.clone()?;
        };
        let totals = analyzer.finish(&mut |event| {
            if shown.is_ok() && !self.quiet {
                shown = show.event(event, out);
            }
        });
        shown?;
        show.totals(&totals, out)?;
        ended?;
        if totals.messages == 0 {
            return Err(CommandFailure::not_begun(nothing_to_check(&totals)).of(&self.file));
        }
        match totals.violation_count() {
            number if number > 0 && !self.quiet_violations => {
                Err(CommandFailure::run(count(number, "violation")).of(&self.file))
            }
            _ => Ok(()),
        }
    }
}

/// Says that a capture has no RPC-over-RDMA, what it has instead, and what to do.
fn nothing_to_check(totals: &Totals) -> String {
    let mut found: Vec<String> = Vec::new();
    for ((protocol, port), calls) in &totals.other_calls {
        let protocol = match protocol {
            IpProtocol::Tcp => "TCP",
            IpProtocol::Udp => "UDP",
        };
        found.push(format!("{} over {protocol} to port {port}", count(*calls, "RPC Call")));
    }
    if let Some(link) = totals.other_link {
        let frames = count(totals.frames_of_other_links, "frame");
        found.push(format!("{frames} of {}, which is not read", link_name(link)));
    }
    if totals.connections > 0 {
        found.push(format!("{} without a message of it", count(totals.connections, "RDMA connection")));
    }
    let mut text = format!("nothing to check: no RPC-over-RDMA in {}", count(totals.frames, "frame"));
    if !found.is_empty() {
        text = format!("{text}, but {}", found.join(", "));
    }
    format!(
        "{text}; mount with the option rdma, and capture TCP port 20049 for iWARP, UDP port 4791 for RoCE"
    )
}

/// The name of a link type of the LINKTYPE registry that a capture of RPC may have by mistake.
fn link_name(link: u16) -> String {
    let name = match link {
        105 => "IEEE802_11",
        127 => "IEEE802_11_RADIOTAP",
        189 => "USB_LINUX",
        220 => "USB_LINUX_MMAPPED",
        239 => "NFLOG",
        247 => "INFINIBAND",
        253 => "NETLINK",
        _ => return format!("link type {link}"),
    };
    format!("link type {name}")
}
