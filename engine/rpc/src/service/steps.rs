//! The steps of a Call at the server, written once for each way that it can arrive and be answered.
//!
//! ```text
//!  route ─▶ check ─▶ data ─▶ home ─▶ duplicates ─▶ handler ─▶ Reply
//!    │        │        │       │          │            │         │
//!    ▼        ▼        ▼       ▼          ▼            ▼         ▼
//!  refuse   refuse   wait    carry     repeat        keep      send
//! ```
//!
//! A Call of a sealed flavor is opened behind the data, and routed again as the plain Call that it was ([`crate::security`]).
//!
//! An [`Arrival`] is a Call where its octets are, with what its connection does at each step. Its [`Exit`] is where its answer
//! goes, at once or later. Both are compiled once for each kind, so a kind pays nothing for the others.
//!
//! | octets | answer | type |
//! |---|---|---|
//! | a message of version 1, shown where it arrived | the place that it is shown with | `in_place::Shown` |
//! | the same of version 2 | the same, and memory behind it | `version2::in_place::ShownLone` |
//! | a Receive, or a group of them | a Send, or a group | `serving::received::Received` |
//! | a record of a byte stream | the outbox | `stream::connection::answering::Record` |
//! | a datagram | the socket | `stream::datagram::Datagram` |
//! | a record of a lane | a record of a lane | `carried::exchange::Answering` |
//! | none: its connection is gone | the duplicate request cache | `late::Orphan` |

use stag_wire::rpc::{Accepted, ReplyHeader};
use stag_wire::xdr::{Reader, Reduced};

use crate::carried::{CarriedRoom, Destination};
use crate::security::sealed::serve_sealed;
use crate::server::draft::{Defect, Draft, Verdict};
use crate::server::duplicates::Known;
use crate::service::call::{Caller, Placed};
use crate::service::dispatch::{Origin, ReplyPolicy, Route, Run, admit, destination, route};
use crate::service::reply::{Frame, Reply};
use crate::service::{Services, Token};
use crate::state::{EngineState, Pass};

/// Where the answer to a Call goes. `C` is what it takes to send it: an engine's core, or its state alone.
pub(crate) trait Exit<C> {
    /// Whether the Call may be answered later.
    const MAY_WAIT: bool = true;

    /// What becomes of the Call.
    type Served;

    /// A draft with the room that [`Exit::frame`] tells of. `Err`: the Call cannot be answered, and this becomes of it.
    fn open(&mut self, core: &mut C) -> Result<Box<Draft>, Self::Served>;

    /// What there is for the Reply.
    fn frame(&mut self) -> Frame<'_>;

    /// The payload that was built, unless it is long.
    #[inline(always)]
    fn payload<'d>(&'d self, draft: &'d Draft) -> Option<&'d [u8]> {
        draft.sent_payload()
    }

    /// How the Call is answered if the handler's decision has no form here; `None`: it has one.
    #[inline(always)]
    fn instead(&self, verdict: Verdict) -> Option<Accepted> {
        let _ = verdict;
        None
    }

    /// Sends the Reply. It is kept for retransmissions already, if it has to be.
    fn send(&mut self, core: &mut C, terms: ReplyPolicy, draft: Box<Draft>) -> Self::Served;

    /// Keeps the Call, which is answered later on these terms: by its service, which has not filled in `draft`, or by another
    /// reactor, if there is no draft.
    fn keep(&mut self, core: &mut C, terms: ReplyPolicy, draft: Option<Box<Draft>>) -> Self::Served;
}

/// A Call that has arrived, with its Payload stream.
pub(crate) struct Arrived<'m> {
    pub(crate) origin: Origin<'m>,
    /// Its Payload stream, from the xid on.
    pub(crate) stream: &'m [u8],
    /// What of its arguments is not in that.
    pub(crate) reduced: &'m [Reduced],
}

impl Arrived<'_> {
    /// Its name.
    #[inline(always)]
    pub(crate) fn token(&self, run: &Run<'_>) -> Token {
        Token { connection: self.origin.connection, slot: self.origin.slot, xid: run.head.xid }
    }
}

/// A Call that another reactor executes: it, what was found out of it, and its data.
pub(crate) type CallToCarry<'c> = (&'c Arrived<'c>, &'c Run<'c>, &'c mut [Placed]);

/// What the connection of a Call does at each step.
pub(crate) trait Arrival<C: AsMut<EngineState>>: Exit<C> + Sized {
    /// The Call is only shown: what is neither executed nor carried takes another way, and nothing has happened.
    const IS_SHOWN: bool = false;

    /// Whether another reactor may execute it.
    const MAY_LEAVE: bool = true;

    /// The reactor that it came in at has verified it.
    const IS_VERIFIED: bool = false;

    /// Learns who calls.
    fn meet(&mut self, caller: &Caller<'_>);

    /// Whether it may go on, before its data is here. `Err`: it may not, and this becomes of it.
    fn check(&mut self, core: &mut C, run: &Run<'_>) -> Result<(), Self::Served>;

    /// Brings its data to `items`, if it is not there yet. `Err`: it comes later.
    #[inline(always)]
    fn bring(&mut self, core: &mut C, items: &mut [Placed]) -> Result<(), Self::Served> {
        let _ = (core, items);
        Ok(())
    }

    /// What there is for its results, for another reactor. `Err`: it cannot be carried.
    fn room(&mut self, core: &mut C, run: &Run<'_>) -> Result<CarriedRoom, Self::Served>;

    /// Carries it to where it is executed. The answer comes late.
    #[inline(always)]
    fn carry(&mut self, core: &mut C, call: CallToCarry<'_>, to: Destination) -> Self::Served {
        carry(core, self, call, to)
    }

    /// It is not answered.
    fn discard(&mut self, core: &mut C) -> Self::Served;

    /// It waits for the answer to the Call that it repeats.
    fn wait(&mut self, core: &mut C) -> Self::Served;
}

/// Takes a Call through its steps. `items` is its data, or the places for it.
#[inline(always)]
pub(crate) fn serve<C: AsMut<EngineState>, S: Services, A: Arrival<C>>(
    pass: &mut Pass<'_, C, S>,
    arrival: &mut A,
    arrived: &Arrived<'_>,
    items: &mut [Placed],
) -> A::Served {
    let Pass { core, services } = pass;
    let (core, services) = (&mut **core, &mut **services);
    let routed = route(services, A::IS_VERIFIED, Reader::with_reduced(arrived.stream, arrived.reduced));
    // By reference: it is large to move.
    let run = match &routed {
        Route::Run(run) => run,
        Route::Refuse(refusal) => return refuse(core, arrival, refusal),
        Route::Drop => {
            core.as_mut().statistics.messages_discarded += u64::from(!A::IS_SHOWN);
            return arrival.discard(core);
        }
        Route::Open(unopened) => return serve_sealed(core, services, arrival, arrived, items, unopened),
    };
    if let Err(served) = arrival.check(core, run) {
        return served;
    }
    if let Err(served) = arrival.bring(core, items) {
        return served;
    }
    proceed(core, services, arrival, arrived, items, run)
}

/// Takes a Call through the steps that are left when its data is here.
#[inline(always)]
pub(crate) fn proceed<C: AsMut<EngineState>, S: Services, A: Arrival<C>>(
    core: &mut C,
    services: &mut S,
    arrival: &mut A,
    arrived: &Arrived<'_>,
    items: &mut [Placed],
    run: &Run<'_>,
) -> A::Served {
    if A::MAY_LEAVE
        && let Some(carrier) = core.as_mut().carrier.as_deref()
        && let Some(to) = destination(carrier, services, run, &arrived.origin)
    {
        return arrival.carry(core, (arrived, run, items), to);
    }
    let terms = match admit(core.as_mut(), run, arrived, items) {
        Ok(terms) => terms,
        Err(known) => return repeat(core, arrival, arrived.token(run), known),
    };
    arrival.meet(&run.head.caller);
    let mut draft = match open(core, arrival, terms) {
        Ok(draft) => draft,
        Err(served) => return served,
    };
    let mut reply = Reply::new(core.as_mut(), &mut draft, terms.procedure, arrival.frame());
    let is_done = run.call(services, &arrived.origin, items, &mut reply);
    conclude(core, arrival, terms, draft, is_done)
}

/// Makes a Reply without asking a handler: `fill` fills it in.
// Not inline: a copy of this for all of that.
#[inline(never)]
pub(crate) fn answer<C: AsMut<EngineState>, X: Exit<C>>(
    core: &mut C,
    exit: &mut X,
    terms: ReplyPolicy,
    fill: &mut dyn FnMut(&mut Reply<'_>),
) -> X::Served {
    let mut draft = match open(core, exit, terms) {
        Ok(draft) => draft,
        Err(served) => return served,
    };
    fill(&mut Reply::new(core.as_mut(), &mut draft, terms.procedure, exit.frame()));
    conclude(core, exit, terms, draft, true)
}

#[inline(always)]
fn open<C: AsMut<EngineState>, X: Exit<C>>(
    core: &mut C,
    exit: &mut X,
    terms: ReplyPolicy,
) -> Result<Box<Draft>, X::Served> {
    let draft = exit.open(core);
    if draft.is_err() {
        terms.give_up(core.as_mut());
    }
    draft
}

/// Sends a Reply, if its handler `is_done`; or keeps the Call, which is answered later.
#[inline(always)]
fn conclude<C: AsMut<EngineState>, X: Exit<C>>(
    core: &mut C,
    exit: &mut X,
    terms: ReplyPolicy,
    mut draft: Box<Draft>,
    is_done: bool,
) -> X::Served {
    let pages = std::mem::take(&mut draft.pages);
    if !is_done {
        return exit.keep(core, ReplyPolicy { pages, ..terms }, Some(draft));
    }
    let defect = draft.defect();
    if defect.is_some() || exit.instead(draft.verdict).is_some() {
        amend(core, exit, terms, &mut draft, defect);
    }
    if let Some(entry) = terms.kept {
        let EngineState { duplicates, statistics, .. } = core.as_mut();
        duplicates.keep(entry, exit.payload(&draft).filter(|_| draft.is_whole()), statistics);
    }
    exit.send(core, terms, draft)
}

/// Answers with an error what a handler has decided and cannot be said.
#[cold]
fn amend<C: AsMut<EngineState>, X: Exit<C>>(
    core: &mut C,
    exit: &mut X,
    terms: ReplyPolicy,
    draft: &mut Draft,
    defect: Option<Defect>,
) {
    let mut accepted = exit.instead(draft.verdict);
    if let Some(defect) = defect {
        terms.report(core.as_mut(), defect);
        accepted = Some(Accepted::SystemErr);
    }
    let Some(accepted) = accepted else { return };
    let mut frame = exit.frame();
    // Its payload has moved there.
    frame.space = frame.space.filter(|_| draft.send.is_none());
    Reply::new(core.as_mut(), draft, terms.procedure, frame).error(accepted);
}

#[cold]
pub(crate) fn refuse<C: AsMut<EngineState>, A: Arrival<C>>(
    core: &mut C,
    arrival: &mut A,
    refusal: &ReplyHeader<'_>,
) -> A::Served {
    if A::IS_SHOWN {
        return arrival.discard(core);
    }
    answer(core, arrival, ReplyPolicy::ENGINE, &mut |reply| reply.header(refusal))
}

/// What becomes of a Call that must not be executed again.
#[cold]
fn repeat<C: AsMut<EngineState>, A: Arrival<C>>(
    core: &mut C,
    arrival: &mut A,
    token: Token,
    known: Known,
) -> A::Served {
    if A::IS_SHOWN {
        return arrival.discard(core);
    }
    let EngineState { duplicates, statistics, .. } = core.as_mut();
    match known {
        Known::Answered(kept) => {
            statistics.duplicates_answered += 1;
            answer(core, arrival, ReplyPolicy::ENGINE, &mut |reply| reply.repeat(&kept))
        }
        Known::RunningElsewhere(entry) if duplicates.wait(token, entry, statistics) => arrival.wait(core),
        Known::RunningElsewhere(_) => arrival.discard(core),
        // Its Reply will be sent where it came first.
        Known::Running | Known::Nothing | Known::New(_) => {
            statistics.duplicates_dropped += 1;
            arrival.discard(core)
        }
    }
}

/// Carries a Call to where it is executed. The answer comes late.
// Not inline: it would slow down a Call that is executed here.
#[inline(never)]
fn carry<C: AsMut<EngineState>, A: Arrival<C>>(
    core: &mut C,
    arrival: &mut A,
    (arrived, run, items): CallToCarry<'_>,
    to: Destination,
) -> A::Served {
    let terms = ReplyPolicy::of(run);
    if to == Destination::All && run.procedure.has_eligible_items() {
        return answer(core, arrival, terms, &mut |reply| reply.system_error());
    }
    let room = match arrival.room(core, run) {
        Ok(room) => room,
        Err(served) => return served,
    };
    let EngineState { carrier, statistics, .. } = core.as_mut();
    // It said where the Call has to go.
    let Some(carrier) = carrier else { return arrival.discard(core) };
    let ends = (arrived.origin.peer, arrived.origin.local);
    let call = (arrived.stream, run.head.arguments.reduced(), items);
    statistics.pieces_lent += carrier.send_call(to, &arrived.token(run), ends, &room, call);
    statistics.calls_carried += 1;
    arrival.meet(&run.head.caller);
    arrival.keep(core, terms, None)
}
