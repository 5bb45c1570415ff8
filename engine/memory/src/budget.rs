//! The memory budget: one number (`memory.budget`) that all pinned memory is taken from.
//!
//! Shared by all reactors. The sum never exceeds the limit, not for a moment and in no order of callers: a
//! request either fits or changes nothing.

use std::fmt;

use stag_hugepages::Bytes;

use crate::sync::{Arc, AtomicU64, Ordering};

/// A share in the process's memory budget. Clones spend from the same number.
#[derive(Clone)]
pub struct Budget(Arc<Inner>);

struct Inner {
    limit: u64,
    spent: AtomicU64,
}

/// Something does not fit the budget.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what}: {} wanted, but memory.budget has {} left of {}; raise memory.budget or ask for less",
    Bytes(*wanted), Bytes(limit - spent), Bytes(*limit)
)]
pub struct BudgetError {
    /// For what.
    pub what: String,
    /// Bytes wanted.
    pub wanted: u64,
    /// Bytes that others had already taken.
    pub spent: u64,
    /// The budget, in bytes.
    pub limit: u64,
}

impl Budget {
    /// A budget of `limit` bytes, none spent.
    #[must_use]
    pub fn new(limit: u64) -> Budget {
        Budget(Arc::new(Inner { limit, spent: AtomicU64::new(0) }))
    }

    /// Takes `bytes` for `what`, all or nothing. Owed back by [`Budget::give`].
    pub fn take(&self, what: &str, bytes: u64) -> Result<(), BudgetError> {
        // Relaxed: the number guards no other memory. A caller that takes what another gave back maps memory
        // of its own and never looks at the giver's.
        let mut spent = self.0.spent.load(Ordering::Relaxed);
        loop {
            // Invariant: `spent <= limit`, so the subtraction cannot wrap.
            if bytes > self.0.limit - spent {
                return Err(BudgetError { what: what.to_owned(), wanted: bytes, spent, limit: self.0.limit });
            }
            match self.0.spent.compare_exchange_weak(
                spent,
                spent + bytes,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(now) => spent = now,
            }
        }
    }

    /// Gives `bytes` back that were taken.
    ///
    /// # Panics
    ///
    /// If more is given than was taken: a bug of ours, which would let others overspend.
    pub fn give(&self, bytes: u64) {
        let before = self.0.spent.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "the budget got back more than was taken from it");
    }

    /// The limit, in bytes.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Bytes taken and not given back.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.0.spent.load(Ordering::Relaxed)
    }

    /// Bytes left.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.0.limit - self.spent()
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("limit", &self.limit()).field("spent", &self.spent()).finish()
    }
}

/// One line of a price list: `count` things of `each` bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Price {
    /// What they are, for a human.
    pub what: String,
    /// Bytes of one.
    pub each: u64,
    /// How many.
    pub count: u64,
}

impl Price {
    /// `each * count`, in bytes; stays at the largest number instead of wrapping.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.each.saturating_mul(self.count)
    }
}

/// What the memory of a process goes to: a sum with one named line for each of its users, printed at
/// start.
///
/// ```
/// use stag_memory::{Budget, PriceList};
/// let mut prices = PriceList::new();
/// prices.add("Receive buffers", 4096, 512).add("payload", 4096, 16384);
/// assert_eq!(prices.bytes(), 66 << 20);
/// prices.fit(&Budget::new(128 << 20))?;
/// println!("{prices}");
/// # Ok::<(), stag_memory::BudgetError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriceList {
    prices: Vec<Price>,
}

impl PriceList {
    /// An empty list.
    #[must_use]
    pub fn new() -> PriceList {
        PriceList::default()
    }

    /// Adds a line.
    pub fn add(&mut self, what: impl Into<String>, each: u64, count: u64) -> &mut PriceList {
        self.prices.push(Price { what: what.into(), each, count });
        self
    }

    /// The lines, in the order they were added.
    #[must_use]
    pub fn prices(&self) -> &[Price] {
        &self.prices
    }

    /// The sum, in bytes; stays at the largest number instead of wrapping.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.prices.iter().fold(0, |sum, price| sum.saturating_add(price.bytes()))
    }

    /// Checks that the sum fits what is left of `budget`. Takes nothing. The error names the largest line.
    pub fn fit(&self, budget: &Budget) -> Result<(), BudgetError> {
        let wanted = self.bytes();
        let spent = budget.spent();
        if wanted <= budget.limit() - spent {
            return Ok(());
        }
        let largest = self.prices.iter().max_by_key(|price| price.bytes());
        let what = match largest {
            Some(price) => format!("memory (most of it for {}, {})", price.what, Bytes(price.bytes())),
            None => "memory".to_owned(),
        };
        Err(BudgetError { what, wanted, spent, limit: budget.limit() })
    }
}

impl fmt::Display for PriceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.prices.iter().map(|price| price.what.chars().count()).max().unwrap_or(0).max(5);
        for price in &self.prices {
            let (each, bytes) = (Bytes(price.each), Bytes(price.bytes()));
            writeln!(f, "{:width$}  {each:>10} x {:>8} = {bytes:>10}", price.what, price.count)?;
        }
        let total = Bytes(self.bytes());
        write!(f, "{:width$}  {:>10}   {:>8}   {total:>10}", "total", "", "")
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_take_fits_or_changes_nothing() {
        let budget = Budget::new(100);
        budget.take("a", 60).unwrap();
        let error = budget.take("pages of the store", 41).unwrap_err();
        assert_eq!((error.wanted, error.spent, error.limit), (41, 60, 100));
        assert_eq!(
            error.to_string(),
            "pages of the store: 41 B wanted, but memory.budget has 40 B left of 100 B; \
             raise memory.budget or ask for less"
        );
        assert_eq!(budget.spent(), 60);
        budget.take("b", 40).unwrap();
        budget.give(100);
        assert_eq!(budget.left(), 100);
        assert!(budget.take("more than u64 can add", u64::MAX).is_err());
    }

    #[test]
    #[should_panic(expected = "more than was taken")]
    fn giving_more_than_was_taken_is_a_bug() {
        Budget::new(100).give(1);
    }

    #[test]
    fn a_price_list_adds_up_and_names_its_largest_line() {
        let mut prices = PriceList::new();
        prices.add("Receives", 1024, 512).add("payload pages", 4096, 384);
        assert_eq!(
            prices.to_string(),
            "Receives            1 KiB x      512 =    512 KiB\n\
             payload pages       4 KiB x      384 =    1.5 MiB\n\
             total                                       2 MiB"
        );
        assert!(prices.fit(&Budget::new(2 << 20)).is_ok());
        let error = prices.fit(&Budget::new(1 << 20)).unwrap_err();
        assert!(
            error.to_string().starts_with("memory (most of it for payload pages, 1.5 MiB): 2 MiB wanted")
        );
        prices.add("absurd", u64::MAX, 2);
        assert_eq!(prices.bytes(), u64::MAX);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// Two takers that do not both fit: exactly one gets it, and no order loses or invents a byte.
    #[test]
    fn loom_takers_never_overspend() {
        loom::model(|| {
            let budget = Budget::new(100);
            let other = budget.clone();
            let thread = loom::thread::spawn(move || other.take("b", 60).is_ok());
            let mine = budget.take("a", 60).is_ok();
            assert!(budget.spent() <= budget.limit());
            let theirs = thread.join().unwrap();
            assert!(mine != theirs, "one of two fits");
            assert_eq!(budget.spent(), 60);
        });
    }

    /// What is given back can be taken again, and the sum is right in every order.
    #[test]
    fn loom_a_giver_and_a_taker() {
        loom::model(|| {
            let budget = Budget::new(100);
            budget.take("start", 70).unwrap();
            let other = budget.clone();
            let thread = loom::thread::spawn(move || other.give(70));
            let taken = budget.take("a", 50).is_ok();
            thread.join().unwrap();
            assert_eq!(budget.spent(), if taken { 50 } else { 0 });
        });
    }
}
