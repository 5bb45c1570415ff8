//! Locks that are taken below as well: on the files themselves, where a store shares them with others
//! ([`Capabilities::locks_below`](stag_vfs::Capabilities::locks_below)).
//!
//! ```text
//! LOCK ─▶ table: free? ─▶ strengthen below, may wait ─▶ table: take ─▶ relax below to what the table has
//!            │                 │ another's is in the way                ▲
//!            └▶ denied         └▶ denied, or tried each second          UNLOCK, CLOSE, the end of a client
//! ```
//!
//! What is locked below is what all owners of the table have together ([`LockTable::locked`](stag_state::LockTable::locked)): among themselves the
//! table decides. It may be more for a moment: while a request waits for the store, which has a claim meanwhile, and until locks of a
//! client that ended are given back. It is never less than what a client was told that it has.
//!
//! Several exports may have a file. It is locked through the first of them by which a lock of it was taken.

use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use stag_rpc::Token;
use stag_state::{FileKey, LockRequest, Owner, Range};
use stag_vfs::{Blocked, FsError, OctetLock, Progress, Store};

use super::ExportTable;
use super::locking::Locking;
use super::waiting::{Pending, Program, Waiter, WaitsFor};

/// How long a claim lasts at most. It ends when its request goes on, unless that was told to try again meanwhile.
const CLAIM_LIFE: Duration = Duration::from_secs(10);

/// Claims to octets of one file, at most: what is locked below for further requests may be given back before they go on.
const CLAIMS_MAX: usize = 1024;

/// How often a request that waits is tried again: nothing tells that a lock below is gone.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Files that are known here, at most. Those that are locked are fewer: stores have limits of their own.
const FILES_MAX: usize = 16_384;

/// The files that have locks below, or had them a moment ago.
pub(super) struct Below {
    files: HashMap<FileKey, FileBelow>,
    /// Nothing is due before this.
    next: Duration,
}

struct FileBelow {
    /// The place of the export whose store locks it.
    share: usize,
    /// Of requests that wait for the store: what they claim is not given back.
    claims: Vec<Claim>,
    /// What may be locked below beyond what the table has, and when that is given back.
    surplus: Option<(Range, Duration)>,
    /// When the requests that wait are tried next; `None`: there are none.
    retry: Option<Duration>,
    /// Those that are being tried.
    attempts: u32,
}

/// Octets that are locked below for a request that waits for the store.
struct Claim {
    range: Range,
    exclusive: bool,
    end: Duration,
}

impl FileBelow {
    fn new(share: usize) -> FileBelow {
        FileBelow { share, claims: Vec::new(), surplus: None, retry: None, attempts: 0 }
    }

    fn note_surplus(&mut self, range: Range, due: Duration) {
        self.surplus = Some(match self.surplus {
            Some((other, earlier)) => (range.joined(&other), due.min(earlier)),
            None => (range, due),
        });
    }

    /// The parts of a range that no request claims. The rest is given back when the claims end.
    fn unclaimed(&mut self, range: Range) -> Vec<Range> {
        let mut parts = vec![range];
        let mut claimed = Vec::new();
        for claim in &self.claims {
            let Some(common) = claim.range.within(&range) else { continue };
            claimed.push((common, claim.end));
            let without = |part: &Range| match part.overlaps(&common) {
                true => [part.before(&common), part.behind(&common)],
                false => [Some(*part), None],
            };
            parts = parts.iter().flat_map(without).flatten().collect();
        }
        claimed.into_iter().for_each(|(common, end)| self.note_surplus(common, end));
        parts
    }

    /// The claim of a request is over, if it has one. Returns whether it had.
    fn end_claim(&mut self, request: &LockRequest<'_>) -> bool {
        let is_its = |claim: &Claim| (claim.range, claim.exclusive) == (request.range, request.exclusive);
        let place = self.claims.iter().position(is_its);
        place.map(|place| self.claims.swap_remove(place)).is_some()
    }

    /// Ends the claims whose time is over.
    fn end_old_claims(&mut self, now: Duration) {
        let old: Vec<Claim> = self.claims.extract_if(.., |claim| claim.end <= now).collect();
        old.iter().for_each(|claim| self.note_surplus(claim.range, Duration::ZERO));
    }
}

impl Default for Below {
    fn default() -> Below {
        Below { files: HashMap::new(), next: Duration::MAX }
    }
}

impl Below {
    /// A range of a file may be locked below more than the table has it. From `due` on the rest is given back.
    fn note_surplus(&mut self, file: FileKey, range: Range, due: Duration) {
        let Some(known) = self.files.get_mut(&file) else { return };
        known.note_surplus(range, due);
        self.next = self.next.min(due);
    }

    /// Owners gave up octets of a file: others may have them.
    pub(super) fn freed(&mut self, file: FileKey, range: Range) {
        self.note_surplus(file, range, Duration::ZERO);
        if let Some(known) = self.files.get_mut(&file)
            && known.retry.is_some()
        {
            known.retry = Some(Duration::ZERO);
        }
    }

    /// Owners gave up whatever they had, of any file.
    pub(super) fn all_freed(&mut self) {
        let files: Vec<FileKey> = self.files.keys().copied().collect();
        files.into_iter().for_each(|file| self.freed(file, Range::ALL));
    }

    /// When something is due.
    pub(super) fn next_timeout(&self) -> Option<Duration> {
        (self.next != Duration::MAX).then_some(self.next)
    }

    fn is_due(known: &FileBelow, now: Duration) -> bool {
        known.surplus.is_some_and(|(_, due)| due <= now)
            || known.claims.iter().any(|claim| claim.end <= now)
            || Self::is_to_retry(known, now)
    }

    fn is_to_retry(known: &FileBelow, now: Duration) -> bool {
        known.attempts == 0 && known.retry.is_some_and(|due| due <= now)
    }

    fn find_next(&self) -> Duration {
        let retry = |known: &FileBelow| known.retry.filter(|_| known.attempts == 0);
        let of = |known: &FileBelow| {
            let claims = known.claims.iter().map(|claim| claim.end);
            claims.chain(known.surplus.map(|(_, due)| due)).chain(retry(known)).min()
        };
        self.files.values().filter_map(of).min().unwrap_or(Duration::MAX)
    }
}

/// Where the locks of a file are taken below, if they are; `via` is the place of the export that it was reached by.
fn share_of<S: Store + ?Sized>(
    exports: &ExportTable<S>,
    locking: &Locking,
    file: FileKey,
    via: usize,
) -> Option<usize> {
    if let Some(known) = locking.below.files.get(&file) {
        return Some(known.share);
    }
    exports.shares.get(via)?.volume().profile().can.locks_below.then_some(via)
}

/// Whether the locks of a file are taken below.
pub(super) fn is_below<S: Store + ?Sized>(
    exports: &ExportTable<S>,
    locking: &Locking,
    file: FileKey,
    via: usize,
) -> bool {
    share_of(exports, locking, file, via).is_some()
}

fn wanted(request: &LockRequest<'_>) -> OctetLock {
    let LockRequest { range, exclusive, .. } = *request;
    OctetLock { first: range.first(), last: range.last(), exclusive }
}

/// Tells a step that waits from one that has an answer.
fn settle<T>(share: usize, step: Result<T, Blocked>) -> Result<Result<T, FsError>, WaitsFor> {
    match step {
        Ok(found) => Ok(Ok(found)),
        Err(Blocked::Fails(error)) => Ok(Err(error)),
        Err(Blocked::Waits(ticket)) => Err(WaitsFor { share, ticket }),
    }
}

/// Locks below what a request wants, unless it is. `Some`: another's lock is in the way there. Unless this waits, [`relax`] has to follow
/// when the table has taken the lock, or refused it.
pub(super) fn strengthen<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    locking: &mut Locking,
    via: usize,
    request: &LockRequest<'_>,
    now: Duration,
) -> Result<Result<Option<OctetLock>, FsError>, WaitsFor> {
    let file = request.file;
    let Some(share) = share_of(exports, locking, file, via) else { return Ok(Ok(None)) };
    let Some(own) = exports.shares.get_mut(share) else { return Ok(Err(FsError::Stale)) };
    let is_known = locking.below.files.contains_key(&file);
    if !is_known && locking.below.files.len() >= FILES_MAX {
        return Ok(Err(FsError::Busy));
    }
    let step = own.volume_mut().store_mut().lock_octets(file.object, &wanted(request));
    if !is_known && !matches!(step, Ok(None) | Err(Blocked::Waits(_))) {
        return settle(share, step);
    }
    let known = locking.below.files.entry(file).or_insert_with(|| FileBelow::new(share));
    known.end_claim(request);
    match &step {
        Err(Blocked::Waits(_)) => {
            let end = now + CLAIM_LIFE;
            if known.claims.len() < CLAIMS_MAX {
                known.claims.push(Claim { range: request.range, exclusive: request.exclusive, end });
            }
            locking.below.next = locking.below.next.min(end);
        }
        // Unless the table takes the lock, what is locked is given back, and the file forgotten.
        _ => locking.below.note_surplus(file, request.range, Duration::ZERO),
    }
    settle(share, step)
}

/// Gives back what is locked of a range below beyond what the table has. Returns what that waits for.
pub(super) fn relax<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    locking: &mut Locking,
    file: FileKey,
    range: Range,
) -> Option<WaitsFor> {
    let known = locking.below.files.get_mut(&file)?;
    let share = known.share;
    let store = exports.shares.get_mut(share)?.volume_mut().store_mut();
    // Without any lock everything goes, also what could not be given back before.
    let range = if locking.table.held(file).is_empty() { Range::ALL } else { range };
    // A store does this for one part after the other: if the last is over, all are.
    let mut waits = None;
    for part in known.unclaimed(range) {
        let kept: Vec<OctetLock> = locking
            .table
            .locked(file, part)
            .iter()
            .map(|segment| OctetLock {
                first: segment.range.first(),
                last: segment.range.last(),
                exclusive: segment.exclusive,
            })
            .collect();
        if let Progress::Later(ticket) = store.relax_locks(file.object, part.first(), part.last(), &kept) {
            waits = Some(WaitsFor { share, ticket });
        }
    }
    waits
}

/// A request that may have waited for the store does not go on with it: what was locked below for it is given back.
pub(super) fn withdraw(locking: &mut Locking, request: &LockRequest<'_>) {
    if let Some(known) = locking.below.files.get_mut(&request.file)
        && known.end_claim(request)
    {
        locking.below.note_surplus(request.file, request.range, Duration::ZERO);
    }
}

/// An owner gave up octets of a file. Returns what it waits for that others below get them.
pub(super) fn give_back<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    locking: &mut Locking,
    file: FileKey,
    range: Range,
) -> Option<WaitsFor> {
    locking.below.freed(file, range);
    relax(exports, locking, file, range)
}

/// The lock of others below that is in the way of a request.
pub(super) fn find<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    locking: &Locking,
    via: usize,
    request: &LockRequest<'_>,
) -> Result<Result<Option<OctetLock>, FsError>, WaitsFor> {
    let Some(share) = share_of(exports, locking, request.file, via) else { return Ok(Ok(None)) };
    let Some(own) = exports.shares.get_mut(share) else { return Ok(Err(FsError::Stale)) };
    settle(share, own.volume_mut().store_mut().find_lock(request.file.object, &wanted(request)))
}

/// A request for a file waits, and is held back by the table: it is tried again from now on.
pub(super) fn wait<S: Store + ?Sized>(
    exports: &ExportTable<S>,
    locking: &mut Locking,
    file: FileKey,
    via: usize,
    now: Duration,
) {
    let Some(share) = share_of(exports, locking, file, via) else { return };
    let known = locking.below.files.entry(file).or_insert_with(|| FileBelow::new(share));
    let due = *known.retry.get_or_insert(now + RETRY_INTERVAL);
    locking.below.next = locking.below.next.min(due);
}

/// Gives back what is due, and tries requests again that wait. Called each pass.
#[inline]
pub(super) fn poll<S: Store + ?Sized>(exports: &mut ExportTable<S>, locking: &mut Locking, now: Duration) {
    if now >= locking.below.next {
        poll_due(exports, locking, now);
    }
}

fn poll_due<S: Store + ?Sized>(exports: &mut ExportTable<S>, locking: &mut Locking, now: Duration) {
    let files = &locking.below.files;
    let due: Vec<FileKey> =
        files.iter().filter(|(_, known)| Below::is_due(known, now)).map(|(file, _)| *file).collect();
    for file in due {
        let Some(known) = locking.below.files.get_mut(&file) else { continue };
        known.end_old_claims(now);
        if let Some((range, _)) = known.surplus.take_if(|(_, due)| *due <= now)
            && relax(exports, locking, file, range).is_some()
        {
            // The file stays known until it is over.
            locking.below.note_surplus(file, range, now + RETRY_INTERVAL);
        }
        if locking.below.files.get(&file).is_some_and(|known| Below::is_to_retry(known, now)) {
            retry(exports, locking, file, now);
        }
        let has_locks = !locking.table.held(file).is_empty();
        if let Some(known) = locking.below.files.get(&file)
            && !has_locks
            && known.claims.is_empty()
            && (known.surplus, known.retry, known.attempts) == (None, None, 0)
        {
            locking.below.files.remove(&file);
        }
    }
    locking.below.next = locking.below.find_next();
}

/// Tries the requests again that wait for a file.
fn retry<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    locking: &mut Locking,
    file: FileKey,
    now: Duration,
) {
    let waiting = locking.table.waiting(file).filter(|waiting| waiting.is_held_back);
    let attempts: Vec<Attempt> = waiting
        .map(|waiting| Attempt {
            file,
            owner: waiting.owner.clone(),
            range: waiting.range,
            exclusive: waiting.exclusive,
            token: waiting.waiter.token(),
        })
        .collect();
    if let Some(known) = locking.below.files.get_mut(&file) {
        known.retry = (!attempts.is_empty()).then_some(now + RETRY_INTERVAL);
    }
    attempts.into_iter().for_each(|attempt| attempt.run(exports, locking, now));
}

/// A request that waits, and is tried again.
pub(super) struct Attempt {
    file: FileKey,
    owner: Rc<Owner>,
    range: Range,
    exclusive: bool,
    /// Of the Call that made it. The attempt has this name while it waits for the store; it answers no Call.
    token: Token,
}

impl Attempt {
    /// Goes on when the store is done.
    pub(super) fn resume<S: Store + ?Sized>(
        self,
        exports: &mut ExportTable<S>,
        locking: &mut Locking,
        now: Duration,
    ) {
        if let Some(known) = locking.below.files.get_mut(&self.file) {
            known.attempts -= 1;
            if let Some(due) = known.retry {
                locking.below.next = locking.below.next.min(due);
            }
        }
        self.run(exports, locking, now);
    }

    fn run<S: Store + ?Sized>(self, exports: &mut ExportTable<S>, locking: &mut Locking, now: Duration) {
        let Attempt { file, range, exclusive, .. } = self;
        let (host, svid, handle) = (self.owner.host, self.owner.svid, &*self.owner.handle);
        let request = LockRequest { file, host, svid, handle, range, exclusive };
        let mut waiting = locking.table.waiting(file);
        let still_waits = waiting.any(|waiting| {
            waiting.is_held_back
                && (waiting.range, waiting.exclusive) == (range, exclusive)
                && *waiting.owner == *self.owner
        });
        drop(waiting);
        if !still_waits {
            // It was cancelled.
            return withdraw(locking, &request);
        }
        if locking.conflict(&request, now).is_some() {
            return withdraw(locking, &request);
        }
        let Some(share) = locking.below.files.get(&file).map(|known| known.share) else { return };
        match strengthen(exports, locking, share, &request, now) {
            Ok(Ok(None)) => {
                // Without room it goes on waiting.
                let _ = locking.table.grant(&request);
                let _ = relax(exports, locking, file, range);
            }
            // It is tried again later.
            Ok(_) => {}
            Err(waits) => {
                if let Some(known) = locking.below.files.get_mut(&file) {
                    known.attempts += 1;
                }
                // The server's own attempt takes no client's part.
                let waiter = Waiter::new(Program::Nlm, self.token, None);
                let pending = Pending::Lock(Box::new(super::nlm::SuspendedLock::Attempt(self)));
                let _ = exports.keep(waits, waiter, pending);
            }
        }
    }
}
