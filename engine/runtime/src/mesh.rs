//! The lanes of a group of reactors: one from each reactor to each other one.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::lane::{LaneReader, LaneWriter, lane};
use crate::reactor_id::{ReactorId, ReactorSet};

/// All lanes of one type between the reactors of a group, until each reactor has taken its ends.
///
/// Made before the group runs, and shared with the threads by reference: lanes of another type (records, loans, returns) are
/// another mesh. `count` reactors have `count` × (`count` − 1) lanes.
#[derive(Debug)]
pub struct LaneMesh<T> {
    ends: Mutex<Vec<Option<Lanes<T>>>>,
}

impl<T: Send> LaneMesh<T> {
    /// Lanes for `count` reactors, each with room for `len` values (rounded up to a power of two).
    ///
    /// # Panics
    ///
    /// If `count` is more than [`ReactorId::COUNT_MAX`].
    #[must_use]
    pub fn new(count: usize, len: usize) -> LaneMesh<T> {
        let ids = || (0..count).map(ReactorId::of);
        let mut ends: Vec<_> = ids().map(|id| Lanes::unconnected(id, count)).collect();
        for from in ids() {
            for to in ids().filter(|to| *to != from) {
                let (writer, reader) = lane(len);
                ends[from.index()].writers[to.index()] = Some(writer);
                ends[to.index()].readers[from.index()] = Some(reader);
            }
        }
        LaneMesh { ends: Mutex::new(ends.into_iter().map(Some).collect()) }
    }

    /// The lanes of one reactor. `None`: they were taken already, or the mesh has no such reactor.
    #[must_use]
    pub fn take(&self, id: ReactorId) -> Option<Lanes<T>> {
        // A panic elsewhere cannot leave the list half changed.
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.get_mut(id.index())?.take()
    }
}

/// One reactor's ends of all its lanes of one type: a writer to and a reader from each other reactor.
pub struct Lanes<T> {
    id: ReactorId,
    /// By the index of the reactor at the other end. `None` at our own.
    writers: Box<[Option<LaneWriter<T>>]>,
    readers: Box<[Option<LaneReader<T>>]>,
    /// Reactors whose writers were given out since the last publication.
    touched: ReactorSet,
    /// The reader whose turn it is in `pop`.
    turn: usize,
}

impl<T: Send> Lanes<T> {
    fn unconnected(id: ReactorId, count: usize) -> Lanes<T> {
        Lanes {
            id,
            writers: (0..count).map(|_| None).collect(),
            readers: (0..count).map(|_| None).collect(),
            touched: ReactorSet::default(),
            turn: 0,
        }
    }

    /// The reactor whose lanes these are.
    #[must_use]
    pub fn id(&self) -> ReactorId {
        self.id
    }

    /// Reactors of the group, this one too.
    #[must_use]
    pub fn count(&self) -> usize {
        self.writers.len()
    }

    /// The lane to another reactor. `None`: that is this one, or not of the group.
    #[inline]
    pub fn to(&mut self, other: ReactorId) -> Option<&mut LaneWriter<T>> {
        let writer = self.writers.get_mut(other.index())?.as_mut()?;
        self.touched.insert(other);
        Some(writer)
    }

    /// The lane from another reactor. `None`: that is this one, or not of the group.
    #[inline]
    pub fn from(&mut self, other: ReactorId) -> Option<&mut LaneReader<T>> {
        self.readers.get_mut(other.index())?.as_mut()
    }

    /// Takes the lane from another reactor out, so that what lies in it can be read while other lanes are written. As
    /// [`Lanes::from`]; and `None` until [`Lanes::put_back`].
    #[inline]
    pub fn take_from(&mut self, other: ReactorId) -> Option<LaneReader<T>> {
        self.readers.get_mut(other.index())?.take()
    }

    /// Puts back what [`Lanes::take_from`] took.
    #[inline]
    pub fn put_back(&mut self, other: ReactorId, lane: LaneReader<T>) {
        if let Some(place) = self.readers.get_mut(other.index()) {
            *place = Some(lane);
        }
    }

    /// Publishes what was pushed into any of the lanes, and says to whom: ring their bells
    /// ([`GroupMember::ring`](crate::GroupMember::ring)) when all that belongs to the pass is published.
    #[inline]
    pub fn publish(&mut self) -> ReactorSet {
        let mut reached = ReactorSet::default();
        for other in std::mem::take(&mut self.touched) {
            if let Some(Some(writer)) = self.writers.get_mut(other.index())
                && writer.publish()
            {
                reached.insert(other);
            }
        }
        reached
    }

    /// The next value from anybody. Reactors take turns, so that none waits behind a busy one.
    #[inline]
    pub fn pop(&mut self) -> Option<(ReactorId, T)> {
        for _ in 0..self.readers.len() {
            let at = self.turn;
            self.turn = if at + 1 == self.readers.len() { 0 } else { at + 1 };
            if let Some(value) = self.readers[at].as_mut().and_then(LaneReader::pop) {
                return Some((ReactorId::of(at), value));
            }
        }
        None
    }

    /// Whether no lane has anything for us: the look between [`Bell::arm`](crate::Bell::arm) and sleep.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.readers.iter().flatten().all(LaneReader::is_empty)
    }

    /// The writers, for their statistics.
    pub fn writers(&self) -> impl Iterator<Item = &LaneWriter<T>> {
        self.writers.iter().flatten()
    }

    /// The readers, for their statistics.
    pub fn readers(&self) -> impl Iterator<Item = &LaneReader<T>> {
        self.readers.iter().flatten()
    }
}

impl<T> fmt::Debug for Lanes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lanes")
            .field("id", &self.id)
            .field("count", &self.writers.len())
            .finish_non_exhaustive()
    }
}

// Not under loom: its atomics work only inside a model.
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_reactor_reaches_each_other_one() {
        let mesh = LaneMesh::new(3, 4);
        let mut all: Vec<_> = (0..3).map(|id| mesh.take(ReactorId::of(id)).unwrap()).collect();
        assert!(mesh.take(ReactorId::of(0)).is_none(), "taken already");
        assert!(mesh.take(ReactorId::of(3)).is_none(), "not there");
        for (from, lanes) in all.iter_mut().enumerate() {
            for to in 0..3 {
                match lanes.to(ReactorId::of(to)) {
                    Some(writer) => assert_eq!(writer.push((from, to)), Ok(())),
                    None => assert_eq!(from, to),
                }
            }
            assert!(lanes.to(ReactorId::of(3)).is_none());
            let reached: Vec<_> = lanes.publish().map(ReactorId::index).collect();
            let others: Vec<_> = (0..3).filter(|to| *to != from).collect();
            assert_eq!(reached, others);
            assert!(lanes.publish().is_empty(), "nothing is new");
        }
        for (at, lanes) in all.iter_mut().enumerate() {
            assert!(!lanes.is_empty());
            let mut found: Vec<_> = std::iter::from_fn(|| lanes.pop()).collect();
            found.sort();
            let expected: Vec<_> =
                (0..3).filter(|from| *from != at).map(|from| (ReactorId::of(from), (from, at))).collect();
            assert_eq!(found, expected);
            assert!(lanes.is_empty());
        }
    }

    #[test]
    fn a_busy_reactor_does_not_keep_another_waiting() {
        let mesh = LaneMesh::new(3, 8);
        let [mut busy, mut rare, mut reader] = [0, 1, 2].map(|id| mesh.take(ReactorId::of(id)).unwrap());
        let to = ReactorId::of(2);
        for value in 0..8 {
            busy.to(to).unwrap().push(value).unwrap();
        }
        rare.to(to).unwrap().push(100).unwrap();
        let _ = (busy.publish(), rare.publish());
        let first: Vec<_> = (0..3).filter_map(|_| reader.pop()).map(|(_, value)| value).collect();
        assert!(first.contains(&100), "{first:?}");
    }

    #[test]
    fn a_group_of_one_has_no_lanes() {
        let mut lanes = LaneMesh::<u8>::new(1, 1024).take(ReactorId::of(0)).unwrap();
        assert!(lanes.is_empty() && lanes.pop().is_none() && lanes.publish().is_empty());
        assert_eq!((lanes.writers().count(), lanes.readers().count()), (0, 0));
    }
}
