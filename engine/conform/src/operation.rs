//! Operations of version 2 of RPC-over-RDMA, word by word: transport characteristics, transmissions of groups, their errors.

use stag_wire::rpcrdma::Segment;

use crate::check::{Stop, ensure, fail};
use crate::message::{OPTIONAL, SECOND, SeenBody, SeenMessage, Words, take, take_segment};

/// rdma_direction of what a Requester sends.
pub const CALL: u32 = 0;

/// rdma_direction of what a Responder sends.
pub const REPLY: u32 = 1;

/// rdma_opttype.
pub mod kind {
    /// ROPT_INITXCH: initial characteristics.
    pub const INITIAL: u32 = 1;
    /// ROPT_REQXCH: a wish for others.
    pub const ASK: u32 = 2;
    /// ROPT_RESPXCH: its answer.
    pub const ANSWER: u32 = 3;
    /// ROPT_UPDXCH: a characteristic has changed.
    pub const UPDATE: u32 = 4;
    /// ROPT_XMTREQ: the first transmission of a Call.
    pub const REQUEST: u32 = 5;
    /// ROPT_XMTRESP: the first transmission of a Reply.
    pub const RESPONSE: u32 = 6;
    /// ROPT_XMTCONT: another transmission.
    pub const CONTINUATION: u32 = 7;
    /// ROPT_XMTERR: a transmission that cannot be taken.
    pub const ERROR: u32 = 8;
}

/// Ids of transport characteristics.
pub mod characteristic {
    /// Receive Buffer Size.
    pub const RECEIVE_SIZE: u32 = 1;
    /// RTR Support.
    pub const SUPPORT: u32 = 4;
    /// Receive Buffer Structure.
    pub const STRUCTURE: u32 = 5;
    /// Request Transmission Receive Limit.
    pub const REQUEST_LIMIT: u32 = 6;
    /// Response Transmission Send Limit.
    pub const RESPONSE_LIMIT: u32 = 7;
}

/// optxe_which.
pub mod fault {
    /// Another rdma_proc than was expected.
    pub const PROCEDURE: u32 = 1;
    /// Another opttype.
    pub const OPERATION: u32 = 2;
    /// A continuation of nothing.
    pub const NO_GROUP: u32 = 3;
    /// Another number.
    pub const NUMBER: u32 = 4;
    /// Another xid.
    pub const XID: u32 = 5;
    /// An offset that the target does not have.
    pub const OFFSET: u32 = 6;
    /// A target that there is not.
    pub const TARGET: u32 = 7;
    /// More Payload stream than was sent.
    pub const PAYLOAD: u32 = 8;
}

/// xmddp_type.
pub mod place {
    /// By RDMA.
    pub const EXPLICIT: u32 = 1;
    /// In targets.
    pub const TARGETS: u32 = 2;
    /// As the Responder chooses.
    pub const CHOICE: u32 = 3;
    /// By its size.
    pub const BY_SIZE: u32 = 4;
    /// In the Payload stream, because it is short.
    pub const TOO_SHORT: u32 = 5;
    /// There is none.
    pub const NO_ITEM: u32 = 6;
}

/// Credits that messages of this side ask for.
pub const CREDITS: u32 = 32;

/// A message with an operation.
#[must_use]
pub fn operation(xid: u32, direction: u32, kind: u32, info: Words, payload: &[u8]) -> Vec<u8> {
    let head = Words::default().words(&[xid, SECOND, CREDITS, OPTIONAL, direction, kind]).opaque(&info.0);
    [head.0, payload.to_vec()].concat()
}

/// A first transmission of a Call: `items` and `directions` are XDR arrays. `response_receives` are further Receives for its Reply.
#[must_use]
pub fn request(
    items: Words,
    directions: Words,
    count: u32,
    response_receives: u32,
    payload_len: usize,
) -> Words {
    Words([items.0, directions.0].concat()).words(&[count, response_receives, payload_len as u32])
}

/// An array of nothing.
#[must_use]
pub fn none() -> Words {
    Words::default().words(&[0])
}

/// One item in targets.
#[must_use]
pub fn item_in_targets(displacement: usize, len: usize, offset: u32, numbers: &[u32]) -> Words {
    let head = [1, displacement as u32, len as u32, place::TARGETS, offset, numbers.len() as u32];
    Words::default().words(&head).words(numbers)
}

/// One direction for the results of the first `end` octets of a Call.
#[must_use]
pub fn direction(end: usize, min_len: u32, place: &[u32]) -> Words {
    Words::default().words(&[1, 0, end as u32, 1, min_len]).words(place)
}

/// A further transmission.
#[must_use]
pub fn continuation(number: u32, lead: u32, payload_len: usize) -> Words {
    Words::default().words(&[number, lead, payload_len as u32])
}

/// One characteristic whose value is a word.
#[must_use]
pub fn word_value(id: u32, value: u32) -> Words {
    Words::default().words(&[id, 4, value])
}

/// ROPT_INITXCH of these characteristics, none of which will change.
#[must_use]
pub fn initial(values: &[Words]) -> Words {
    let all = values.iter().fold(Words::default().words(&[values.len() as u32]), |mut out, value| {
        out.0.extend_from_slice(&value.0);
        out
    });
    all.words(&[1, (1 << values.len()) - 1])
}

/// Octets in front of the targets of a Receive, as this side tells it.
pub const HEAD_LEN: usize = 1024;

/// Octets of each of its targets.
pub const TARGET_LEN: usize = 4096;

/// Its targets.
pub const TARGETS: usize = 2;

/// Octets of a Receive.
pub const RECEIVE_SIZE: usize = HEAD_LEN + TARGETS * TARGET_LEN;

/// What this side tells of itself: Receives with targets, all operations, `limit` transmissions of a Call.
#[must_use]
pub fn own_characteristics(limit: u32) -> Words {
    let structure = Words::default().words(&[RECEIVE_SIZE as u32, 2, 1, HEAD_LEN as u32, 1, 0]).words(&[
        TARGETS as u32,
        TARGET_LEN as u32,
        TARGET_LEN as u32,
        1,
    ]);
    initial(&[
        word_value(characteristic::RECEIVE_SIZE, RECEIVE_SIZE as u32),
        word_value(characteristic::SUPPORT, 7),
        Words::default().words(&[characteristic::STRUCTURE]).opaque(&structure.0),
        word_value(characteristic::REQUEST_LIMIT, limit),
        word_value(characteristic::RESPONSE_LIMIT, limit),
    ])
}

/// What a peer told of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToldCharacteristics {
    /// Ids and octets of the values, in their order.
    pub values: Vec<(u32, Vec<u8>)>,
    /// Words of the set of those that do not change.
    pub unchanging: Vec<u32>,
}

/// How a peer divides its Receives: octets of each part, and whether it is a target.
pub type ToldStructure = Vec<(u32, bool)>;

impl ToldCharacteristics {
    /// Reads ROPT_INITXCH. `None`: it is not of its XDR, or octets are left over.
    #[must_use]
    pub fn of_initial(info: &[u8]) -> Option<ToldCharacteristics> {
        let mut rest = info;
        let mut told = ToldCharacteristics::default();
        for _ in 0..take(&mut rest)? {
            let (id, len) = (take(&mut rest)?, take(&mut rest)? as usize);
            told.values.push((id, rest.get(..len)?.to_vec()));
            rest = rest.get(len.next_multiple_of(4)..)?;
        }
        for _ in 0..take(&mut rest)? {
            told.unchanging.push(take(&mut rest)?);
        }
        rest.is_empty().then_some(told)
    }

    /// The value of a characteristic that is one word; the last one counts.
    #[must_use]
    pub fn word(&self, id: u32) -> Option<u32> {
        let (_, octets) = self.values.iter().rev().find(|(found, _)| *found == id)?;
        Some(u32::from_be_bytes(octets.as_slice().try_into().ok()?))
    }

    /// How the peer divides its Receives; `None`: it told nothing that can be read.
    #[must_use]
    pub fn structure(&self) -> Option<(u32, ToldStructure)> {
        let (_, octets) = self.values.iter().rev().find(|(id, _)| *id == characteristic::STRUCTURE)?;
        let mut rest = &octets[..];
        let (len, groups) = (take(&mut rest)?, take(&mut rest)?);
        let mut parts = Vec::new();
        for _ in 0..groups {
            let (count, part, _, flags) =
                (take(&mut rest)?, take(&mut rest)?, take(&mut rest)?, take(&mut rest)?);
            parts.extend((0..count.min(1024)).map(|_| (part, flags & 1 == 1)));
        }
        rest.is_empty().then_some((len, parts))
    }

    /// Whether the values fit their types and each other. `Err` says the rule and what is wrong.
    pub fn check(&self) -> Result<(), Stop> {
        for (id, octets) in &self.values {
            let is_word = [1, 2, 3, 4, 6, 7].contains(id);
            ensure(!is_word || octets.len() == 4, || {
                format!("XC-h: {} octets for characteristic {id}", octets.len())
            })?;
        }
        let count = self.values.len();
        let beyond = |(index, word): (usize, &u32)| {
            (0..32).any(|bit| word >> bit & 1 == 1 && index * 32 + bit >= count)
        };
        ensure(!self.unchanging.iter().enumerate().any(beyond), || {
            format!("XC-b: a set of {:x?} for {count} values", self.unchanging)
        })?;
        let has_structure = self.values.iter().any(|(id, _)| *id == characteristic::STRUCTURE);
        match self.structure() {
            None if has_structure => return fail("XC-h: a Receive Buffer Structure that cannot be read"),
            Some((len, parts)) => {
                let sum: u64 = parts.iter().map(|(part, _)| u64::from(*part)).sum();
                ensure(sum == u64::from(len), || {
                    format!("RTR-7.2-c: parts of {sum} octets in a Receive of {len}")
                })?;
                let size = self.word(characteristic::RECEIVE_SIZE).unwrap_or(len);
                ensure(size == len, || {
                    format!("RTR-8.3-a: a Receive Buffer Size of {size}, and a structure of {len}")
                })?;
            }
            None => {}
        }
        Ok(())
    }
}

/// Where an item is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenItem {
    /// Its displacement in the virtual stream.
    pub displacement: u32,
    /// Its octets.
    pub len: u32,
    /// The kind of place.
    pub place: u32,
    /// In targets: the offset in the first of them.
    pub offset: u32,
    /// The targets' numbers.
    pub numbers: Vec<u32>,
    /// By RDMA: the segments that were written.
    pub segments: Vec<Segment>,
}

/// Where a Requester wants an item of the results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenDirection {
    /// The part of the Call that is meant, in its virtual stream: from here on, and not beyond.
    pub range: (u32, u32),
    /// Items shorter than this stay in the Payload stream.
    pub min_len: u32,
    /// The kind of place.
    pub place: u32,
    /// By size: what is shorter goes in targets.
    pub threshold: u32,
    /// Memory of the Requester, by RDMA.
    pub segments: Vec<Segment>,
}

/// ROPT_XMTREQ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenRequest {
    /// The items that are not in the Payload stream.
    pub items: Vec<SeenItem>,
    /// Where those of the results are to go.
    pub directions: Vec<SeenDirection>,
    /// Transmissions.
    pub count: u32,
    /// Receives for further transmissions of the Reply.
    pub response_receives: u32,
    /// Octets of the Payload stream in the first one.
    pub payload_len: u32,
}

impl SeenRequest {
    /// Reads it. `None`: it is not of its XDR.
    #[must_use]
    pub fn of(info: &[u8]) -> Option<SeenRequest> {
        let mut rest = info;
        let items = take_items(&mut rest, &[place::EXPLICIT, place::TARGETS])?;
        let mut directions = Vec::new();
        for _ in 0..take(&mut rest)? {
            let range = (take(&mut rest)?, take(&mut rest)?);
            for _ in 0..take(&mut rest)? {
                let (min_len, place) = (take(&mut rest)?, take(&mut rest)?);
                let threshold = if place == place::BY_SIZE { take(&mut rest)? } else { 0 };
                let mut segments = Vec::new();
                match place {
                    place::EXPLICIT | place::CHOICE | place::BY_SIZE => {
                        for _ in 0..take(&mut rest)? {
                            segments.push(take_segment(&mut rest)?);
                        }
                    }
                    place::TARGETS => {}
                    _ => return None,
                }
                directions.push(SeenDirection { range, min_len, place, threshold, segments });
            }
        }
        let (count, response_receives) = (take(&mut rest)?, take(&mut rest)?);
        let found =
            SeenRequest { items, directions, count, response_receives, payload_len: take(&mut rest)? };
        rest.is_empty().then_some(found)
    }
}

/// Reads an array of items, each in one of these places.
fn take_items(rest: &mut &[u8], places: &[u32]) -> Option<Vec<SeenItem>> {
    let mut items = Vec::new();
    for _ in 0..take(rest)? {
        let (displacement, len, place) = (take(rest)?, take(rest)?, take(rest)?);
        let mut item =
            SeenItem { displacement, len, place, offset: 0, numbers: Vec::new(), segments: Vec::new() };
        if !places.contains(&place) {
            return None;
        }
        match place {
            place::EXPLICIT => {
                for _ in 0..take(rest)? {
                    item.segments.push(take_segment(rest)?);
                }
            }
            place::TARGETS => {
                item.offset = take(rest)?;
                for _ in 0..take(rest)? {
                    item.numbers.push(take(rest)?);
                }
            }
            _ => {}
        }
        items.push(item);
    }
    Some(items)
}

/// ROPT_XMTRESP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenResponse {
    /// An item for each direction of the Call.
    pub items: Vec<SeenItem>,
    /// Transmissions.
    pub count: u32,
    /// Octets of the Payload stream in the first one.
    pub payload_len: u32,
}

impl SeenResponse {
    /// Reads it. `None`: it is not of its XDR.
    #[must_use]
    pub fn of(info: &[u8]) -> Option<SeenResponse> {
        let mut rest = info;
        let places = [place::EXPLICIT, place::TARGETS, place::TOO_SHORT, place::NO_ITEM];
        let items = take_items(&mut rest, &places)?;
        let found = SeenResponse { items, count: take(&mut rest)?, payload_len: take(&mut rest)? };
        rest.is_empty().then_some(found)
    }
}

/// ROPT_XMTERR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenFault {
    /// Xid, direction and number of the bad transmission.
    pub bad: [u32; 3],
    /// The same of the transmission that may have caused it.
    pub lead: Option<[u32; 3]>,
    /// What is wrong.
    pub which: u32,
    /// Expected and found, or value, min and max.
    pub info: Vec<u32>,
}

impl SeenFault {
    /// Reads it. `None`: it is not of its XDR.
    #[must_use]
    pub fn of(octets: &[u8]) -> Option<SeenFault> {
        let mut rest = octets;
        let id = |rest: &mut &[u8]| Some([take(rest)?, take(rest)?, take(rest)?]);
        let bad = id(&mut rest)?;
        let lead = match take(&mut rest)? {
            0 => None,
            1 => Some(id(&mut rest)?),
            _ => return None,
        };
        let which = take(&mut rest)?;
        let len = match which {
            fault::PROCEDURE | fault::OPERATION | fault::NUMBER | fault::XID => 2,
            fault::NO_GROUP => 0,
            fault::OFFSET | fault::TARGET | fault::PAYLOAD => 3,
            _ => return None,
        };
        let info = (0..len).map(|_| take(&mut rest)).collect::<Option<Vec<u32>>>()?;
        rest.is_empty().then_some(SeenFault { bad, lead, which, info })
    }

    /// Reads a message that has to be an XMTERR in this direction.
    pub fn of_message(seen: &SeenMessage, direction: u32) -> Result<SeenFault, Stop> {
        let SeenBody::Operation { kind: kind::ERROR, info, payload } = &seen.body else {
            return fail(format!("{seen}, in place of XMTERR"));
        };
        ensure(seen.direction == Some(direction), || {
            format!("XMTERR of direction {:?}, in place of {direction}", seen.direction)
        })?;
        ensure(payload.is_empty(), || format!("{} octets behind XMTERR", payload.len()))?;
        match SeenFault::of(info) {
            Some(found) => Ok(found),
            None => fail("an XMTERR that cannot be read"),
        }
    }
}
