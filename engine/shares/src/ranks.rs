//! Counts of things in groups, each of which changes by one at a time, and which thing of a group has the highest.
//!
//! Every operation takes constant time and allocates nothing: things of a group with the same count are in one list (a
//! *level*), and the levels of a group are in a list by their counts.

pub(crate) const NONE: u32 = u32::MAX;

/// The highest and the lowest level of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    top: u32,
    bottom: u32,
}

impl Group {
    pub(crate) const EMPTY: Group = Group { top: NONE, bottom: NONE };
}

/// A thing that is counted: its level, [`NONE`] for a count of 0, and its neighbours there.
#[derive(Clone, Copy, Debug)]
struct Item {
    level: u32,
    before: u32,
    after: u32,
}

/// Things of one group with the same count: the last to come to it is the first.
#[derive(Clone, Copy, Debug)]
struct Level {
    count: u32,
    first: u32,
    last: u32,
    higher: u32,
    /// The next of the free ones, where it is free.
    lower: u32,
}

/// Octets that one thing takes.
pub(crate) const RANK_LEN: usize = size_of::<Item>() + size_of::<Level>();

/// A fixed number of things, named by numbers from 0 on.
#[derive(Debug)]
pub(crate) struct Ranks {
    items: Box<[Item]>,
    levels: Box<[Level]>,
    free: u32,
}

impl Ranks {
    pub(crate) fn new(items: usize) -> Ranks {
        let item = Item { level: NONE, before: NONE, after: NONE };
        // One more: a thing that is alone on its level moves to a new one before the old one is free.
        let next = |level: u32| if level as usize == items { NONE } else { level + 1 };
        let level = |number| Level { count: 0, first: NONE, last: NONE, higher: NONE, lower: next(number) };
        Ranks {
            items: vec![item; items].into_boxed_slice(),
            levels: (0..=items as u32).map(level).collect(),
            free: 0,
        }
    }

    /// The thing with the highest count of a group: of several, the one that has had it for longest.
    #[inline]
    pub(crate) fn most(&self, group: &Group) -> Option<u32> {
        self.levels.get(group.top as usize).map(|level| level.last)
    }

    pub(crate) fn count(&self, item: u32) -> u32 {
        self.levels.get(self.items[item as usize].level as usize).map_or(0, |level| level.count)
    }

    /// The count of a thing of that group is one more.
    pub(crate) fn increase(&mut self, group: &mut Group, item: u32) {
        let old = self.items[item as usize].level;
        let count = self.count(item) + 1;
        let above = self.levels.get(old as usize).map_or(group.bottom, |level| level.higher);
        let level = match self.levels.get(above as usize) {
            Some(level) if level.count == count => above,
            _ => self.new_level(group, count, old, above),
        };
        self.move_to(group, item, level);
    }

    /// The count of a thing of that group, which is not 0, is one less.
    pub(crate) fn decrease(&mut self, group: &mut Group, item: u32) {
        let old = self.items[item as usize].level;
        let Level { count, lower, .. } = self.levels[old as usize];
        let level = match self.levels.get(lower as usize) {
            _ if count == 1 => NONE,
            Some(level) if level.count == count - 1 => lower,
            _ => self.new_level(group, count - 1, lower, old),
        };
        self.move_to(group, item, level);
    }

    /// A level between two others of the group, which may be missing.
    fn new_level(&mut self, group: &mut Group, count: u32, lower: u32, higher: u32) -> u32 {
        let new = self.free;
        self.free = self.levels[new as usize].lower;
        self.levels[new as usize] = Level { count, first: NONE, last: NONE, higher, lower };
        self.join(group, lower, new);
        self.join(group, new, higher);
        new
    }

    /// Makes two levels neighbours; [`NONE`]: the other is the group's lowest or highest.
    fn join(&mut self, group: &mut Group, lower: u32, higher: u32) {
        match self.levels.get_mut(lower as usize) {
            Some(level) => level.higher = higher,
            None => group.bottom = higher,
        }
        match self.levels.get_mut(higher as usize) {
            Some(level) => level.lower = lower,
            None => group.top = lower,
        }
    }

    fn move_to(&mut self, group: &mut Group, item: u32, new: u32) {
        let Item { level: old, before, after } = self.items[item as usize];
        if let Some(level) = self.levels.get_mut(old as usize) {
            match self.items.get_mut(before as usize) {
                Some(neighbour) => neighbour.after = after,
                None => level.first = after,
            }
            match self.items.get_mut(after as usize) {
                Some(neighbour) => neighbour.before = before,
                None => level.last = before,
            }
            let &mut Level { first, lower, higher, .. } = level;
            if first == NONE {
                level.lower = std::mem::replace(&mut self.free, old);
                self.join(group, lower, higher);
            }
        }
        let mut after = NONE;
        if let Some(level) = self.levels.get_mut(new as usize) {
            after = std::mem::replace(&mut level.first, item);
            match self.items.get_mut(after as usize) {
                Some(neighbour) => neighbour.before = item,
                None => level.last = item,
            }
        }
        self.items[item as usize] = Item { level: new, before: NONE, after };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_with_most_is_known_after_every_change() {
        const ITEMS: usize = 9;
        let mut ranks = Ranks::new(ITEMS);
        let mut groups = [Group::EMPTY; 2];
        let mut counts = [0u32; ITEMS];
        let mut state = 1u32;
        for step in 0..50_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let item = (state >> 16) as usize % ITEMS;
            let group = &mut groups[item % 2];
            if counts[item] > 0 && state >> 30 < 2 {
                counts[item] -= 1;
                ranks.decrease(group, item as u32);
            } else {
                counts[item] += 1;
                ranks.increase(group, item as u32);
            }
            for (number, group) in groups.iter().enumerate() {
                let most = counts.iter().skip(number).step_by(2).max().copied().unwrap_or(0);
                let found = ranks.most(group);
                assert_eq!(found.map_or(0, |item| counts[item as usize]), most, "step {step}");
                assert!(found.is_none_or(|item| item as usize % 2 == number), "step {step}: of its group");
            }
            assert_eq!(ranks.count(item as u32), counts[item]);
        }
    }
}
