//! A list that nearly always has one element, or none.

/// A list whose first element is in place: with one or none it is small to move and allocates nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Few<T> {
    first: Option<T>,
    more: Vec<T>,
}

impl<T> Few<T> {
    /// An empty list.
    #[inline]
    #[must_use]
    pub const fn new() -> Few<T> {
        Few { first: None, more: Vec::new() }
    }

    /// Appends `element`.
    #[inline]
    pub fn push(&mut self, element: T) {
        if self.first.is_none() {
            self.first = Some(element);
        } else {
            self.more.push(element);
        }
    }

    /// Elements.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }

    /// Whether there is none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The elements in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.first.iter().chain(&self.more)
    }

    /// Takes all elements out, in order.
    #[inline]
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<'_, T> {
        self.first.take().into_iter().chain(self.more.drain(..))
    }
}

impl<T> Default for Few<T> {
    #[inline]
    fn default() -> Few<T> {
        Few::new()
    }
}

impl<T> IntoIterator for Few<T> {
    type Item = T;
    type IntoIter = std::iter::Chain<std::option::IntoIter<T>, std::vec::IntoIter<T>>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.more)
    }
}

impl<T> Extend<T> for Few<T> {
    #[inline]
    fn extend<I: IntoIterator<Item = T>>(&mut self, elements: I) {
        for element in elements {
            self.push(element);
        }
    }
}

impl<T> FromIterator<T> for Few<T> {
    #[inline]
    fn from_iter<I: IntoIterator<Item = T>>(elements: I) -> Few<T> {
        let mut few = Few::new();
        few.extend(elements);
        few
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_order_and_gives_all_back() {
        let mut few: Few<u32> = (0..5).collect();
        assert_eq!((few.len(), few.is_empty()), (5, false));
        assert_eq!(few.iter().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert_eq!(few.drain().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert!(few.is_empty());
        few.push(7);
        assert_eq!(few.into_iter().collect::<Vec<_>>(), [7]);
    }
}
