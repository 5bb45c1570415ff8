//! Building blocks of the checks of a Responder: connections, Calls, and shared verdicts.

use std::time::Duration;

use stag_wire::cm_private_data::{InlineSize, PrivateData};
use stag_wire::rpcrdma::{INLINE_THRESHOLD_DEFAULT, Segment, VERSION, procedure};

use crate::files::ScratchFiles;
use crate::message::{DraftMessage, RpcOutcome, SeenBody, SeenMessage, outcome};
use crate::outcome::{CheckOutcome, Stop, ensure, fail, not_applicable};
use crate::raw::{PeerEvent, RawPeer};

/// How long silence lasts until it counts as such. It is no limit that the peer has to keep: later messages are missed.
const QUIET: Duration = Duration::from_millis(50);

/// For how long an answer may keep a connection from its end.
const SETTLE_MAX: Duration = Duration::from_secs(1);

/// Octets that this side says it sends and receives inline, unless a check says something else.
const INLINE_LEN: u32 = 4096;

/// Rounds of Calls at once after which a grant is taken for as high as it gets.
const GROWTH_ROUNDS: u32 = 50;

/// A connection to the peer, and what is known of it.
pub struct Probe {
    peer: Box<dyn RawPeer>,
    address: String,
    wait: Duration,
    /// There is a connection on which nothing has come.
    is_unheard: bool,
    next_xid: u32,
    /// Private data of the peer's accept.
    pub accepted: Vec<u8>,
    /// The grant of its last Reply.
    pub granted: u32,
    /// The files of the checks that need some.
    pub files: Option<ScratchFiles>,
}

/// Our private data, if a check says nothing else.
#[must_use]
pub fn own_private_data(remote_invalidation: bool) -> PrivateData {
    let size = InlineSize::round_down(INLINE_LEN);
    PrivateData { remote_invalidation, send_size: size, receive_size: size }
}

impl Probe {
    /// Of a peer at `address`, which has `wait` for each answer. The transaction ids of its Calls go on from `seed`.
    #[must_use]
    pub fn new(
        peer: Box<dyn RawPeer>,
        address: &str,
        wait: Duration,
        files: Option<ScratchFiles>,
        seed: u32,
    ) -> Probe {
        Probe {
            peer,
            address: address.to_owned(),
            wait,
            is_unheard: false,
            next_xid: seed,
            accepted: Vec::new(),
            granted: 1,
            files,
        }
    }

    /// An xid that no Call had.
    pub fn xid(&mut self) -> u32 {
        self.next_xid = self.next_xid.wrapping_add(1);
        self.next_xid
    }

    /// A NULL Call.
    pub fn null(&mut self) -> DraftMessage {
        let xid = self.xid();
        DraftMessage::null(xid)
    }

    /// A NULL Call, changed.
    pub fn null_with(&mut self, change: impl FnOnce(&mut DraftMessage)) -> DraftMessage {
        let mut draft = self.null();
        change(&mut draft);
        draft
    }

    /// The peer, for what only few checks do.
    pub fn peer(&mut self) -> &mut dyn RawPeer {
        &mut *self.peer
    }

    /// What the peer said of itself when it accepted, or what that it said nothing means (8797-5.1-a).
    #[must_use]
    pub fn peer_data(&self) -> PrivateData {
        PrivateData::find(&self.accepted).unwrap_or(PrivateData::ABSENT)
    }

    /// Makes a new connection, with this private data. The grant is 1 until a Reply came (8166-3.3.3-a).
    pub fn connect(&mut self, private_data: &[u8]) -> Result<(), Stop> {
        self.let_settle();
        self.granted = 1;
        match self.peer.connect(&self.address, private_data, self.wait) {
            Ok(accepted) => self.accepted = accepted,
            Err(why) => return fail(format!("no connection: {why}")),
        }
        self.is_unheard = true;
        Ok(())
    }

    /// Before the end of a connection on which nothing has come: NULL, and its answer.
    ///
    /// A Linux kernel with siw crashes (BUG in `cm_work_handler` of iw_cm) if a connection ends before it has noted that it is
    /// established, which is after it has said so.
    fn let_settle(&mut self) {
        if std::mem::take(&mut self.is_unheard) {
            let null = self.null();
            if self.send(&null.octets()).is_ok() {
                let _ = self.next_within(self.wait.min(SETTLE_MAX));
            }
        }
    }

    /// Makes a new connection with the usual private data, on which NULL was answered.
    pub fn reconnect(&mut self) -> Result<(), Stop> {
        self.connect(&own_private_data(false).to_wire())?;
        self.ask_null("a new connection").map(drop)
    }

    /// Ends the connection.
    pub fn disconnect(&mut self) {
        self.let_settle();
        self.peer.disconnect();
    }

    /// Sends a message.
    pub fn send(&mut self, octets: &[u8]) -> Result<(), Stop> {
        self.peer.send(octets, None).or_else(|why| fail(format!("it could not be sent: {why}")))
    }

    /// The next message; `None` if none comes in time. That the connection ends is a failure.
    pub fn next_within(&mut self, wait: Duration) -> Result<Option<SeenMessage>, Stop> {
        match self.peer.next(wait) {
            PeerEvent::Message { octets, invalidated } => {
                self.is_unheard = false;
                Ok(Some(SeenMessage::of(&octets, invalidated)))
            }
            PeerEvent::Ended(reason) => {
                self.is_unheard = false;
                fail(format!("the connection ended: {}", reason.describe("the peer")))
            }
            PeerEvent::Nothing => Ok(None),
        }
    }

    /// The next message, which must come in time.
    pub fn message(&mut self) -> Result<SeenMessage, Stop> {
        let wait = self.wait;
        match self.next_within(wait)? {
            Some(seen) => Ok(seen),
            None => fail(format!("nothing within {} s", wait.as_secs())),
        }
    }

    /// Sends a Call and returns what came for it.
    pub fn call(&mut self, draft: &DraftMessage) -> Result<SeenMessage, Stop> {
        self.send(&draft.octets())?;
        let seen = self.message()?;
        if matches!(seen.body, SeenBody::Lists { .. }) {
            self.granted = seen.fixed.credits;
        }
        ensure(seen.fixed.xid == draft.fixed.xid, || {
            format!("{seen} for another xid: {:#010x}, not {:#010x}", seen.fixed.xid, draft.fixed.xid)
        })?;
        Ok(seen)
    }

    /// Sends a Call that must succeed, and returns the Reply with its Payload stream, wherever that was.
    pub fn succeed(&mut self, draft: &DraftMessage) -> Result<(SeenMessage, Vec<u8>), Stop> {
        let seen = self.call(draft)?;
        let payload = self.payload_of(&seen)?;
        match outcome(&payload) {
            RpcOutcome::Success => Ok((seen, payload)),
            other => fail(format!("{seen}: {other}")),
        }
    }

    /// The Payload stream of a Reply: inline, or in the Reply chunk.
    pub fn payload_of(&mut self, seen: &SeenMessage) -> Result<Vec<u8>, Stop> {
        if !seen.is_nomsg() {
            return Ok(seen.payload().to_vec());
        }
        let Some(chunk) = seen.reply_chunk().filter(|chunk| !chunk.is_empty()) else {
            return fail("RDMA_NOMSG without a Reply chunk");
        };
        let chunk = chunk.to_vec();
        Ok(self.gather(&chunk))
    }

    /// What the peer wrote into the segments of a chunk, each of which is an exposure of its own; their exposures end.
    pub fn gather(&mut self, chunk: &[Segment]) -> Vec<u8> {
        let mut gathered = Vec::new();
        for segment in chunk {
            let octets = self.peer.take_back(segment.handle).unwrap_or_default();
            gathered.extend(octets.into_iter().take(segment.length as usize));
        }
        gathered
    }

    /// Makes a NULL Call on this connection, which is `place`. It has to be answered.
    pub fn ask_null(&mut self, place: &str) -> Result<SeenMessage, Stop> {
        let null = self.null();
        let at = |stop: Stop| match stop {
            Stop::Fail(came) => Stop::Fail(format!("NULL on {place}: {came}")),
            other => other,
        };
        self.succeed(&null).map(|(seen, _)| seen).map_err(at)
    }

    /// Makes NULL Calls, as many at once as are granted, until `count` are, or as long as it is worth it: a grant grows with use.
    pub fn grow(&mut self, count: u32, null: impl Fn(DraftMessage) -> DraftMessage) -> Result<(), Stop> {
        for _ in 0..GROWTH_ROUNDS {
            if self.granted >= count {
                break;
            }
            let mut open = self.granted.clamp(1, 16);
            for _ in 0..open {
                let draft = null(self.null());
                self.send(&draft.octets())?;
            }
            while open > 0 {
                let seen = self.message()?;
                if matches!(seen.body, SeenBody::Lists { .. }) {
                    self.granted = seen.fixed.credits;
                    open -= 1;
                }
            }
        }
        Ok(())
    }

    /// The Call is refused with ERR_CHUNK that has its xid and version, and the connection lives.
    pub fn refused(&mut self, draft: &DraftMessage) -> CheckOutcome {
        let seen = self.call(draft)?;
        self.is_refusal(&seen, draft.fixed.xid)?;
        self.ask_null("the same connection")?;
        Ok("ERR_CHUNK, and NULL is answered after it".to_owned())
    }

    /// `seen` is an ERR_CHUNK for `xid`.
    pub fn is_refusal(&self, seen: &SeenMessage, xid: u32) -> Result<(), Stop> {
        ensure(seen.is_err_chunk(xid), || seen.to_string())
    }

    /// As [`Probe::refused`] of octets behind the fixed words of `draft`.
    pub fn refused_octets(&mut self, xid: u32, octets: &[u8]) -> CheckOutcome {
        self.send(octets)?;
        let seen = self.message()?;
        self.is_refusal(&seen, xid)?;
        self.ask_null("the same connection")?;
        Ok("ERR_CHUNK, and NULL is answered after it".to_owned())
    }

    /// The Call is refused by ERR_CHUNK or by an RPC refusal, and the connection lives.
    pub fn refused_either_way(&mut self, draft: &DraftMessage) -> CheckOutcome {
        let seen = self.call(draft)?;
        let payload = self.payload_of(&seen)?;
        let refusal = outcome(&payload);
        let is_refused = seen.is_err_chunk(draft.fixed.xid)
            || (seen.body != SeenBody::ErrChunk
                && matches!(refusal, RpcOutcome::Garbage | RpcOutcome::Refused));
        ensure(is_refused, || seen.to_string())?;
        self.ask_null("the same connection")?;
        Ok(format!("{seen}, and NULL is answered after it"))
    }

    /// The message is dropped without a word: the answer of a NULL behind it is the next that comes.
    pub fn dropped(&mut self, octets: &[u8]) -> CheckOutcome {
        if self.granted < 2 {
            return not_applicable("the peer grants one credit: nothing can be sent before an answer");
        }
        self.send(octets)?;
        let null = self.null();
        self.send(&null.octets())?;
        let mut answered = false;
        loop {
            let seen = match answered {
                false => Some(self.message()?),
                true => self.next_within(QUIET)?,
            };
            match seen {
                Some(seen) if seen.fixed.xid == null.fixed.xid && !answered => answered = true,
                Some(seen) => return fail(format!("{seen}, instead of silence")),
                None => return Ok("nothing, and NULL is answered after it".to_owned()),
            }
        }
    }

    /// Whatever it does to this connection, the peer serves the next one.
    pub fn survives(&mut self, draft: &DraftMessage) -> CheckOutcome {
        self.send(&draft.octets())?;
        let came = self.end_of(draft.fixed.xid)?;
        self.reconnect()?;
        Ok(format!("{came}; NULL is answered on a new connection"))
    }

    /// What became of a Call: an answer, or the end of the connection.
    pub fn end_of(&mut self, xid: u32) -> Result<String, Stop> {
        let wait = self.wait;
        match self.peer.next(wait) {
            PeerEvent::Message { octets, invalidated } => {
                let seen = SeenMessage::of(&octets, invalidated);
                ensure(seen.fixed.xid == xid, || format!("{seen} for another xid"))?;
                Ok(seen.to_string())
            }
            PeerEvent::Ended(reason) => Ok(format!("the connection ended: {}", reason.describe("the peer"))),
            PeerEvent::Nothing => fail(format!("neither an answer nor an end within {} s", wait.as_secs())),
        }
    }

    /// The unknown version is refused with ERR_VERS, whose range has version 1 in it.
    pub fn refused_version(&mut self, version: u32) -> CheckOutcome {
        let draft = self.null_with(|draft| draft.fixed.version = version);
        self.send(&draft.octets())?;
        let seen = self.message()?;
        let SeenBody::ErrVers(low, high) = seen.body else { return fail(seen.to_string()) };
        ensure(seen.fixed.procedure == procedure::ERROR, || seen.to_string())?;
        ensure(seen.fixed.xid == draft.fixed.xid, || format!("{seen}, with another xid"))?;
        ensure(seen.fixed.version == version, || {
            format!("{seen}, with rdma_vers {} in place of a copy", seen.fixed.version)
        })?;
        if (low..=high).contains(&version) {
            return not_applicable(format!("{seen}: the peer speaks version {version}"));
        }
        ensure((low..=high).contains(&VERSION), || format!("{seen}: version 1 is not in it"))?;
        self.ask_null("the same connection")?;
        Ok(format!("{seen}, and NULL is answered after it"))
    }

    /// The longest Call that both sides agreed on, with our usual private data (8797-4.2-b).
    #[must_use]
    pub fn call_threshold(&self) -> u32 {
        self.peer_data().receive_size.octets().clamp(INLINE_THRESHOLD_DEFAULT, INLINE_LEN)
    }
}
