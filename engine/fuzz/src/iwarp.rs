//! The receive path of the iWARP provider, against arbitrary peers and any segmentation.
//!
//! The input is a script: one octet for the settings, then steps. A step is an octet that says what happens and another, a
//! length or a choice. Most steps are FPDUs: the ULPDU follows, and the frame is made around it, so that most inputs get past
//! the framing, whose own errors are among the ways to make one. The others are actions of the user. A handle in the script is
//! replaced by one that is exposed; the STags of Responses are those of the Reads, 1, 2, 3.
//!
//! Each stream comes four times: whole; whole, with messages shown in place and left; in pieces; and in pieces, with messages
//! shown, of which some are taken and some answered.

use std::collections::hash_map::RandomState;

use stag_fabric::iwarp::bare::{Bare, End, crc32c};
use stag_fabric::{
    Completed, Exposed, Handle, PlainMessage, QueuePairCapacity, ReadPart, ReadRequest, RemoteSegment,
    ScatteredMessage, SendRequest, TakeShown, Taken, WholeMessage, WorkError, WriteRequest,
};
use stag_memory::{Arena, ArenaConfig, Budget, Buf, PageChoice, PageSize, Pool};
use stag_wire::mpa;

const CAPACITY: QueuePairCapacity = QueuePairCapacity {
    receives: 3,
    sends: 4,
    exposures: 3,
    send_len_max: 4096,
    receive_len_max: 4096,
    receive_targets: 0,
};
/// Octets of what is exposed, and of Reads: more than what is placed by the system call itself.
const EXPOSED: usize = 18_000;
/// Octets that a large payload has more than the script says, at least.
const LARGE: usize = 16_500;
/// Octets of a part of a Read that one FPDU with a large payload answers.
const LARGE_PART: u32 = LARGE as u32 + 16;
/// FPDUs with a large payload in a stream, at most: a script of nothing else would be megabytes.
const LARGE_MAX: usize = 4;
/// Pieces that a stream is cut into, about, at most: many more than an FPDU has stages.
const PIECES_MAX: usize = 256;

thread_local! {
    static POOL: Pool = {
        let budget = Budget::new(8 << 20);
        let page = PageChoice::Size(PageSize::Base);
        let config = ArenaConfig { name: "fuzz", len: 4 << 20, page, node: None, budget: &budget };
        let arena = Arena::new(&config).expect("4 MiB of base pages");
        Pool::runs(&arena, "fuzz", 4096, 1024).expect("it fits")
    };
}

/// What happens to a stream, in order.
enum Step {
    /// Octets come.
    Octets(Vec<u8>),
    /// The user does something: what, and with which length or handle.
    Act(u8, u8),
}

/// What the user does with messages that are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    /// None is.
    Never,
    /// All are left.
    Left,
    /// Some are taken, some answered with themselves, some left: their length decides.
    Taken,
}

/// Takes messages, or leaves them.
struct Taker<'a> {
    pool: &'a Pool,
    takes: bool,
    taken: &'a mut Vec<Vec<u8>>,
}

/// What is done with a message.
enum Choice {
    Leave,
    Take,
    Answer,
}

impl Taker<'_> {
    /// What is done with a message of `len` octets.
    fn choose(&self, len: usize) -> Choice {
        match len % 3 {
            _ if !self.takes => Choice::Leave,
            0 => Choice::Leave,
            1 => Choice::Answer,
            _ => Choice::Take,
        }
    }
}

impl TakeShown for Taker<'_> {
    fn take_plain(&mut self, message: PlainMessage<'_>) -> Taken {
        let PlainMessage { credits, stream, space, .. } = message;
        let result = match (self.choose(stream.len()), space) {
            (Choice::Leave, _) => return Taken::No,
            (Choice::Answer, Some(space)) => {
                space.fill(0xee);
                space[..stream.len()].copy_from_slice(stream);
                Taken::Answered { credits, len: stream.len() }
            }
            _ => Taken::Done,
        };
        let words = [1, credits, 0, 0, 0, 0].map(u32::to_be_bytes);
        self.taken.push([&stream[..4], words.as_flattened(), stream].concat());
        result
    }

    fn take_whole(&mut self, message: WholeMessage<'_>) -> Taken {
        let WholeMessage { octets, space, invalidated, exposed, memory, .. } = message;
        assert!(invalidated.is_some() || exposed.is_none(), "what was invalidated is named");
        let choice = self.choose(octets.len());
        if let Choice::Leave = choice {
            return Taken::No;
        }
        let ended = exposed.take().as_ref().map(content).unwrap_or_default();
        self.taken.push([octets, &ended].concat());
        let (Choice::Answer, Some(space)) = (choice, space) else { return Taken::Done };
        space.fill(0xee);
        space[..octets.len()].copy_from_slice(octets);
        // Its length and its last octet stand for what the answer is of.
        let (len, last) = (octets.len(), octets.last().copied().unwrap_or(0));
        if last & 1 != 0 {
            let target = RemoteSegment { handle: Handle(len as u32), offset: u64::from(last) };
            let data = buf(self.pool, 1 + usize::from(last) * 16, 11).share();
            // A second one may be refused; the first leaves before the answer.
            let was_written = memory.write(&data, target);
            assert!(!(was_written && memory.write(&data, target)), "one goes with the answer");
        }
        Taken::AnsweredWhole { len, invalidate: (last & 2 != 0).then_some(Handle(u32::from(last))) }
    }

    fn take_scattered(&mut self, _: ScatteredMessage<'_>) -> Taken {
        panic!("its Receives are not scattered")
    }
}

/// One end of a stream, and the handles of what it exposes.
struct Target<'a> {
    bare: Bare,
    crc: bool,
    pool: &'a Pool,
    handles: [Handle; 2],
    /// Reads that were posted.
    reads: usize,
    /// Receives that were posted.
    receives: usize,
    /// What was fenced.
    fenced: Vec<Vec<u8>>,
    sent: usize,
    /// Messages that were taken, header included, each with what it invalidated.
    taken: Vec<Vec<u8>>,
}

/// What can be seen of a stream: the completions, how it ended, what was sent, and the exposed memory.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    completions: Vec<(&'static str, Result<(), WorkError>, Vec<u8>)>,
    fenced: Vec<Vec<u8>>,
    end: Result<(), End>,
    sent: usize,
    reads: usize,
    receives: usize,
    taken: Vec<Vec<u8>>,
}

fn buf(pool: &Pool, len: usize, octet: u8) -> Buf {
    let mut buf = pool.take_len(len).expect("the pool is large enough");
    buf.fill(octet);
    buf
}

fn content(exposed: &Exposed) -> Vec<u8> {
    match exposed {
        Exposed::Read(shared) => shared.to_vec(),
        Exposed::Write(buf) => buf.to_vec(),
    }
}

/// The steps that the script means for the end that exposes `handles`.
fn steps(handles: [Handle; 2], mut script: &[u8]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut stream = Vec::new();
    let mut large = 0;
    while let [how, len, rest @ ..] = script {
        if how & 0xe0 == 0xa0 {
            steps.push(Step::Octets(std::mem::take(&mut stream)));
            steps.push(Step::Act(how & 0x1f, *len));
            script = rest;
            continue;
        }
        let (ulpdu, rest) = rest.split_at(usize::from(*len).min(rest.len()));
        script = rest;
        let mut ulpdu = ulpdu.to_vec();
        if how & 1 != 0 && large < LARGE_MAX {
            // A large payload, which goes straight to its place.
            large += 1;
            ulpdu.resize(ulpdu.len() + LARGE + usize::from(*how & 0x1f) * 16, *how);
        }
        let is_response = ulpdu.get(1).is_some_and(|control| control & 0xf == 2);
        // Handle 1 and 2: in the STag of a header, and in the source of a Read Request.
        for at in [2, 34].into_iter().skip(usize::from(is_response)) {
            if let Some(stag) = ulpdu.get_mut(at..at + 4)
                && let [0, 0, 0, which @ 1..=2] = *stag
            {
                stag.copy_from_slice(&handles[usize::from(which) - 1].0.to_be_bytes());
            }
        }
        let mut fpdu = vec![0; mpa::fpdu_len(ulpdu.len())];
        mpa::emit_fpdu(&ulpdu, Some(crc32c), &mut fpdu).expect("it fits");
        match how & 0xe0 {
            // Damaged; cut short.
            0xe0 => fpdu[usize::from(*how & 0x1f) % ulpdu.len().max(1)] ^= 0x10,
            0xc0 => fpdu.truncate(usize::from(*how & 0x1f)),
            _ => {}
        }
        stream.extend(fpdu);
    }
    steps.push(Step::Octets(stream));
    steps
}

impl<'a> Target<'a> {
    fn new(pool: &'a Pool, settings: u8, keys: &RandomState) -> Target<'a> {
        let mut bare = Bare::new(CAPACITY, settings & 1 != 0, 2, keys.clone());
        for id in 0..3 {
            assert!(bare.post_receive(id, buf(pool, 4096, 1)));
        }
        let write = bare.expose(Exposed::Write(buf(pool, EXPOSED, 2))).expect("there is room");
        let read = bare.expose(Exposed::Read(buf(pool, EXPOSED, 3).share())).expect("there is room");
        let source = RemoteSegment { handle: Handle(7), offset: 7 };
        let part = |at, len| ReadPart { at, len, source };
        let target = buf(pool, 4096, 4);
        assert!(bare.post_read(ReadRequest { id: 1, target }, &[part(5, 60), part(100, 40)]));
        let target = buf(pool, EXPOSED, 4);
        assert!(bare.post_read(ReadRequest { id: 2, target }, &[part(9, LARGE_PART)]));
        let (handles, fenced) = ([write, read], Vec::new());
        Target {
            bare,
            crc: settings & 1 != 0,
            pool,
            handles,
            reads: 2,
            receives: 3,
            fenced,
            sent: 0,
            taken: Vec::new(),
        }
    }

    /// Does what the user may do at any time. There may be no room for it.
    fn act(&mut self, what: u8, choice: u8) {
        let len = (usize::from(choice) * 16).max(1);
        let handle = self.handles[usize::from(choice & 1)];
        let segment = RemoteSegment { handle: Handle(u32::from(choice)), offset: 0 };
        match what & 7 {
            0 => self.receives += usize::from(self.bare.post_receive(9, buf(self.pool, 4096, 5))),
            1 => {
                let invalidate = (what & 8 != 0).then_some(handle);
                let buf = buf(self.pool, len, 6);
                self.bare.post_send(SendRequest { id: 10, buf, invalidate, signaled: what & 16 != 0 });
            }
            2 => {
                let source = buf(self.pool, len, 7).share();
                let signaled = what & 16 != 0;
                self.bare.post_write(WriteRequest { id: 11, source, target: segment, signaled });
            }
            3 => {
                let target = buf(self.pool, 4096, 8);
                let part = ReadPart { at: 0, len: u32::from(choice) * 8, source: segment };
                let parts = &[part, part][..1 + usize::from(what >> 4)];
                self.reads += usize::from(self.bare.post_read(ReadRequest { id: 12, target }, parts));
            }
            4 => drop(self.bare.expose(Exposed::Write(buf(self.pool, len, 9)))),
            5 => {
                let memory = buf(self.pool, len, 10).share();
                if let Some(exposed) = self.bare.expose(Exposed::Read(memory)) {
                    self.handles[1] = exposed;
                }
            }
            6 => self.fenced.extend(self.bare.fence(handle).as_ref().map(content)),
            _ => self.send(),
        }
    }

    /// Takes the octets that the end sends: whole FPDUs, with right CRCs.
    fn send(&mut self) {
        let octets = self.bare.sent();
        self.sent += octets.len();
        let mut rest = &octets[..];
        while !rest.is_empty() {
            let (fpdu, behind) = mpa::Fpdu::parse(rest).expect("FPDUs are sent as a whole");
            assert_eq!(fpdu.crc, if self.crc { crc32c(fpdu.covered) } else { 0 });
            rest = behind;
        }
    }

    /// Takes octets, and what is shown of them.
    fn take(&mut self, octets: &[u8], shown: Shown) -> Result<(), End> {
        if shown == Shown::Never {
            return self.bare.take(octets);
        }
        let mut taker = Taker { pool: self.pool, takes: shown == Shown::Taken, taken: &mut self.taken };
        self.bare.take_in_place(octets, &mut taker)
    }

    /// Takes the steps, the streams in pieces whose lengths `cut` gives.
    fn run(mut self, steps: &[Step], shown: Shown, mut cut: impl FnMut() -> usize) -> Outcome {
        let mut end = Ok(());
        self.send();
        for step in steps {
            match step {
                Step::Octets(stream) => {
                    let mut rest = &stream[..];
                    while end.is_ok() && !rest.is_empty() {
                        let (now, behind) = rest.split_at(cut().clamp(1, rest.len()));
                        rest = behind;
                        end = self.take(now, shown);
                    }
                }
                Step::Act(what, choice) if end.is_ok() => self.act(*what, *choice),
                Step::Act(..) => {}
            }
        }
        if end.is_ok() {
            self.send();
        }
        self.bare.close();
        let mut completions = Vec::new();
        while let Some(completion) = self.bare.completion() {
            let (kind, octets) = match &completion.completed {
                Completed::Receive { buf, exposed, .. } => {
                    let exposed = exposed.as_ref().map(content).unwrap_or_default();
                    // What a Receive that did not complete holds is not compared.
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
        let Target { fenced, sent, reads, receives, taken, .. } = self;
        Outcome { completions, fenced, end, sent, reads, receives, taken }
    }
}

/// A stream has the same outcome however it is cut; nothing is lost, and nothing outlives it.
pub fn iwarp_receive(data: &[u8]) {
    let Some((settings, script)) = data.split_first() else { return };
    POOL.with(|pool| {
        let keys = RandomState::new();
        let target = Target::new(pool, *settings, &keys);
        let (handles, steps) = (target.handles, steps(target.handles, script));
        let whole = target.run(&steps, Shown::Never, || usize::MAX);
        let count = |wanted| whole.completions.iter().filter(|(kind, ..)| *kind == wanted).count();
        assert_eq!((count("Receive"), count("Read")), (whole.receives, whole.reads));
        let again = |shown, cut: &mut dyn FnMut() -> usize| {
            let target = Target::new(pool, *settings, &keys);
            assert_eq!(target.handles, handles, "the same keys");
            target.run(&steps, shown, cut)
        };
        let left = again(Shown::Left, &mut || usize::MAX);
        assert_eq!(whole, left, "the same, if what is shown is left");
        let longest = [1, 3, 40, 9000][usize::from(settings >> 6)];
        let octets = |step: &Step| if let Step::Octets(octets) = step { octets.len() } else { 0 };
        let len: usize = steps.iter().map(octets).sum();
        let mut seed = u32::from(*settings) | 1;
        let mut cut = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            1 + (seed >> 16) as usize % longest.max(len / PIECES_MAX)
        };
        let pieces = again(Shown::Never, &mut cut);
        assert_eq!(whole, pieces, "the same, however it is cut");
        for taken in [again(Shown::Taken, &mut || usize::MAX), again(Shown::Taken, &mut cut)] {
            // What is taken leaves its Receive for others: there may be more, but all that came before comes.
            let mut all = messages(&taken);
            for message in messages(&whole) {
                let at = all.iter().position(|other| *other == message);
                all.swap_remove(at.expect("it came before"));
            }
        }
        assert_eq!(pool.outstanding(), 0, "all memory came back");
    });
}

/// The messages that came, in any way, in no order.
fn messages(outcome: &Outcome) -> Vec<Vec<u8>> {
    let received =
        outcome.completions.iter().filter(|(kind, result, _)| *kind == "Receive" && result.is_ok());
    let mut messages: Vec<Vec<u8>> = received.map(|(_, _, octets)| octets.clone()).collect();
    messages.extend(outcome.taken.iter().cloned());
    messages
}
