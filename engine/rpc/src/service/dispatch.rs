//! From a Call's octets to its handler: the same for every transport.
//!
//! [`route`] makes RFC 5531's checks in their order (5531-a); [`Run::call`] gives a Call that passes to the
//! service.

use std::net::IpAddr;
use std::time::Duration;

use stag_fabric::Peer;
use stag_wire::rpc::{Accepted, CallHeader, Denied, ReplyHeader};
use stag_wire::xdr::Reader;

use crate::ConnectionId;
use crate::carried::{Carrier, Destination};
use crate::security::{CallerVisitor, Claim, FlavorSet, VerifiedFlavors};
use crate::server::client_log::ClientName;
use crate::server::draft::Defect;
use crate::server::duplicates::{Asked, EntryId, Known};
use crate::service::call::{Call, CallHead, Caller, Placed};
use crate::service::reply::Reply;
use crate::service::steps::Arrived;
use crate::service::{Home, Lookup, NULL_PROCEDURE, Outcome, Procedure, Repeat, Services};
use crate::state::EngineState;

/// What becomes of a Call.
pub(crate) enum Route<'a> {
    /// It has no xid, or is no Call: it is not answered (5531-d).
    Drop,
    /// The engine answers by itself.
    Refuse(ReplyHeader<'static>),
    /// A service answers it.
    Run(Run<'a>),
    /// Its flavor is sealed: it has to be opened first.
    Open(UnopenedCall<'a>),
}

/// The header of a Call that has to be opened.
#[derive(Clone, Copy)]
pub(crate) struct UnopenedCall<'a> {
    pub(crate) header: CallHeader<'a>,
    /// Where the arguments begin in the Payload stream.
    pub(crate) arguments_at: usize,
    /// Arguments and results do not go by chunk.
    pub(crate) is_protected: bool,
}

/// A Call that a service answers.
pub(crate) struct Run<'a> {
    pub(crate) head: CallHead<'a>,
    pub(crate) procedure: &'static Procedure,
    service: usize,
}

/// Where a Call came in.
pub(crate) struct Origin<'a> {
    pub(crate) connection: ConnectionId,
    /// Where the connection keeps it if it is answered later.
    pub(crate) slot: u32,
    pub(crate) peer: Option<&'a Peer>,
    /// Over TCP: the address of this machine that it came to.
    pub(crate) local: Option<&'a IpAddr>,
    pub(crate) now: Duration,
}

/// On which terms a Call is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplyPolicy {
    /// What the binding says of the results.
    pub(crate) procedure: &'static Procedure,
    /// Program number, for the log.
    pub(crate) program: u32,
    /// Pages that the results of a Call that is answered later are said to take.
    pub(crate) pages: u32,
    /// Where the Reply is kept for retransmissions.
    pub(crate) kept: Option<EntryId>,
}

impl ReplyPolicy {
    /// Of an answer that no service makes.
    pub(crate) const ENGINE: ReplyPolicy =
        ReplyPolicy { procedure: &NULL_PROCEDURE, program: 0, kept: None, pages: 0 };

    #[inline]
    pub(crate) fn of(run: &Run<'_>) -> ReplyPolicy {
        ReplyPolicy { procedure: run.procedure, program: run.head.program, kept: None, pages: 0 }
    }

    /// A handler's mistake, for its author: the Call is answered with SYSTEM_ERR.
    #[cold]
    pub(crate) fn report(&self, state: &mut EngineState, defect: Defect) {
        state.statistics.replies_defective += 1;
        let Some(withheld) = state.defects.admit(state.now) else { return };
        let (program, procedure) = (self.program, self.procedure.name);
        match defect {
            Defect::Empty => {
                tracing::error!(
                    program,
                    procedure,
                    withheld,
                    "handler: it is done, but the Reply is not filled in"
                );
            }
            Defect::Panicked => {
                tracing::error!(
                    program,
                    procedure,
                    withheld,
                    "handler: it panicked; the Call is answered with SYSTEM_ERR"
                );
            }
            Defect::Sum { announced, given } => tracing::error!(
                program,
                procedure,
                announced,
                given,
                withheld,
                "handler: the octets given for an eligible result are not as many as it announced"
            ),
            Defect::LeftOut { announced, encoded } => tracing::error!(
                program,
                procedure,
                announced,
                encoded,
                withheld,
                "handler: eligible_opaque_reduced is not encoded for the results that Reply::item reduced"
            ),
        }
    }

    /// The Call is not executed, or its outcome will not be known.
    #[cold]
    pub(crate) fn give_up(self, state: &mut EngineState) {
        if let Some(entry) = self.kept {
            state.duplicates.forget(entry);
        }
    }
}

/// Where a Call is executed that is not executed here.
// Not inline: it would slow down every Call of an engine that is alone.
#[inline(never)]
pub(crate) fn destination<S: Services>(
    carrier: &Carrier,
    services: &S,
    run: &Run<'_>,
    origin: &Origin<'_>,
) -> Option<Destination> {
    carrier.destination(run.home(services, origin), origin.peer)
}

/// Decides whether a Call is executed, and on which terms. `Err`: it is, or was, and this is known of it.
#[allow(clippy::result_large_err, reason = "on the stack, for a moment; a box would be an allocation")]
#[inline(always)]
pub(crate) fn admit(
    state: &mut EngineState,
    run: &Run<'_>,
    arrived: &Arrived<'_>,
    items: &[Placed],
) -> Result<ReplyPolicy, Known> {
    let mut terms = ReplyPolicy::of(run);
    if run.procedure.repeat != Repeat::Harmless {
        match lookup(state, run, arrived, items) {
            Known::Nothing => {}
            Known::New(entry) => terms.kept = Some(entry),
            known => return Err(known),
        }
    }
    Ok(terms)
}

/// What is known of a Call that must not simply be executed again.
// Not inline: most Calls may be.
#[inline(never)]
fn lookup(state: &mut EngineState, run: &Run<'_>, arrived: &Arrived<'_>, items: &[Placed]) -> Known {
    let Run { head: CallHead { xid, arguments, .. }, procedure, .. } = run;
    let &Arrived { origin: Origin { connection, peer, now, .. }, stream, .. } = arrived;
    let asked = Asked { procedure, connection, peer, xid: *xid, stream, arguments, items, now };
    state.duplicates.lookup(&asked, &mut state.statistics)
}

/// Decides who answers a Call. `reader` stands at its xid. `is_verified`: it is the plain Call of a sealed one, or another reactor has
/// let it in.
#[inline(always)]
pub(crate) fn route<'a, S: Services>(services: &S, is_verified: bool, reader: Reader<'a>) -> Route<'a> {
    // What most Calls say is not written down before it is in its place: so each kind of credential goes there by a way of its own.
    let mut arguments = reader.clone();
    let Some(header) = CallHeader::parse_usual(&mut arguments) else {
        return route_any(services, is_verified, reader);
    };
    let credential = header.credential;
    let routing = Routing { services, header, arguments, is_verified, reader };
    match is_verified {
        false => services.named_caller(credential, routing),
        true => VerifiedFlavors.named(credential, routing),
    }
}

/// A Call on its way from its credential to its service.
struct Routing<'s, 'a, S> {
    services: &'s S,
    header: CallHeader<'a>,
    arguments: Reader<'a>,
    is_verified: bool,
    /// At the xid.
    reader: Reader<'a>,
}

impl<'a, S: Services> CallerVisitor<'a> for Routing<'_, 'a, S> {
    type Output = Route<'a>;

    #[inline(always)]
    fn named(self, caller: Caller<'a>) -> Route<'a> {
        route_to(self.services, &self.header, caller, self.arguments)
    }

    #[inline(always)]
    fn other(self) -> Route<'a> {
        route_any(self.services, self.is_verified, self.reader)
    }
}

/// Whether a caller without a name may call.
pub(crate) struct MayBeNameless;

impl<'a> CallerVisitor<'a> for MayBeNameless {
    type Output = bool;

    #[inline(always)]
    fn named(self, _: Caller<'a>) -> bool {
        true
    }

    #[inline(always)]
    fn other(self) -> bool {
        false
    }
}

/// As [`route`], of any Call.
#[cold]
#[inline(never)]
fn route_any<'a, S: Services>(services: &S, is_verified: bool, mut reader: Reader<'a>) -> Route<'a> {
    let header = match CallHeader::parse(&mut reader) {
        Ok(header) => header,
        Err(error) => {
            return match ReplyHeader::refusal(error) {
                Some(refusal) => Route::Refuse(refusal),
                None => Route::Drop,
            };
        }
    };
    let arguments_at = reader.position();
    let open = |is_protected| Route::Open(UnopenedCall { header, arguments_at, is_protected });
    let claim = if is_verified { VerifiedFlavors.claim(&header) } else { services.claim(&header) };
    match claim {
        Claim::Plain(caller) => route_to(services, &header, caller, reader),
        Claim::Signed => open(false),
        Claim::Protected => open(true),
        Claim::Denied(why) => Route::Refuse(ReplyHeader::denied(header.xid, Denied::AuthError(why))),
    }
}

/// Decides who answers the Call of a caller that may be: 5531-a's checks of program, version and procedure.
#[inline(always)]
fn route_to<'a, S: Services>(
    services: &S,
    header: &CallHeader<'a>,
    caller: Caller<'a>,
    arguments: Reader<'a>,
) -> Route<'a> {
    let &CallHeader { xid, program, version, procedure: number, .. } = header;
    let outcome = match services.lookup(program, version, number) {
        Lookup::Found { service, procedure } => {
            let head = CallHead { xid, program, version, procedure: number, caller, arguments };
            return Route::Run(Run { head, procedure, service });
        }
        Lookup::NoVersion(low, high) => Accepted::ProgMismatch { low, high },
        Lookup::NoProcedure => Accepted::ProcUnavail,
        Lookup::NoProgram => Accepted::ProgUnavail,
    };
    Route::Refuse(ReplyHeader::accepted(xid, outcome))
}

/// Writes a Call into the log: its program, the version of that, and its procedure.
#[cold]
pub(crate) fn trace_call(peer: Option<&Peer>, xid: u32, (program, version, procedure): (u32, u32, u32)) {
    let client = ClientName { peer, host: None };
    tracing::trace!("{client}: Call {xid:#010x} of program {program}.{version}, procedure {procedure}");
}

impl<'a> Run<'a> {
    /// A Call that has to be opened, for the check of its chunks.
    pub(crate) fn unverified(
        header: &CallHeader<'a>,
        procedure: &'static Procedure,
        service: usize,
    ) -> Run<'a> {
        let &CallHeader { xid, program, version, procedure: number, .. } = header;
        let (caller, arguments) = (Caller::None, Reader::new(&[]));
        let head = CallHead { xid, program, version, procedure: number, caller, arguments };
        Run { head, procedure, service }
    }

    /// The Call as its service sees it.
    #[inline(always)]
    fn seen<'s>(&'s self, origin: &'s Origin<'s>, items: &'s mut [Placed]) -> Call<'s> {
        Call { head: &self.head, origin, items }
    }

    /// Where the service executes it.
    // Inline, so that only the fields of the Call that the service reads are built.
    #[inline(always)]
    pub(crate) fn home<S: Services>(&self, services: &S, origin: &Origin<'_>) -> Home {
        match self.head.procedure {
            0 => Home::Here,
            _ => services.home(self.service, &self.seen(origin, &mut [])),
        }
    }

    /// Lets the service answer. `true`: it has; `false`: it will, later.
    #[inline(always)]
    pub(crate) fn call<S: Services>(
        &self,
        services: &mut S,
        origin: &Origin<'_>,
        items: &mut [Placed],
        reply: &mut Reply<'_>,
    ) -> bool {
        if tracing::enabled!(tracing::Level::TRACE) {
            let &CallHead { xid, program, version, procedure, .. } = &self.head;
            trace_call(origin.peer, xid, (program, version, procedure));
        }
        if self.head.procedure == 0 {
            services.note_null(self.service, self.head.program, self.head.version);
            reply.success(|_| Ok(()));
            reply.refuses_caller();
            return true;
        }
        let mut call = self.seen(origin, items);
        matches!(services.call(self.service, &mut call, reply), Outcome::Done)
    }
}
