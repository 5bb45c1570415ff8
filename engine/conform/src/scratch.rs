//! The scratch service: answers Calls that want content in a run as responder.
//!
//! It is an NFS server of the run's own, with one export in memory. Each Call is handed to it unchanged, over TCP, so it is
//! executed by the ordinary services. Calls come in and Replies go out here, without an engine.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use stag_wire::mount3;
use stag_wire::nfs3::{self, Procedure, ReadReply, ReadlinkReply};
use stag_wire::record::{MARK_LEN, Mark};
use stag_wire::rpc::{Accepted, ReplyBody, ReplyHeader};
use stag_wire::xdr::{Item, Reader};

use crate::message::take;

/// Starts the server, and returns its TCP address (`HOST:PORT`), or why there is none. The server runs until this is dropped.
pub type StartScratch = Box<dyn FnMut() -> Result<String, String>>;

/// How long it may take for one Call.
const PATIENCE: Duration = Duration::from_secs(20);

/// Octets of the longest Reply: 1 MiB of data, and what is around it.
const REPLY_LEN_MAX: usize = (1 << 20) + 4096;

/// The service, as it runs.
pub struct ScratchService {
    stream: TcpStream,
    /// Of the last Call: clients may have the same xids, and the service keeps Replies to Calls that come again.
    xid: u32,
}

impl ScratchService {
    /// Connects to the server at `address`.
    ///
    /// # Errors
    ///
    /// It cannot be reached.
    pub fn connect(address: &str) -> Result<ScratchService, String> {
        let connect = || {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(stream)
        };
        let stream = connect().map_err(|error: std::io::Error| format!("the scratch service: {error}"))?;
        Ok(ScratchService { stream, xid: 0 })
    }

    /// The Reply to a Call, whole. `None`: the service drops such a Call, or has ended.
    pub fn answer(&mut self, call: &[u8]) -> Option<Vec<u8>> {
        let (xid, rest) = call.split_first_chunk::<4>()?;
        self.xid = self.xid.wrapping_add(1);
        let mark = Mark::whole(u32::try_from(call.len()).ok()?).to_bytes();
        self.stream.write_all(&[&mark, &self.xid.to_be_bytes(), rest].concat()).ok()?;
        let mut reply: Vec<u8> = Vec::new();
        loop {
            let mut mark = [0; MARK_LEN];
            self.stream.read_exact(&mut mark).ok()?;
            let (mark, start) = (Mark::from_bytes(mark), reply.len());
            let end = start + mark.len as usize;
            if end > REPLY_LEN_MAX {
                return None;
            }
            reply.resize(end, 0);
            self.stream.read_exact(&mut reply[start..]).ok()?;
            if mark.is_last {
                reply.get_mut(..4)?.copy_from_slice(xid);
                return Some(reply);
            }
        }
    }
}

/// What Calls are answered with.
pub struct ScratchAnswers {
    start: StartScratch,
    /// Once a Call wanted it.
    service: Option<Result<ScratchService, String>>,
    /// The Call that it answered last: xid, the Call, and the Reply. A Call is executed once.
    pub(crate) last: Option<(u32, Vec<u8>, Vec<u8>)>,
}

impl ScratchAnswers {
    /// Those of the service that `start` starts, when the first Call wants content.
    #[must_use]
    pub fn new(start: StartScratch) -> ScratchAnswers {
        ScratchAnswers { start, service: None, last: None }
    }

    /// The connection is over: another Call may have the xid of the last.
    pub fn forget(&mut self) {
        self.last = None;
    }

    /// The Reply of the service. `None`: it has none to this Call.
    pub(crate) fn execute(&mut self, call: &[u8]) -> Option<Vec<u8>> {
        let mut words = call.get(8..)?;
        let (_, program, _, number) =
            (take(&mut words)?, take(&mut words)?, take(&mut words)?, take(&mut words)?);
        let is_served = [nfs3::PROGRAM, mount3::PROGRAM].contains(&program) && number != 0;
        if !is_served {
            return None;
        }
        let start = || (self.start)().and_then(|address| ScratchService::connect(&address));
        self.service.get_or_insert_with(start).as_mut().ok()?.answer(call)
    }
}

/// Where in a Reply the item is that may go by itself: displacement and octets. `call` is the Call's octets.
#[must_use]
pub fn eligible(call: &[u8], reply: &[u8]) -> Option<(usize, usize)> {
    let word = |index: usize| call.get(4 * index..4 * index + 4)?.try_into().ok().map(u32::from_be_bytes);
    if (word(3)?, word(4)?) != (nfs3::PROGRAM, nfs3::VERSION) {
        return None;
    }
    let mut reader = Reader::new(reply);
    let header = ReplyHeader::parse(&mut reader).ok()?;
    let ReplyBody::Accepted { outcome: Accepted::Success, .. } = header.body else { return None };
    let data: &[u8] = match Procedure::from_number(word(5)?)? {
        Procedure::Read => match reader.value::<ReadReply<'_>>().ok()?.ok()?.data.0 {
            Item::Inline(octets) => octets,
            Item::Reduced { .. } => return None,
        },
        Procedure::Readlink => match reader.value::<ReadlinkReply<'_>>().ok()?.ok()?.path.0 {
            Item::Inline(octets) => octets,
            Item::Reduced { .. } => return None,
        },
        _ => return None,
    };
    // It is the last of the results, but for its padding.
    let start = reply.len().checked_sub(data.len().next_multiple_of(4))?;
    Some((start, data.len()))
}
