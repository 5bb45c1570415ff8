//! The chunks of one file: most files have one, which needs no tree.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use stag_memory::Shared;

use super::heap;

/// Pages of one chunk; those beyond its end are holes.
pub(super) type Chunk = Vec<Option<Shared>>;

/// Chunks by their number.
#[derive(Default)]
pub(super) struct Chunks {
    /// The only one.
    one: Option<(u64, Chunk)>,
    /// All, if there are more.
    many: BTreeMap<u64, Chunk>,
}

impl Chunks {
    #[inline]
    pub(super) fn get(&self, number: u64) -> Option<&Chunk> {
        match &self.one {
            Some((found, chunk)) => (*found == number).then_some(chunk),
            None => self.many.get(&number),
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Chunk> {
        match &mut self.one {
            Some((found, chunk)) => (*found == number).then_some(chunk),
            None => self.many.get_mut(&number),
        }
    }

    /// Adds a chunk whose number is free.
    pub(super) fn insert(&mut self, number: u64, chunk: Chunk) {
        if self.one.is_none() && self.many.is_empty() {
            self.one = Some((number, chunk));
            return;
        }
        self.many.extend(self.one.take());
        self.many.insert(number, chunk);
    }

    /// Those with these numbers, in order.
    pub(super) fn range(&self, numbers: RangeInclusive<u64>) -> impl Iterator<Item = (u64, &Chunk)> {
        let one = self.one.as_ref().filter(|(number, _)| numbers.contains(number));
        let one = one.map(|(number, chunk)| (*number, chunk));
        // `many` is empty if there is `one`.
        one.into_iter().chain(self.many.range(numbers).map(|(number, chunk)| (*number, chunk)))
    }

    /// Takes out one.
    pub(super) fn remove(&mut self, number: u64) -> Option<Chunk> {
        let one = self.one.take_if(|(found, _)| *found == number);
        one.map(|(_, chunk)| chunk).or_else(|| self.many.remove(&number))
    }

    /// Takes out those from `number` on, in order.
    pub(super) fn split_off(&mut self, number: u64) -> impl Iterator<Item = (u64, Chunk)> + use<> {
        let one = self.one.take_if(|(found, _)| *found >= number);
        one.into_iter().chain(self.many.split_off(&number))
    }

    /// What they take of the heap, without the chunks themselves.
    pub(super) fn heap_len(&self) -> u64 {
        heap::tree::<Chunk>(self.many.len() as u64)
    }

    /// The same with one more.
    pub(super) fn heap_len_with_more(&self) -> u64 {
        match (&self.one, self.many.len() as u64) {
            (None, 0) => 0,
            (Some(_), _) => heap::tree::<Chunk>(2),
            (None, count) => heap::tree::<Chunk>(count + 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_and_many_are_the_same_to_whoever_asks() {
        for count in [0_u64, 1, 2, 40] {
            let mut chunks = Chunks::default();
            // The last one first: the order is that of the numbers.
            (0..count).rev().for_each(|number| chunks.insert(number * 10, Chunk::new()));
            let numbers = |chunks: &Chunks, range| chunks.range(range).map(|(n, _)| n).collect::<Vec<_>>();
            assert_eq!(numbers(&chunks, 0..=u64::MAX), (0..count).map(|n| n * 10).collect::<Vec<_>>());
            assert_eq!(numbers(&chunks, 1..=15).len(), usize::from(count > 1));
            assert_eq!(chunks.get_mut(10).is_some(), count > 1);
            assert!(chunks.get_mut(11).is_none() && chunks.remove(11).is_none());
            assert_eq!(chunks.remove(20).is_some(), count > 2);
            assert!(chunks.get(20).is_none());
            if count > 2 {
                chunks.insert(20, Chunk::new());
            }
            let taken: Vec<u64> = chunks.split_off(10).map(|(number, _)| number).collect();
            assert_eq!(taken, (1..count).map(|n| n * 10).collect::<Vec<_>>());
            assert_eq!(numbers(&chunks, 0..=u64::MAX).len() as u64, count.min(1));
        }
    }
}
