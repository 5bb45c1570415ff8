//! How an end divides its Receives, for the sender that fills them and the receiver that posts them (rtrext,
//! characteristic 5).
//!
//! ```text
//! one Receive   |--- head: header, Payload stream ---|-- target 0 --|-- target 1 --|
//! the next of
//! its group     |--- head ---------------------------|-- target 2 --|-- target 3 --|
//! ```
//!
//! A Send fills a Receive front to back. A sender that wants an item to begin at a target pads its message up to there.

use core::ops::Range;

use stag_wire::rpcrdma2::{BufferGroup, BufferStructure, Elements};

/// Groups of a structure that are remembered. An end with more has Receives without targets.
const GROUPS_MAX: usize = 16;

/// Targets of one message at most, over all its transmissions.
pub const TARGETS_MAX: u32 = 1024;

/// The numbers of all targets, so that a list of some needs no memory of its own.
static NUMBERS: [u32; TARGETS_MAX as usize] = {
    let mut numbers = [0; TARGETS_MAX as usize];
    let mut at = 0;
    while at < numbers.len() {
        numbers[at] = at as u32;
        at += 1;
    }
    numbers
};

/// A part of a Receive that an item may be put into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveTarget {
    /// Which Receive of the group, from 0.
    pub transmission: u32,
    /// Octets of that Receive before the part.
    pub start: u32,
    /// Octets of the part.
    pub len: u32,
}

/// The parts of each of one end's Receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveLayout {
    /// Octets of the longest Send to it.
    len: u32,
    /// Octets of a Receive.
    receive_len: u32,
    groups: [BufferGroup; GROUPS_MAX],
    count: usize,
    targets: u32,
}

impl ReceiveLayout {
    /// Receives of `len` octets without targets.
    #[must_use]
    pub fn plain(len: u32) -> Self {
        let mut groups = [BufferGroup::default(); GROUPS_MAX];
        groups[0] = BufferGroup { count: 1, len, align: 0, is_target: false };
        Self { len, receive_len: len, groups, count: 1, targets: 0 }
    }

    /// Receives of a head of `head_len` octets and `count` targets of `target_len` octets each behind it, which start at
    /// multiples of `align` in memory.
    ///
    /// # Panics
    ///
    /// When a Receive has more than [`TARGETS_MAX`] targets, empty targets, or more octets than 32 bits count.
    #[must_use]
    pub fn with_targets(head_len: u32, count: u32, target_len: u32, align: u32) -> Self {
        assert!((1..=TARGETS_MAX).contains(&count), "targets: {count}, the limits are 1 and {TARGETS_MAX}");
        assert!(target_len > 0, "a target has octets");
        let targets_len = count.checked_mul(target_len);
        let len = targets_len.and_then(|len| len.checked_add(head_len)).expect("a Receive below 4 GiB");
        let groups = [BufferGroup::default(); GROUPS_MAX];
        let mut layout = Self { len, receive_len: len, groups, count: 2, targets: count };
        layout.groups[0] = BufferGroup { count: 1, len: head_len, align: 0, is_target: false };
        layout.groups[1] = BufferGroup { count, len: target_len, align, is_target: true };
        layout
    }

    /// As the peer told. Its parts are as long as the whole: `wire` checked it. One with more groups or targets than are
    /// remembered counts as one without targets.
    #[must_use]
    pub fn of(told: &BufferStructure<'_>) -> Self {
        let targets = u32::try_from(told.target_count()).unwrap_or(u32::MAX);
        if told.groups.len() > GROUPS_MAX || targets > TARGETS_MAX {
            return Self::plain(told.len);
        }
        let mut groups = [BufferGroup::default(); GROUPS_MAX];
        groups.iter_mut().zip(told.groups.iter()).for_each(|(place, group)| *place = group);
        Self { len: told.len, receive_len: told.len, groups, count: told.groups.len(), targets }
    }

    /// Returns the same Receives for an end whose Sends have `send_len_max` octets at most. What is behind those is not used, and
    /// its targets keep their numbers.
    #[must_use]
    pub fn bounded(self, send_len_max: u32) -> Self {
        Self { len: self.len.min(send_len_max), ..self }
    }

    /// Returns the structure to tell the peer.
    #[must_use]
    pub fn structure(&self) -> BufferStructure<'_> {
        BufferStructure { len: self.receive_len, groups: Elements::new(&self.groups[..self.count]) }
    }

    /// Returns the octets of the longest Send: those of a Receive, if the sender makes as long ones.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether a Send has no octets.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the targets in one Receive.
    #[must_use]
    pub fn targets(&self) -> u32 {
        self.targets
    }

    /// Returns the octets before the first target: the head; all octets where there are no targets.
    #[must_use]
    pub fn head_len(&self) -> u32 {
        self.target(0).map_or(self.len, |target| target.start)
    }

    /// Returns the targets as a run, as far as Sends reach. `None`: there are none, or they are not alike or not together.
    #[must_use]
    pub fn run(&self) -> Option<TargetRun> {
        let mut start = 0;
        for group in &self.groups[..self.count] {
            if group.is_target && group.count > 0 {
                let reached = self.len.saturating_sub(start).checked_div(group.len)?;
                let count = group.count.min(reached);
                let is_all = group.count == self.targets && count > 0;
                return is_all.then_some(TargetRun { start, len: group.len, count });
            }
            start += group.count * group.len;
        }
        None
    }

    /// Returns where the target with a number is, counted over all Receives of a group (RTR-6.2-a). It takes a step for each
    /// group of the structure. `None`: there are no targets.
    #[must_use]
    pub fn target(&self, number: u32) -> Option<ReceiveTarget> {
        let transmission = number.checked_div(self.targets)?;
        let (mut start, mut left) = (0, number % self.targets);
        for group in &self.groups[..self.count] {
            if group.is_target {
                if left < group.count {
                    return Some(ReceiveTarget {
                        transmission,
                        start: start + left * group.len,
                        len: group.len,
                    });
                }
                left -= group.count;
            }
            // All parts together are as long as a Receive.
            start += group.count * group.len;
        }
        None
    }

    /// Returns the numbers of the targets that an item of `len` octets takes, from `first` on. `None`: it does not fit into
    /// the targets below `end`, which counts at most as [`TARGETS_MAX`].
    #[must_use]
    pub fn place(&self, first: u32, len: u32, end: u32) -> Option<Range<u32>> {
        let (mut next, mut left) = (first, len);
        while left > 0 {
            if next >= end.min(TARGETS_MAX) {
                return None;
            }
            left = left.saturating_sub(self.target(next)?.len);
            next += 1;
        }
        Some(first..next)
    }
}

/// The targets of one Receive, if they are alike and follow one another: they are as one piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetRun {
    /// Octets of the Receive before the first.
    pub start: u32,
    /// Octets of each.
    pub len: u32,
    /// How many there are, at least one.
    pub count: u32,
}

impl TargetRun {
    /// Octets of all of them.
    #[inline]
    #[must_use]
    pub fn room(&self) -> u32 {
        self.len * self.count
    }

    /// Returns the targets that an item of `len` octets takes from the first on.
    #[inline]
    #[must_use]
    pub fn count_for(&self, len: u32) -> u32 {
        // A page is what nearly all are.
        if self.len == PAGE_LEN { len.div_ceil(PAGE_LEN) } else { len.div_ceil(self.len) }
    }

    /// Returns where in the Receive an item of `len` octets starts that takes the first `count` targets, from their start on. `None`:
    /// there are not as many, or it is longer.
    #[inline]
    #[must_use]
    pub fn locate_first(&self, count: u32, len: u32) -> Option<u32> {
        let is_in_them =
            (1..=self.count).contains(&count) && u64::from(len) <= u64::from(count) * u64::from(self.len);
        is_in_them.then_some(self.start)
    }

    /// Returns where in the Receive an item of `len` octets starts that begins `offset` octets behind the start of the first of
    /// `numbers`. `None`: these are not its targets, or they do not follow one another.
    #[inline]
    #[must_use]
    pub fn locate(&self, offset: u32, numbers: &Elements<'_, u32>, len: u32) -> Option<u32> {
        let mut all = numbers.iter();
        let first = all.next()?;
        let mut end = first;
        for number in all {
            end += 1;
            if number != end {
                return None;
            }
        }
        if end >= self.count || offset > self.len {
            return None;
        }
        let is_in_them =
            u64::from(offset) + u64::from(len) <= u64::from(end - first + 1) * u64::from(self.len);
        is_in_them.then_some(self.start + first * self.len + offset)
    }
}

/// Octets of a page.
const PAGE_LEN: u32 = 4096;

/// Returns the list of numbers that names the targets in `range`, as an operation carries it.
///
/// # Panics
///
/// When the range goes beyond [`TARGETS_MAX`].
#[must_use]
pub fn target_numbers(range: &Range<u32>) -> Elements<'static, u32> {
    Elements::new(&NUMBERS[range.start as usize..range.end as usize])
}
