//! Sessions: limits agreed on, slots, and whether the session still lives (RFC 8881 section 2.10).

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::HostSite;
use crate::back::{
    BACK_CONNECTIONS_MAX, BackChannel, BackConnection, BackStage, BackUse, CallbackParameters,
};
use crate::client::ClientId;
use crate::lease::Lease;
use crate::price;
use crate::slot::{SequenceFault, Sequenced, SlotRequest, SlotTable};
use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering};

/// Names a session: the server's start, the client, and which of its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey(pub [u8; 16]);

impl SessionKey {
    pub(crate) fn new(client: ClientId, counter: u32) -> SessionKey {
        let mut octets = [0; 16];
        octets[..8].copy_from_slice(&client.0.to_be_bytes());
        octets[8..12].copy_from_slice(&counter.to_be_bytes());
        SessionKey(octets)
    }
}

/// Limits of a channel: what a client asks for, and what it gets (channel_attrs4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelLimits {
    /// Octets of a request.
    pub request_max: u32,
    /// Octets of a reply.
    pub response_max: u32,
    /// Octets of a reply that is kept.
    pub response_kept_max: u32,
    /// Operations of a COMPOUND.
    pub operations_max: u32,
    /// Slots.
    pub slots: u32,
}

impl ChannelLimits {
    /// Octets of a request or reply that are too few for any use: NFS4ERR_TOOSMALL. A SEQUENCE with its RPC header takes
    /// about 200.
    pub const LEAST: u32 = 256;

    /// Agrees: nothing above what either end wants, and at least one slot and one operation (8881-18.36.3-a).
    /// `None`: too small for any use.
    #[must_use]
    pub fn agree(asked: &ChannelLimits, ours: &ChannelLimits) -> Option<ChannelLimits> {
        if asked.request_max < Self::LEAST
            || asked.response_max < Self::LEAST
            || asked.operations_max == 0
            || asked.slots == 0
        {
            return None;
        }
        let response_max = asked.response_max.min(ours.response_max);
        Some(ChannelLimits {
            request_max: asked.request_max.min(ours.request_max),
            response_max,
            // No reply is kept that cannot be sent.
            response_kept_max: asked.response_kept_max.min(ours.response_kept_max).min(response_max),
            operations_max: asked.operations_max.min(ours.operations_max).max(1),
            slots: asked.slots.min(ours.slots).max(1),
        })
    }
}

/// Why a request of a session is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionRefused {
    /// NFS4ERR_BADSESSION: there is none, or no longer; its client starts again.
    #[error("no such session")]
    NoSession,
    /// The slot refuses.
    #[error(transparent)]
    Slot(#[from] SequenceFault),
}

/// The session has requests under way: NFS4ERR_DELAY (8881-18.37.3-a).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("requests of the session are under way")]
pub struct SessionBusy;

/// Octets of the credential of callbacks (RFC 5531 section 8.2).
const CREDENTIAL_LEN_MAX: u64 = 400;

/// It takes requests.
const LIVE: u32 = 0;
/// It takes none.
const DEAD: u32 = 1;

/// Whose a session is.
#[derive(Debug)]
pub(crate) struct SessionHolder {
    pub(crate) client: ClientId,
    /// What the client calls itself.
    pub(crate) owner: Arc<[u8]>,
    pub(crate) site: HostSite,
    pub(crate) lease: Arc<Lease>,
}

/// A session. All reactors share it.
#[derive(Debug)]
pub struct Session {
    key: SessionKey,
    holder: SessionHolder,
    fore: ChannelLimits,
    back: ChannelLimits,
    slots: SlotTable,
    life: AtomicU32,
    /// Whether requests are told that the back channel is broken: a copy of its stage, to be read at once.
    is_back_broken: AtomicBool,
    back_channel: Mutex<BackChannel>,
}

impl Session {
    pub(crate) fn new(
        key: SessionKey,
        holder: SessionHolder,
        fore: ChannelLimits,
        back: ChannelLimits,
        callback: Option<CallbackParameters>,
    ) -> Session {
        let slots = SlotTable::new(fore.slots, fore.response_kept_max);
        Session {
            key,
            holder,
            fore,
            back,
            slots,
            life: AtomicU32::new(LIVE),
            is_back_broken: AtomicBool::new(false),
            back_channel: Mutex::new(BackChannel::new(callback)),
        }
    }

    /// Octets of the heap that a session takes at most, with all replies that it may keep.
    #[must_use]
    pub const fn memory_max(fore: &ChannelLimits) -> u64 {
        price::piece(price::COUNTS + size_of::<Session>() as u64)
            + price::map_entry(size_of::<(SessionKey, Arc<Session>)>())
            // Its connections for callbacks, and the credential of these.
            + price::piece(BACK_CONNECTIONS_MAX as u64 * size_of::<(BackConnection, BackUse)>() as u64)
            + price::piece(price::COUNTS + CREDENTIAL_LEN_MAX)
            // A client's list of them begins with room for four.
            + price::piece(4 * size_of::<SessionKey>() as u64)
            + SlotTable::memory_max(fore.slots, fore.response_kept_max)
    }

    /// Its name.
    #[inline]
    #[must_use]
    pub const fn key(&self) -> SessionKey {
        self.key
    }

    /// Its client.
    #[inline]
    #[must_use]
    pub const fn client(&self) -> ClientId {
        self.holder.client
    }

    /// What its client calls itself (co_ownerid).
    #[must_use]
    pub const fn owner(&self) -> &Arc<[u8]> {
        &self.holder.owner
    }

    /// The client's lease.
    #[inline]
    #[must_use]
    pub const fn lease(&self) -> &Arc<Lease> {
        &self.holder.lease
    }

    /// Where the client is, as its locks are counted.
    #[must_use]
    pub const fn site(&self) -> HostSite {
        self.holder.site
    }

    /// Limits of the client's requests.
    #[inline]
    #[must_use]
    pub const fn fore(&self) -> &ChannelLimits {
        &self.fore
    }

    /// Limits of the server's requests.
    #[must_use]
    pub const fn back(&self) -> &ChannelLimits {
        &self.back
    }

    /// Its slots.
    #[inline]
    #[must_use]
    pub const fn slots(&self) -> &SlotTable {
        &self.slots
    }

    /// Takes a request, and renews the client's lease with it.
    #[inline]
    pub fn sequence(&self, request: &SlotRequest, now: Duration) -> Result<Sequenced, SessionRefused> {
        if self.life.load(Ordering::Acquire) == DEAD {
            return Err(SessionRefused::NoSession);
        }
        // A lease that has expired took all state with it.
        self.holder.lease.renew(now).map_err(|_| SessionRefused::NoSession)?;
        Ok(self.slots.sequence(request)?)
    }

    /// Looks at the back channel, or changes it. Never held for long: what it says to do is done afterwards. A session that has
    /// ended has none.
    pub fn with_back_channel<R>(&self, look: impl FnOnce(&mut BackChannel) -> R) -> Option<R> {
        // A panic of another holder leaves a whole machine behind.
        let mut channel = self.back_channel.lock().unwrap_or_else(PoisonError::into_inner);
        if self.life.load(Ordering::Acquire) == DEAD {
            return None;
        }
        let before = channel.stage();
        let result = look(&mut channel);
        self.note_back_stage(before, channel.stage());
        Some(result)
    }

    fn note_back_stage(&self, before: BackStage, after: BackStage) {
        self.holder.lease.back_paths().note(before, after);
        self.is_back_broken.store(after.is_broken(), Ordering::Release);
    }

    /// SEQ4_STATUS_CB_PATH_DOWN_SESSION: the client asked for callbacks in this session, and cannot be called over it.
    #[inline]
    #[must_use]
    pub fn is_back_channel_broken(&self) -> bool {
        self.is_back_broken.load(Ordering::Acquire)
    }

    /// It takes no more requests, and its back channel counts no more.
    fn die(&self) {
        let channel = self.back_channel.lock().unwrap_or_else(PoisonError::into_inner);
        if self.life.swap(DEAD, Ordering::AcqRel) == LIVE {
            self.note_back_stage(channel.stage(), BackStage::Absent);
        }
    }

    /// Ends it. `own`: the request that asks runs in a slot of this session, and may.
    pub(crate) fn end(&self, own: bool) -> Result<(), SessionBusy> {
        // A request that another reactor takes right now is under way, or finds its slot closed.
        if !self.slots.close(usize::from(own)) {
            return Err(SessionBusy);
        }
        self.die();
        Ok(())
    }

    /// Ends it whatever runs: its client is gone.
    pub(crate) fn kill(&self) {
        self.die();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;

    use super::*;

    const NOW: Duration = Duration::from_secs(1000);
    const LIMITS: ChannelLimits = ChannelLimits {
        request_max: 1000,
        response_max: 1000,
        response_kept_max: 16,
        operations_max: 8,
        slots: 2,
    };

    fn session() -> loom::sync::Arc<Session> {
        let lease = Arc::new(Lease::new(NOW));
        let holder = SessionHolder { client: ClientId(1), owner: Arc::from([]), site: HostSite(1), lease };
        let callback = CallbackParameters { program: 1, minor_version: 1, user: None };
        let session = Session::new(SessionKey::new(ClientId(1), 1), holder, LIMITS, LIMITS, Some(callback));
        loom::sync::Arc::new(session)
    }

    fn request(slot: u32, sequence_id: u32) -> SlotRequest {
        SlotRequest { slot, sequence_id, highest_slot: 1, fingerprint: 0 }
    }

    /// Begins a request, and leaves it under way.
    fn begins(session: &Session, slot: u32, sequence_id: u32) -> bool {
        matches!(session.sequence(&request(slot, sequence_id), NOW), Ok(Sequenced::New(_)))
    }

    /// 8881-18.37.3-a: a session that ends has no request under way, and takes none afterwards. A refused end leaves it as it was.
    #[test]
    fn loom_a_session_ends_or_executes_a_request() {
        loom::model(|| {
            let session = session();
            let other = loom::sync::Arc::clone(&session);
            let request = thread::spawn(move || begins(&other, 1, 1));
            let has_ended = session.end(false).is_ok();
            let is_under_way = request.join().unwrap();
            assert!(!(has_ended && is_under_way), "a request of a session that has ended");
            // Both may refuse: then each is asked again, as DELAY says.
            if !has_ended && !is_under_way {
                assert!(begins(&session, 1, 1));
            }
        });
    }

    /// 8881-18.37.3-a: the same, where a request of the session itself ends it.
    #[test]
    fn loom_a_request_that_ends_its_session_is_the_last() {
        loom::model(|| {
            let session = session();
            let Ok(Sequenced::New(own)) = session.sequence(&request(0, 1), NOW) else { panic!() };
            let other = loom::sync::Arc::clone(&session);
            let request = thread::spawn(move || begins(&other, 1, 1));
            let has_ended = session.end(true).is_ok();
            session.slots.finish(own, None);
            assert!(!(has_ended && request.join().unwrap()), "a request of a session that has ended");
            assert_eq!(begins(&session, 0, 2), !has_ended);
        });
    }

    /// A back channel that is bound while its session ends counts no more: the client is not told of it.
    #[test]
    fn loom_a_session_that_ends_has_no_back_channel() {
        loom::model(|| {
            let session = session();
            let other = loom::sync::Arc::clone(&session);
            let connection = BackConnection(7);
            let binding = thread::spawn(move || {
                other.with_back_channel(|channel| channel.bind(connection, BackUse::Both));
                other.with_back_channel(|channel| channel.connection_ended(connection));
            });
            session.kill();
            binding.join().unwrap();
            assert!(!session.is_back_channel_broken());
            assert!(!session.lease().back_paths().are_down());
            assert!(session.with_back_channel(|_| ()).is_none());
        });
    }
}
