//! Building blocks of the checks of a Requester: its connections, its Calls, and answers to them, right and
//! wrong.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use stag_wire::cm_private_data::PrivateData;
use stag_wire::rpcrdma::{INLINE_THRESHOLD_DEFAULT, VERSION, procedure};

use crate::block::{EXPOSES, FeatureBlock, SPEAKS_SECOND};
use crate::check::{CheckOutcome, Stop, ensure, fail, not_applicable};
use crate::message::{DraftMessage, OPTIONAL, SECOND, SeenBody, SeenMessage};
use crate::operation::{CALL, RECEIVE_SIZE, TARGETS, kind};
use crate::probe::own_private_data;
use crate::raw::{PeerEvent, RawPeer};
use crate::scratch::{ScratchAnswers, StartScratch};
use crate::sent_group::{SentGroup, TRANSMISSIONS_MAX, request_of};

/// For how long nothing may come where a rule wants silence.
pub const HOLD: Duration = Duration::from_millis(300);

/// Credits that this side grants, unless a check says something else.
pub const GRANT: u32 = 8;

/// Calls that are answered in search of one with a chunk.
const SEARCH_MAX: usize = 200;

/// Calls that came as groups and are kept at once.
const GROUPS_MAX: usize = 64;

/// A client, and what is known of it.
pub struct ServedClient {
    peer: Box<dyn RawPeer>,
    wait: Duration,
    is_connected: bool,
    /// Private data of its connect request.
    pub requested: Vec<u8>,
    /// What this side accepts with.
    pub accept_with: Vec<u8>,
    /// The grant of the last Reply of this connection; 1 until there is one.
    pub granted: u32,
    /// Calls that were taken for one check, and are the next one's.
    pending: VecDeque<SeenMessage>,
    /// Calls on this connection that have no answer.
    pub unanswered: u32,
    /// What any of its messages had that no rule allows: the rule, and what it was.
    pub offences: Vec<(&'static str, String)>,
    /// Messages so far.
    pub messages: u64,
    /// Feature bits that this side said when it accepted the connection.
    features: u8,
    /// Messages on this connection.
    messages_here: u64,
    /// Xids of its RDMA_DONEs on this connection.
    pub told_of: Vec<u32>,
    /// Octets of ROPT_INITXCH that it told on this connection.
    pub characteristics: Option<Vec<u8>>,
    /// Targets of each Receive of this side, as it told the client on this connection.
    pub targets: usize,
    /// Calls that came as groups and have no answer, by xid.
    pub(crate) groups: HashMap<u32, SentGroup>,
    /// What its Calls are answered with.
    pub(crate) answering: ScratchAnswers,
}

impl ServedClient {
    /// Of who connects to `peer`, which listens. Each check has `wait` for the client's next step. Calls that want content are
    /// answered by the service that `start` starts.
    #[must_use]
    pub fn new(peer: Box<dyn RawPeer>, wait: Duration, start: StartScratch) -> ServedClient {
        ServedClient {
            peer,
            wait,
            is_connected: false,
            requested: Vec::new(),
            accept_with: own_private_data(false).to_wire().to_vec(),
            granted: 1,
            pending: VecDeque::new(),
            unanswered: 0,
            offences: Vec::new(),
            messages: 0,
            features: 0,
            messages_here: 0,
            told_of: Vec::new(),
            characteristics: None,
            targets: TARGETS,
            groups: HashMap::new(),
            answering: ScratchAnswers::new(start),
        }
    }

    /// The connection, for what only few checks do.
    pub fn peer(&mut self) -> &mut dyn RawPeer {
        &mut *self.peer
    }

    /// Ends the connection: the client makes a new one, or another client does.
    pub fn disconnect(&mut self) {
        self.peer.disconnect();
        self.note_end();
    }

    fn note_end(&mut self) {
        self.is_connected = false;
        self.pending.clear();
        self.unanswered = 0;
        self.features = 0;
        self.messages_here = 0;
        self.told_of.clear();
        self.characteristics = None;
        self.targets = TARGETS;
        self.groups.clear();
        self.answering.forget();
    }

    /// Whether this connection was accepted as one that may speak version 2.
    #[must_use]
    pub fn may_be_version2(&self) -> bool {
        self.is_connected && self.features & SPEAKS_SECOND != 0
    }

    /// Waits for a connection, if there is none.
    fn connection(&mut self) -> Result<(), Stop> {
        while !self.is_connected {
            let Some(requested) = self.peer.next_request(self.wait) else {
                return not_applicable(format!("no client connected within {} s", self.wait.as_secs()));
            };
            self.requested = requested;
            // A client that has gone meanwhile is followed by the next.
            self.is_connected = self.peer.accept(&self.accept_with, self.wait).is_ok();
            self.features = FeatureBlock::find(&self.accept_with).map_or(0, |(_, block)| block.features);
            self.granted = 1;
        }
        Ok(())
    }

    /// The next message of this connection. `None`: nothing came in time.
    pub fn message(&mut self, wait: Duration) -> Result<Option<SeenMessage>, Stop> {
        match self.peer.next(wait) {
            PeerEvent::Message { octets, invalidated } => {
                let seen = SeenMessage::of(&octets, invalidated);
                self.judge(&seen);
                self.gather(&seen)?;
                Ok(Some(seen))
            }
            PeerEvent::Ended(reason) => {
                self.note_end();
                fail(format!("the connection ended: {}", reason.describe("the client")))
            }
            PeerEvent::Nothing => Ok(None),
        }
    }

    /// Notes that a rule is broken.
    fn note_offence(&mut self, rule: &'static str, what: String) {
        if self.offences.len() < 100 {
            self.offences.push((rule, what));
        }
    }

    /// Takes in the other transmissions of a Call of several. Nothing may come between them.
    fn gather(&mut self, lead: &SeenMessage) -> Result<(), Stop> {
        let Some(request) = request_of(lead) else { return Ok(()) };
        let mut messages = vec![lead.clone()];
        for _ in 1..request.count.min(TRANSMISSIONS_MAX) {
            match self.peer.next(self.wait) {
                PeerEvent::Message { octets, invalidated } => {
                    let seen = SeenMessage::of(&octets, invalidated);
                    self.judge(&seen);
                    messages.push(seen);
                }
                PeerEvent::Ended(reason) => {
                    self.note_end();
                    return fail(format!("the connection ended: {}", reason.describe("the client")));
                }
                PeerEvent::Nothing => break,
            }
        }
        let (count, come) = (request.count as usize, messages.len());
        if come != count {
            self.note_offence("RTR-4.2-a", format!("{come} transmissions of {count}"));
        }
        // Each takes a credit; the first is counted.
        self.unanswered += come as u32 - 1;
        if self.unanswered > self.granted.max(1) {
            let (unanswered, granted) = (self.unanswered, self.granted);
            self.note_offence("RTR-X-8", format!("{unanswered} transmissions at once, {granted} granted"));
        }
        match SentGroup::of(&messages, self.targets) {
            Ok(group) => {
                if let Some((rule, what)) = &group.offence {
                    self.note_offence(rule, what.clone());
                }
                // More than it may send at once are not kept.
                if self.groups.len() < GROUPS_MAX {
                    self.groups.insert(lead.fixed.xid, group);
                }
            }
            Err((rule, what)) => self.note_offence(rule, what),
        }
        Ok(())
    }

    /// Returns the first Call that `is_wanted`; those before it are answered. `what` it is.
    pub fn call_with(
        &mut self,
        what: &str,
        mut is_wanted: impl FnMut(&ServedClient, &SeenMessage) -> bool,
    ) -> Result<SeenMessage, Stop> {
        for _ in 0..SEARCH_MAX {
            let call = self.call()?;
            if is_wanted(self, &call) {
                return Ok(call);
            }
            self.answer(&call)?;
        }
        not_applicable(format!("none of {SEARCH_MAX} Calls {what}"))
    }

    /// The next Call, on this connection or the next one.
    pub fn call(&mut self) -> Result<SeenMessage, Stop> {
        if let Some(call) = self.pending.pop_front() {
            return Ok(call);
        }
        loop {
            self.connection()?;
            match self.message(self.wait) {
                Ok(Some(seen)) if is_call(&seen) => return Ok(seen),
                Ok(Some(_)) => {}
                Ok(None) => return not_applicable(format!("no Call came within {} s", self.wait.as_secs())),
                // The client, or the next one, comes again.
                Err(_) => {}
            }
        }
    }

    /// A Call that is the first of a new connection, which is accepted with `private_data`.
    pub fn first_call(&mut self, private_data: &[u8]) -> Result<SeenMessage, Stop> {
        self.accept_with = private_data.to_vec();
        self.disconnect();
        let call = self.call();
        self.accept_with = own_private_data(false).to_wire().to_vec();
        call
    }

    /// A Call that offers a Write chunk or a Reply chunk; those before it are answered.
    pub fn call_with_chunk(&mut self) -> Result<SeenMessage, Stop> {
        self.call_with("offered a chunk", |_, call| {
            let chunks = call.writes().iter().map(Vec::as_slice).chain(call.reply_chunk());
            chunks.flatten().any(|segment| segment.length > 0)
        })
    }

    /// What every message of a Requester has to keep.
    fn judge(&mut self, seen: &SeenMessage) {
        self.messages += 1;
        self.messages_here += 1;
        if seen.fixed.version == VERSION && seen.fixed.procedure == procedure::DONE {
            self.told_of.push(seen.fixed.xid);
        }
        if let SeenBody::Operation { kind: kind::INITIAL, info, .. } = &seen.body {
            self.characteristics = Some(info.clone());
        }
        if self.features & SPEAKS_SECOND != 0 {
            return self.judge_second(seen);
        }
        let threshold = PrivateData::find(&self.accept_with)
            .map_or(INLINE_THRESHOLD_DEFAULT, |own| own.receive_size.octets());
        let mut offend = |rule, holds: bool, what: String| {
            if !holds && self.offences.len() < 100 {
                self.offences.push((rule, what));
            }
        };
        offend("8166-4.2.2-a", seen.fixed.version == VERSION, format!("version {}", seen.fixed.version));
        offend(
            "8166-4.2.4-d",
            seen.len <= threshold as usize,
            format!("{} octets, beyond {threshold}", seen.len),
        );
        offend("8166-4.6.1-a", seen.fixed.procedure != procedure::MSGP, "RDMA_MSGP".to_owned());
        let may_tell = self.features & EXPOSES != 0;
        offend("8166-4.6.2-a", may_tell || seen.fixed.procedure != procedure::DONE, "RDMA_DONE".to_owned());
        // An error may answer a reverse Call that this side sent, but not any other.
        offend("8166-4.1-b", seen.fixed.procedure <= procedure::ERROR, seen.to_string());
        if !is_call(seen) {
            return;
        }
        self.unanswered += 1;
        let is_readable = seen.to_draft().is_some();
        offend("8166-4.1-b", is_readable, seen.to_string());
        let is_long = seen.is_nomsg();
        let has_position_0 = seen.reads().iter().any(|(position, _)| *position == 0);
        offend("8166-4.2.4-b", !is_readable || is_long == has_position_0, seen.to_string());
        let xid = seen.payload().get(..4).map(|xid| xid == seen.fixed.xid.to_be_bytes());
        offend("8166-4.2.1-a", is_long || xid == Some(true), "another xid in the RPC header".to_owned());
        let aligned = seen.reads().iter().all(|(position, _)| position % 4 == 0);
        offend("8166-3.4.5-a", aligned, "a Position that is no multiple of 4".to_owned());
        offend("8166-X-8", seen.fixed.credits > 0, "0 credits requested".to_owned());
        let (unanswered, granted) = (self.unanswered, self.granted.max(1));
        offend(
            "8166-3.3.1-b",
            unanswered <= granted,
            format!("{unanswered} Calls at once, {granted} granted"),
        );
    }

    /// What every message has to keep where version 2 is spoken.
    fn judge_second(&mut self, seen: &SeenMessage) {
        let is_first = self.messages_here == 1;
        let is_call = is_call(seen);
        self.unanswered += u32::from(is_call);
        let mut offend = |rule, holds: bool| {
            if !holds && self.offences.len() < 100 {
                self.offences.push((rule, format!("{seen}, {} octets", seen.len)));
            }
        };
        offend("V2-5.3-a", seen.fixed.version == SECOND);
        offend("V2-5-a", !is_first || seen.len <= 1024);
        offend("V2-X-4", !is_first || seen.fixed.procedure == procedure::MSG);
        offend("XC-j", seen.len <= RECEIVE_SIZE);
        offend("V2-3-a", ![procedure::MSGP, procedure::DONE].contains(&seen.fixed.procedure));
        offend("V2-4.2.2-c", seen.fixed.procedure != procedure::ERROR || seen.fixed.xid != 0);
        if is_call {
            offend("V2-4.2.2-b", seen.direction == Some(CALL));
            offend("V2-4.2.2-b", seen.is_nomsg() || seen.message_type() == Some(0));
            let xid = seen.payload().get(..4).map(|xid| xid == seen.fixed.xid.to_be_bytes());
            offend("V2-4.2.1-a", seen.is_nomsg() || xid == Some(true));
            offend("V2-4.2.2-d", seen.fixed.credits > 0);
            offend("V2-5-a", self.unanswered <= self.granted.max(1));
        }
    }

    /// Waits for the RDMA_DONE of an exposed Reply. A Call that comes first is the next check's.
    pub fn done_of(&mut self, xid: u32) -> Result<SeenMessage, Stop> {
        loop {
            match self.message(self.wait)? {
                Some(seen) if seen.fixed.procedure == procedure::DONE => {
                    ensure(seen.fixed.xid == xid, || {
                        format!("RDMA_DONE for {:#010x}, not {xid:#010x}", seen.fixed.xid)
                    })?;
                    return Ok(seen);
                }
                Some(seen) if is_call(&seen) => self.pending.push_back(seen),
                Some(_) => {}
                None => return fail("no RDMA_DONE"),
            }
        }
    }

    /// A Call has its answer, with this grant.
    pub fn note_answered(&mut self, credits: u32) {
        self.granted = credits;
        self.unanswered = self.unanswered.saturating_sub(1);
    }

    /// As [`ServedClient::note_answered`], of a Call that may have come in several transmissions.
    pub fn note_answered_call(&mut self, call: &SeenMessage, credits: u32) {
        self.note_answered(credits);
        if let Some(group) = self.groups.remove(&call.fixed.xid) {
            self.unanswered = self.unanswered.saturating_sub(group.request.count.saturating_sub(1));
        }
    }

    /// Sends a message.
    pub fn send(&mut self, octets: &[u8], invalidate: Option<u32>) -> Result<(), Stop> {
        self.peer.send(octets, invalidate).or_else(|why| fail(format!("the answer could not be sent: {why}")))
    }

    /// Answers a Call as it should be.
    pub fn answer(&mut self, call: &SeenMessage) -> Result<(), Stop> {
        self.answer_with(call, GRANT)
    }

    /// The client ends the connection because of an RDMA Write. Where the Write's end says nothing of the other side, this does. Calls
    /// that it made before it saw the Write may come first.
    pub fn ended_by_write(&mut self) -> CheckOutcome {
        loop {
            match self.message(HOLD * 30) {
                Ok(Some(_)) => {}
                Ok(None) => return fail("the Write was taken, and the connection lives"),
                Err(Stop::Fail(why)) => return Ok(why),
                Err(stop) => return Err(stop),
            }
        }
    }

    /// Leaves a Call for the next check.
    pub fn put_back(&mut self, call: SeenMessage) {
        self.pending.push_back(call);
    }

    /// The client goes on: its next Call comes on this connection, and is not `call` again.
    pub fn goes_on(&mut self, call: &SeenMessage) -> CheckOutcome {
        if !self.pending.is_empty() {
            return Ok("another Call that it made before, on the same connection".to_owned());
        }
        loop {
            match self.message(self.wait)? {
                Some(seen) if is_call(&seen) && seen.fixed.xid == call.fixed.xid => {
                    return fail("the same Call again, although it was answered");
                }
                Some(seen) if is_call(&seen) => {
                    self.pending.push_back(seen);
                    return Ok("its next Call, on the same connection".to_owned());
                }
                Some(_) => {}
                None => {
                    return not_applicable(format!("no other Call came within {} s", self.wait.as_secs()));
                }
            }
        }
    }

    /// Sends `wrong` before the right Reply: the first has to be dropped, and the second be taken.
    pub fn drops(&mut self, wrong: impl FnOnce(&SeenMessage, DraftMessage) -> Vec<u8>) -> CheckOutcome {
        let call = self.call()?;
        let reply = self.reply_to(&call, GRANT);
        self.send(&wrong(&call, reply), None)?;
        self.answer(&call)?;
        self.goes_on(&call)
    }

    /// After `error`, which ends the Call for good, the same xid does not come again.
    pub fn ends_for_good(&mut self, call: &SeenMessage, error: &[u8]) -> CheckOutcome {
        self.send(error, None)?;
        self.note_answered_call(call, self.granted);
        match self.message(HOLD) {
            Ok(Some(seen)) if is_call(&seen) && seen.fixed.xid == call.fixed.xid => {
                fail("the Call again, with the same xid")
            }
            Ok(Some(seen)) => {
                self.pending.extend(Some(seen).filter(is_call));
                Ok("another message".to_owned())
            }
            Ok(None) => Ok("nothing".to_owned()),
            Err(_) => {
                // Who connects now may be the same client.
                let next = self.call()?;
                let is_again = next.fixed.xid == call.fixed.xid;
                self.pending.push_back(next);
                if is_again {
                    fail("the Call again, on a new connection")
                } else {
                    Ok("it ended the connection".to_owned())
                }
            }
        }
    }
}

/// Whether it is a message that wants a Reply.
#[must_use]
pub fn is_call(seen: &SeenMessage) -> bool {
    match seen.fixed.procedure {
        procedure::MSG => seen.message_type() != Some(1),
        procedure::NOMSG => !seen.reads().is_empty(),
        procedure::DONE | procedure::ERROR => false,
        OPTIONAL => matches!(seen.body, SeenBody::Operation { kind: kind::REQUEST, .. }),
        _ => true,
    }
}
