//! RPC over UDP: one datagram is a Call, and one its Reply (RFC 5531 section 11 marks records in streams only).
//!
//! For Calls that are still made that way: a host reports its restart (NSM), and asks where a program is (rpcbind). Only
//! the named programs are served. Nothing is kept of a Call: it is answered at once or not at all, and the client
//! retransmits; so Calls that must not be executed twice are not served. A source address can be forged, so an answer is
//! never long ([`REPLY_LEN_MAX`]), and there is no gain in having us answer somebody else.

use std::net::{SocketAddr, UdpSocket};

use stag_fabric::Peer;
use stag_wire::rpc::{Accepted, ReplyHeader};
use stag_wire::xdr::Reader;

use super::{DATAGRAM, STREAM};
use crate::ConnectionId;
use crate::server::draft::Verdict;
use crate::service::dispatch::{Origin, Route, route};
use crate::service::reply::{Reply, Room};
use crate::service::{Repeat, Services};
use crate::state::{Core, Pass};

/// Octets of a Call at most: the longest name that NSM has, and the longest credential, fit.
const CALL_LEN_MAX: usize = 2048;

/// Octets of a Reply at most: where it would be longer, it is SYSTEM_ERR.
const REPLY_LEN_MAX: usize = 256;

/// Datagrams of one socket that one pass answers at most.
const BURST: usize = 32;

/// A socket that Calls come to.
#[derive(Debug)]
pub(super) struct Datagrams {
    pub(super) socket: UdpSocket,
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
        let octets = self.buffer.get(..len).filter(|octets| octets.len() <= CALL_LEN_MAX)?;
        if pass.core.is_short() || pass.core.stopping {
            return None;
        }
        let route = match route(pass.services, Reader::new(octets)) {
            Route::Run(run) if !self.programs.contains(&run.head.program) => {
                Route::Refuse(ReplyHeader::accepted(run.head.xid, Accepted::ProgUnavail))
            }
            Route::Run(run) if run.procedure.repeat != Repeat::Harmless => {
                Route::Refuse(ReplyHeader::accepted(run.head.xid, Accepted::ProcUnavail))
            }
            Route::Drop => return None,
            route => route,
        };
        let mut send = pass.core.pools.messages.take()?;
        send.set_len(send.capacity());
        let inline_len_max = send.len().min(REPLY_LEN_MAX);
        let mut draft = pass.core.draft();
        draft.send = Some(send);
        let xid = octets.first_chunk().map_or(0, |xid| u32::from_be_bytes(*xid));
        let mut reply = Reply {
            draft: &mut draft,
            xid,
            room: Room::Stream,
            inline_len_max,
            space: None,
            payload: &pass.core.state.pools.payload,
            transit: None,
            scratch: &mut pass.core.state.scratch,
            eligible: 0,
            copied_bytes: &mut pass.core.state.statistics.copied_bytes,
            deferrals: &pass.core.state.deferrals,
        };
        let answered = match route {
            Route::Run(run) => {
                // The name of no connection: an answer that would come later has no receiver.
                let connection = ConnectionId { index: STREAM | DATAGRAM, generation: 0 };
                let peer = Peer::Address(from);
                let origin =
                    Origin { connection, slot: 0, peer: Some(&peer), local: None, now: pass.core.state.now };
                run.call(pass.services, &origin, &mut [], &mut reply)
            }
            Route::Refuse(refusal) => {
                reply.header(&refusal);
                true
            }
            Route::Drop => false,
        };
        let is_sound = reply.draft.verdict == Verdict::Encoded && reply.draft.defect().is_none();
        if answered && (!is_sound || !reply.draft.long.is_empty()) {
            reply.system_error();
        }
        let sent = match &draft.send {
            Some(send) if answered => self.socket.send_to(&send[..draft.payload_len], from).ok(),
            _ => None,
        };
        pass.core.put_draft(draft);
        sent.map(|_| ())
    }
}
