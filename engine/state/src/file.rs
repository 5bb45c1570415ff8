//! The locks of one file, the requests that wait for it, and its shares.

use std::collections::VecDeque;
use std::rc::Rc;

use super::spare::{SPARE_MAX, SpareOwners};
use super::{HostSite, LockRequest, Owner, Range};
use crate::open::ShareModes;

/// A file that is kept without locks has room for no more of them.
const FILE_LOCKS_MAX: usize = 16;

/// A lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Whose.
    pub owner: Rc<Owner>,
    /// Where.
    pub range: Range,
    /// Whether it excludes shared locks too.
    pub exclusive: bool,
}

/// Octets that are locked by one owner or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockedSegment {
    /// Where.
    pub range: Range,
    /// Whether an owner has an exclusive lock there.
    pub exclusive: bool,
}

/// A request that waits.
#[derive(Debug, PartialEq, Eq)]
pub struct Waiting<W> {
    /// Whose.
    pub owner: Rc<Owner>,
    /// Where.
    pub range: Range,
    /// Whether it is to exclude shared locks too.
    pub exclusive: bool,
    /// Whether it is granted by [`LockTable::grant`](super::LockTable::grant) only.
    pub is_held_back: bool,
    /// What was given with it.
    pub waiter: W,
}

impl<W> Waiting<W> {
    pub(super) fn is(&self, request: &LockRequest<'_>) -> bool {
        self.range == request.range && self.exclusive == request.exclusive && request.is_by(&self.owner)
    }
}

/// A share: of a host's owner, whatever the process.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) host: super::HostId,
    pub(super) handle: Box<[u8]>,
    /// Bits that others may not have.
    pub(super) deny: u32,
    /// Bits that it has.
    pub(super) access: u32,
}

impl Share {
    pub(super) const fn modes(&self) -> ShareModes {
        ShareModes { access: self.access as u8 & 3, deny: self.deny as u8 & 3 }
    }

    pub(super) fn is_by(&self, request: &LockRequest<'_>) -> bool {
        self.host == request.host && *self.handle == *request.handle
    }
}

/// A file that somebody is interested in.
#[derive(Debug)]
pub(super) struct File<W> {
    /// In the order of their first octets. Of one owner nothing overlaps, and nothing alike touches.
    pub(super) held: Vec<Held>,
    /// In the order in which they came.
    pub(super) waiting: VecDeque<Waiting<W>>,
    pub(super) shares: Vec<Share>,
}

impl<W> File<W> {
    /// Locks and shares that hosts of a site have.
    pub(super) fn locks_of(&self, site: HostSite) -> u64 {
        let held = self.held.iter().filter(|held| held.owner.host.site == site).count();
        (held + self.shares.iter().filter(|share| share.host.site == site).count()) as u64
    }
}

impl<W> Default for File<W> {
    fn default() -> File<W> {
        File { held: Vec::new(), waiting: VecDeque::new(), shares: Vec::new() }
    }
}

/// How an owner's locks change: what overlaps goes, and these come.
#[derive(Debug)]
pub(super) struct Plan {
    /// What was before the range, and behind it.
    rest: [Option<(Range, bool)>; 2],
    /// The new lock, with what it joins.
    new: Option<(Range, bool)>,
    /// How many go.
    removed: usize,
    /// Whether others may have more than before: something goes, or becomes shared.
    pub(super) frees: bool,
}

impl Plan {
    /// How many more locks there will be.
    pub(super) fn growth(&self) -> i32 {
        let come = self.rest.iter().flatten().count() + usize::from(self.new.is_some());
        // Both are at most the locks of a file.
        come as i32 - self.removed as i32
    }
}

impl<W> File<W> {
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.waiting.is_empty() && self.shares.is_empty()
    }

    /// The first lock of another owner that is in the way.
    pub(super) fn conflict(&self, request: &LockRequest<'_>) -> Option<&Held> {
        let before_end = self.held.iter().take_while(|held| held.range.first() <= request.range.last());
        before_end.into_iter().find(|held| {
            (held.exclusive || request.exclusive)
                && held.range.overlaps(&request.range)
                && !request.is_by(&held.owner)
        })
    }

    /// What owners together have locked of a range, in the order of the octets.
    pub(super) fn locked(&self, range: &Range) -> Vec<LockedSegment> {
        let mut segments: Vec<LockedSegment> = Vec::new();
        for held in self.held.iter().take_while(|held| held.range.first() <= range.last()) {
            let Some(part) = held.range.within(range) else { continue };
            match segments.last_mut() {
                // Locks overlap only where all of them are shared, so the last segment is the only one that it can meet.
                Some(last) if last.exclusive == held.exclusive && last.range.touches(&part) => {
                    last.range = last.range.joined(&part);
                }
                _ => segments.push(LockedSegment { range: part, exclusive: held.exclusive }),
            }
        }
        segments
    }

    /// Whether a lock of the owner goes: it overlaps, or it joins.
    fn goes(held: &Held, request: &LockRequest<'_>, kind: Option<bool>) -> bool {
        let joins = kind == Some(held.exclusive) && held.range.touches(&request.range);
        (joins || held.range.overlaps(&request.range)) && request.is_by(&held.owner)
    }

    /// What setting the range to `kind` (exclusive or not, or nothing) would do.
    pub(super) fn plan(&self, request: &LockRequest<'_>, kind: Option<bool>) -> Plan {
        let mut plan = Plan {
            rest: [None; 2],
            new: kind.map(|exclusive| (request.range, exclusive)),
            removed: 0,
            frees: false,
        };
        for held in self.held.iter().filter(|held| Self::goes(held, request, kind)) {
            plan.removed += 1;
            if let Some((range, exclusive)) = &mut plan.new
                && *exclusive == held.exclusive
            {
                *range = range.joined(&held.range);
                continue;
            }
            plan.frees |= kind != Some(true);
            // Nothing of one owner overlaps, so only one lock reaches out on either side.
            if let Some(before) = held.range.before(&request.range) {
                plan.rest[0] = Some((before, held.exclusive));
            }
            if let Some(behind) = held.range.behind(&request.range) {
                plan.rest[1] = Some((behind, held.exclusive));
            }
        }
        plan
    }

    /// Does what was planned; the plan's kind is that of its new lock.
    pub(super) fn apply(&mut self, request: &LockRequest<'_>, plan: &Plan, spare: &mut SpareOwners) {
        let kind = plan.new.map(|(_, exclusive)| exclusive);
        let mut owner = None;
        self.held.retain(|held| {
            let goes = Self::goes(held, request, kind);
            if goes {
                owner = Some(held.owner.clone());
            }
            !goes
        });
        let mut come = plan.rest.iter().chain([&plan.new]).flatten().peekable();
        if come.peek().is_none() {
            return owner.into_iter().for_each(|owner| spare.keep(owner));
        }
        let owner = owner.unwrap_or_else(|| spare.take(request));
        for &(range, exclusive) in come {
            let place = self.held.partition_point(|held| held.range.first() < range.first());
            self.held.insert(place, Held { owner: owner.clone(), range, exclusive });
        }
    }
}

/// Files whose last lock is gone, kept for the next one: who locks and unlocks in turn allocates nothing.
#[derive(Debug)]
pub(super) struct SpareFiles<W>(Vec<File<W>>);

impl<W> Default for SpareFiles<W> {
    fn default() -> SpareFiles<W> {
        SpareFiles(Vec::new())
    }
}

impl<W> SpareFiles<W> {
    /// A file that is empty.
    pub(super) fn take(&mut self) -> File<W> {
        self.0.pop().unwrap_or_default()
    }

    /// Keeps an empty file, unless it is large.
    pub(super) fn keep(&mut self, file: File<W>) {
        debug_assert!(file.is_empty(), "nothing is lost with it");
        let capacities = [file.held.capacity(), file.waiting.capacity(), file.shares.capacity()];
        if self.0.len() < SPARE_MAX && capacities[0] <= FILE_LOCKS_MAX && capacities[1..] == [0; 2] {
            self.0.push(file);
        }
    }
}
