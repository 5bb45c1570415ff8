//! Calls whose chunks ended a connection (8166-4.5.3-b): their retransmissions over the next one are answered with
//! ERR_CHUNK, and that connection lives.

use std::time::Duration;

use arrayvec::ArrayVec;
use stag_fabric::Peer;

use crate::server::owner::{address, owner};

/// Calls that are remembered, the latest. The owner that has most of them loses its oldest one first.
const CALLS_MAX: usize = 64;

/// For how long: a client that connects again does so sooner, and later its xids may mean other Calls.
const AGE_MAX: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug)]
struct DoomedCall {
    caller: u128,
    owner: u128,
    xid: u32,
    since: Duration,
}

/// The Calls that ended a connection lately, by caller and xid.
#[derive(Debug, Default)]
pub(crate) struct DoomedCalls {
    calls: ArrayVec<DoomedCall, CALLS_MAX>,
}

impl DoomedCalls {
    #[cold]
    pub(crate) fn add(&mut self, peer: Option<&Peer>, xid: u32, now: Duration) {
        let Some(peer) = peer else { return };
        self.calls.retain(|call| now < call.since + AGE_MAX);
        let count = |call: &DoomedCall| self.calls.iter().filter(|other| other.owner == call.owner).count();
        // The oldest of several with as many.
        let most = self.calls.iter().enumerate().rev().max_by_key(|(_, call)| count(call));
        if let (true, Some((at, _))) = (self.calls.is_full(), most) {
            self.calls.remove(at);
        }
        self.calls.push(DoomedCall { caller: address(peer), owner: owner(Some(peer)), xid, since: now });
    }

    #[inline(always)]
    pub(crate) fn has(&self, peer: Option<&Peer>, xid: u32, now: Duration) -> bool {
        !self.calls.is_empty() && self.find(peer, xid, now)
    }

    #[cold]
    fn find(&self, peer: Option<&Peer>, xid: u32, now: Duration) -> bool {
        let caller = peer.map(address);
        let is_it =
            |call: &DoomedCall| Some(call.caller) == caller && call.xid == xid && now < call.since + AGE_MAX;
        self.calls.iter().any(is_it)
    }
}

/// The id of a Reply's Writes and Send, by which their failure is known as that of a Call.
#[inline]
pub(crate) const fn reply_id(xid: u32) -> u64 {
    1 << 32 | xid as u64
}

/// The Call that a failed Write or Send was for, if it was for one.
pub(crate) fn xid_of(id: u64) -> Option<u32> {
    (id >> 32 == 1).then_some(id as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_remembered_for_a_while() {
        let (second, one) = (Duration::from_secs, Peer::Process { pid: 1, uid: 0, gid: 0 });
        let other = Peer::Process { pid: 2, uid: 0, gid: 0 };
        let mut refused_calls = DoomedCalls::default();
        (0..=CALLS_MAX as u32).for_each(|xid| refused_calls.add(Some(&one), xid, second(0)));
        let has = |refused_calls: &DoomedCalls, peer, xid, at| refused_calls.has(Some(peer), xid, second(at));
        assert!(!has(&refused_calls, &one, 0, 1), "the oldest");
        assert!(has(&refused_calls, &one, 1, 1) && has(&refused_calls, &one, CALLS_MAX as u32, 119));
        assert!(!has(&refused_calls, &other, 1, 1) && !has(&refused_calls, &one, 1, 120));
        refused_calls.add(Some(&other), 1, second(120));
        assert_eq!(refused_calls.calls.len(), 1);
        // Of another user: it keeps its own, however many the first one has.
        (0..200).for_each(|xid| {
            refused_calls.add(Some(&Peer::Process { pid: xid, uid: 1, gid: 0 }), 7, second(121))
        });
        assert!(has(&refused_calls, &other, 1, 122) && refused_calls.calls.is_full());
        assert_eq!([0, 7].map(|xid| xid_of(reply_id(xid))), [Some(0), Some(7)]);
        assert_eq!(xid_of(0), None);
    }
}
