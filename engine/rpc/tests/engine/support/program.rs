//! The RPC program that the tests call: one procedure for each way in which a handler can behave.

use std::collections::VecDeque;
use std::time::Duration;

use stag_memory::{Pool, Shared};
use stag_rpc::{
    Call, CallBack, CallBackError, ConnectionId, Deferred, Home, Outcome, Placed, Placement, Procedure,
    Repeat, Reply, Service, Token,
};
use stag_wire::xdr::{Item, Overflow, Reader, Writer};

pub(crate) const PROGRAM: u32 = 0x2000_0042;
/// Versions served: 2 and 3.
pub(crate) const VERSION: u32 = 3;

/// `opaque echo(opaque)`, without eligible items.
pub(crate) const ECHO: u32 = 1;
/// `put(eligible opaque<>)`: answers whether all data came, and the sum of each item's octets.
pub(crate) const PUT: u32 = 2;
/// `get(seed, lengths<>)`: answers with one eligible opaque for each length.
pub(crate) const GET: u32 = 3;
/// `later(delay in microseconds, opaque)`: echoes after the delay; never when that is [`NEVER`].
pub(crate) const LATER: u32 = 4;
/// Says that it is done, and fills in nothing.
pub(crate) const FORGET: u32 = 5;
/// Says that the chunks are not those that its binding allows.
pub(crate) const BAD_CHUNKS: u32 = 6;
/// `opaque big(seed, length)`: a plain result of any length.
pub(crate) const BIG: u32 = 7;
/// As [`BIG`], but then it thinks better of it and says GARBAGE_ARGS.
pub(crate) const REGRET: u32 = 8;
/// `later_put(delay, eligible opaque<>)`: as [`PUT`], after a delay.
pub(crate) const LATER_PUT: u32 = 9;

/// As [`PUT`], with exactly one item, which a byte stream may place.
pub(crate) const PUT_ONE: u32 = 10;
/// As [`GET`], with at most one item, which a byte stream may send from where it lies.
pub(crate) const GET_ONE: u32 = 11;

/// `once(delay in microseconds, filler) -> count`: counts its executions, and answers after the delay; at once, if
/// there is none.
pub(crate) const ONCE: u32 = 12;
/// As [`ONCE`], as WRITEs are kept.
pub(crate) const TIMELY: u32 = 13;

/// `short(announced, given, encoded, times)`: announces an eligible result of `announced` octets, gives `given`, and
/// encodes the length `encoded` `times` times.
pub(crate) const SHORT: u32 = 14;

/// As [`PUT_ONE`], kept as WRITEs are: counts its executions.
pub(crate) const TIMELY_PUT: u32 = 15;
/// Leaves its answer, an empty one, to who takes it out of [`Program::deferred`].
pub(crate) const DEFER: u32 = 16;
/// As [`DEFER`], not to be executed twice.
pub(crate) const DEFER_ONCE: u32 = 17;

/// `fill(length) -> eligible opaque`: as many octets as there is room for, in memory of its own.
pub(crate) const FILL: u32 = 18;
/// As [`FILL`], 10 ms later.
pub(crate) const LATER_FILL: u32 = 19;
/// `opaque local()`: the address that the Call came to, as text.
pub(crate) const LOCAL: u32 = 21;
/// `pieces(count) -> eligible opaque`: `count` octets, each a piece of its own of a store's memory; fewer if that many pieces are not allowed.
pub(crate) const PIECES: u32 = 22;

pub(crate) const NEVER: u64 = u64::MAX;

/// Eligible items of one Call or Reply at most.
pub(crate) const ITEMS_MAX: u32 = 4;
/// Octets of a result of [`BIG`] at most.
pub(crate) const BIG_LEN_MAX: u32 = 64 << 20;
/// Octets of one item at most.
pub(crate) const ITEM_LEN_MAX: u32 = 1 << 20;

static PLAIN: Procedure = Procedure::plain("PLAIN");
static TAKES: Procedure = Procedure { eligible_arguments: ITEMS_MAX as u8, ..Procedure::plain("TAKES") };
static TAKES_ONE: Procedure =
    Procedure { eligible_arguments: 1, locate: Some(locate), ..Procedure::plain("TAKES_ONE") };
static GIVES_ONE: Procedure = Procedure { eligible_results: 1, ..Procedure::plain("GIVES_ONE") };
static TAKES_ONE_IN_TIME: Procedure = Procedure { repeat: Repeat::Untimely, ..TAKES_ONE };
static ONLY_ONCE: Procedure = Procedure::plain("ONCE").once();
static IN_TIME: Procedure = Procedure { repeat: Repeat::Untimely, ..Procedure::plain("TIMELY") };
static GIVES: Procedure = Procedure { eligible_results: ITEMS_MAX as u8, ..Procedure::plain("GIVES") };

/// The first `len` octets of the data that `seed` stands for. Storms spend most of their time here: a step is one addition.
pub(crate) fn pattern(seed: u32, len: usize) -> Vec<u8> {
    const STEP: u32 = 0x85eb_ca6b;
    let mut octets = vec![0; len];
    let mut state = seed.wrapping_mul(0x9e37_79b9).wrapping_mul(STEP);
    for octet in &mut octets {
        *octet = (state >> 24) as u8;
        state = state.wrapping_add(STEP);
    }
    octets
}

/// Finds the item of [`PUT_ONE`].
fn locate(arguments: &mut Reader<'_>) -> Result<u32, stag_wire::xdr::XdrError> {
    arguments.enumeration(|count| (count == 1).then_some(()))?;
    arguments.u32()
}

/// What [`PUT`] answers for an item: order counts.
pub(crate) fn sum(octets: &[u8]) -> u32 {
    add_octets(17, octets)
}

/// A step is `sum * 31 + octet`. Four octets go at a time, because storms do most of their work here.
fn add_octets(sum: u32, octets: &[u8]) -> u32 {
    let (fours, rest) = octets.as_chunks::<4>();
    let sum = fours.iter().fold(sum, |sum, &[a, b, c, d]| {
        let ahead = (u32::from(a) * 31 + u32::from(b)) * 961 + u32::from(c) * 31 + u32::from(d);
        sum.wrapping_mul(31 * 31 * 31 * 31).wrapping_add(ahead)
    });
    rest.iter().fold(sum, |sum, octet| sum.wrapping_mul(31).wrapping_add(u32::from(*octet)))
}

/// A Call to be answered later.
struct Kept {
    token: Token,
    due: Duration,
    answer: Answer,
}

enum Answer {
    Octets(Vec<u8>),
    /// As [`FILL`], with this number of octets.
    Filled(u32),
}

/// See the module's text.
pub(crate) struct Program {
    pool: Pool,
    kept: Vec<Kept>,
    finishing: Option<Answer>,
    /// Times a handler ran.
    pub(crate) executed: u64,
    /// Times that [`ONCE`] and [`TIMELY`] did what must not be done twice.
    pub(crate) counted: u32,
    /// Calls that were answered later or abandoned.
    pub(crate) finished: u64,
    pub(crate) abandoned: u64,
    /// Calls of [`DEFER`].
    pub(crate) deferred: Vec<Deferred>,
    /// The engine is about to sleep.
    pub(crate) is_armed: bool,
    /// Where Calls are executed.
    pub(crate) home: fn(&Call<'_>) -> Home,
    /// The connection that the last Call came in on.
    pub(crate) called_on: Option<ConnectionId>,
    /// Calls to make to clients.
    pub(crate) to_call: VecDeque<CallBack>,
    /// Those that are over.
    pub(crate) called_back: Vec<(u64, Result<Vec<u8>, CallBackError>)>,
    /// Connections of clients that ended.
    pub(crate) ended: Vec<ConnectionId>,
    /// What [`PIECES`] gives.
    stored: Option<Shared>,
    /// Pieces that each Reply of [`PIECES`] was given.
    pub(crate) most_pieces: Vec<usize>,
}

impl Program {
    pub(crate) fn new(pool: Pool) -> Program {
        Program {
            pool,
            kept: Vec::new(),
            finishing: None,
            executed: 0,
            counted: 0,
            finished: 0,
            abandoned: 0,
            deferred: Vec::new(),
            is_armed: false,
            home: |_| Home::Here,
            called_on: None,
            to_call: VecDeque::new(),
            called_back: Vec::new(),
            ended: Vec::new(),
            stored: None,
            most_pieces: Vec::new(),
        }
    }

    /// Calls procedure `procedure` of this program at the client of `connection`.
    pub(crate) fn call_back(&mut self, id: u64, connection: ConnectionId, procedure: u32, arguments: &[u8]) {
        self.to_call.push_back(CallBack {
            id,
            connection,
            program: PROGRAM,
            version: VERSION,
            procedure,
            user: None,
            arguments: arguments.to_vec(),
            results_len_max: 800,
            timeout: Duration::from_secs(5),
        });
    }

    /// Calls that wait for their time.
    pub(crate) fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Makes everything that waits due at once, also what would never be.
    pub(crate) fn release(&mut self) {
        for kept in &mut self.kept {
            kept.due = Duration::ZERO;
        }
        self.stored = None;
    }

    fn short(&self, mut arguments: Reader<'_>, reply: &mut Reply<'_>) {
        let mut word = || arguments.u32().ok();
        let (Some(announced), Some(given), Some(encoded), Some(times)) = (word(), word(), word(), word())
        else {
            return reply.garbage_arguments();
        };
        let Some(mut buf) = self.pool.take_len(given.max(1) as usize) else { return reply.system_error() };
        buf.set_len(given as usize);
        buf.fill(1);
        if reply.item(announced) == Placement::Reduced {
            reply.piece(buf.share());
            let times = times.min(100);
            reply.success(|writer| {
                (0..times).try_for_each(|_| writer.eligible_opaque_reduced(encoded).map(drop))
            });
        } else {
            reply.success(|writer| writer.opaque_pieces(encoded, [&buf[..]]));
        }
    }

    fn pieces(&mut self, count: usize, reply: &mut Reply<'_>) -> Option<()> {
        if self.stored.is_none() {
            let page = self.pool.take()?.share();
            page.mark_stored();
            self.stored = Some(page);
        }
        let page = self.stored.as_ref()?;
        let count = count.min(reply.pieces_room());
        self.most_pieces.push(count);
        if reply.item(count as u32) == Placement::Inline {
            return None;
        }
        (0..count).for_each(|at| reply.piece(page.slice(at..at + 1)));
        reply.success(|writer| writer.eligible_opaque_reduced(count as u32).map(drop));
        Some(())
    }

    /// Results in memory of their own, which its engine counts.
    fn fill(&self, len: u32, reply: &mut Reply<'_>) {
        let mut pieces = Vec::new();
        if !self.pool.take_pieces(len as usize, &mut pieces) {
            return reply.system_error();
        }
        if reply.item(len) == Placement::Reduced {
            pieces.into_iter().for_each(|piece| reply.piece(piece.share()));
            reply.success(|writer| writer.eligible_opaque_reduced(len).map(drop));
        } else {
            reply.success(|writer| writer.opaque_pieces(len, pieces.iter().map(|piece| &piece[..])));
        }
    }

    fn get(&self, call: &Call<'_>, reply: &mut Reply<'_>) -> Option<()> {
        let mut arguments = call.arguments();
        let seed = arguments.u32().ok()?;
        let count = arguments.count(ITEMS_MAX, 4).ok()?;
        let mut lens = Vec::new();
        for _ in 0..count {
            lens.push(arguments.u32().ok().filter(|len| *len <= ITEM_LEN_MAX)?);
        }
        arguments.finish().ok()?;
        let mut items = Vec::new();
        for (number, &len) in (0..).zip(&lens) {
            let placement = reply.item(len);
            if placement == Placement::Reduced && len > 0 {
                let mut buf = self.pool.take_len(len as usize)?;
                buf.set_len(len as usize);
                buf.copy_from_slice(&pattern(seed + number, len as usize));
                // In two pieces, cut anywhere.
                let (head, tail) = buf.share().split_at(len as usize / 3);
                reply.piece(head);
                reply.piece(tail);
            }
            items.push((seed + number, len, placement));
        }
        reply.success(|writer| {
            for &(seed, len, placement) in &items {
                match placement {
                    Placement::Reduced => writer.eligible_opaque_reduced(len).map(|_| ())?,
                    Placement::Inline => writer.eligible_opaque_inline(&pattern(seed, len as usize))?,
                }
            }
            Ok(())
        });
        Some(())
    }
}

/// The answer of [`PUT`]. `None`: the arguments are no such.
fn put(call: &mut Call<'_>, mut arguments: Reader<'_>) -> Option<Vec<u8>> {
    let count = arguments.u32().ok().filter(|count| *count <= ITEMS_MAX)?;
    let mut sums = Vec::new();
    let mut missing = 0u32;
    for _ in 0..count {
        match arguments.eligible_opaque(ITEM_LEN_MAX).ok()? {
            Item::Inline(octets) => sums.push(sum(octets)),
            Item::Reduced { index, len } => {
                let placed: &mut Placed = call.placed(index);
                missing |= u32::from(placed.is_missing());
                let mut left = len as usize;
                sums.push(placed.pieces.iter().fold(17, |sum, piece| {
                    let octets = &piece[..piece.len().min(left)];
                    left -= octets.len();
                    add_octets(sum, octets)
                }));
            }
        }
    }
    arguments.finish().ok()?;
    let mut answer = missing.to_be_bytes().to_vec();
    sums.iter().for_each(|sum| answer.extend(sum.to_be_bytes()));
    Some(answer)
}

fn raw(writer: &mut Writer<'_>, octets: &[u8]) -> Result<(), Overflow> {
    writer.opaque_fixed(octets)
}

impl Service for Program {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (VERSION - 1, VERSION)
    }

    fn procedure(&self, _version: u32, procedure: u32) -> Option<&'static Procedure> {
        match procedure {
            ECHO | LOCAL | LATER | DEFER | FORGET | BAD_CHUNKS | BIG | REGRET => Some(&PLAIN),
            PUT | LATER_PUT => Some(&TAKES),
            PUT_ONE => Some(&TAKES_ONE),
            GET => Some(&GIVES),
            ONCE | DEFER_ONCE => Some(&ONLY_ONCE),
            TIMELY_PUT => Some(&TAKES_ONE_IN_TIME),
            TIMELY => Some(&IN_TIME),
            GET_ONE | SHORT | FILL | LATER_FILL | PIECES => Some(&GIVES_ONE),
            _ => None,
        }
    }

    fn home(&self, call: &Call<'_>) -> Home {
        (self.home)(call)
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        self.executed += 1;
        self.called_on = Some(call.connection());
        let mut arguments = call.arguments();
        match call.procedure {
            ECHO => match arguments.opaque(ITEM_LEN_MAX) {
                Ok(text) => reply.success(|writer| writer.opaque(text)),
                Err(_) => reply.garbage_arguments(),
            },
            LOCAL => {
                let local = call.local().map(ToString::to_string).unwrap_or_default();
                reply.success(|writer| writer.opaque(local.as_bytes()));
            }
            PUT | PUT_ONE => match put(call, arguments) {
                Some(answer) => reply.success(|writer| raw(writer, &answer)),
                None => reply.garbage_arguments(),
            },
            GET | GET_ONE => {
                if self.get(call, reply).is_none() {
                    reply.garbage_arguments();
                }
            }
            PIECES => {
                let done = arguments.u32().ok().and_then(|count| self.pieces(count as usize, reply));
                if done.is_none() {
                    reply.garbage_arguments();
                }
            }
            FILL | LATER_FILL => {
                let Ok(len) = arguments.u32() else {
                    reply.garbage_arguments();
                    return Outcome::Done;
                };
                let len = reply.results_room(len);
                if call.procedure == FILL {
                    self.fill(len, reply);
                    return Outcome::Done;
                }
                reply.expect_results(len);
                let (token, due) = (call.token(), call.now() + Duration::from_millis(10));
                self.kept.push(Kept { token, due, answer: Answer::Filled(len) });
                return Outcome::Later(token);
            }
            LATER | LATER_PUT => {
                let Ok(delay) = arguments.u64() else {
                    reply.garbage_arguments();
                    return Outcome::Done;
                };
                let answer = if call.procedure == LATER {
                    arguments.opaque(ITEM_LEN_MAX).ok().map(|text| {
                        let mut answer = (text.len() as u32).to_be_bytes().to_vec();
                        answer.extend(text);
                        answer.resize(answer.len().next_multiple_of(4), 0);
                        answer
                    })
                } else {
                    put(call, arguments)
                };
                let Some(answer) = answer else {
                    reply.garbage_arguments();
                    return Outcome::Done;
                };
                let due = call.now().saturating_add(Duration::from_micros(delay));
                let token = call.token();
                self.kept.push(Kept { token, due, answer: Answer::Octets(answer) });
                return Outcome::Later(token);
            }
            ONCE | TIMELY => {
                let Ok(delay) = arguments.u64() else {
                    reply.garbage_arguments();
                    return Outcome::Done;
                };
                self.counted += 1;
                // So long that it cannot be kept, if the caller wants that.
                let filler = vec![0; arguments.u32().unwrap_or(0) as usize * 4];
                let answer = [&self.counted.to_be_bytes()[..], &filler].concat();
                if delay == 0 {
                    reply.success(|writer| raw(writer, &answer));
                    return Outcome::Done;
                }
                let due = call.now().saturating_add(Duration::from_micros(delay));
                let token = call.token();
                self.kept.push(Kept { token, due, answer: Answer::Octets(answer) });
                return Outcome::Later(token);
            }
            TIMELY_PUT => match put(call, arguments) {
                Some(_) => {
                    self.counted += 1;
                    let counted = self.counted;
                    reply.success(|writer| writer.u32(counted));
                }
                None => reply.garbage_arguments(),
            },
            DEFER | DEFER_ONCE => {
                let deferred = reply.defer(call).expect("a descriptor");
                let token = deferred.token();
                self.deferred.push(deferred);
                return Outcome::Later(token);
            }
            SHORT => self.short(arguments, reply),
            FORGET => {}
            BAD_CHUNKS => reply.bad_chunks(),
            BIG | REGRET => {
                let (Ok(seed), Ok(len)) = (arguments.u32(), arguments.u32()) else {
                    reply.garbage_arguments();
                    return Outcome::Done;
                };
                let octets = pattern(seed, len.min(BIG_LEN_MAX) as usize);
                reply.success(|writer| writer.opaque(&octets));
                if call.procedure == REGRET {
                    reply.garbage_arguments();
                }
            }
            other => unreachable!("procedure {other} is not ours"),
        }
        Outcome::Done
    }

    fn poll_later(&mut self, now: Duration) -> Option<Token> {
        let at = self.kept.iter().position(|kept| kept.due <= now)?;
        let kept = self.kept.swap_remove(at);
        self.finishing = Some(kept.answer);
        Some(kept.token)
    }

    fn next_call_back(&mut self) -> Option<CallBack> {
        self.to_call.pop_front()
    }

    fn called_back(&mut self, id: u64, end: Result<&[u8], CallBackError>) {
        self.called_back.push((id, end.map(<[u8]>::to_vec)));
    }

    fn connection_ended(&mut self, connection: ConnectionId) {
        self.ended.push(connection);
    }

    fn finish(&mut self, _token: Token, reply: &mut Reply<'_>) {
        self.finished += 1;
        match self.finishing.take() {
            Some(Answer::Octets(answer)) => reply.success(|writer| raw(writer, &answer)),
            Some(Answer::Filled(len)) => self.fill(len, reply),
            None => reply.system_error(),
        }
    }

    fn arm(&mut self) -> bool {
        self.is_armed = true;
        self.kept.is_empty()
    }

    fn disarm(&mut self) {
        self.is_armed = false;
    }

    fn abandoned(&mut self, _token: Token) {
        self.abandoned += 1;
        self.finishing = None;
    }
}
