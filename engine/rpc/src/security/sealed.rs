//! A sealed Call on its way through the steps: it is opened where they begin, and its Reply is sealed where they end.
//!
//! [`Sealed`] stands between the steps and the way that the Call came. The steps see a plain Call and a place for a plain Reply; the
//! way sees the sealed Reply only. A Call that is answered later leaves its seal in [`Seals`], under its name.

use std::collections::HashMap;

use arrayvec::ArrayVec;
use smallvec::SmallVec;
use stag_memory::Buf;
use stag_wire::rpc::{Accepted, AuthStat, CallHeader, Denied, OpaqueAuth, ReplyBody, ReplyHeader, flavor};
use stag_wire::xdr::{Overflow, Reader, Reduced, Writer};

use super::{OpenedCall, OpenedCaller, ReplySeal, SealedCall, Unsealed};
use crate::ConnectionId;
use crate::carried::CarriedRoom;
use crate::server::draft::{Draft, Verdict};
use crate::service::call::{Caller, Placed};
use crate::service::dispatch::{Origin, ReplyPolicy, Route, Run, UnopenedCall, route};
use crate::service::reply::{Frame, LONG_REPLY_LEN_MAX, Reply, Room, Space};
use crate::service::steps::{Arrival, Arrived, Exit, answer, proceed, refuse};
use crate::service::{Lookup, NULL_PROCEDURE, Procedure, Services, Token};
use crate::state::EngineState;

/// The seals of Calls that are answered later, and room to seal in.
#[derive(Debug, Default)]
pub(crate) struct Seals {
    /// By connection and slot, with the Call's xid: one for each slot that has a Call at most.
    kept: HashMap<(ConnectionId, u32), (u32, Box<dyn ReplySeal>)>,
    /// Where plain Replies are built.
    plain: Vec<u8>,
    /// Where results are protected.
    results: Vec<u8>,
}

impl Seals {
    fn keep(&mut self, token: &Token, seal: Box<dyn ReplySeal>) {
        self.kept.insert((token.connection, token.slot), (token.xid, seal));
    }

    /// The seal of a Call that is over now; `None`: it is a plain one.
    #[inline(always)]
    pub(crate) fn take(&mut self, token: &Token) -> Option<Box<dyn ReplySeal>> {
        if self.kept.is_empty() { None } else { self.find(token) }
    }

    #[cold]
    fn find(&mut self, token: &Token) -> Option<Box<dyn ReplySeal>> {
        let (xid, seal) = self.kept.remove(&(token.connection, token.slot))?;
        (xid == token.xid).then_some(seal)
    }

    /// A connection is gone: its Calls are not answered any more.
    pub(crate) fn close(&mut self, connection: ConnectionId) {
        self.kept.retain(|(found, _), _| *found != connection);
    }
}

/// The way that a sealed Call came, for the steps of the plain one.
pub(crate) struct Sealed<'a, X> {
    way: &'a mut X,
    token: Token,
    procedure: &'static Procedure,
    /// `None`: it is kept for later.
    seal: Option<Box<dyn ReplySeal>>,
    growth_max: usize,
    /// What there is for the results beside the payload.
    room: CarriedRoom,
    /// Where the plain payload is built, and how long it may be.
    plain: Vec<u8>,
    plain_len_max: usize,
    /// The draft's Send buffer, meanwhile.
    send: Option<Buf>,
}

impl<'a, X> Sealed<'a, X> {
    fn new(
        way: &'a mut X,
        token: Token,
        procedure: &'static Procedure,
        seal: Box<dyn ReplySeal>,
    ) -> Sealed<'a, X> {
        let growth_max = seal.growth_max().next_multiple_of(4);
        Sealed {
            way,
            token,
            procedure,
            seal: Some(seal),
            growth_max,
            room: CarriedRoom::default(),
            plain: Vec::new(),
            plain_len_max: 0,
            send: None,
        }
    }

    /// Gives back the room for the plain payload, and the draft its Send buffer.
    fn give_back(&mut self, state: &mut EngineState, draft: Option<&mut Draft>) {
        state.seals.plain = std::mem::take(&mut self.plain);
        if let Some(draft) = draft {
            draft.send = self.send.take();
        }
    }

    /// Puts the sealed Reply in the place of the plain one, which is in the draft.
    fn seal<C: AsMut<EngineState>>(&mut self, core: &mut C, draft: &mut Draft)
    where
        X: Exit<C>,
    {
        let mut results = std::mem::take(&mut core.as_mut().seals.results);
        let gathered;
        let plain = match self.plain.get(..draft.payload_len) {
            Some(plain) if draft.long.is_empty() => plain,
            // Another reactor made it, in pieces.
            _ => {
                gathered = draft.long.drain(..).fold(Vec::new(), |mut all, piece| {
                    all.extend_from_slice(&piece);
                    all
                });
                &gathered
            }
        };
        let mut reader = Reader::new(plain);
        let header = ReplyHeader::parse(&mut reader);
        results.clear();
        results.extend_from_slice(reader.rest());
        let plain_header_len = reader.position();
        let xid = self.token.xid;
        let body = header.map(|header| without_verifier(header.body));
        draft.send = self.send.take();
        match body {
            Ok(ReplyBody::Denied(denied)) => {
                self.put(core, draft, &ReplyHeader::denied(xid, denied), &[]);
            }
            Ok(ReplyBody::Accepted { outcome, .. }) => {
                let (splice, left_out) = (draft.splice, draft.left_out);
                let header_len = self.put_sealed(core, draft, outcome, &mut results);
                if draft.verdict == Verdict::Encoded && left_out.0 > 0 {
                    let moved = (header_len - plain_header_len) as u32;
                    (draft.splice, draft.left_out) = (splice + moved, left_out);
                }
            }
            Err(_) => draft.verdict = Verdict::TooLong,
        }
        let has_no_form = matches!(draft.verdict, Verdict::NoMemory(_));
        if has_no_form || self.way.instead(draft.verdict).is_some() {
            // The plain Reply had room, and the sealed one has none: the Call is not executed again for that.
            draft.forget_results();
            results.clear();
            self.put_sealed(core, draft, Accepted::SystemErr, &mut results);
        }
        core.as_mut().seals.results = results;
    }

    /// Seals a Reply, and puts it where it leaves. Returns the octets of its header.
    fn put_sealed<C: AsMut<EngineState>>(
        &mut self,
        core: &mut C,
        draft: &mut Draft,
        outcome: Accepted,
        results: &mut Vec<u8>,
    ) -> usize
    where
        X: Exit<C>,
    {
        let xid = self.token.xid;
        let Some(seal) = &mut self.seal else { return 0 };
        let verifier = seal.seal(xid, outcome, results);
        let body = ReplyBody::Accepted { verifier: verifier.as_opaque(), outcome };
        let header = ReplyHeader { xid, body };
        self.put(core, draft, &header, results);
        header.emitted_len()
    }

    fn put<C: AsMut<EngineState>>(
        &mut self,
        core: &mut C,
        draft: &mut Draft,
        header: &ReplyHeader<'_>,
        results: &[u8],
    ) where
        X: Exit<C>,
    {
        Reply::new(core.as_mut(), draft, self.procedure, self.way.frame()).sealed(header, results);
    }
}

/// What a Reply says, without what it borrows.
fn without_verifier(body: ReplyBody<'_>) -> ReplyBody<'static> {
    match body {
        ReplyBody::Accepted { outcome, .. } => ReplyBody::Accepted { verifier: OpaqueAuth::NONE, outcome },
        ReplyBody::Denied(denied) => ReplyBody::Denied(denied),
    }
}

impl<C: AsMut<EngineState>, X: Exit<C>> Exit<C> for Sealed<'_, X> {
    type Served = X::Served;

    fn open(&mut self, core: &mut C) -> Result<Box<Draft>, X::Served> {
        let mut draft = self.way.open(core)?;
        let frame = self.way.frame();
        // Over a byte stream a result may lie apart from the others, but a seal wants them in one piece.
        let has_chunks = !matches!(frame.room, Room::Stream);
        let reply = Reply::new(core.as_mut(), &mut draft, self.procedure, frame);
        let len = reply.payload_room().min(LONG_REPLY_LEN_MAX).saturating_sub(self.growth_max);
        let eligible = if has_chunks { usize::from(self.procedure.eligible_results) } else { 0 };
        self.room = CarriedRoom {
            write_chunks: (0..eligible).map_while(|index| reply.item_place(index)).collect(),
            wants_few_pieces: reply.pieces_room() != usize::MAX,
            ..CarriedRoom::default()
        };
        self.plain = std::mem::take(&mut core.as_mut().seals.plain);
        if self.plain.len() < len {
            self.plain.resize(len, 0);
        }
        self.plain_len_max = len;
        self.send = draft.send.take();
        Ok(draft)
    }

    fn frame(&mut self) -> Frame<'_> {
        let len = self.plain_len_max;
        Frame {
            room: Room::Carried(&self.room),
            inline_len_max: len,
            space: Some(Space { octets: &mut self.plain[..len], header_len: 0 }),
            ..self.way.frame()
        }
    }

    fn payload<'d>(&'d self, draft: &'d Draft) -> Option<&'d [u8]> {
        self.plain.get(..draft.payload_len)
    }

    fn instead(&self, verdict: Verdict) -> Option<Accepted> {
        match verdict {
            // It does not wait for memory: it would be opened again.
            Verdict::NoMemory(_) => Some(Accepted::SystemErr),
            verdict => self.way.instead(verdict),
        }
    }

    fn send(&mut self, core: &mut C, terms: ReplyPolicy, mut draft: Box<Draft>) -> X::Served {
        if draft.verdict == Verdict::Encoded {
            self.seal(core, &mut draft);
            self.give_back(core.as_mut(), None);
        } else {
            self.give_back(core.as_mut(), Some(&mut draft));
        }
        self.way.send(core, terms, draft)
    }

    fn keep(&mut self, core: &mut C, terms: ReplyPolicy, mut draft: Option<Box<Draft>>) -> X::Served {
        let state = core.as_mut();
        if draft.is_some() {
            self.give_back(state, draft.as_deref_mut());
        }
        if let Some(seal) = self.seal.take().filter(|_| X::MAY_WAIT) {
            state.seals.keep(&self.token, seal);
        }
        self.way.keep(core, terms, draft)
    }
}

impl<C: AsMut<EngineState>, A: Arrival<C>> Arrival<C> for Sealed<'_, A> {
    const MAY_LEAVE: bool = A::MAY_LEAVE;

    fn meet(&mut self, caller: &Caller<'_>) {
        self.way.meet(caller);
    }

    fn check(&mut self, core: &mut C, run: &Run<'_>) -> Result<(), A::Served> {
        self.way.check(core, run)
    }

    fn bring(&mut self, core: &mut C, items: &mut [Placed]) -> Result<(), A::Served> {
        self.way.bring(core, items)
    }

    fn room(&mut self, core: &mut C, run: &Run<'_>) -> Result<CarriedRoom, A::Served> {
        let mut room = self.way.room(core, run)?;
        if room.is_stream {
            room.is_stream = false;
            room.reply_chunk_len = LONG_REPLY_LEN_MAX as u32;
            room.write_chunks = ArrayVec::new();
        }
        let growth = self.growth_max as u32;
        room.inline_len_max = room.inline_len_max.saturating_sub(growth);
        room.reply_chunk_len = room.reply_chunk_len.saturating_sub(growth);
        Ok(room)
    }

    fn discard(&mut self, core: &mut C) -> A::Served {
        self.way.discard(core)
    }

    fn wait(&mut self, core: &mut C) -> A::Served {
        if let Some(seal) = self.seal.take() {
            core.as_mut().seals.keep(&self.token, seal);
        }
        self.way.wait(core)
    }
}

/// Answers a Call that was left for later: sealed, if it came so.
pub(crate) fn answer_later<C: AsMut<EngineState>, X: Exit<C>>(
    core: &mut C,
    way: &mut X,
    token: Token,
    terms: ReplyPolicy,
    fill: &mut dyn FnMut(&mut Reply<'_>),
) -> X::Served {
    match core.as_mut().seals.take(&token) {
        None => answer(core, way, terms, fill),
        Some(seal) => answer_sealed(core, way, token, terms, seal, fill),
    }
}

#[cold]
fn answer_sealed<C: AsMut<EngineState>, X: Exit<C>>(
    core: &mut C,
    way: &mut X,
    token: Token,
    terms: ReplyPolicy,
    seal: Box<dyn ReplySeal>,
    fill: &mut dyn FnMut(&mut Reply<'_>),
) -> X::Served {
    answer(core, &mut Sealed::new(way, token, terms.procedure, seal), terms, fill)
}

/// Takes a Call through its steps whose flavor is sealed: opens it when its data is here.
#[cold]
#[inline(never)]
pub(crate) fn serve_sealed<C: AsMut<EngineState>, S: Services, A: Arrival<C>>(
    core: &mut C,
    services: &mut S,
    way: &mut A,
    arrived: &Arrived<'_>,
    items: &mut [Placed],
    unopened: &UnopenedCall<'_>,
) -> A::Served {
    // Nothing may happen where a message is shown, and to open a Call may change its flavor's state.
    if A::IS_SHOWN {
        return way.discard(core);
    }
    let UnopenedCall { header, arguments_at, is_protected } = *unopened;
    let CallHeader { xid, program, version, procedure, .. } = header;
    if let Lookup::Found { service, procedure } = services.lookup(program, version, procedure) {
        let procedure = if is_protected { without_chunks(procedure) } else { procedure };
        let run = Run::unverified(&header, procedure, service);
        if let Err(served) = way.check(core, &run) {
            return served;
        }
        if let Err(served) = way.bring(core, items) {
            return served;
        }
    }
    let Origin { connection, slot, peer, local, now } = arrived.origin;
    let token = Token { connection, slot, xid };
    let (before, arguments) = arrived.stream.split_at(arguments_at);
    let signed = &before[..SIGNED_LEN_MIN + header.credential.body.len().next_multiple_of(4)];
    let opened = services.open(&SealedCall { header, signed, arguments, peer, now });
    let (call, seal) = match opened {
        Unsealed::Call(OpenedCall { caller, arguments: plain, seal }) => {
            let plain = plain.as_deref().unwrap_or(arguments);
            (plain_call(&header, &caller, plain).ok(), seal)
        }
        Unsealed::Answered { results, seal } => {
            let mut sealed = Sealed::new(way, token, &NULL_PROCEDURE, seal);
            return answer(core, &mut sealed, ReplyPolicy::ENGINE, &mut |reply| {
                reply.success(|writer| writer.opaque_fixed(&results));
                reply.refuses_caller();
            });
        }
        Unsealed::Denied(why) => return refuse(core, way, &denied(xid, why)),
        Unsealed::Dropped => {
            core.as_mut().statistics.messages_discarded += 1;
            return way.discard(core);
        }
    };
    // A flavor that gives its caller too long a name.
    let Some((stream, plain_at)) = call else { return refuse(core, way, &denied(xid, AuthStat::FAILED)) };
    let reduced: SmallVec<[Reduced; 1]> =
        arrived.reduced.iter().map(|item| shifted(item, arguments_at, plain_at)).collect();
    let origin = Origin { connection, slot, peer, local, now };
    let arrived = Arrived { origin, stream: &stream, reduced: &reduced };
    match route(services, true, Reader::with_reduced(&stream, &reduced)) {
        Route::Run(mut run) => {
            if is_protected {
                run.procedure = without_chunks(run.procedure);
            }
            let mut sealed = Sealed::new(way, token, run.procedure, seal);
            proceed(core, services, &mut sealed, &arrived, items, &run)
        }
        Route::Refuse(refusal) => {
            let mut sealed = Sealed::new(way, token, &NULL_PROCEDURE, seal);
            answer(core, &mut sealed, ReplyPolicy::ENGINE, &mut |reply| reply.header(&refusal))
        }
        Route::Open(_) | Route::Drop => way.discard(core),
    }
}

/// Octets of a Call's header up to the body of the credential.
const SIGNED_LEN_MIN: usize = 32;

fn denied(xid: u32, why: AuthStat) -> ReplyHeader<'static> {
    ReplyHeader::denied(xid, Denied::AuthError(why))
}

/// The plain Call in a sealed one, and where its arguments begin.
fn plain_call(
    header: &CallHeader<'_>,
    caller: &OpenedCaller,
    arguments: &[u8],
) -> Result<(Vec<u8>, usize), Overflow> {
    let credential = match caller {
        OpenedCaller::None => OpaqueAuth::NONE,
        OpenedCaller::Sys(body) => OpaqueAuth { flavor: flavor::AUTH_SYS, body },
        OpenedCaller::Own(body) => OpaqueAuth { flavor: header.credential.flavor, body },
    };
    let header = CallHeader { credential, verifier: OpaqueAuth::NONE, ..*header };
    let mut stream = vec![0; header.emitted_len()];
    header.emit(&mut Writer::new(&mut stream))?;
    let len = stream.len();
    stream.extend_from_slice(arguments);
    Ok((stream, len))
}

/// The highest position that an item can be given: one of no octet that there is.
const POSITION_MAX: u32 = u32::MAX - 3;

/// An item that was left out of arguments which begin at octet `to` now, and not at `from`. A position of no use stays one.
fn shifted(item: &Reduced, from: usize, to: usize) -> Reduced {
    let position = (u64::from(item.position) + to as u64).saturating_sub(from as u64);
    // The last numbers are those of Write chunks.
    Reduced { position: position.min(POSITION_MAX.into()) as u32, ..*item }
}

/// The same procedure without items that may go by chunk.
///
/// It is made once for each procedure of the program that has such items and is called so, and is as static as that.
fn without_chunks(procedure: &'static Procedure) -> &'static Procedure {
    use std::sync::{Mutex, PoisonError};

    static MADE: Mutex<Vec<(&'static Procedure, &'static Procedure)>> = Mutex::new(Vec::new());

    if !procedure.has_eligible_items() {
        return procedure;
    }
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let found = made.iter().find(|(from, to)| std::ptr::eq(*from, procedure) || std::ptr::eq(*to, procedure));
    if let Some((_, found)) = found {
        return found;
    }
    let plain = Procedure { eligible_arguments: 0, eligible_results: 0, locate: None, ..*procedure };
    let plain: &'static Procedure = Box::leak(Box::new(plain));
    made.push((procedure, plain));
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct NoSeal;

    impl ReplySeal for NoSeal {
        fn growth_max(&self) -> usize {
            0
        }
        fn seal(&mut self, _: u32, _: Accepted, _: &mut Vec<u8>) -> super::super::AuthBody {
            super::super::AuthBody { flavor: 0, body: Vec::new() }
        }
    }

    fn token(connection: u32, slot: u32, xid: u32) -> Token {
        Token { connection: ConnectionId { index: connection, generation: 1 }, slot, xid }
    }

    #[test]
    fn a_seal_is_kept_for_its_call_until_that_is_over() {
        let mut seals = Seals::default();
        seals.keep(&token(1, 0, 7), Box::new(NoSeal));
        seals.keep(&token(1, 1, 8), Box::new(NoSeal));
        seals.keep(&token(2, 0, 7), Box::new(NoSeal));
        assert!(seals.take(&token(1, 0, 7)).is_some());
        assert!(seals.take(&token(1, 0, 7)).is_none(), "once");
        // A connection that ends takes its own along.
        seals.close(ConnectionId { index: 1, generation: 1 });
        assert!(seals.take(&token(1, 1, 8)).is_none());
        assert!(seals.take(&token(2, 0, 7)).is_some());
        assert!(seals.kept.is_empty());
    }

    /// A slot has one Call: the seal of one that is gone is not that of the next.
    #[test]
    fn a_slot_has_one_seal() {
        let mut seals = Seals::default();
        seals.keep(&token(1, 0, 7), Box::new(NoSeal));
        assert!(seals.take(&token(1, 0, 9)).is_none());
        for xid in 0..100 {
            seals.keep(&token(1, 0, xid), Box::new(NoSeal));
        }
        assert_eq!(seals.kept.len(), 1);
    }

    /// A client may send any position.
    #[test]
    fn positions_move_with_the_arguments() {
        for (position, from, to, moved) in [
            (100, 80, 40, 60),
            (80, 80, 440, 440),
            (0, 80, 40, 0),
            (POSITION_MAX, 40, 440, POSITION_MAX),
            (POSITION_MAX, 440, 40, POSITION_MAX - 400),
        ] {
            assert_eq!(
                shifted(&Reduced::read_chunk(3, position, 9), from, to),
                Reduced::read_chunk(3, moved, 9)
            );
        }
    }

    #[test]
    fn a_procedure_without_chunks_keeps_its_name_and_is_made_once() {
        static PUT: Procedure = Procedure { eligible_arguments: 1, ..Procedure::plain("PUT") }.once();
        static ECHO: Procedure = Procedure::plain("ECHO");
        let plain = without_chunks(&PUT);
        assert!(!plain.has_eligible_items());
        assert_eq!((plain.name, plain.repeat), (PUT.name, PUT.repeat));
        assert!(std::ptr::eq(plain, without_chunks(&PUT)));
        assert!(std::ptr::eq(&raw const ECHO, without_chunks(&ECHO)));
    }
}
