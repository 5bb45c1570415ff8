//! Calls whose chunks ended a connection (8166-4.5.3-b): when they come again over the next one, they are answered with
//! ERR_CHUNK, and that connection lives.

use std::time::Duration;

use arrayvec::ArrayVec;
use stag_fabric::Peer;

use crate::server::duplicates::address;

/// Calls that are remembered, the latest.
const CALLS_MAX: usize = 64;

/// For how long: a client that connects again does so sooner, and later its xids may mean other Calls.
const AGE_MAX: Duration = Duration::from_secs(120);

/// The Calls that ended a connection lately, by caller and xid.
#[derive(Debug, Default)]
pub(crate) struct DoomedCalls {
    calls: ArrayVec<(u128, u32, Duration), CALLS_MAX>,
}

impl DoomedCalls {
    #[cold]
    pub(crate) fn add(&mut self, peer: Option<&Peer>, xid: u32, now: Duration) {
        let Some(peer) = peer else { return };
        self.calls.retain(|(_, _, since)| now < *since + AGE_MAX);
        if self.calls.is_full() {
            self.calls.remove(0);
        }
        self.calls.push((address(peer), xid, now));
    }

    #[inline(always)]
    pub(crate) fn has(&self, peer: Option<&Peer>, xid: u32, now: Duration) -> bool {
        !self.calls.is_empty() && self.find(peer, xid, now)
    }

    #[cold]
    fn find(&self, peer: Option<&Peer>, xid: u32, now: Duration) -> bool {
        let caller = peer.map(address);
        self.calls.iter().any(|call| Some(call.0) == caller && call.1 == xid && now < call.2 + AGE_MAX)
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
        let mut doomed = DoomedCalls::default();
        (0..=CALLS_MAX as u32).for_each(|xid| doomed.add(Some(&one), xid, second(0)));
        let has = |doomed: &DoomedCalls, peer, xid, at| doomed.has(Some(peer), xid, second(at));
        assert!(!has(&doomed, &one, 0, 1), "the oldest");
        assert!(has(&doomed, &one, 1, 1) && has(&doomed, &one, CALLS_MAX as u32, 119));
        assert!(!has(&doomed, &other, 1, 1) && !has(&doomed, &one, 1, 120));
        doomed.add(Some(&other), 1, second(120));
        assert_eq!(doomed.calls.len(), 1);
        assert_eq!([0, 7].map(|xid| xid_of(reply_id(xid))), [Some(0), Some(7)]);
        assert_eq!(xid_of(0), None);
    }
}
