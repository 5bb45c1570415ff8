//! The receive path of the iWARP provider, against arbitrary peers and any segmentation.
//!
//! The input is a script: one octet for the settings, then FPDUs. An FPDU is an octet that says how it is made, another
//! with the length of its ULPDU, and the ULPDU. So most inputs get past the framing, whose own errors are among the
//! ways to make one. What stands for a handle in the script is replaced by one that is exposed.

use std::collections::hash_map::RandomState;

use stag_fabric::iwarp::bare::{Bare, End};
use stag_fabric::{
    Completed, Exposed, Handle, QueuePairCapacity, ReadPart, ReadRequest, RemoteSegment, WorkError,
};
use stag_memory::{Arena, ArenaConfig, Budget, PageChoice, PageSize, Pool};
use stag_wire::mpa;

const CAPACITY: QueuePairCapacity =
    QueuePairCapacity { receives: 3, sends: 3, exposures: 3, send_len_max: 4096, receive_len_max: 4096 };
/// Octets of what is exposed, and of Reads.
const EXPOSED: usize = 24_000;

thread_local! {
    static POOL: Pool = {
        let budget = Budget::new(8 << 20);
        let page = PageChoice::Size(PageSize::Base);
        let config = ArenaConfig { name: "fuzz", len: 4 << 20, page, node: None, budget: &budget };
        let arena = Arena::new(&config).expect("4 MiB of base pages");
        Pool::runs(&arena, "fuzz", 4096, 1024).expect("it fits")
    };
}

/// One end of a stream, and the handles of what it exposes.
struct Target {
    bare: Bare,
    handles: [Handle; 2],
}

/// What can be seen of a stream: the completions, how it ended, what was sent, and the exposed memory.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    completions: Vec<(&'static str, Result<(), WorkError>, Vec<u8>)>,
    end: Result<(), End>,
    sent: usize,
}

impl Target {
    fn new(pool: &Pool, settings: u8, keys: &RandomState) -> Target {
        let mut bare = Bare::new(CAPACITY, settings & 1 != 0, 2, keys.clone());
        let buf = |len: usize, octet: u8| {
            let mut buf = pool.take_len(len).expect("the pool is large enough");
            buf.fill(octet);
            buf
        };
        for id in 0..3 {
            assert!(bare.post_receive(id, buf(4096, 1)));
        }
        let write = bare.expose(Exposed::Write(buf(EXPOSED, 2))).expect("there is room");
        let read = bare.expose(Exposed::Read(buf(EXPOSED, 3).share())).expect("there is room");
        let source = RemoteSegment { handle: Handle(7), offset: 7 };
        let parts = [ReadPart { at: 5, len: 20_000, source }, ReadPart { at: 21_000, len: 40, source }];
        assert!(bare.post_read(ReadRequest { id: 1, target: buf(EXPOSED, 4) }, &parts));
        Target { bare, handles: [write, read] }
    }

    /// The stream that the script means for this end.
    fn stream(&self, mut script: &[u8]) -> Vec<u8> {
        let mut stream = Vec::new();
        while let [how, len, rest @ ..] = script {
            let (ulpdu, rest) = rest.split_at(usize::from(*len).min(rest.len()));
            script = rest;
            let mut ulpdu = ulpdu.to_vec();
            if how & 1 != 0 {
                // A large payload, which goes straight to its place.
                ulpdu.resize(ulpdu.len() + 17_000 + usize::from(*how) * 16, *how);
            }
            // Handle 1 and 2: in the STag of a header, and in the source of a Read Request.
            for at in [2, 34] {
                if let Some(stag) = ulpdu.get_mut(at..at + 4)
                    && let [0, 0, 0, which @ 1..=2] = *stag
                {
                    stag.copy_from_slice(&self.handles[usize::from(which) - 1].0.to_be_bytes());
                }
            }
            let mut fpdu = vec![0; mpa::fpdu_len(ulpdu.len())];
            mpa::emit_fpdu(&ulpdu, Some(mpa::crc32c), &mut fpdu).expect("it fits");
            match how & 0xe0 {
                // Damaged; cut short.
                0xe0 => fpdu[usize::from(*how & 0x1f) % ulpdu.len().max(1)] ^= 0x10,
                0xc0 => fpdu.truncate(usize::from(*how & 0x1f)),
                _ => {}
            }
            stream.extend(fpdu);
        }
        stream
    }

    /// Takes the stream in pieces whose lengths `cut` gives.
    fn run(mut self, stream: &[u8], mut cut: impl FnMut() -> usize) -> Outcome {
        let mut rest = stream;
        let mut end = Ok(());
        let mut sent = self.bare.sent().len();
        while end.is_ok() && !rest.is_empty() {
            let (now, behind) = rest.split_at(cut().clamp(1, rest.len()));
            rest = behind;
            end = self.bare.take(now);
        }
        if end.is_ok() {
            sent += self.bare.sent().len();
        }
        self.bare.close();
        let mut completions = Vec::new();
        while let Some(completion) = self.bare.completion() {
            let content = |exposed: &Exposed| match exposed {
                Exposed::Read(shared) => shared.to_vec(),
                Exposed::Write(buf) => buf.to_vec(),
            };
            let (kind, octets) = match &completion.completed {
                Completed::Receive { buf, exposed, .. } => {
                    let exposed = exposed.as_ref().map(content).unwrap_or_default();
                    // What a Receive that did not complete holds is nobody's business.
                    let message = if completion.result.is_ok() { &buf[..] } else { &[] };
                    ("Receive", [message, &exposed].concat())
                }
                Completed::Send(buf) => ("Send", buf.to_vec()),
                Completed::Write(shared) => ("Write", shared.to_vec()),
                Completed::Read(buf) if completion.result.is_ok() => ("Read", buf.to_vec()),
                Completed::Read(_) => ("Read", Vec::new()),
                // Of an FPDU that turns out to be damaged, more or less may have been placed.
                Completed::Fence { exposed: Exposed::Write(_), .. } if end.is_err() => ("Fence", Vec::new()),
                Completed::Fence { exposed, .. } => ("Fence", content(exposed)),
            };
            completions.push((kind, completion.result, octets));
        }
        Outcome { completions, end, sent }
    }
}

/// A stream has the same outcome however it is cut; nothing is lost, and nothing outlives it.
pub fn iwarp_receive(data: &[u8]) {
    let Some((settings, script)) = data.split_first() else { return };
    POOL.with(|pool| {
        let keys = RandomState::new();
        let whole = {
            let target = Target::new(pool, *settings, &keys);
            let stream = target.stream(script);
            target.run(&stream, || usize::MAX)
        };
        assert!(whole.completions.iter().filter(|(kind, ..)| *kind == "Receive").count() == 3);
        assert!(whole.completions.iter().filter(|(kind, ..)| *kind == "Read").count() == 1);
        let mut seed = u32::from(*settings) | 1;
        let longest = [1, 3, 40, 9000][usize::from(settings >> 6)];
        let target = Target::new(pool, *settings, &keys);
        let stream = target.stream(script);
        // One octet at a time takes its time: of long streams it is done for the first.
        let len = stream.len();
        let cut = move || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            1 + (seed >> 16) as usize % longest.max(len / 4096)
        };
        let pieces = target.run(&stream, cut);
        assert_eq!(whole, pieces, "the same, however it is cut");
        assert_eq!(pool.outstanding(), 0, "all memory came back");
    });
}
