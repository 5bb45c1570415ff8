//! RPC over UDP: one datagram is a Call, and one its Reply (RFC 5531 section 11 marks records in streams only).
//!
//! For Calls that are still made that way: a host reports its restart (NSM), and asks where a program is (rpcbind). Only
//! the named programs are served. Nothing is kept of a Call: it is answered at once or not at all, and the client
//! retransmits; so Calls that must not be executed twice are not served. A source address can be forged, so an answer is
//! never long ([`REPLY_LEN_MAX`]), and there is no gain in having us answer somebody else.

use std::net::{SocketAddr, UdpSocket};

use stag_fabric::Peer;
use stag_wire::rpc::{Accepted, leading_xid};

use super::{DATAGRAM, STREAM};
use crate::ConnectionId;
use crate::carried::CarriedRoom;
use crate::server::draft::{Draft, Verdict};
use crate::service::call::Caller;
use crate::service::dispatch::{Origin, ReplyPolicy, Run};
use crate::service::reply::{Frame, Room};
use crate::service::steps::{Arrival, Arrived, Exit, answer, serve};
use crate::service::{Repeat, Services};
use crate::state::{Core, EngineState, Pass};

/// Octets of a Call at most: the longest name that NSM has, and the longest credential, fit.
const CALL_LEN_MAX: usize = 2048;

/// Octets of a Reply at most: where it would be longer, it is SYSTEM_ERR.
const REPLY_LEN_MAX: usize = 256;

/// Datagrams of one socket that one pass answers at most.
const BURST: usize = 32;

/// A socket that Calls come to.
#[derive(Debug)]
pub(super) struct Datagrams {
    socket: UdpSocket,
    /// The programs that are served here.
    programs: &'static [u32],
    /// One octet longer than a Call may be, so that one that is too long is seen.
    buffer: Box<[u8]>,
}

impl Datagrams {
    pub(super) fn new(socket: UdpSocket, programs: &'static [u32]) -> Datagrams {
        Datagrams { socket, programs, buffer: vec![0; CALL_LEN_MAX + 1].into_boxed_slice() }
    }

    /// Answers the Calls that are there, as many as one pass may.
    pub(super) fn receive<P, S: Services>(&mut self, pass: &mut Pass<'_, Core<P>, S>) {
        for _ in 0..BURST {
            match self.socket.recv_from(&mut self.buffer) {
                Ok((len, peer)) => {
                    pass.core.statistics.datagrams_received += 1;
                    if self.answer(pass, len, peer).is_none() {
                        pass.core.statistics.datagrams_dropped += 1;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                // That an earlier answer did not arrive.
                Err(_) => {}
            }
        }
    }

    /// Answers the Call that was received. `None`: it cannot be.
    fn answer<P, S: Services>(
        &self,
        pass: &mut Pass<'_, Core<P>, S>,
        len: usize,
        from: SocketAddr,
    ) -> Option<()> {
        let stream = self.buffer.get(..len).filter(|octets| octets.len() <= CALL_LEN_MAX)?;
        if pass.core.is_short() || pass.core.stopping {
            return None;
        }
        // The name of no connection: an answer that would come later has no receiver.
        let connection = ConnectionId { index: STREAM | DATAGRAM, generation: 0 };
        let peer = Peer::Address(from);
        let origin = Origin { connection, slot: 0, peer: Some(&peer), local: None, now: pass.core.now };
        let xid = leading_xid(stream);
        let mut datagram = Datagram { socket: &self.socket, programs: self.programs, from, xid };
        let Pass { core, services } = pass;
        let pass = &mut Pass { core: &mut core.state, services: &mut **services };
        serve(pass, &mut datagram, &Arrived { origin, stream, reduced: &[] }, &mut [])
    }
}

/// A Call in a datagram.
struct Datagram<'a> {
    socket: &'a UdpSocket,
    programs: &'static [u32],
    from: SocketAddr,
    xid: u32,
}

impl Exit<EngineState> for Datagram<'_> {
    const MAY_WAIT: bool = false;

    /// Whether it is answered.
    type Served = Option<()>;

    fn open(&mut self, state: &mut EngineState) -> Result<Box<Draft>, Option<()>> {
        let mut draft = state.draft();
        if !draft.take_send(&state.pools.messages) {
            state.put_draft(draft);
            return Err(None);
        }
        Ok(draft)
    }

    fn frame(&mut self) -> Frame<'_> {
        let inline_len_max = REPLY_LEN_MAX;
        Frame { xid: self.xid, room: Room::Stream, inline_len_max, space: None, holder: None }
    }

    fn instead(&self, verdict: Verdict) -> Option<Accepted> {
        (verdict != Verdict::Encoded).then_some(Accepted::SystemErr)
    }

    fn send(&mut self, state: &mut EngineState, _: ReplyPolicy, draft: Box<Draft>) -> Option<()> {
        let sent = draft.sent_payload().and_then(|payload| self.socket.send_to(payload, self.from).ok());
        state.put_draft(draft);
        sent.map(|_| ())
    }

    fn keep(&mut self, state: &mut EngineState, _: ReplyPolicy, draft: Option<Box<Draft>>) -> Option<()> {
        draft.into_iter().for_each(|draft| state.put_draft(draft));
        None
    }
}

impl Arrival<EngineState> for Datagram<'_> {
    const MAY_LEAVE: bool = false;

    fn meet(&mut self, _: &Caller<'_>) {}

    fn check(&mut self, state: &mut EngineState, run: &Run<'_>) -> Result<(), Option<()>> {
        let refusal = if !self.programs.contains(&run.head.program) {
            Accepted::ProgUnavail
        } else if run.procedure.repeat != Repeat::Harmless || run.procedure.has_eligible_items() {
            Accepted::ProcUnavail
        } else {
            return Ok(());
        };
        Err(answer(state, self, ReplyPolicy::ENGINE, &mut |reply| reply.error(refusal)))
    }

    fn room(&mut self, _: &mut EngineState, _: &Run<'_>) -> Result<CarriedRoom, Option<()>> {
        Err(None)
    }

    fn discard(&mut self, _: &mut EngineState) -> Option<()> {
        None
    }

    fn wait(&mut self, _: &mut EngineState) -> Option<()> {
        None
    }
}
