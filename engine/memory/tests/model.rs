//! Pools against a model: random takes, drops, shares, slices, splits, joins and writes. After each step
//! nothing overlaps that should not, every byte is what its owner wrote, no unit is lost or counted twice,
//! and a refusal is right; at the end all of the pool is one run again.
#![cfg(not(loom))]

use std::ops::Range;

use proptest::prelude::*;
use stag_memory::{Arena, ArenaConfig, Budget, Buf, PageChoice, PageSize, Pool, Shared};

const UNITS: usize = if cfg!(miri) { 24 } else { 96 };

#[derive(Clone, Debug)]
enum Step {
    Take,
    TakeLen(usize),
    TakePieces(usize),
    Drop(usize),
    DropMany(usize, usize),
    Share(usize),
    Shrink(usize, usize),
    Clone(usize),
    Slice(usize, usize, usize),
    Split(usize, usize),
    Join(usize, usize),
    IntoBuf(usize),
    Write(usize),
}

/// Lengths and positions are in units of 1/8 of a unit, so that boundaries and insides both happen.
fn steps() -> impl Strategy<Value = Vec<Step>> {
    let any = || 0..1000_usize;
    let step = prop_oneof![
        4 => Just(Step::Take),
        4 => (0..8 * 40_usize).prop_map(Step::TakeLen),
        1 => (0..8 * 60_usize).prop_map(Step::TakePieces),
        5 => any().prop_map(Step::Drop),
        1 => (any(), 0..40_usize).prop_map(|(which, count)| Step::DropMany(which, count)),
        4 => any().prop_map(Step::Share),
        1 => (any(), any()).prop_map(|(which, len)| Step::Shrink(which, len)),
        1 => any().prop_map(Step::Clone),
        2 => (any(), any(), any()).prop_map(|(which, a, b)| Step::Slice(which, a, b)),
        3 => (any(), any()).prop_map(|(which, at)| Step::Split(which, at)),
        3 => (any(), any()).prop_map(|(a, b)| Step::Join(a, b)),
        2 => any().prop_map(Step::IntoBuf),
        3 => any().prop_map(Step::Write),
    ];
    proptest::collection::vec(step, if cfg!(miri) { 1..30 } else { 1..250 })
}

enum Item {
    Buf(Buf),
    Shared(Shared),
}

struct Model {
    pool: Pool,
    unit_len: usize,
    runs: bool,
    items: Vec<Item>,
    /// What each byte of the pool must hold, if anybody has it.
    bytes: Vec<u8>,
    next_value: u8,
}

impl Model {
    fn new(unit_len: usize, runs: bool) -> Model {
        let budget = Budget::new(1 << 30);
        let page = PageChoice::Size(PageSize::Base);
        let len = Pool::footprint(unit_len, UNITS);
        let arena =
            Arena::new(&ArenaConfig { name: "model", len, page, node: None, budget: &budget }).unwrap();
        let make = if runs { Pool::runs } else { Pool::fixed };
        let pool = make(&arena, "model", unit_len, UNITS).unwrap();
        Model { pool, unit_len, runs, items: Vec::new(), bytes: vec![0; len], next_value: 0 }
    }

    /// Bytes that the item's owner may look at.
    fn range(item: &Item) -> Range<usize> {
        let (location, len) = match item {
            Item::Buf(buf) => (buf.location(), buf.len()),
            Item::Shared(shared) => (shared.location(), shared.len()),
        };
        let start = location.offset as usize;
        start..start + len
    }

    /// Units that the item keeps.
    fn units(&self, item: &Item) -> Range<usize> {
        let range = Model::range(item);
        let first = range.start / self.unit_len;
        match item {
            Item::Buf(buf) => first..first + buf.capacity() / self.unit_len,
            Item::Shared(_) if range.is_empty() => first..first,
            Item::Shared(_) => first..range.end.div_ceil(self.unit_len),
        }
    }

    /// How many buffers, and how many shared slices, keep each unit.
    fn holders(&self) -> Vec<(usize, usize)> {
        let mut holders = vec![(0, 0); UNITS];
        for item in &self.items {
            for unit in self.units(item) {
                match item {
                    Item::Buf(_) => holders[unit].0 += 1,
                    Item::Shared(_) => holders[unit].1 += 1,
                }
            }
        }
        holders
    }

    fn longest_free(&self) -> usize {
        let holders = self.holders();
        holders.split(|&holder| holder != (0, 0)).map(<[_]>::len).max().unwrap_or(0)
    }

    fn add(&mut self, mut buf: Buf) {
        self.next_value = self.next_value.wrapping_add(1);
        buf.fill(self.next_value);
        let item = Item::Buf(buf);
        self.bytes[Model::range(&item)].fill(self.next_value);
        self.items.push(item);
    }

    fn remove(&mut self, which: usize) -> Option<Item> {
        (!self.items.is_empty()).then(|| self.items.swap_remove(which % self.items.len()))
    }

    fn remove_shared(&mut self, which: usize) -> Option<Shared> {
        match self.remove(which)? {
            Item::Shared(shared) => Some(shared),
            buf => {
                self.items.push(buf);
                None
            }
        }
    }

    fn run(&mut self, step: Step) {
        let free = UNITS - self.holders().iter().filter(|&&holder| holder != (0, 0)).count();
        match step {
            Step::Take => match self.pool.take() {
                Some(buf) => {
                    assert_eq!((buf.len(), buf.capacity()), (self.unit_len, self.unit_len));
                    self.add(buf);
                }
                None => assert_eq!(free, 0),
            },
            Step::TakeLen(eighths) => {
                let len = eighths * self.unit_len / 8;
                let count = len.div_ceil(self.unit_len).max(1);
                match self.pool.take_len(len) {
                    Some(buf) => {
                        assert_eq!((buf.len(), buf.capacity()), (len, count * self.unit_len));
                        self.add(buf);
                    }
                    // With so few units no long enough run can hide.
                    None if self.runs => assert!(self.longest_free() < count),
                    None => assert!(count > 1 || free == 0),
                }
            }
            Step::TakePieces(eighths) => {
                let len = eighths * self.unit_len / 8;
                let count = len.div_ceil(self.unit_len).max(1);
                let mut pieces = Vec::new();
                if self.pool.take_pieces(len, &mut pieces) {
                    assert_eq!(pieces.iter().map(Buf::len).sum::<usize>(), len);
                    assert_eq!(pieces.iter().map(Buf::capacity).sum::<usize>(), count * self.unit_len);
                } else {
                    assert!(pieces.is_empty());
                    assert!(free < count);
                }
                pieces.into_iter().for_each(|buf| self.add(buf));
            }
            Step::Drop(which) => drop(self.remove(which)),
            Step::DropMany(which, count) => (0..count).for_each(|_| drop(self.remove(which))),
            Step::Share(which) => match self.remove(which) {
                Some(Item::Buf(buf)) => self.items.push(Item::Shared(buf.share())),
                other => self.items.extend(other),
            },
            Step::Shrink(which, len) => match self.remove(which) {
                Some(Item::Buf(mut buf)) => {
                    let len = len % (buf.len() + 1);
                    buf.shrink_to(len);
                    assert_eq!(buf.len(), len);
                    assert_eq!(buf.capacity(), len.div_ceil(self.unit_len).max(1) * self.unit_len);
                    self.items.push(Item::Buf(buf));
                }
                other => self.items.extend(other),
            },
            Step::Clone(which) => {
                if let Some(shared) = self.remove_shared(which) {
                    self.items.push(Item::Shared(shared.clone()));
                    self.items.push(Item::Shared(shared));
                }
            }
            Step::Slice(which, a, b) => {
                if let Some(shared) = self.remove_shared(which) {
                    let start = self.cut(a, shared.len());
                    let end = start + self.cut(b, shared.len() - start);
                    self.items.push(Item::Shared(shared.slice(start..end)));
                    if a % 2 == 0 {
                        self.items.push(Item::Shared(shared));
                    }
                }
            }
            Step::Split(which, at) => {
                if let Some(shared) = self.remove_shared(which) {
                    let at = self.cut(at, shared.len());
                    let (low, high) = shared.split_at(at);
                    self.items.extend([Item::Shared(low), Item::Shared(high)]);
                }
            }
            Step::Join(a, b) => {
                let Some(mut a) = self.remove_shared(a) else { return };
                let a_range = Model::range(&Item::Shared(a.slice(..)));
                // Prefer one that fits, or joins would be rare.
                let fits = |item: &Item| {
                    matches!(item, Item::Shared(b) if !b.is_empty())
                        && Model::range(item).start == a_range.end
                };
                let b = self.items.iter().position(fits).unwrap_or(b);
                if let Some(b) = self.remove_shared(b) {
                    let b_range = Model::range(&Item::Shared(b.slice(..)));
                    let adjacent = a_range.end == b_range.start || a_range.is_empty() || b_range.is_empty();
                    match a.try_join(b) {
                        Ok(()) => {
                            assert!(adjacent);
                            assert_eq!(a.len(), a_range.len() + b_range.len());
                        }
                        Err(b) => {
                            assert!(!adjacent);
                            self.items.push(Item::Shared(b));
                        }
                    }
                }
                self.items.push(Item::Shared(a));
            }
            Step::IntoBuf(which) => {
                if let Some(shared) = self.remove_shared(which) {
                    let range = Model::range(&Item::Shared(shared.slice(..)));
                    let holders = self.holders();
                    let units = self.units(&Item::Shared(shared.slice(..)));
                    let alone = units.clone().all(|unit| holders[unit] == (0, 0));
                    let possible = alone && !range.is_empty() && range.start.is_multiple_of(self.unit_len);
                    match shared.into_buf() {
                        Ok(buf) => {
                            assert!(possible);
                            assert_eq!(
                                (buf.len(), buf.capacity()),
                                (range.len(), units.len() * self.unit_len)
                            );
                            self.items.push(Item::Buf(buf));
                        }
                        Err(shared) => {
                            assert!(!possible);
                            self.items.push(Item::Shared(shared));
                        }
                    }
                }
            }
            Step::Write(which) => {
                let Some(mut item) = self.remove(which) else { return };
                let holders = self.holders();
                let alone = self.units(&item).all(|unit| holders[unit] == (0, 0));
                self.next_value = self.next_value.wrapping_add(1);
                let bytes = match &mut item {
                    Item::Buf(buf) => Some(&mut buf[..]),
                    Item::Shared(shared) => shared.get_mut(),
                };
                assert_eq!(bytes.is_some(), alone);
                if let Some(bytes) = bytes {
                    bytes.fill(self.next_value);
                    self.bytes[Model::range(&item)].fill(self.next_value);
                }
                self.items.push(item);
            }
        }
    }

    /// A position within `len`, half of the time on the boundary of an eighth of a unit.
    fn cut(&self, random: usize, len: usize) -> usize {
        let at = random.wrapping_mul(7919) % (len + 1);
        if random.is_multiple_of(2) { at } else { at / (self.unit_len / 8) * (self.unit_len / 8) }
    }

    fn check(&self) {
        let holders = self.holders();
        for (unit, &(bufs, shared)) in holders.iter().enumerate() {
            assert!(bufs == 0 || (bufs, shared) == (1, 0), "unit {unit}: {bufs} buffers, {shared} shared");
        }
        let used = holders.iter().filter(|&&holder| holder != (0, 0)).count();
        assert_eq!((self.pool.outstanding(), self.pool.free_units()), (used, UNITS - used));
        for item in &self.items {
            let bytes: &[u8] = match item {
                Item::Buf(buf) => buf,
                Item::Shared(shared) => shared,
            };
            assert!(bytes == &self.bytes[Model::range(item)], "somebody else wrote here");
        }
    }
}

fn run(unit_len: usize, runs: bool, steps: Vec<Step>) {
    let mut model = Model::new(unit_len, runs);
    for step in steps {
        model.run(step);
        model.check();
    }
    model.items.clear();
    model.check();
    if runs {
        let whole = model.pool.take_len(UNITS * unit_len).expect("all merged back into one run");
        assert_eq!(whole.capacity(), UNITS * unit_len);
    } else {
        let all: Vec<Buf> = std::iter::from_fn(|| model.pool.take()).collect();
        assert_eq!(all.len(), UNITS);
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 200 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn runs_keep_their_promises(steps in steps()) {
        run(64, true, steps);
    }

    #[test]
    fn runs_of_an_odd_unit_keep_their_promises(steps in steps()) {
        run(72, true, steps);
    }

    #[test]
    fn fixed_units_keep_their_promises(steps in steps()) {
        run(64, false, steps);
    }
}
