//! Where a Requester wants the items of a Reply, and where its Responder puts them (rtrext, sections 3 and 4).
//!
//! The Responder matches the directions of a Call with the items of its results ([`PlacedResults::new`]); the Requester compares
//! the received items with those it asked for ([`ExpectedResult`]). Each direction is used up by one result (RTR-7.4-f):
//!
//! | direction | the item is shorter than its minimum | it is there | there is none |
//! |---|---|---|---|
//! | EXRW | TOOSHORT | EXRW | NOITEM |
//! | TBSN | TOOSHORT | TBSN | NOITEM |
//! | CHOICE | TOOSHORT | TBSN where it fits, else EXRW | NOITEM |
//! | BYSIZE | TOOSHORT | TBSN below its size where it fits, else EXRW | NOITEM |

use stag_wire::rpcrdma::Segment;
use stag_wire::rpcrdma2::{DirectedPlace, DirectionSet, Elements, ItemPlace, PlacedItem, ResultDirection};
use stag_wire::xdr::padded;

use crate::layout::{ReceiveLayout, target_numbers};
use crate::offer::Violation;

/// Directions of one Call at most. A Call with more is refused.
pub const DIRECTIONS_MAX: usize = 16;

/// An item of the results that may leave the Payload stream (DDP-eligible).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResultItem {
    /// Where the part of the Call that produced it is, in the Call's virtual stream (RTR-7.4-a).
    pub source: u32,
    /// Where it belongs in the Reply's virtual stream, behind its count word. A multiple of 4.
    pub displacement: u32,
    /// Octets, without padding.
    pub len: u32,
}

/// What became of a direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResultPlace {
    /// EXRW: the item is written into the direction's segments, front to back.
    Explicit,
    /// TBSN: the item goes into targets of the Requester's Receives.
    Targets,
    /// TOOSHORT: the item stays in the Payload stream.
    TooShort,
    /// NOITEM: the results have none for it.
    #[default]
    NoItem,
}

/// A direction, and the item that it is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacedResult {
    /// Which of the results. `None`: there is none.
    pub result: Option<usize>,
    /// Where it goes.
    pub place: ResultPlace,
}

/// Why results cannot go where the Requester wants them. The Call is refused with BAD_HEADER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectionError {
    /// More directions than [`DIRECTIONS_MAX`].
    TooMany,
    /// A direction that the item does not fit: its segments are too short, or there are no targets, or too few.
    Room {
        /// Which, from 0.
        direction: usize,
    },
}

/// What becomes of the directions of one Call, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedResults {
    entries: [PlacedResult; DIRECTIONS_MAX],
    count: usize,
}

impl PlacedResults {
    /// Matches directions with `results`, which are in the order of the Reply and of the Call's parts. The Requester's Receives
    /// are divided by `layout`, and the Reply may have `transmissions_max` transmissions: one more than the Receives that
    /// the Call told of (RTR-5.2-b), and no more than this end makes; 0 where it cannot send items at all.
    ///
    /// Results without a direction stay in the Payload stream, as those do that are [`ResultPlace::TooShort`].
    ///
    /// # Errors
    ///
    /// There are too many directions, or an item fits nowhere.
    pub fn new(
        directions: &Elements<'_, DirectionSet<'_>>,
        results: &[ResultItem],
        layout: &ReceiveLayout,
        transmissions_max: u32,
    ) -> Result<PlacedResults, DirectionError> {
        let mut placed = PlacedResults { entries: [PlacedResult::default(); DIRECTIONS_MAX], count: 0 };
        let end = layout.targets().saturating_mul(transmissions_max);
        let mut next = 0;
        for set in directions.iter() {
            for direction in set.items.iter() {
                let entry = placed.entries.get_mut(placed.count).ok_or(DirectionError::TooMany)?;
                placed.count += 1;
                while results.get(next).is_some_and(|item| item.source < set.begin) {
                    next += 1;
                }
                let Some(item) = results.get(next).filter(|item| item.source < set.end) else { continue };
                let place = match direction.place {
                    _ if item.len < direction.min_len => ResultPlace::TooShort,
                    DirectedPlace::Explicit(_) => ResultPlace::Explicit,
                    DirectedPlace::BySize { threshold, .. } if item.len >= threshold => ResultPlace::Explicit,
                    _ => ResultPlace::Targets,
                };
                *entry = PlacedResult { result: Some(next), place };
                next += 1;
            }
        }
        // What fits the targets only together with others yields, the last first; a TBSN cannot.
        while let Err(direction) = placed.fit(results, layout, end) {
            let movable = (0..=direction).rev().find(|at| {
                placed.entries[*at].place == ResultPlace::Targets
                    && !matches!(
                        directed(directions, *at).map(|found| found.place),
                        Some(DirectedPlace::Buffers)
                    )
            });
            placed.entries[movable.ok_or(DirectionError::Room { direction })?].place = ResultPlace::Explicit;
        }
        for (direction, entry) in placed.iter().enumerate() {
            let (ResultPlace::Explicit, Some(result)) = (entry.place, entry.result) else { continue };
            let segments =
                directed(directions, direction).map_or(Elements::EMPTY, |found| found.place.segments());
            let room: u64 = segments.iter().map(|segment| u64::from(segment.length)).sum();
            if room < u64::from(results[result].len) {
                return Err(DirectionError::Room { direction });
            }
        }
        Ok(placed)
    }

    /// Tries whether all items for targets fit those below `end`. `Err`: the direction of the first that does not.
    fn fit(&self, results: &[ResultItem], layout: &ReceiveLayout, end: u32) -> Result<(), usize> {
        let mut next = 0;
        for (direction, entry) in self.iter().enumerate() {
            let (ResultPlace::Targets, Some(result)) = (entry.place, entry.result) else { continue };
            // An item of no octets takes no target, and still needs a Requester that has some.
            let is_possible = end > 0;
            let range =
                layout.place(next, results[result].len, end).filter(|_| is_possible).ok_or(direction)?;
            next = range.end;
        }
        Ok(())
    }

    /// Iterates over the directions, in their order.
    pub fn iter(&self) -> impl Iterator<Item = &PlacedResult> {
        self.entries[..self.count].iter()
    }

    /// Writes the octets of the items that go into targets, in their order, to `lens`: the items of a
    /// [`MessageShape`](crate::cut::MessageShape). Returns how many.
    pub fn target_lens(&self, results: &[ResultItem], lens: &mut [u32; DIRECTIONS_MAX]) -> usize {
        let in_targets = self.iter().filter(|entry| entry.place == ResultPlace::Targets);
        let found = in_targets.filter_map(|entry| results.get(entry.result?));
        lens.iter_mut().zip(found).map(|(place, item)| *place = item.len).count()
    }

    /// Returns the octets of the Payload stream: those of the virtual stream, `stream_len`, without the items that are placed.
    #[must_use]
    pub fn payload_len(&self, results: &[ResultItem], stream_len: u32) -> u32 {
        let is_placed =
            |entry: &&PlacedResult| matches!(entry.place, ResultPlace::Targets | ResultPlace::Explicit);
        let placed = self.iter().filter(is_placed).filter_map(|entry| results.get(entry.result?));
        let len: u64 = placed.map(|item| padded(item.len)).sum();
        // They are in the stream.
        u64::from(stream_len).saturating_sub(len) as u32
    }

    /// Makes the items of the XMTRESP: one for each direction, in `out`. Returns how many. `segments` holds the segments
    /// that are written to, as many as the directions have together at least.
    ///
    /// `directions`, `results` and `layout` are those of [`PlacedResults::new`].
    ///
    /// # Panics
    ///
    /// When they are not, or `segments` is too short.
    pub fn items<'s>(
        &self,
        directions: &Elements<'_, DirectionSet<'_>>,
        results: &[ResultItem],
        layout: &ReceiveLayout,
        mut segments: &'s mut [Segment],
        out: &mut [PlacedItem<'s>; DIRECTIONS_MAX],
    ) -> usize {
        let mut next = 0;
        for (direction, entry) in self.iter().enumerate() {
            let Some(result) = entry.result.map(|result| results[result]) else {
                out[direction] = PlacedItem { displacement: 0, len: 0, place: ItemPlace::NoItem };
                continue;
            };
            let place = match entry.place {
                ResultPlace::Targets => {
                    let range = layout.place(next, result.len, u32::MAX).expect("it fitted before");
                    next = range.end;
                    ItemPlace::Buffers { offset: 0, numbers: target_numbers(&range) }
                }
                ResultPlace::Explicit => {
                    let found = directed(directions, direction).expect("the directions of the Call");
                    let given = found.place.segments();
                    let (mine, rest) = core::mem::take(&mut segments).split_at_mut(given.len());
                    segments = rest;
                    let mut left = result.len;
                    for (written, offered) in mine.iter_mut().zip(given.iter()) {
                        let length = left.min(offered.length);
                        (*written, left) = (Segment { length, ..offered }, left - length);
                    }
                    ItemPlace::Explicit(Elements::new(mine))
                }
                ResultPlace::TooShort => ItemPlace::TooShort,
                ResultPlace::NoItem => ItemPlace::NoItem,
            };
            out[direction] = PlacedItem { displacement: result.displacement, len: result.len, place };
        }
        self.count
    }
}

/// The direction with this number, over all sets.
fn directed<'a>(directions: &Elements<'a, DirectionSet<'a>>, number: usize) -> Option<ResultDirection<'a>> {
    directions.iter().flat_map(|set| set.items.iter()).nth(number)
}

/// Which of the four a direction is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Directed {
    #[default]
    Explicit,
    Targets,
    Choice,
    BySize,
}

/// What a Requester remembers of a direction until the Reply is here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedResult {
    directed: Directed,
    min_len: u32,
}

/// How the results of a Reply contradict the directions of its Call. The Call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResultFault {
    /// Not one for each direction (RTR-7.4-f).
    Count,
    /// A place that the direction does not permit (Table 2).
    Place,
    /// An item that is shorter than its minimum and not TOOSHORT, or the other way round (RTR-7.4-c).
    MinimumLen,
    /// Segments whose octets are not those of the item.
    Len,
    /// Segments that are not those of the Call, or not filled front to back.
    Segments(Violation),
}

impl ExpectedResult {
    /// What `direction` asks for.
    #[must_use]
    pub fn of(direction: &ResultDirection<'_>) -> Self {
        let directed = match direction.place {
            DirectedPlace::Explicit(_) => Directed::Explicit,
            DirectedPlace::Buffers => Directed::Targets,
            DirectedPlace::Choice(_) => Directed::Choice,
            DirectedPlace::BySize { .. } => Directed::BySize,
        };
        Self { directed, min_len: direction.min_len }
    }

    /// Whether it asks for targets, however short the item is.
    #[inline]
    #[must_use]
    pub fn is_any_in_targets(&self) -> bool {
        self.directed == Directed::Targets && self.min_len == 0
    }

    /// Compares the items of a Reply with what was expected. `written(direction, segments)` compares the segments of an item
    /// with those that the direction gave, and returns the octets in them.
    ///
    /// # Errors
    ///
    /// The first contradiction.
    pub fn check_all(
        expected: &[ExpectedResult],
        items: &Elements<'_, PlacedItem<'_>>,
        mut written: impl FnMut(usize, &Elements<'_, Segment>) -> Result<u32, Violation>,
    ) -> Result<(), ResultFault> {
        if items.len() != expected.len() {
            return Err(ResultFault::Count);
        }
        for (direction, (expected, item)) in expected.iter().zip(items.iter()).enumerate() {
            let asked = match expected.directed {
                Directed::Explicit => DirectedPlace::Explicit(Elements::EMPTY),
                Directed::Targets => DirectedPlace::Buffers,
                Directed::Choice => DirectedPlace::Choice(Elements::EMPTY),
                Directed::BySize => DirectedPlace::BySize { threshold: 0, segments: Elements::EMPTY },
            };
            if !asked.permits(&item.place) {
                return Err(ResultFault::Place);
            }
            let is_short = item.len < expected.min_len;
            match item.place {
                ItemPlace::NoItem => {}
                ItemPlace::TooShort if is_short => {}
                ItemPlace::TooShort => return Err(ResultFault::MinimumLen),
                _ if is_short => return Err(ResultFault::MinimumLen),
                ItemPlace::Explicit(segments) => {
                    let len = written(direction, &segments).map_err(ResultFault::Segments)?;
                    if len != item.len {
                        return Err(ResultFault::Len);
                    }
                }
                // Where they lie the placement map checks.
                ItemPlace::Buffers { .. } => {}
            }
        }
        Ok(())
    }
}
