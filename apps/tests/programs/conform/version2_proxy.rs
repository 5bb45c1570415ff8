//! The proxy's treatment of exposed Replies, and of the operations of version 2.

use stag_conform::message::{DraftMessage, SECOND, SeenBody, SeenMessage};
use stag_conform::operation::{CALL, HEAD_LEN, REPLY, kind, operation, own_characteristics, place};
use stag_wire::rpcrdma::procedure;

use super::proxy::{Broken, Flaw, Relay, WAIT};

/// Octets of the words in front of an operation.
const OPERATION_AT: usize = 28;

/// Sets a word of a message, if it has it.
fn set(octets: &mut [u8], at: usize, word: u32) {
    if let Some(place) = octets.get_mut(at..at + 4) {
        place.copy_from_slice(&word.to_be_bytes());
    }
}

/// A word of a message.
fn get(octets: &[u8], at: usize) -> u32 {
    octets.get(at..at + 4).map_or(0, |word| u32::from_be_bytes(word.try_into().unwrap()))
}

/// Takes 64 octets off the first part of a Receive Buffer Structure of a head and targets, and says so in its total and in the Receive
/// Buffer Size.
fn spoil_structure(octets: &mut [u8]) {
    // An array of characteristics: id, length, and the octets of each.
    let (count, mut at) = (get(octets, OPERATION_AT), OPERATION_AT + 4);
    for _ in 0..count {
        let (id, len) = (get(octets, at), get(octets, at + 4) as usize);
        match id {
            1 => set(octets, at + 8, get(octets, at + 8) - 64),
            // Total; groups; count, length, alignment and flags of the first.
            5 => {
                set(octets, at + 8, get(octets, at + 8) - 64);
                set(octets, at + 20, get(octets, at + 20) - 64);
            }
            _ => {}
        }
        at += 8 + len.next_multiple_of(4);
    }
}

impl Relay {
    /// The client's RDMA_DONE, which may invalidate a handle of an exposed Reply.
    pub(crate) fn done(
        &mut self,
        mut octets: Vec<u8>,
        xid: u32,
        invalidated: Option<u32>,
    ) -> Result<(), Broken> {
        match self.flaw {
            Flaw::ExposureKept | Flaw::DoneLost => return Ok(()),
            Flaw::DoneXid => set(&mut octets, 0, !xid),
            Flaw::DoneVersion => set(&mut octets, 4, SECOND),
            Flaw::DoneTwice => self.back.send(&octets, None).map_err(|_| Broken)?,
            _ => {}
        }
        let handles = self.exposed.remove(&xid).unwrap_or_default();
        let of_server = |handle| handles.iter().find(|(ours, _)| *ours == handle).map(|(_, theirs)| *theirs);
        let invalidate = invalidated.and_then(of_server);
        for (ours, _) in &handles {
            let _ = self.front.take_back(*ours);
        }
        // A handle of another Reply is broken on this side already.
        if invalidated.is_some() && invalidate.is_none() {
            return Err(Broken);
        }
        self.back.send(&octets, invalidate).map_err(|_| Broken)
    }

    /// Reads what the server exposes, and exposes it to the client.
    pub(crate) fn hand_on_exposed(&mut self, draft: &mut DraftMessage) -> Result<(), Broken> {
        if draft.fixed.procedure != procedure::NOMSG || draft.reads.is_empty() {
            return Ok(());
        }
        let is_exposed = draft.direction.is_none();
        let last = draft.reads.len() - 1;
        let mut handles = Vec::new();
        for (index, (position, segment)) in draft.reads.iter_mut().enumerate().filter(|_| is_exposed) {
            // What cannot be read is handed on as it is.
            if segment.length > 1 << 20 {
                continue;
            }
            let Ok(octets) = self.back.read(*segment, WAIT) else { continue };
            let ours = match self.flaw {
                Flaw::ExposedWritable => self.front.offer_target(octets.len()),
                _ => self.front.offer_source(&octets),
            };
            handles.push((ours.handle, segment.handle));
            *segment = ours;
            match self.flaw {
                Flaw::ExposedPosition => *position = 4,
                Flaw::ExposedCut if index == last => segment.length -= 4,
                _ => {}
            }
        }
        match self.flaw {
            Flaw::ReplyChunkForgotten => draft.reply = None,
            Flaw::WriteListForgotten => draft.writes.clear(),
            _ => {}
        }
        // A Reply for the same xid takes the place of the one before.
        for (ours, _) in self.exposed.insert(draft.fixed.xid, handles).unwrap_or_default() {
            let _ = self.front.take_back(ours);
        }
        Ok(())
    }

    /// A message of the client without chunk lists.
    pub(crate) fn up_operation(&mut self, mut octets: Vec<u8>, seen: &SeenMessage) -> Result<(), Broken> {
        self.spoil_operation(&mut octets, seen)?;
        if let SeenBody::Operation { kind: number, info, .. } = &seen.body {
            match (self.flaw, *number) {
                (Flaw::CharacteristicsRefused, kind::INITIAL) => {
                    let refusal = [seen.fixed.xid, SECOND, 8, procedure::ERROR, 2];
                    let refusal: Vec<u8> = refusal.iter().flat_map(|word| word.to_be_bytes()).collect();
                    return self.front.send(&refusal, None).map_err(|_| Broken);
                }
                (Flaw::ContinuationLost, kind::CONTINUATION) if get(info, 8) == 0 => return Ok(()),
                // Directions and items are in front of count, Receives and octets of the Payload stream.
                (Flaw::PayloadBeyond, kind::REQUEST) => {
                    let at = OPERATION_AT + info.len() - 4;
                    set(&mut octets, at, 1 << 20);
                }
                (Flaw::ReceivesBeyond, kind::REQUEST) => {
                    let at = OPERATION_AT + info.len() - 8;
                    set(&mut octets, at, 100);
                }
                // Count, displacement, length, place, offset, count of numbers, the first of them.
                (Flaw::TargetsShifted, kind::REQUEST)
                    if get(info, 0) == 1 && get(info, 12) == place::TARGETS =>
                {
                    set(&mut octets, OPERATION_AT + 24, get(info, 24) + 100);
                }
                (Flaw::Displaced, kind::REQUEST) if get(info, 0) == 1 && get(info, 12) == place::TARGETS => {
                    set(&mut octets, OPERATION_AT + 4, get(info, 4) + 4);
                }
                (Flaw::TransmissionNumber, kind::CONTINUATION) => {
                    set(&mut octets, OPERATION_AT, get(info, 0) + 1);
                }
                (Flaw::LastLost, kind::CONTINUATION) => return Ok(()),
                // Behind two characteristics of a word, and the id and length of the structure: its groups, of which
                // the first is the head.
                (Flaw::StructureShifted, kind::INITIAL) => spoil_structure(&mut octets),
                // Behind the head of the server's Receive, and an offset in its first target.
                (Flaw::TargetData, kind::REQUEST) if octets.len() > 1100 => octets[1100] ^= 0xff,
                _ => {}
            }
        }
        if self.is_lost(seen) {
            return Ok(());
        }
        self.back.send(&octets, None).map_err(|_| Broken)
    }

    /// A message of the server without chunk lists.
    pub(crate) fn down_operation(&mut self, mut octets: Vec<u8>, seen: &SeenMessage) -> Result<(), Broken> {
        self.spoil_operation(&mut octets, seen)?;
        if let (Flaw::CharacteristicsIgnored, SeenBody::Operation { kind: kind::INITIAL, .. }) =
            (self.flaw, &seen.body)
        {
            octets = operation(seen.fixed.xid, CALL, kind::INITIAL, own_characteristics(8), &[]);
        }
        if let (Flaw::OptionErrorCode, SeenBody::InvalidOption) = (self.flaw, &seen.body) {
            set(&mut octets, 16, 5);
        }
        if let SeenBody::Operation { kind: number, info, payload } = &seen.body {
            match (self.flaw, *number) {
                (Flaw::ItemsLost, kind::RESPONSE) => {
                    let rest = [&[0; 4], &info[info.len() - 8..], payload].concat();
                    octets.truncate(OPERATION_AT);
                    set(&mut octets, OPERATION_AT - 4, 12);
                    octets.extend(rest);
                }
                // Count, displacement, length, place, offset, count of numbers, the first of them.
                (Flaw::TargetsShifted, kind::RESPONSE) if get(info, 12) == 2 => {
                    set(&mut octets, OPERATION_AT + 24, get(info, 24) + 1);
                }
                (Flaw::Displaced, kind::RESPONSE) if get(info, 12) == place::TARGETS => {
                    set(&mut octets, OPERATION_AT + 4, get(info, 4) + 4);
                }
                (Flaw::PaddingFilled, kind::RESPONSE) if get(info, 12) == place::TARGETS => {
                    octets[HEAD_LEN - 1] = 7;
                }
                // Count, displacement, length, place: NOITEM.
                (Flaw::NoItemEnds, kind::RESPONSE) if get(info, 12) == 6 => return Err(Broken),
                (Flaw::TransmissionNumber, kind::CONTINUATION) => {
                    set(&mut octets, OPERATION_AT, get(info, 0) + 1);
                }
                (Flaw::GroupErrorTwice, kind::ERROR) => {
                    self.front.send(&octets, None).map_err(|_| Broken)?;
                }
                _ => {}
            }
        }
        if self.is_lost(seen) {
            return Ok(());
        }
        self.front.send(&octets, None).map_err(|_| Broken)
    }

    /// Flaws of operations that both sides send.
    fn spoil_operation(&mut self, octets: &mut [u8], seen: &SeenMessage) -> Result<(), Broken> {
        let SeenBody::Operation { kind: number, info, .. } = &seen.body else { return Ok(()) };
        match (self.flaw, *number) {
            (Flaw::CharacteristicsSum, kind::INITIAL) => {
                // The Receive Buffer Size is the first of them.
                let size = get(info, 12);
                set(octets, OPERATION_AT + 12, size + 4);
            }
            (Flaw::CharacteristicsSet, kind::INITIAL) => {
                let at = OPERATION_AT + info.len() - 4;
                set(octets, at, u32::MAX);
            }
            (Flaw::GroupErrorDirection, kind::ERROR) => {
                set(octets, 16, REPLY ^ seen.direction.unwrap_or(0));
            }
            // Bad: three words; lead: one or four; which; expected and found.
            (Flaw::GroupErrorNumbers, kind::ERROR) => {
                let at = OPERATION_AT + 12 + if get(info, 12) == 1 { 16 } else { 4 } + 4;
                let (expected, found) = (get(octets, at), get(octets, at + 4));
                set(octets, at, found);
                set(octets, at + 4, expected);
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether the message is not handed on.
    fn is_lost(&self, seen: &SeenMessage) -> bool {
        match self.flaw {
            Flaw::OptionErrorLost => seen.body == SeenBody::InvalidOption,
            Flaw::GroupErrorLost => matches!(seen.body, SeenBody::Operation { kind: kind::ERROR, .. }),
            _ => false,
        }
    }
}
