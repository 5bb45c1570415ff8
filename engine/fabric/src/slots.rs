//! Queue pairs by their numbers, as the providers keep them: a slot is used again, under the next generation.

use std::collections::VecDeque;

use crate::setup::check_limit;
use crate::{Completion, FabricError, PostError, QueuePairId};

/// What stands in a slot.
pub(crate) trait Numbered {
    /// The number that its user knows it by.
    fn id(&self) -> QueuePairId;

    /// The flag that it waits for `ring_doorbells`.
    fn dirty_flag(&mut self) -> &mut bool;

    /// Something was posted: the next `ring_doorbells` has to come by.
    #[inline(always)]
    fn mark_dirty(&mut self, dirty: &mut Vec<u32>) {
        if !std::mem::replace(self.dirty_flag(), true) {
            dirty.push(self.id().index);
        }
    }
}

/// The queue pair, if it still exists.
#[inline(always)]
pub(crate) fn find<Q: Numbered>(slots: &mut [Option<Box<Q>>], id: QueuePairId) -> Option<&mut Q> {
    let pair = slots.get_mut(id.index as usize)?.as_deref_mut()?;
    (pair.id().generation == id.generation).then_some(pair)
}

/// The queue pair to post on. `is_registered`: whether the memory of what is posted is.
#[inline(always)]
pub(crate) fn find_to_post<Q: Numbered>(
    slots: &mut [Option<Box<Q>>],
    id: QueuePairId,
    is_registered: bool,
) -> Result<&mut Q, PostError> {
    match find(slots, id) {
        None => Err(PostError::NotConnected),
        Some(_) if !is_registered => Err(PostError::NotRegistered),
        Some(pair) => Ok(pair),
    }
}

/// A number for one more queue pair, whose slot is free; or says that there are `most` already.
pub(crate) fn reserve<Q>(
    slots: &mut Vec<Option<Box<Q>>>,
    generations: &mut Vec<u32>,
    most: u32,
    repair: &'static str,
) -> Result<QueuePairId, FabricError> {
    let free = slots.iter().position(Option::is_none).unwrap_or(slots.len());
    check_limit("queue pairs", free as u64 + 1, most.into(), repair)?;
    if free == slots.len() {
        slots.push(None);
        generations.push(0);
    }
    generations[free] = generations[free].wrapping_add(1);
    Ok(QueuePairId { index: free as u32, generation: generations[free] })
}

/// Makes room for every completion that may wait: as many as the capacities of `queue_pairs` queue pairs allow, and one
/// error for each of them.
pub(crate) fn reserve_completions(local: &mut VecDeque<Completion>, allowed: u64, queue_pairs: usize) {
    let room = allowed as usize + queue_pairs;
    local.reserve_exact(room.saturating_sub(local.len()));
}

/// Octets of heap of a queue pair's completions, one error among them.
pub(crate) const fn footprint(completions: u64) -> usize {
    (completions as usize + 1) * size_of::<Completion>()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Pair(QueuePairId, bool);

    impl Numbered for Pair {
        fn id(&self) -> QueuePairId {
            self.0
        }

        fn dirty_flag(&mut self) -> &mut bool {
            &mut self.1
        }
    }

    #[test]
    fn a_number_is_good_for_one_queue_pair() {
        let (mut slots, mut generations) = (Vec::new(), Vec::new());
        let first = reserve(&mut slots, &mut generations, 2, "").expect("room");
        slots[first.index as usize] = Some(Box::new(Pair(first, false)));
        let second = reserve(&mut slots, &mut generations, 2, "").expect("room");
        slots[second.index as usize] = Some(Box::new(Pair(second, false)));
        assert!(matches!(
            reserve(&mut slots, &mut generations, 2, "fewer"),
            Err(FabricError::Limit { what: "queue pairs", wanted: 3, limit: 2, repair: "fewer" })
        ));
        assert_eq!(find(&mut slots, second).map(|pair| pair.0), Some(second));

        slots[first.index as usize] = None;
        assert!(find(&mut slots, first).is_none());
        let third = reserve(&mut slots, &mut generations, 2, "").expect("room again");
        assert_eq!(third.index, first.index);
        slots[third.index as usize] = Some(Box::new(Pair(third, false)));
        assert!(find(&mut slots, first).is_none(), "its slot is another's");
        assert_eq!(find(&mut slots, third).map(|pair| pair.0), Some(third));
    }

    #[test]
    fn one_that_is_dirty_is_named_once() {
        let (mut pair, mut dirty) = (Pair(QueuePairId { index: 3, generation: 1 }, false), Vec::new());
        pair.mark_dirty(&mut dirty);
        pair.mark_dirty(&mut dirty);
        assert_eq!(dirty, [3]);
    }

    #[test]
    fn the_connection_is_looked_at_before_the_memory() {
        let id = QueuePairId { index: 0, generation: 1 };
        let mut slots = vec![Some(Box::new(Pair(id, false)))];
        let gone = QueuePairId { index: 0, generation: 2 };
        assert_eq!(find_to_post(&mut slots, gone, false).err(), Some(PostError::NotConnected));
        assert_eq!(find_to_post(&mut slots, id, false).err(), Some(PostError::NotRegistered));
        assert!(find_to_post(&mut slots, id, true).is_ok());
    }
}
