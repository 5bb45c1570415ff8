//! Building blocks of the checks of a server of version 2: a connection that speaks it, Calls on it, and groups of
//! transmissions.

use std::time::Duration;

use stag_wire::rpcrdma::procedure;

use crate::block::{FeatureBlock, SPEAKS_SECOND, private_data_with};
use crate::check::{CheckOutcome, Stop, ensure, fail, not_applicable};
use crate::message::{DraftMessage, RpcOutcome, SECOND, SeenBody, SeenMessage, outcome};
use crate::operation::{
    HEAD_LEN, REPLY, SeenFault, SeenItem, SeenResponse, TARGET_LEN, TARGETS, ToldCharacteristics,
    characteristic, fault, kind, operation, own_characteristics, place,
};
use crate::probe::Probe;

/// How long nothing may come before it counts as silence.
const QUIET: Duration = Duration::from_millis(50);

/// A connection on which NULL was answered in version 2.
pub struct Version2Probe<'a> {
    /// The connection below.
    pub probe: &'a mut Probe,
    /// What the peer told of itself, if it did.
    pub told: Option<ToldCharacteristics>,
    /// Octets that it told so.
    told_info: Option<Vec<u8>>,
}

/// A whole Reply, however it came.
pub struct WholeReply {
    /// What each direction of the Call became.
    pub items: Vec<SeenItem>,
    /// The Payload stream.
    pub payload: Vec<u8>,
    /// The Sends that it came in, each from its first octet on.
    pub sends: Vec<Vec<u8>>,
    /// Where the Payload stream ends in each of them.
    pub ends: Vec<usize>,
}

impl WholeReply {
    /// The octets of the only item, which is in targets. What else lies behind the Payload streams is 0.
    pub fn octets_of(&self, item: &SeenItem) -> Result<Vec<u8>, Stop> {
        let mut octets = Vec::new();
        // Of each Send what is no header, Payload stream or data.
        let mut rest = self.sends.clone();
        for (send, end) in rest.iter_mut().zip(&self.ends) {
            send[..*end].fill(0);
        }
        let mut offset = item.offset as usize;
        for number in &item.numbers {
            let (send, target) = (*number as usize / TARGETS, *number as usize % TARGETS);
            let start = HEAD_LEN + target * TARGET_LEN + offset;
            let len = (TARGET_LEN - offset).min(item.len as usize - octets.len());
            let found = self.sends.get(send).and_then(|send| send.get(start..start + len));
            let Some(found) = found else {
                return fail(format!("target {number} of the Reply was not sent"));
            };
            octets.extend_from_slice(found);
            rest[send][start..start + len].fill(0);
            offset = 0;
        }
        let is_padded = rest.iter().flatten().all(|octet| *octet == 0);
        ensure(is_padded, || {
            "RTR-X-9: octets that are not 0 between the Payload stream and the data".to_owned()
        })?;
        ensure(octets.len() == item.len as usize, || {
            format!("{} octets in the targets of an item of {}", octets.len(), item.len)
        })?;
        Ok(octets)
    }
}

impl<'a> Version2Probe<'a> {
    /// Connects as one that speaks version 2, and has NULL answered. It is not applicable where the peer does not speak it.
    pub fn open(probe: &'a mut Probe) -> Result<Version2Probe<'a>, Stop> {
        Version2Probe::open_with(probe, |_| {})
    }

    /// As [`Version2Probe::open`]; `change` changes the probe.
    pub fn open_with(
        probe: &'a mut Probe,
        change: impl FnOnce(&mut DraftMessage),
    ) -> Result<Version2Probe<'a>, Stop> {
        probe.connect(&private_data_with(false, SPEAKS_SECOND, 0))?;
        let is_announced = FeatureBlock::has(&probe.accepted, SPEAKS_SECOND);
        let mut version2 = Version2Probe { probe, told: None, told_info: None };
        let mut draft = version2.null();
        change(&mut draft);
        version2.probe.send(&draft.octets())?;
        let seen = version2.probe.message()?;
        if let (SeenBody::ErrVers(..), false) = (&seen.body, is_announced) {
            return not_applicable(format!("the peer does not speak version 2: {seen}"));
        }
        is_plain_reply(&seen, draft.fixed.xid)?;
        version2.probe.granted = seen.fixed.credits;
        Ok(version2)
    }

    /// As [`Version2Probe::open`], and the peer has told its characteristics, if it ever does.
    pub fn learned(probe: &'a mut Probe) -> Result<Version2Probe<'a>, Stop> {
        let mut version2 = Version2Probe::open(probe)?;
        version2.ask_null("the same connection")?;
        if let Some(info) = &version2.told_info {
            version2.told = ToldCharacteristics::of_initial(info);
        }
        Ok(version2)
    }

    /// As [`Version2Probe::learned`] of a peer that supports these operations of rtrext. This side has told its own characteristics.
    pub fn extended(probe: &'a mut Probe, support: u32) -> Result<Version2Probe<'a>, Stop> {
        let mut version2 = Version2Probe::learned(probe)?;
        let supported = version2.word(characteristic::SUPPORT).unwrap_or(0);
        if supported & support != support {
            return not_applicable(format!(
                "RTR Support of the peer is {supported:#x}, and {support:#x} is needed"
            ));
        }
        version2.tell(own_characteristics(8))?;
        Ok(version2)
    }

    /// Tells characteristics of this side, and sees that NULL is answered behind them.
    pub fn tell(&mut self, info: crate::message::Words) -> Result<(), Stop> {
        self.tell_in(crate::operation::CALL, info)
    }

    /// The same, with this direction.
    pub fn tell_in(&mut self, direction: u32, info: crate::message::Words) -> Result<(), Stop> {
        let xid = self.probe.xid();
        self.probe.send(&operation(xid, direction, kind::INITIAL, info, &[]))?;
        self.ask_null("the same connection").map(drop)
    }

    /// What the peer told of a characteristic.
    #[must_use]
    pub fn word(&self, id: u32) -> Option<u32> {
        self.told.as_ref()?.word(id)
    }

    /// Octets of ROPT_INITXCH of the peer.
    #[must_use]
    pub fn told_info(&self) -> Option<&[u8]> {
        self.told_info.as_deref()
    }

    /// Where the targets of the peer's Receives begin, and their octets.
    pub fn targets(&self) -> Result<Vec<(usize, usize)>, Stop> {
        let structure = self.told.as_ref().and_then(ToldCharacteristics::structure);
        let (mut at, mut targets) = (0, Vec::new());
        for (len, is_target) in structure.map(|(_, parts)| parts).unwrap_or_default() {
            if is_target {
                targets.push((at, len as usize));
            }
            at += len as usize;
        }
        if targets.is_empty() {
            return not_applicable("Receives of the peer have no targets");
        }
        Ok(targets)
    }

    /// A NULL Call of version 2.
    pub fn null(&mut self) -> DraftMessage {
        as_version2(self.probe.null())
    }

    /// The next message that does not tell characteristics.
    pub fn message(&mut self) -> Result<SeenMessage, Stop> {
        loop {
            let seen = self.probe.message()?;
            if let Some(seen) = self.keep_told(seen)? {
                return Ok(seen);
            }
        }
    }

    fn keep_told(&mut self, seen: SeenMessage) -> Result<Option<SeenMessage>, Stop> {
        match seen.body {
            SeenBody::Operation { kind: kind::INITIAL, info, payload } => {
                ensure(payload.is_empty(), || "XC-a: octets behind ROPT_INITXCH".to_owned())?;
                self.told_info = Some(info);
                Ok(None)
            }
            SeenBody::Operation { kind: kind::UPDATE, .. } => Ok(None),
            _ => Ok(Some(seen)),
        }
    }

    /// Sends a message and returns what came for its xid.
    pub fn ask(&mut self, xid: u32, octets: &[u8]) -> Result<SeenMessage, Stop> {
        self.probe.send(octets)?;
        let seen = self.message()?;
        ensure(seen.fixed.xid == xid, || {
            format!("{seen} for another xid: {:#010x}, not {xid:#010x}", seen.fixed.xid)
        })?;
        if !matches!(seen.body, SeenBody::ErrVers(..) | SeenBody::ErrChunk | SeenBody::InvalidOption) {
            self.probe.granted = seen.fixed.credits;
        }
        Ok(seen)
    }

    /// Makes a base Call that must succeed.
    pub fn succeed(&mut self, draft: &DraftMessage) -> Result<(SeenMessage, Vec<u8>), Stop> {
        let seen = self.ask(draft.fixed.xid, &draft.octets())?;
        ensure(seen.fixed.version == SECOND && seen.direction == Some(REPLY), || {
            format!("{seen}, direction {:?}", seen.direction)
        })?;
        let payload = self.probe.payload_of(&seen)?;
        match outcome(&payload) {
            RpcOutcome::Success => Ok((seen, payload)),
            other => fail(format!("{seen}: {other}")),
        }
    }

    /// NULL is answered on this connection, which is `place`.
    pub fn ask_null(&mut self, place: &str) -> Result<SeenMessage, Stop> {
        let null = self.null();
        let asked = self.ask(null.fixed.xid, &null.octets());
        asked.and_then(|seen| is_plain_reply(&seen, null.fixed.xid).map(|_| seen)).map_err(
            |stop| match stop {
                Stop::Fail(came) => Stop::Fail(format!("NULL on {place}: {came}")),
                other => other,
            },
        )
    }

    /// The message is refused with BAD_HEADER.
    pub fn refused(&mut self, xid: u32, octets: &[u8]) -> CheckOutcome {
        let seen = self.ask(xid, octets)?;
        let is_right = seen.body == SeenBody::ErrChunk && seen.fixed.version == SECOND && seen.len == 20;
        ensure(is_right, || format!("{seen}, version {}, {} octets", seen.fixed.version, seen.len))?;
        self.ask_null("the same connection")?;
        Ok("BAD_HEADER, and NULL is answered after it".to_owned())
    }

    /// The message is dropped: the answer of a NULL behind it is the next that comes.
    pub fn dropped(&mut self, octets: &[u8]) -> CheckOutcome {
        if self.probe.granted < 2 {
            return not_applicable("the peer grants one credit: nothing can be sent before an answer");
        }
        self.probe.send(octets)?;
        let null = self.null();
        self.probe.send(&null.octets())?;
        let seen = self.message()?;
        is_plain_reply(&seen, null.fixed.xid)?;
        match self.probe.next_within(QUIET)? {
            Some(seen) => fail(format!("{seen}, instead of silence")),
            None => Ok("nothing, and NULL is answered after it".to_owned()),
        }
    }

    /// The message is answered by XMTERR with this fault, which names the transmission `number` of `xid`. `lead`: the Call whose
    /// transaction it answers.
    pub fn faulted(
        &mut self,
        octets: &[u8],
        (xid, number, lead): (u32, u32, u32),
        which: u32,
        info: &[u32],
    ) -> CheckOutcome {
        self.probe.send(octets)?;
        let found = self.fault_of((xid, number, lead), which, info)?;
        self.ask_null("the same connection")?;
        Ok(format!("XMTERR {} {:?}, and NULL is answered after it", found.which, found.info))
    }

    /// The next message is this XMTERR.
    pub fn fault_of(
        &mut self,
        (xid, number, lead): (u32, u32, u32),
        which: u32,
        info: &[u32],
    ) -> Result<SeenFault, Stop> {
        let seen = self.message()?;
        let found = SeenFault::of_message(&seen, REPLY)?;
        ensure(seen.fixed.xid == lead, || format!("{seen} for {:#010x}, not {lead:#010x}", seen.fixed.xid))?;
        ensure(found.bad == [xid, 0, number], || format!("XMTERR of {:x?}", found.bad))?;
        ensure(found.which == which && found.info.starts_with(info), || {
            format!("XMTERR {} {:?}, not {which} {info:?}", found.which, found.info)
        })?;
        if [fault::OFFSET, fault::PAYLOAD].contains(&which) {
            let is_outside = found.info[0] < found.info[1] || found.info[0] > found.info[2];
            ensure(is_outside, || format!("a value inside of its bounds: {:?}", found.info))?;
        }
        Ok(found)
    }

    /// Sends a Call, and takes its Reply in, by a base message or as a group of `further` continuations at most.
    pub fn whole_reply(&mut self, xid: u32, octets: &[u8], further: u32) -> Result<WholeReply, Stop> {
        let first = self.ask(xid, octets)?;
        ensure(first.fixed.version == SECOND && first.direction == Some(REPLY), || first.to_string())?;
        let SeenBody::Operation { kind: kind::RESPONSE, info, payload } = &first.body else {
            let payload = self.probe.payload_of(&first)?;
            ensure(outcome(&payload) == RpcOutcome::Success, || first.to_string())?;
            return Ok(WholeReply { items: Vec::new(), payload, sends: Vec::new(), ends: Vec::new() });
        };
        let Some(response) = SeenResponse::of(info) else { return fail("an XMTRESP that cannot be read") };
        ensure((1..=further + 1).contains(&response.count), || {
            format!("{} transmissions, {further} continuations may be", response.count)
        })?;
        let len = response.payload_len as usize;
        ensure(payload.len() >= len, || {
            format!("{} octets of {len} in the first transmission", payload.len())
        })?;
        let header = info.len().next_multiple_of(4) + 28;
        let mut whole = WholeReply {
            items: response.items,
            payload: payload[..len].to_vec(),
            sends: vec![[vec![0; header], payload.clone()].concat()],
            ends: vec![header + len],
        };
        for number in 1..response.count {
            let seen = self.message()?;
            let SeenBody::Operation { kind: kind::CONTINUATION, info, payload } = &seen.body else {
                return fail(format!("{seen}, in place of transmission {number}"));
            };
            let words: Vec<u32> = info
                .chunks_exact(4)
                .map(|word| word.iter().fold(0, |sum, octet| sum << 8 | u32::from(*octet)))
                .collect();
            ensure(seen.fixed.xid == xid && seen.direction == Some(REPLY), || seen.to_string())?;
            ensure(words.len() == 3 && words[..2] == [number, kind::RESPONSE], || {
                format!("XMTCONT {words:?}, in place of transmission {number}")
            })?;
            let len = words[2] as usize;
            ensure(payload.len() >= len, || format!("{} octets of {len} in {number}", payload.len()))?;
            whole.payload.extend_from_slice(&payload[..len]);
            whole.sends.push([vec![0; 40], payload.clone()].concat());
            whole.ends.push(40 + len);
        }
        ensure(outcome(&whole.payload) == RpcOutcome::Success, || {
            format!("an RPC Reply that is no success: {:02x?}", &whole.payload[..whole.payload.len().min(32)])
        })?;
        ensure(whole.payload.get(..4) == Some(&xid.to_be_bytes()), || "another xid inside".to_owned())?;
        let is_result = |item: &SeenItem| {
            [place::EXPLICIT, place::TARGETS, place::TOO_SHORT, place::NO_ITEM].contains(&item.place)
        };
        ensure(whole.items.iter().all(is_result), || format!("{:?}", whole.items))?;
        Ok(whole)
    }
}

/// The draft as a message of version 2, from a Requester.
#[must_use]
pub fn as_version2(mut draft: DraftMessage) -> DraftMessage {
    draft.fixed.version = SECOND;
    draft.direction = Some(crate::operation::CALL);
    draft
}

/// A Reply to a Call without results, as it has to look.
pub fn is_plain_reply(seen: &SeenMessage, xid: u32) -> CheckOutcome {
    ensure(seen.fixed.procedure == procedure::MSG, || seen.to_string())?;
    ensure(seen.fixed.version == SECOND, || seen.to_string())?;
    ensure(seen.direction == Some(REPLY), || format!("{seen}, direction {:?}", seen.direction))?;
    ensure(seen.fixed.xid == xid, || format!("{seen}, rdma_xid {:#010x}", seen.fixed.xid))?;
    ensure(seen.payload().get(..4) == Some(&xid.to_be_bytes()), || {
        "another xid in the Payload stream".to_owned()
    })?;
    ensure(outcome(seen.payload()) == RpcOutcome::Success, || seen.to_string())?;
    ensure(seen.fixed.credits > 0, || "a grant of 0".to_owned())?;
    ensure(seen.reads().is_empty() && seen.writes().is_empty() && seen.reply_chunk().is_none(), || {
        "chunks that were not offered".to_owned()
    })?;
    Ok(format!("{seen}, {} octets", seen.len))
}
