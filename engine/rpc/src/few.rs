//! A list that nearly always has one element, or none.

/// A list whose only element is in place: with one or none it is small to move and allocates nothing. `SmallVec<[T; 1]>` is
/// larger: a `CompletedCall`, which has one, would grow beyond its 128 octets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Few<T>(Elements<T>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Elements<T> {
    #[default]
    None,
    One(T),
    /// Two at least.
    More(Vec<T>),
}

impl<T> Few<T> {
    /// An empty list.
    #[inline]
    #[must_use]
    pub const fn new() -> Few<T> {
        Few(Elements::None)
    }

    /// A list of `element` alone.
    #[inline]
    #[must_use]
    pub const fn one(element: T) -> Few<T> {
        Few(Elements::One(element))
    }

    /// The element, if there is exactly one.
    #[inline]
    #[must_use]
    pub fn only(&self) -> Option<&T> {
        match &self.0 {
            Elements::One(element) => Some(element),
            Elements::None | Elements::More(_) => None,
        }
    }

    /// Takes the element out, if there is exactly one.
    #[inline]
    pub fn take_only(&mut self) -> Option<T> {
        self.only()?;
        match std::mem::take(&mut self.0) {
            Elements::One(element) => Some(element),
            Elements::None | Elements::More(_) => None,
        }
    }

    /// Appends `element`.
    #[inline]
    pub fn push(&mut self, element: T) {
        self.0 = match std::mem::take(&mut self.0) {
            Elements::None => Elements::One(element),
            Elements::One(first) => Elements::More(vec![first, element]),
            Elements::More(mut elements) => {
                elements.push(element);
                Elements::More(elements)
            }
        };
    }

    /// Elements.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Whether there is none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self.0, Elements::None)
    }

    /// The elements in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.as_slice().iter()
    }

    #[inline]
    fn as_slice(&self) -> &[T] {
        match &self.0 {
            Elements::None => &[],
            Elements::One(element) => std::slice::from_ref(element),
            Elements::More(elements) => elements,
        }
    }

    /// Takes all elements out, in order.
    #[inline]
    pub fn drain(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(self).into_iter()
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
        let (one, more) = match self.0 {
            Elements::None => (None, Vec::new()),
            Elements::One(element) => (Some(element), Vec::new()),
            Elements::More(elements) => (None, elements),
        };
        one.into_iter().chain(more)
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
        let (mut one, mut two) = (Few::one(8), Few::from_iter([8, 9]));
        assert_eq!(one.only(), Some(&8));
        assert_eq!((one.take_only(), one.take_only(), one.is_empty()), (Some(8), None, true));
        assert_eq!(two.only(), None);
        assert_eq!((two.take_only(), two.len()), (None, 2));
    }
}
