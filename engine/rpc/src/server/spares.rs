//! Lists that Calls use in turn, kept so that the steady state allocates nothing, and bounded.
//!
//! A Call whose data lies in many pieces makes lists grow far beyond the usual: to some 20 KB for 1 MiB in single pages. While it
//! lives, the pages that it holds bound that. Afterwards a few such lists are kept for the next Call of its kind, and all others
//! shrink: otherwise every slot would keep as much for good.

/// Something with lists that grow.
pub(crate) trait Reused: Default {
    /// Forgets what it was used for. Lists keep their capacity.
    fn clear(&mut self);

    /// Whether a list has room for more than most Calls need.
    fn has_grown(&self) -> bool;
}

/// As many with lists that grew are kept as they are.
pub(crate) const GROWN_MAX: usize = 8;

/// Spare ones, boxed, because they move from here to a Call and back.
#[derive(Debug)]
#[allow(clippy::vec_box, reason = "the box moves, not what is in it")]
pub(crate) struct Spares<T> {
    usual: Vec<Box<T>>,
    /// Those whose lists grew: the next to be used, since their memory is at hand.
    grown: Vec<Box<T>>,
}

impl<T: Reused> Spares<T> {
    /// Makes room for `count` spare ones. There are none yet.
    pub(crate) fn with_capacity(count: usize) -> Spares<T> {
        Spares { usual: Vec::with_capacity(count), grown: Vec::with_capacity(GROWN_MAX) }
    }

    /// Takes a spare one, or makes one.
    #[inline]
    pub(crate) fn take(&mut self) -> Box<T> {
        self.grown.pop().or_else(|| self.usual.pop()).unwrap_or_default()
    }

    /// Takes one back that is no longer used.
    #[inline]
    pub(crate) fn put(&mut self, mut spare: Box<T>) {
        spare.clear();
        if spare.has_grown() {
            self.put_grown(spare);
        } else {
            self.usual.push(spare);
        }
    }

    #[cold]
    fn put_grown(&mut self, mut spare: Box<T>) {
        if self.grown.len() < GROWN_MAX {
            return self.grown.push(spare);
        }
        *spare = T::default();
        self.usual.push(spare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct List(Vec<u8>);

    impl Reused for List {
        fn clear(&mut self) {
            self.0.clear();
        }

        fn has_grown(&self) -> bool {
            self.0.capacity() > 16
        }
    }

    #[test]
    fn few_lists_that_grew_are_kept() {
        let mut spares: Spares<List> = Spares::with_capacity(100);
        for len in [5000, 10] {
            let mut used: Vec<_> = (0..100).map(|_| spares.take()).collect();
            used.iter_mut().for_each(|list| list.0.resize(len, 1));
            used.into_iter().for_each(|list| spares.put(list));
            let each = || spares.usual.iter().chain(&spares.grown);
            assert!(each().all(|list| list.0.is_empty()));
            assert_eq!(each().count(), 100);
            assert_eq!(each().filter(|list| list.has_grown()).count(), GROWN_MAX, "{len}");
        }
        // The next of that kind finds one.
        assert!(spares.take().0.capacity() >= 5000);
    }
}
