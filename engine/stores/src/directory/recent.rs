//! An order of use: which of many places was used longest ago.

/// No place.
const NONE: u32 = u32::MAX;

/// Places in the order of their last use. Every operation takes the same short time. A cache crate would own the entries,
/// and allocate; here the places are the store's own.
pub(super) struct Recent {
    links: Vec<Link>,
    newest: u32,
    oldest: u32,
    len: usize,
}

#[derive(Clone, Copy)]
struct Link {
    newer: u32,
    older: u32,
    is_in: bool,
}

impl Recent {
    pub(super) fn new() -> Recent {
        Recent { links: Vec::new(), newest: NONE, oldest: NONE, len: 0 }
    }

    /// Places that are in it.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Makes `place` the one that was used last.
    pub(super) fn touch(&mut self, place: u32) {
        if self.newest == place {
            return;
        }
        self.remove(place);
        let index = place as usize;
        if self.links.len() <= index {
            self.links.resize(index + 1, Link { newer: NONE, older: NONE, is_in: false });
        }
        self.links[index] = Link { newer: NONE, older: self.newest, is_in: true };
        match self.newest {
            NONE => self.oldest = place,
            newest => self.links[newest as usize].newer = place,
        }
        self.newest = place;
        self.len += 1;
    }

    /// Takes `place` out, if it is in.
    pub(super) fn remove(&mut self, place: u32) {
        let Some(link) = self.links.get_mut(place as usize).filter(|link| link.is_in) else { return };
        link.is_in = false;
        let Link { newer, older, .. } = *link;
        match newer {
            NONE => self.newest = older,
            newer => self.links[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        self.len -= 1;
    }

    /// The place that was used longest ago.
    pub(super) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_the_one_that_was_not_used() {
        let mut recent = Recent::new();
        assert_eq!(recent.oldest(), None);
        for place in [3, 1, 4, 1, 5] {
            recent.touch(place);
        }
        assert_eq!(recent.len(), 4);
        let mut order = Vec::new();
        recent.touch(3);
        recent.remove(4);
        recent.remove(4);
        recent.remove(99);
        while let Some(place) = recent.oldest() {
            order.push(place);
            recent.remove(place);
        }
        assert_eq!(order, [1, 5, 3]);
        assert_eq!((recent.len(), recent.oldest()), (0, None));
        recent.touch(7);
        assert_eq!(recent.oldest(), Some(7));
    }
}
