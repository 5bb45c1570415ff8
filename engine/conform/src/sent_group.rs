//! Joins a client's group of transmissions to a Call, word by word; and cuts a Reply into a group.

use crate::message::{SeenBody, SeenMessage, Words, take};
use crate::operation::{
    HEAD_LEN, REPLY, SeenDirection, SeenItem, SeenRequest, TARGET_LEN, ToldCharacteristics, characteristic,
    continuation, kind, operation, place,
};
use crate::raw::RECEIVE_LEN;

/// Octets of a message in front of an operation.
const OPERATION_AT: usize = 28;

/// Transmissions of a Call that this side takes at most, and of a Reply that it makes.
pub const TRANSMISSIONS_MAX: u32 = 8;

/// A rule that is broken, and what breaks it.
pub type Offence = (&'static str, String);

/// A Call as a group, whole.
#[derive(Clone, Debug)]
pub struct SentGroup {
    /// Its first header.
    pub request: SeenRequest,
    /// The Payload stream.
    pub payload: Vec<u8>,
    /// The octets of each item in targets; nothing for those in the client's memory.
    pub data: Vec<Vec<u8>>,
    /// The first rule that it broke in a way that leaves it to be read.
    pub offence: Option<Offence>,
}

/// Returns `Err` with the rule if it is broken.
fn keep(rule: &'static str, holds: bool, what: impl FnOnce() -> String) -> Result<(), Offence> {
    if holds { Ok(()) } else { Err((rule, what())) }
}

/// The header of a first transmission. `None`: it is another message, or cannot be read.
#[must_use]
pub fn request_of(seen: &SeenMessage) -> Option<SeenRequest> {
    match &seen.body {
        SeenBody::Operation { kind: kind::REQUEST, info, .. } => SeenRequest::of(info),
        _ => None,
    }
}

/// One transmission: its parts as they lie in its Receive.
struct Transmission<'a> {
    /// Octet of the Receive at which the Payload stream begins.
    start: usize,
    /// What follows the header.
    rest: &'a [u8],
    /// Octets of the Payload stream in it.
    payload_len: usize,
}

impl Transmission<'_> {
    /// These octets of the Receive, if they came and are behind the Payload stream.
    fn octets(&self, from: usize, len: usize) -> Option<&[u8]> {
        let from = from.checked_sub(self.start)?;
        if from < self.payload_len {
            return None;
        }
        self.rest.get(from..from + len)
    }
}

impl SentGroup {
    /// Puts it together from all its transmissions. Of this side, Receives have `targets` behind their head.
    pub fn of(messages: &[SeenMessage], targets: usize) -> Result<SentGroup, Offence> {
        let lead = messages.first().ok_or(("RTR-9.2-a", "nothing".to_owned()))?;
        let request = request_of(lead).ok_or_else(|| ("RTR-9.2-a", format!("{lead}: it cannot be read")))?;
        let mut parts = Vec::new();
        for (number, seen) in messages.iter().enumerate() {
            parts.push(transmission(seen, number, lead.fixed.xid, request.payload_len)?);
        }
        let mut payload = Vec::new();
        for part in &parts {
            payload.extend_from_slice(&part.rest[..part.payload_len]);
        }
        let (mut data, mut used, mut end) = (Vec::new(), Vec::new(), 0);
        for item in &request.items {
            let (begin, len) = (u64::from(item.displacement), u64::from(item.len));
            keep("RTR-X-18", begin % 4 == 0 && begin >= end, || format!("an item at displacement {begin}"))?;
            end = begin + len;
            data.push(if item.place == place::TARGETS {
                in_targets(item, &parts, targets, &mut used)?
            } else {
                Vec::new()
            });
        }
        let offence = displacements(&request, &payload).and(offence(&request, &parts, targets)).err();
        Ok(SentGroup { request, payload, data, offence })
    }

    /// The Call with its items in their places.
    #[must_use]
    pub fn stream(&self) -> Vec<u8> {
        let (mut stream, mut rest) = (Vec::new(), &self.payload[..]);
        for (item, data) in self.request.items.iter().zip(&self.data) {
            let before = (item.displacement as usize).saturating_sub(stream.len()).min(rest.len());
            stream.extend_from_slice(&rest[..before]);
            rest = &rest[before..];
            stream.extend_from_slice(data);
            stream.resize(stream.len().next_multiple_of(4), 0);
        }
        stream.extend_from_slice(rest);
        stream
    }
}

/// Reads the transmission with this number.
fn transmission(
    seen: &SeenMessage,
    number: usize,
    xid: u32,
    first_len: u32,
) -> Result<Transmission<'_>, Offence> {
    let (info, rest, payload_len) = match &seen.body {
        SeenBody::Operation { info, payload, .. } if number == 0 => (info, payload, first_len),
        SeenBody::Operation { kind: kind::CONTINUATION, info, payload } => {
            let mut words = &info[..];
            let mut next = || take(&mut words);
            let (Some(found), Some(lead), Some(len)) = (next(), next(), next()) else {
                return Err(("RTR-9.4-a", format!("{seen}: it cannot be read")));
            };
            keep("RTR-9.4-a", seen.fixed.xid == xid, || format!("{seen}, of {:#010x}", seen.fixed.xid))?;
            keep("RTR-X-4", found as usize == number, || format!("transmission {found}, not {number}"))?;
            keep("RTR-X-5", lead == kind::REQUEST, || format!("a continuation of operation {lead}"))?;
            (info, payload, len)
        }
        _ => return Err(("RTR-4.2-a", format!("{seen}, in place of transmission {number}"))),
    };
    let payload_len = payload_len as usize;
    keep("RTR-9.2-b", payload_len <= rest.len(), || {
        format!("{payload_len} octets of Payload stream in a transmission with {}", rest.len())
    })?;
    Ok(Transmission { start: OPERATION_AT + info.len().next_multiple_of(4), rest, payload_len })
}

/// The octets of an item in targets. `used`: the targets that have an item already.
fn in_targets(
    item: &SeenItem,
    parts: &[Transmission<'_>],
    targets: usize,
    used: &mut Vec<u32>,
) -> Result<Vec<u8>, Offence> {
    keep("RTR-5.3-a", targets > 0, || "an item in targets, which this side has none of".to_owned())?;
    let (mut octets, mut offset) = (Vec::new(), item.offset as usize);
    keep("RTR-7.3-b", offset <= TARGET_LEN, || format!("an offset of {offset} in a target"))?;
    for number in &item.numbers {
        let (part, target) = (*number as usize / targets, *number as usize % targets);
        let start = HEAD_LEN + target * TARGET_LEN + offset;
        let len = (TARGET_LEN - offset).min(item.len as usize - octets.len());
        let part = parts.get(part).ok_or_else(|| {
            ("RTR-6.2-a", format!("target {number} of a group of {} transmissions", parts.len()))
        })?;
        let found = part.octets(start, len).filter(|_| !used.contains(number));
        let Some(found) = found else {
            return Err((
                "RTR-X-20",
                format!("target {number}: it did not come, or has Payload stream or another item"),
            ));
        };
        octets.extend_from_slice(found);
        used.push(*number);
        offset = 0;
    }
    keep("RTR-7.3-b", octets.len() == item.len as usize, || {
        format!("{} octets in the targets of an item of {}", octets.len(), item.len)
    })?;
    Ok(octets)
}

/// Each item belongs right behind the word that counts its octets.
fn displacements(request: &SeenRequest, payload: &[u8]) -> Result<(), Offence> {
    let mut placed = 0;
    for SeenItem { displacement, len, .. } in &request.items {
        let at = (*displacement as usize).saturating_sub(placed);
        let count = at.checked_sub(4).and_then(|start| payload.get(start..at));
        keep("RTR-7.3-a", count == Some(&len.to_be_bytes()), || {
            format!(
                "an item of {len} octets at displacement {displacement}, where no count of them is in front"
            )
        })?;
        placed += (*len as usize).next_multiple_of(4);
    }
    Ok(())
}

/// What is wrong with a group all of which can be read.
fn offence(request: &SeenRequest, parts: &[Transmission<'_>], targets: usize) -> Result<(), Offence> {
    keep("RTR-5.2-a", parts.len() <= TRANSMISSIONS_MAX as usize, || {
        format!("{} transmissions", parts.len())
    })?;
    keep("RTR-5.2-c", request.response_receives < TRANSMISSIONS_MAX, || {
        format!(
            "{} Receives for further transmissions of the Reply, which has {} at most",
            request.response_receives,
            TRANSMISSIONS_MAX - 1
        )
    })?;
    let mut end = 0;
    for (index, SeenDirection { range, .. }) in request.directions.iter().enumerate() {
        // Directions of one set have one range.
        let is_same = index > 0 && request.directions[index - 1].range == *range;
        keep("RTR-7.4-a", is_same || (range.0 >= end && range.0 < range.1), || {
            format!("results of the octets from {} to {}", range.0, range.1)
        })?;
        end = range.1;
    }
    let first_target = HEAD_LEN;
    for part in parts.iter().filter(|_| targets > 0) {
        // Between the Payload stream and the first target.
        let between = first_target.saturating_sub(part.start + part.payload_len);
        let gap = part.rest.iter().skip(part.payload_len).take(between);
        keep("RTR-X-9", gap.clone().all(|octet| *octet == 0), || {
            "octets that are not 0 between the Payload stream and the first target".to_owned()
        })?;
    }
    Ok(())
}

/// A Reply to a Call that came as a group, to be sent as one.
#[derive(Clone, Debug)]
pub struct DraftGroup {
    /// Of the Call.
    pub xid: u32,
    /// Its grant.
    pub credits: u32,
    /// Items, as words.
    pub items: Vec<SeenItem>,
    /// The Payload stream.
    pub payload: Vec<u8>,
    /// The octets of the item in targets.
    pub data: Vec<u8>,
    /// At most this number of octets of the Payload stream in each transmission.
    pub part_max: usize,
    /// Octets into the first target at which the data begins.
    pub offset: usize,
}

/// How a client divides its Receives, as far as it has told.
struct Receives {
    len: usize,
    /// Octets at which targets begin, and their lengths.
    targets: Vec<(usize, usize)>,
}

impl Receives {
    fn of(told: Option<&ToldCharacteristics>) -> Receives {
        let size = told.and_then(|told| told.word(characteristic::RECEIVE_SIZE)).unwrap_or(4096);
        let len = (size as usize).min(RECEIVE_LEN);
        let (mut targets, mut at) = (Vec::new(), 0usize);
        for (part, is_target) in told.and_then(ToldCharacteristics::structure).unwrap_or_default().1 {
            let part = part as usize;
            if is_target && part > 0 && at.saturating_add(part) <= len {
                targets.push((at, part));
            }
            at = at.saturating_add(part);
        }
        Receives { len, targets }
    }
}

impl DraftGroup {
    /// Its transmissions, made for the Receives of who told this. `Err`: it does not fit `count_max` of them.
    pub fn transmissions(
        &mut self,
        told: Option<&ToldCharacteristics>,
        count_max: u32,
    ) -> Result<Vec<Vec<u8>>, String> {
        let receives = Receives::of(told);
        let at = self.items.iter().position(|item| item.place == place::TARGETS);
        // How long the header is depends on how many targets it names, and in which of them it leaves room on how long it is. With
        // targets of different lengths that may have no end.
        for _ in 0..8 {
            let (sends, numbers) = self.cut(&receives, count_max)?;
            let Some(item) = at.map(|at| &mut self.items[at]) else { return Ok(sends) };
            if item.numbers == numbers {
                return Ok(sends);
            }
            (item.numbers, item.offset) = (numbers, self.offset as u32);
        }
        Err("the Reply does not fit the client's targets".to_owned())
    }

    fn cut(&self, receives: &Receives, count_max: u32) -> Result<(Vec<Vec<u8>>, Vec<u32>), String> {
        let does_not_fit = || format!("the Reply does not fit {count_max} transmissions");
        let info_len = item_words(&self.items).0.len() + 8;
        // Octets of headers; of Payload stream; and data, as places in the Receive.
        let mut lens: Vec<usize> = Vec::new();
        let header = |number: usize| if number == 0 { OPERATION_AT + info_len } else { OPERATION_AT + 12 };
        let mut left = self.payload.len();
        while left > 0 || lens.is_empty() {
            let room = receives.len.saturating_sub(header(lens.len())).min(self.part_max);
            if room == 0 || lens.len() as u32 >= count_max {
                return Err(does_not_fit());
            }
            lens.push(left.min(room));
            left -= left.min(room);
        }
        let mut numbers = Vec::new();
        let mut pieces: Vec<(usize, usize, &[u8])> = Vec::new();
        let (mut data, mut offset) = (&self.data[..], self.offset);
        let mut number = 0;
        while !data.is_empty() {
            if receives.targets.is_empty() {
                return Err("the client has no targets".to_owned());
            }
            let (part, (start, len)) =
                (number / receives.targets.len(), receives.targets[number % receives.targets.len()]);
            if part as u32 >= count_max {
                return Err(does_not_fit());
            }
            if part == lens.len() {
                lens.push(0);
            }
            if header(part) + lens[part] <= start && offset < len {
                let (now, later) = data.split_at(data.len().min(len - offset));
                pieces.push((part, start + offset, now));
                numbers.push(number as u32);
                (data, offset) = (later, 0);
            }
            number += 1;
        }
        let (mut sends, mut rest) = (Vec::new(), &self.payload[..]);
        for (number, len) in lens.iter().enumerate() {
            let (now, later) = rest.split_at(*len);
            rest = later;
            let mut send = if number == 0 {
                let info = item_words(&self.items).words(&[lens.len() as u32, *len as u32]);
                operation(self.xid, REPLY, kind::RESPONSE, info, now)
            } else {
                operation(
                    self.xid,
                    REPLY,
                    kind::CONTINUATION,
                    continuation(number as u32, kind::RESPONSE, *len),
                    now,
                )
            };
            send[8..12].copy_from_slice(&self.credits.to_be_bytes());
            sends.push(send);
        }
        for (part, start, octets) in pieces {
            sends[part].resize(start, 0);
            sends[part].extend_from_slice(octets);
        }
        Ok((sends, numbers))
    }
}

/// An array of items, as words.
fn item_words(items: &[SeenItem]) -> Words {
    items.iter().fold(Words::default().words(&[items.len() as u32]), |out, item| {
        let out = out.words(&[item.displacement, item.len, item.place]);
        match item.place {
            place::EXPLICIT => {
                let out = out.words(&[item.segments.len() as u32]);
                item.segments.iter().fold(out, |out, segment| out.segment(*segment))
            }
            place::TARGETS => out.words(&[item.offset, item.numbers.len() as u32]).words(&item.numbers),
            _ => out,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{CALL, TARGETS, item_in_targets, none, own_characteristics, request};

    const XID: u32 = 7;

    fn octets(count: usize, seed: usize) -> Vec<u8> {
        (0..count).map(|at| (at * 13 + seed) as u8).collect()
    }

    /// The Payload stream, with the count of the data's octets in front of where it belongs.
    fn counted_payload() -> Vec<u8> {
        let mut payload = octets(100, 1);
        payload[36..40].copy_from_slice(&5000_u32.to_be_bytes());
        payload
    }

    /// What a Call of two transmissions says of itself: 100 octets of Payload stream and 5,000 of data.
    #[derive(Clone)]
    struct Told {
        item: (usize, usize, u32, Vec<u32>),
        response_receives: u32,
        payload_len: usize,
        second: (u32, u32, u32, usize),
        gap: u8,
    }

    impl Told {
        fn right() -> Told {
            Told {
                item: (40, 5000, 4, vec![0, 1]),
                response_receives: 0,
                payload_len: 60,
                second: (XID, 1, kind::REQUEST, 40),
                gap: 0,
            }
        }

        /// The transmissions, the data where a right Call says that it is.
        fn messages(&self) -> Vec<SeenMessage> {
            let (payload, data) = (counted_payload(), octets(5000, 2));
            let (displacement, len, offset, numbers) = &self.item;
            let items = item_in_targets(*displacement, *len, *offset, numbers);
            let info = request(items, none(), 2, self.response_receives, self.payload_len);
            let mut first = operation(XID, CALL, kind::REQUEST, info, &payload[..60]);
            first.resize(HEAD_LEN + 4, 0);
            first[HEAD_LEN - 1] = self.gap;
            first.extend_from_slice(&data);
            let (xid, number, lead, payload_len) = self.second;
            let info = continuation(number, lead, payload_len);
            let second = operation(xid, CALL, kind::CONTINUATION, info, &payload[60..]);
            [first, second].map(|octets| SeenMessage::of(&octets, None)).into()
        }

        fn offence(&self, targets: usize) -> &'static str {
            match SentGroup::of(&self.messages(), targets) {
                Ok(group) => group.offence.map_or("none", |(rule, _)| rule),
                Err((rule, _)) => rule,
            }
        }
    }

    #[test]
    fn a_call_is_put_together_from_its_transmissions() {
        let group = SentGroup::of(&Told::right().messages(), TARGETS).unwrap();
        let (payload, data) = (counted_payload(), octets(5000, 2));
        assert_eq!((&group.payload, &group.data[..]), (&payload, &[data.clone()][..]));
        assert_eq!(group.offence, None);
        assert_eq!(group.stream(), [&payload[..40], &data, &payload[40..]].concat());
    }

    #[test]
    fn what_a_call_does_wrong_is_named_by_its_rule() {
        let right = Told::right();
        let with_item = |displacement, offset, numbers: &[u32]| Told {
            item: (displacement, 5000, offset, numbers.to_vec()),
            ..right.clone()
        };
        for (told, targets, rule) in [
            (right.clone(), TARGETS, "none"),
            (right.clone(), 0, "RTR-5.3-a"),
            (with_item(41, 4, &[0, 1]), TARGETS, "RTR-X-18"),
            (with_item(36, 4, &[0, 1]), TARGETS, "RTR-7.3-a"),
            (with_item(44, 4, &[0, 1]), TARGETS, "RTR-7.3-a"),
            (with_item(400, 4, &[0, 1]), TARGETS, "RTR-7.3-a"),
            (with_item(40, TARGET_LEN as u32 + 1, &[0, 1]), TARGETS, "RTR-7.3-b"),
            (with_item(40, 4, &[0]), TARGETS, "RTR-7.3-b"),
            (with_item(40, 4, &[0, 0]), TARGETS, "RTR-X-20"),
            (with_item(40, 4, &[0, 2 * TARGETS as u32]), TARGETS, "RTR-6.2-a"),
            (Told { payload_len: 1 << 20, ..right.clone() }, TARGETS, "RTR-9.2-b"),
            (Told { second: (XID + 1, 1, kind::REQUEST, 40), ..right.clone() }, TARGETS, "RTR-9.4-a"),
            (Told { second: (XID, 2, kind::REQUEST, 40), ..right.clone() }, TARGETS, "RTR-X-4"),
            (Told { second: (XID, 1, kind::RESPONSE, 40), ..right.clone() }, TARGETS, "RTR-X-5"),
            (Told { second: (XID, 1, kind::REQUEST, 41), ..right.clone() }, TARGETS, "RTR-9.2-b"),
            (Told { response_receives: TRANSMISSIONS_MAX, ..right.clone() }, TARGETS, "RTR-5.2-c"),
            (Told { gap: 1, ..right.clone() }, TARGETS, "RTR-X-9"),
        ] {
            assert_eq!(told.offence(targets), rule);
        }
        let mut messages = right.messages();
        messages.swap(0, 1);
        assert_eq!(
            SentGroup::of(&messages, TARGETS).unwrap_err().0,
            "RTR-9.2-a",
            "it begins with no first one"
        );
        let twice = [right.messages().remove(0), right.messages().remove(0)];
        assert_eq!(SentGroup::of(&twice, TARGETS).unwrap_err().0, "RTR-4.2-a", "another first one");
    }

    #[test]
    fn a_reply_is_cut_for_the_receives_of_its_client() {
        let told = ToldCharacteristics::of_initial(&own_characteristics(8).0).unwrap();
        let (payload, data) = (octets(100, 3), octets(5000, 4));
        let numbers = Vec::new();
        let item = SeenItem {
            displacement: 40,
            len: 5000,
            place: place::TARGETS,
            offset: 0,
            numbers,
            segments: Vec::new(),
        };
        let draft = DraftGroup {
            xid: XID,
            credits: 9,
            items: vec![item],
            payload: payload.clone(),
            data: data.clone(),
            part_max: 60,
            offset: 4,
        };
        let sends = draft.clone().transmissions(Some(&told), 2).unwrap();
        assert_eq!(sends.len(), 2);
        assert_eq!(sends[0][HEAD_LEN + 4..], data);
        assert!(sends[1].ends_with(&payload[60..]));
        let first = SeenMessage::of(&sends[0], None);
        assert_eq!((first.fixed.xid, first.fixed.credits), (XID, 9));
        let SeenBody::Operation { kind: kind::RESPONSE, info, payload: rest } = &first.body else {
            panic!("{first}")
        };
        assert_eq!(rest[..60], payload[..60]);
        // One item: where it belongs, in targets, 4 octets into the first of two; two transmissions, 60 octets in the first.
        let words: Vec<_> = info.chunks(4).map(|word| u32::from_be_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, [1, 40, 5000, place::TARGETS, 4, 2, 0, 1, 2, 60]);

        assert!(draft.clone().transmissions(Some(&told), 1).is_err(), "it takes two transmissions");
        assert!(draft.clone().transmissions(None, 2).is_err(), "who told nothing has no targets");
    }
}
