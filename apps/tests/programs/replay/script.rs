//! A captured conversation as a script: each Call with its data, and the Reply that the Linux server gave.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use stag_dump::capture::CaptureReader;
use stag_dump::{Analyzer, CalledProcedure, ChunkKind, ChunkUse, ConnectionEnd, EventKind, Options};
use stag_wire::rpcrdma::{Header, MessageProcedure, Segment};

use super::peer::SetUp;

/// A Call and its Reply.
pub(crate) struct Exchange {
    pub(crate) frame: u64,
    pub(crate) connection: u64,
    pub(crate) target: CalledProcedure,
    /// The Call's message.
    pub(crate) call: Vec<u8>,
    pub(crate) chunks: Vec<ChunkUse>,
    /// The Reply's Payload stream.
    pub(crate) reply: Vec<u8>,
    /// Lengths of the Write chunks that it returns, and their octets.
    pub(crate) written: Vec<Vec<u8>>,
}

pub(crate) struct Script {
    /// The client's MPA Request.
    pub(crate) set_up: SetUp,
    /// The server's MPA Reply.
    pub(crate) reply: SetUp,
    pub(crate) exchanges: Vec<Exchange>,
}

impl Script {
    /// Reads a capture. The set-up is that of its first connection: they are all alike.
    pub(crate) fn read(path: &Path) -> Script {
        let mut capture = CaptureReader::new(BufReader::new(File::open(path).unwrap())).unwrap();
        let mut analyzer = Analyzer::new(Options { keep_data: true });
        let (mut set_up, mut reply) = (None, None);
        let mut exchanges = Vec::new();
        let mut sink = |event: &stag_dump::CapturedEvent<'_>| match &event.kind {
            EventKind::Setup(from, found) => {
                let option = |name| {
                    found.options.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
                };
                let told = if *from == ConnectionEnd::Client { &mut set_up } else { &mut reply };
                told.get_or_insert_with(|| SetUp {
                    crc: option("crc") == Some("yes"),
                    ird: option("ird").unwrap().parse().unwrap(),
                    ord: option("ord").unwrap().parse().unwrap(),
                    peer_to_peer: option("peer-to-peer").is_some(),
                    private_data: found.private_data.to_vec(),
                });
            }
            EventKind::Message(message) => {
                let (Some(answered), Ok((header, payload))) = (&message.answered, &message.header) else {
                    return;
                };
                let target = message.rpc.and_then(|rpc| rpc.target()).expect("a Reply to a known Call");
                let mut lengths = header.write_list().map(|chunk| chunk.total_len() as usize);
                let writes =
                    answered.chunks.iter().filter(|chunk| matches!(chunk.kind, ChunkKind::Write { .. }));
                exchanges.push(Exchange {
                    frame: answered.frame,
                    connection: event.connection,
                    target,
                    call: answered.octets.to_vec(),
                    chunks: answered.chunks.to_vec(),
                    reply: message.long_payload.unwrap_or(payload).to_vec(),
                    written: writes.map(|chunk| chunk.data[..lengths.next().unwrap_or(0)].to_vec()).collect(),
                });
            }
            _ => {}
        };
        while let Some(frame) = capture.next_frame().unwrap() {
            analyzer.frame(&frame, &mut sink);
        }
        analyzer.finish(&mut sink);
        exchanges.sort_by_key(|exchange| exchange.frame);
        Script { set_up: set_up.expect("an MPA Request"), reply: reply.expect("an MPA Reply"), exchanges }
    }
}

impl Exchange {
    /// The Call's Payload stream, without what went by Read chunks at other Positions.
    pub(crate) fn call_payload(&self) -> &[u8] {
        let (header, payload) = Header::parse(&self.call).unwrap();
        if header.procedure() == MessageProcedure::Msg {
            return payload;
        }
        let chunk = self.chunks.iter().find(|chunk| chunk.kind == ChunkKind::Read { position: 0 });
        &chunk.expect("a Position Zero Read chunk").data
    }
}

/// All segments of a header with what they are for: Position of a Read segment, or none.
pub(crate) fn segments(header: &Header<'_>) -> Vec<(Option<u32>, Segment)> {
    let reads = header.read_list().map(|entry| (Some(entry.position), entry.segment));
    let writes = header.write_list().flat_map(|chunk| chunk.segments().map(|segment| (None, segment)));
    let reply =
        header.reply_chunk().into_iter().flat_map(|chunk| chunk.segments().map(|segment| (None, segment)));
    reads.chain(writes).chain(reply).collect()
}
