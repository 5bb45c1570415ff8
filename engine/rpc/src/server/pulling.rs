//! Pulls the data of a Call's chunks: memory for it, and the RDMA Reads that fill it.

use std::time::Duration;

use arrayvec::ArrayVec;
use stag_fabric::{Handle, Provider, READ_PARTS_MAX, ReadPart, ReadRequest, RemoteSegment};
use stag_memory::{Buf, Pool};
use stag_proto::responder;
use stag_proto::span::Cursor;
use stag_wire::rpcrdma::{ReadSegment, Segment, SingleChunk};
use stag_wire::xdr::Reduced;

use crate::ConnectionId;
use crate::server::pushing::Posted;
use crate::server::spares::Reused;
use crate::server::transit::{self, MemoryHolder, TransitShare};
use crate::service::call::{Placed, PlacedPieces};
use crate::state::{Core, EngineState};

/// Data Read chunks of one Call at most. NFS has one; custom programs may have more.
pub(crate) const READ_CHUNKS_MAX: usize = 8;

/// How long a Call waits for memory. Being told to retry costs its sender more: Linux's NFS client then waits for 5 s.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// How long a Long Call waits. Its only refusal says that its chunks are wrong, which is final (8166-4.5-d).
const PATIENCE_LONG: Duration = Duration::from_secs(20);

/// How long it takes until a wait for memory is others' fault, and what they do not use is taken back.
pub(crate) const WANTED_BACK: Duration = Duration::from_millis(10);

/// How long it takes until one of them ends for it.
pub(crate) const PRESSED: Duration = Duration::from_millis(250);

/// A wait for memory that others hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pressure {
    /// How long it took so far.
    pub(crate) time: Duration,
    /// The account of the owner whose part is taken, and whose memory alone can end the wait; `None` if there
    /// is just no memory.
    pub(crate) owner: Option<u32>,
}

/// The pressure to relieve first: that which memory of any owner relieves, else the longer one.
pub(crate) fn worse(one: Option<Pressure>, other: Option<Pressure>) -> Option<Pressure> {
    let rank = |pressure: &Pressure| (pressure.owner.is_none(), pressure.time);
    one.into_iter().chain(other).max_by_key(rank)
}

/// How long a peer may let nothing be read before it is no longer trusted with more than a probe. While others wait for
/// memory, it may not be silent for longer.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(1);

/// How long a peer may let nothing be read before the memory that it is not asked for is taken back, while others wait.
const VACATE_AFTER: Duration = Duration::from_millis(20);

/// Octets a second that a peer's chunks can be read with, at least.
const PULL_RATE: u64 = 256 << 10;

/// A piece of memory that RDMA Reads fill.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// Number of the data Read chunk; none for the Position Zero Read chunk.
    chunk: Option<u8>,
    /// Where in the chunk the piece starts.
    start: u32,
    pub(crate) len: u32,
    /// Here before it is posted, and after it is filled; not while its memory was taken back.
    pub(crate) buf: Option<Buf>,
    posted: bool,
}

impl Incoming {
    /// Its memory was taken back.
    fn is_vacant(&self) -> bool {
        self.buf.is_none() && !self.posted
    }
}

/// A part of a chunk that has no memory yet.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    /// None: the Position Zero Read chunk.
    chunk: Option<u8>,
    start: u32,
    end: u32,
}

/// Shortest wait before a Call is executed again without a sign that there is memory for its Reply.
const AGAIN_MIN: Duration = Duration::from_millis(10);

/// The memory that a Call waits for to be answered from.
#[derive(Clone, Copy, Debug)]
struct ReplyNeed {
    /// 0: at another reactor.
    pages: usize,
    /// When it is tried again in any case. Each wait is as long as all before it.
    again: Duration,
}

/// What one Call pulls by RDMA Read. Reused.
#[derive(Debug, Default)]
pub(crate) struct Pull {
    /// The Payload stream of a Long Call.
    pub(crate) long: Vec<Buf>,
    pub(crate) items: Vec<Placed>,
    pub(crate) reduced: ArrayVec<Reduced, READ_CHUNKS_MAX>,
    wanted: ArrayVec<Wanted, READ_CHUNKS_MAX>,
    /// Since when it waits for memory.
    pub(crate) waits: Option<Duration>,
    /// The Call was executed, and waits for memory for its Reply.
    reply: Option<ReplyNeed>,
    /// It has waited for that as long as it may.
    pub(crate) is_last_try: bool,
    pub(crate) incoming: Vec<Incoming>,
    /// Pieces not filled yet.
    pub(crate) pending: u32,
    /// Of these, pieces that Reads are under way for.
    pub(crate) in_flight: u32,
    /// Pages that were taken back from it, because its peer did not answer and others waited.
    vacant: usize,
    /// Its pieces are no larger than a window, and its connection has one window under way at most.
    is_windowed: bool,
    /// Its pieces are not in order.
    is_unordered: bool,
    /// Pages that its connection's share counts for it.
    pub(crate) held: usize,
    /// When a Read was last posted or done.
    pub(crate) touched: Duration,
    /// When all of it has to be here.
    due: Option<Duration>,
}

/// Where a list begins to grow.
const LIST_LEN: usize = 4;

/// Pieces that most Calls have at most.
const PIECES_USUAL: usize = 16;

impl Reused for Pull {
    /// Forgets everything; buffers go back to their pools.
    fn clear(&mut self) {
        debug_assert_eq!(self.held, 0, "what was counted is still counted");
        self.long.clear();
        self.items.clear();
        self.reduced.clear();
        self.wanted.clear();
        self.waits = None;
        (self.reply, self.is_last_try) = (None, false);
        self.incoming.clear();
        (self.pending, self.in_flight, self.vacant) = (0, 0, 0);
        (self.is_windowed, self.is_unordered) = (false, false);
        self.due = None;
    }

    fn has_grown(&self) -> bool {
        self.long.capacity().max(self.items.capacity()).max(self.incoming.capacity()) > PIECES_USUAL
    }
}

impl Pull {
    /// Octets of heap of one whose memory is in a few pieces. Each further piece is a page or more of payload.
    pub(crate) const FOOTPRINT: usize =
        size_of::<Pull>() + LIST_LEN * (size_of::<Buf>() + size_of::<Placed>() + size_of::<Incoming>());

    /// Octets of heap that each further piece takes at most.
    pub(crate) const PIECE_LEN: usize = 2 * (size_of::<Incoming>() + size_of::<Buf>());

    /// Whether its peer has not let it be read in time.
    pub(crate) fn is_overdue(&self, now: Duration) -> bool {
        self.is_under_way() && self.due.is_some_and(|due| now >= due)
    }

    /// Whether its peer lets nothing of it be read.
    pub(crate) fn is_silent(&self, now: Duration) -> bool {
        let missing = self.missing();
        let limit = SILENCE_MAX + Duration::from_micros(missing * 1_000_000 / (1 << 20));
        self.in_flight > 0 && now.saturating_sub(self.touched) >= limit
    }

    /// Whether Reads are under way, or wait for room in the send queue.
    pub(crate) fn is_under_way(&self) -> bool {
        self.pending > 0
    }

    /// Whether all data of a Call is here, and nothing else is waited for.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.pending == 0
            && !self.items.is_empty()
            && !self.wants_more()
            && self.vacant == 0
            && self.reply.is_none()
    }

    /// Whether a part of it has no memory yet.
    #[inline]
    pub(crate) fn wants_more(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Waits for `pages` for its Reply, from now on or still; 0: for pages of another reactor.
    pub(crate) fn await_reply(&mut self, pages: usize, now: Duration) {
        let since = *self.waits.get_or_insert(now);
        let again = now.saturating_add(now.saturating_sub(since).max(AGAIN_MIN));
        self.reply = Some(ReplyNeed { pages, again });
    }

    /// Whether it waits for memory for its Reply.
    pub(crate) fn awaits_reply(&self) -> bool {
        self.reply.is_some()
    }

    /// When it is given up to wait for memory since then, or tried again in any case.
    pub(crate) fn memory_wait_max(&self, since: Duration) -> Duration {
        if let Some(need) = self.reply {
            let since = self.waits.unwrap_or(since);
            return since.saturating_add(PATIENCE).min(need.again);
        }
        if self.vacant > 0 {
            return Duration::MAX;
        }
        let is_long = self.wanted.first().is_some_and(|wanted| wanted.chunk.is_none());
        since.saturating_add(if is_long { PATIENCE_LONG } else { PATIENCE })
    }

    /// Octets that are not here yet.
    pub(crate) fn missing(&self) -> u64 {
        self.incoming
            .iter()
            .filter(|incoming| incoming.buf.is_none())
            .map(|incoming| u64::from(incoming.len))
            .sum()
    }

    /// Whether its peer has let something of it be read, or was asked to, just now.
    pub(crate) fn is_fresh(&self, now: Duration) -> bool {
        self.in_flight > 0 && now < self.touched + VACATE_AFTER
    }

    /// Lets go of all memory that no Read is under way for: what is here already is read once more. Returns how many pages
    /// that are, and how many of them the peer was asked for.
    pub(crate) fn vacate(&mut self, pool: &Pool, now: Duration) -> (usize, usize) {
        let (mut pages, mut asked) = (0, 0);
        if self.pending == 0 {
            return (0, 0);
        }
        for incoming in &mut self.incoming {
            if incoming.buf.take().is_none() {
                continue;
            }
            let len = transit::pages(pool, incoming.len as usize);
            pages += len;
            if incoming.posted {
                incoming.posted = false;
                self.pending += 1;
            } else if !self.is_windowed {
                asked += len;
            }
        }
        if pages > 0 {
            self.vacant += pages;
            self.held -= pages;
            self.is_windowed = true;
            self.waits = Some(now);
        }
        (pages, asked)
    }

    fn put_in_order(&mut self) {
        if std::mem::take(&mut self.is_unordered) {
            self.incoming.sort_unstable_by_key(|incoming| (incoming.chunk, incoming.start));
        }
    }

    /// Pages that it waits for.
    pub(crate) fn missing_pages(&self, pool: &Pool) -> usize {
        let pages = |wanted: &Wanted| transit::pages(pool, (wanted.end - wanted.start) as usize);
        let reply = self.reply.map_or(0, |need| need.pages);
        reply + self.vacant + self.wanted.iter().map(pages).sum::<usize>()
    }

    /// Keeps the Payload stream of a Long Call, which is here.
    pub(crate) fn keep_long(&mut self) {
        self.put_in_order();
        self.long.extend(self.incoming.drain(..).filter_map(|incoming| incoming.buf));
    }

    /// Puts the filled pieces where the handler finds them.
    pub(crate) fn collect(&mut self) {
        self.put_in_order();
        for incoming in self.incoming.drain(..) {
            if let (Some(chunk), Some(buf)) = (incoming.chunk, incoming.buf)
                && let Some(item) = self.items.get_mut(usize::from(chunk))
            {
                item.pieces.push(buf);
            }
        }
    }
}

/// Plans to pull the Payload stream of a Long Call.
pub(crate) fn plan_long<P>(core: &mut Core<P>, pull: &mut Pull, len: u32) {
    core.statistics.position_zero_chunks += 1;
    pull.wanted.push(Wanted { chunk: None, start: 0, end: len });
}

/// Plans to pull all data chunks.
pub(crate) fn plan_chunks<P>(core: &mut Core<P>, pull: &mut Pull, call: &responder::ReceivedCall<'_>) {
    if let Some(SingleChunk::Read(read)) = call.single() {
        plan_chunk(&mut core.state, pull, read);
        pull.wanted.push(Wanted { chunk: Some(0), start: 0, end: read.segment.length });
        return;
    }
    for (index, chunk) in (0u8..).zip(call.read_chunks().take(READ_CHUNKS_MAX)) {
        core.statistics.read_chunks += 1;
        pull.reduced.push(Reduced::read_chunk(u32::from(index), chunk.position, chunk.len));
        pull.items.push(Placed { pieces: PlacedPieces::new(), len: chunk.len });
        pull.wanted.push(Wanted { chunk: Some(index), start: 0, end: chunk.len });
    }
}

/// There is no memory for the data to pull.
pub(crate) enum Lack {
    /// Some may come back.
    ForNow,
    /// The wait timed out on a Long Call. (With a data chunk, the handler is called and sees that its data is
    /// missing.)
    ForGood,
}

/// Takes memory for the data to pull: for all of it that has none, or for a probe.
pub(crate) fn place_wanted<P>(
    core: &mut Core<P>,
    share: &mut TransitShare,
    pull: &mut Pull,
) -> Result<(), Lack> {
    if pull.vacant > 0 {
        return refill(core, share, pull);
    }
    if let Some(need) = pull.reply {
        return place_reply(core, share, pull, need);
    }
    if pull.wanted.is_empty() || pull.pending > 0 {
        return Ok(());
    }
    let pool = &core.pools.payload;
    let pages_of = |wanted: &Wanted| transit::pages(pool, (wanted.end - wanted.start) as usize);
    let pages: usize = pull.wanted.iter().map(pages_of).sum();
    let probe = transit::probe_len(pool, core.config.connections_max);
    let now = match share.is_trusted || share.unanswered() + pages <= probe {
        true => Some(pages),
        // Another probe when this one is filled.
        false => (share.unanswered() == 0).then_some(pages.min(probe)),
    };
    if let Some(now) = now
        && !share.is_suspended
        && core.transit.obstacle(share, pool, now, pull.held).is_none()
        && take(core, share, pull, now)
    {
        return Ok(());
    }
    core.transit.refuse(share, &core.pools.payload);
    let since = *pull.waits.get_or_insert(core.now);
    if core.now < pull.memory_wait_max(since) {
        return Err(Lack::ForNow);
    }
    if pull.wanted.first().is_some_and(|wanted| wanted.chunk.is_none()) {
        return Err(Lack::ForGood);
    }
    // What is here of its data is of no use without the rest.
    pull.waits = None;
    pull.wanted.clear();
    pull.incoming.clear();
    core.transit.give(share, std::mem::take(&mut pull.held));
    Ok(())
}

/// Sees whether there is memory for a Reply by now; it is taken when the Call is executed again.
#[cold]
fn place_reply<P>(
    core: &mut Core<P>,
    share: &mut TransitShare,
    pull: &mut Pull,
    need: ReplyNeed,
) -> Result<(), Lack> {
    let pool = &core.pools.payload;
    let since = pull.waits.unwrap_or(core.now);
    let is_there = need.pages > 0 && need.pages <= core.transit.reply_room(MemoryHolder::Share(share), pool);
    if !is_there && core.now < pull.memory_wait_max(since) {
        core.transit.refuse(share, pool);
        return Err(Lack::ForNow);
    }
    pull.is_last_try = core.now >= since.saturating_add(PATIENCE);
    pull.reply = None;
    Ok(())
}

/// Gives a Call back what was taken from it, once its peer has answered what it was asked for.
#[cold]
fn refill<P>(core: &mut Core<P>, share: &mut TransitShare, pull: &mut Pull) -> Result<(), Lack> {
    let pool = &core.pools.payload;
    let window = transit::probe_len(pool, core.config.connections_max) * pool.unit_len();
    let is_due = core.transit.obstacle(share, pool, pull.vacant, pull.held).is_none();
    if share.is_suspended || pull.in_flight > 0 || !is_due || pool.free_units() < pull.vacant {
        core.transit.refuse(share, pool);
        pull.waits.get_or_insert(core.now);
        return Err(Lack::ForNow);
    }
    for place in 0..pull.incoming.len() {
        let Incoming { chunk, mut start, len, .. } = pull.incoming[place];
        if !pull.incoming[place].is_vacant() {
            continue;
        }
        let (end, mut is_first) = (start + len, true);
        while start < end || is_first {
            let Some(buf) = pool.take_up_to(window.min((end - start) as usize)) else {
                debug_assert!(false, "there are as many free pages as are wanted");
                return Err(Lack::ForNow);
            };
            let len = buf.len() as u32;
            let piece = Incoming { chunk, start, len, buf: Some(buf), posted: false };
            if std::mem::take(&mut is_first) {
                pull.incoming[place] = piece;
            } else {
                pull.incoming.push(piece);
                pull.pending += 1;
                pull.is_unordered = true;
            }
            start += len;
        }
    }
    let taken = std::mem::take(&mut pull.vacant);
    core.transit.take(share, taken);
    pull.held += taken;
    pull.waits = None;
    pull.touched = core.now;
    Ok(())
}

/// Takes `pages` for the first of what is wanted. `false`: they are not there, and none was taken.
fn take<P>(core: &mut Core<P>, share: &mut TransitShare, pull: &mut Pull, pages: usize) -> bool {
    let pool = &core.state.pools.payload;
    if pool.free_units() < pages {
        return false;
    }
    let window = transit::probe_len(pool, core.config.connections_max);
    pull.is_windowed = pages > window && !core.transit.may_ask(share, pool, pages);
    let mut left = pages;
    while let Some(wanted) = pull.wanted.first_mut()
        && left > 0
    {
        let all = transit::pages(pool, (wanted.end - wanted.start) as usize);
        let end = if all <= left { wanted.end } else { wanted.start + (left * pool.unit_len()) as u32 };
        left -= all.min(left);
        while wanted.start < end {
            let mut len = (end - wanted.start) as usize;
            if pull.is_windowed {
                len = len.min(window * pool.unit_len());
            }
            let mut pieces = PlacedPieces::new();
            if !pool.take_pieces(len, &mut pieces) {
                debug_assert!(false, "there are as many free pages as are wanted");
                return false;
            }
            for buf in pieces {
                let (chunk, start, len) = (wanted.chunk, wanted.start, buf.len() as u32);
                pull.incoming.push(Incoming { chunk, start, len, buf: Some(buf), posted: false });
                pull.pending += 1;
                wanted.start += len;
            }
        }
        if wanted.start == wanted.end {
            pull.wanted.remove(0);
        }
    }
    // Chunks of nothing take no memory.
    while pull.wanted.first().is_some_and(|wanted| wanted.start == wanted.end) {
        pull.wanted.remove(0);
    }
    hold(&mut core.state, share, pull, pages - left);
    true
}

/// Counts the pages that were taken for a Call, which its peer is asked to fill.
#[inline]
fn hold(state: &mut EngineState, share: &mut TransitShare, pull: &mut Pull, taken: usize) {
    state.transit.take(share, taken);
    if !pull.is_windowed {
        state.transit.ask(share, taken);
    }
    pull.held += taken;
    pull.waits = None;
    // A time of its own, so that a peer that lets others be read does not keep it. What is under way is read first.
    let rest = pull.wanted.iter().map(|wanted| u64::from(wanted.end - wanted.start)).sum::<u64>();
    let pages = share.unanswered() + if pull.is_windowed { taken } else { 0 };
    let octets = rest + (pages * state.pools.payload.unit_len()) as u64;
    let limit = state.config.peer_timeout.saturating_add(Duration::from_secs(octets / PULL_RATE));
    pull.due.get_or_insert(state.now.saturating_add(limit));
    pull.touched = state.now;
}

/// As [`plan_chunks`] and [`place_wanted`], for a Call's only chunk, of one segment, which has `pages` pages already.
#[inline]
pub(crate) fn plan_single(
    state: &mut EngineState,
    share: &mut TransitShare,
    pull: &mut Pull,
    read: ReadSegment,
    (buf, pages): (Buf, usize),
) {
    plan_chunk(state, pull, read);
    let len = read.segment.length;
    pull.incoming.push(Incoming { chunk: Some(0), start: 0, len, buf: Some(buf), posted: false });
    pull.pending = 1;
    hold(state, share, pull, pages);
}

/// Plans to pull a Call's only chunk, of one segment.
fn plan_chunk(state: &mut EngineState, pull: &mut Pull, read: ReadSegment) {
    let len = read.segment.length;
    state.statistics.read_chunks += 1;
    pull.reduced.push(Reduced::read_chunk(0, read.position, len));
    pull.items.push(Placed { pieces: PlacedPieces::new(), len });
}

/// Takes memory to read a Call's only chunk into, if that can be done at once by the rules of [`place_wanted`]. Returns
/// the memory, and the number of pages to count for it.
#[inline]
pub(crate) fn take_at_once(
    state: &EngineState,
    share: &TransitShare,
    read: ReadSegment,
) -> Option<(Buf, usize)> {
    let pool = &state.pools.payload;
    let len = read.segment.length as usize;
    let pages = transit::pages(pool, len);
    // A peer that has not shown that it answers, and all that waits, are for the general way.
    let is_free = share.is_trusted
        && !share.is_suspended
        && pages > 0
        && state.transit.obstacle(share, pool, pages, 0).is_none();
    if !is_free {
        return None;
    }
    Some((pool.take_len(len)?, pages))
}

/// Reads a Call's only chunk, of one segment, into `buf`. `false`: the fabric does not read at once, and nothing happened.
#[inline(always)]
pub(crate) fn read_at_once<P: Provider>(
    core: &mut Core<P>,
    id: ConnectionId,
    buf: &mut Buf,
    read: ReadSegment,
) -> bool {
    let Segment { handle, length: len, offset } = read.segment;
    let source = RemoteSegment { handle: Handle(handle), offset };
    let is_read = core.provider.read_at_once(id, buf, &[ReadPart { at: 0, len, source }]);
    if is_read {
        core.statistics.read_chunks += 1;
        core.statistics.read_bytes += u64::from(len);
    }
    is_read
}

/// Posts those of a Call's Reads that are not posted yet.
pub(crate) fn post_reads<P: Provider>(
    core: &mut Core<P>,
    share: &mut TransitShare,
    id: ConnectionId,
    call: &responder::ReceivedCall<'_>,
    pull: &mut Pull,
) -> Posted {
    let pool = &core.state.pools.payload;
    let window = if pull.is_windowed { transit::probe_len(pool, core.config.connections_max) } else { 0 };
    for (place, incoming) in pull.incoming.iter_mut().enumerate() {
        if incoming.posted {
            continue;
        }
        let asked = if pull.is_windowed { transit::pages(pool, incoming.len as usize) } else { 0 };
        if asked > 0 && share.unanswered() > 0 && share.unanswered() + asked > window {
            return Posted::Full;
        }
        let mut parts: ArrayVec<ReadPart, READ_PARTS_MAX> = ArrayVec::new();
        match (incoming.chunk, call.single()) {
            (Some(_), Some(SingleChunk::Read(ReadSegment { segment, .. })))
                if segment.length == incoming.len =>
            {
                let source = RemoteSegment { handle: Handle(segment.handle), offset: segment.offset };
                parts.push(ReadPart { at: 0, len: segment.length, source });
            }
            (Some(_), Some(SingleChunk::Read(read))) => cut([read.segment].into_iter(), incoming, &mut parts),
            (Some(chunk), _) => {
                if let Some(chunk) = call.read_chunks().nth(usize::from(chunk)) {
                    cut(chunk.segments(), incoming, &mut parts);
                }
            }
            (None, _) => cut(call.long_segments(), incoming, &mut parts),
        }
        // Else a handler would see what was in the memory before.
        if parts.iter().map(|part| part.len).sum::<u32>() != incoming.len {
            return Posted::Faulty("a chunk is not as long as the Read of it");
        }
        let Some(target) = incoming.buf.take() else {
            return Posted::Faulty("a Read has no memory to go to");
        };
        let request = ReadRequest { id: ((call.id.index() as u64) << 32) | place as u64, target };
        match core.provider.post_read(id, request, &parts) {
            Ok(()) => {
                incoming.posted = true;
                pull.in_flight += 1;
                core.state.transit.ask(share, asked);
                pull.touched = core.now;
                core.state.read_posted = true;
            }
            Err(refused) => {
                incoming.buf = Some(refused.request.target);
                return match refused.error {
                    stag_fabric::PostError::Full => Posted::Full,
                    _ => Posted::Refused,
                };
            }
        }
    }
    Posted::All
}

/// The Reads that fill one piece of memory from a chunk's segments.
fn cut(
    segments: impl Iterator<Item = Segment>,
    incoming: &Incoming,
    parts: &mut ArrayVec<ReadPart, READ_PARTS_MAX>,
) {
    let mut cursor = Cursor::new(segments);
    let mut skip = incoming.start;
    while skip > 0
        && let Some(span) = cursor.take(skip)
    {
        skip -= span.len;
    }
    let mut at = 0;
    while at < incoming.len
        && let Some(span) = cursor.take(incoming.len - at)
    {
        let source = RemoteSegment { handle: Handle(span.handle), offset: span.offset };
        if parts.try_push(ReadPart { at, len: span.len, source }).is_err() {
            return;
        }
        at += span.len;
    }
}

/// The octets of a Payload stream: where they are, or put together in `gathered`.
pub(crate) fn in_one_piece<'a>(pieces: &'a [Buf], gathered: &'a mut Vec<u8>) -> &'a [u8] {
    if let [piece] = pieces {
        return piece;
    }
    gathered.clear();
    pieces.iter().for_each(|piece| gathered.extend_from_slice(piece));
    gathered
}
