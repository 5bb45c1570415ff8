//! Where results are wanted, and where they go (rtrext, Table 2).

use stag_proto::directions::{
    DIRECTIONS_MAX, DirectionError, ExpectedResult, PlacedResults, ResultFault, ResultItem, ResultPlace,
};
use stag_proto::layout::ReceiveLayout;
use stag_proto::requester::Violation;
use stag_wire::rpcrdma::Segment;
use stag_wire::rpcrdma2::{DirectedPlace, DirectionSet, Elements, ItemPlace, PlacedItem, ResultDirection};

const SEGMENTS: [Segment; 2] =
    [Segment { handle: 1, length: 1000, offset: 0 }, Segment { handle: 2, length: 500, offset: 7 }];

fn segments() -> Elements<'static, Segment> {
    Elements::new(&SEGMENTS)
}

/// One of each kind, in the order of Table 2.
fn places() -> [DirectedPlace<'static>; 4] {
    [
        DirectedPlace::Explicit(segments()),
        DirectedPlace::Buffers,
        DirectedPlace::Choice(segments()),
        DirectedPlace::BySize { threshold: 800, segments: segments() },
    ]
}

fn item(source: u32, displacement: u32, len: u32) -> ResultItem {
    ResultItem { source, displacement, len }
}

/// What becomes of one direction for one item.
fn place_one(
    place: DirectedPlace<'_>,
    len: u32,
    transmissions_max: u32,
) -> Result<ResultPlace, DirectionError> {
    let directions = [ResultDirection { min_len: 100, place }];
    let sets = [DirectionSet { begin: 0, end: 50, items: Elements::new(&directions) }];
    let layout = ReceiveLayout::with_targets(200, 2, 500, 0);
    let results = [item(0, 24, len)];
    PlacedResults::new(&Elements::new(&sets), &results, &layout, transmissions_max)
        .map(|placed| placed.iter().next().expect("one direction").place)
}

#[test]
fn each_kind_of_direction_has_its_place() {
    // RTR-7.4-c RTR-7.4-e RTR-5.3-b RTR-X-2
    use ResultPlace::*;
    let room = Err(DirectionError::Room { direction: 0 });
    // Octets of the item, transmissions of the Reply, and what EXRW, TBSN, CHOICE and BYSIZE become.
    let cases = [
        (99, 1, [Ok(TooShort); 4]),
        (99, 0, [Ok(TooShort); 4]),
        (100, 1, [Ok(Explicit), Ok(Targets), Ok(Targets), Ok(Targets)]),
        (799, 1, [Ok(Explicit), Ok(Targets), Ok(Targets), Ok(Targets)]),
        (800, 1, [Ok(Explicit), Ok(Targets), Ok(Targets), Ok(Explicit)]),
        (1001, 1, [Ok(Explicit), room, Ok(Explicit), Ok(Explicit)]),
        (1001, 2, [Ok(Explicit), Ok(Targets), Ok(Targets), Ok(Explicit)]),
        (700, 0, [Ok(Explicit), room, Ok(Explicit), Ok(Explicit)]),
        (1501, 1, [room; 4]),
        (1501, 2, [room, Ok(Targets), Ok(Targets), room]),
    ];
    for (len, transmissions, expected) in cases {
        for (place, expected) in places().into_iter().zip(expected) {
            assert_eq!(place_one(place, len, transmissions), expected, "{place:?} {len} {transmissions}");
        }
    }
}

#[test]
fn directions_are_matched_by_the_part_of_the_call() {
    // RTR-7.4-a RTR-7.4-b RTR-7.4-d RTR-7.4-f
    let [explicit, targets, ..] = places();
    let direction = |place| ResultDirection { min_len: 10, place };
    let first = [direction(targets), direction(targets)];
    let second = [direction(explicit)];
    let third = [direction(targets), direction(explicit), direction(targets)];
    let sets = [
        DirectionSet { begin: 40, end: 80, items: Elements::new(&first) },
        DirectionSet { begin: 80, end: 100, items: Elements::new(&second) },
        DirectionSet { begin: 200, end: 300, items: Elements::new(&third) },
    ];
    let sets = Elements::new(&sets);
    let layout = ReceiveLayout::with_targets(200, 4, 500, 0);
    // One before all ranges, one in the first, none in the second, one between, three in the third of which the first is short.
    let results = [
        item(0, 24, 400),
        item(79, 424, 600),
        item(100, 1024, 50),
        item(200, 1100, 9),
        item(250, 1200, 1200),
        item(299, 2400, 300),
        item(299, 2700, 300),
    ];
    let placed = PlacedResults::new(&sets, &results, &layout, 1).expect("all fits");
    use ResultPlace::*;
    let expected = [
        (Some(1), Targets),
        (None, NoItem),
        (None, NoItem),
        (Some(3), TooShort),
        (Some(4), Explicit),
        (Some(5), Targets),
    ];
    assert_eq!(placed.iter().map(|entry| (entry.result, entry.place)).collect::<Vec<_>>(), expected);
    let mut lens = [0; DIRECTIONS_MAX];
    assert_eq!(placed.target_lens(&results, &mut lens), 2);
    assert_eq!(lens[..2], [600, 300]);

    let mut segments = [Segment { handle: 0, length: 0, offset: 0 }; 8];
    let mut items = [PlacedItem { displacement: 0, len: 0, place: ItemPlace::NoItem }; DIRECTIONS_MAX];
    let count = placed.items(&sets, &results, &layout, &mut segments, &mut items);
    let buffers = |numbers| ItemPlace::Buffers { offset: 0, numbers: Elements::new(numbers) };
    let written = [Segment { length: 1000, ..SEGMENTS[0] }, Segment { length: 200, ..SEGMENTS[1] }];
    let expected = [
        PlacedItem { displacement: 424, len: 600, place: buffers(&[0, 1]) },
        PlacedItem { displacement: 0, len: 0, place: ItemPlace::NoItem },
        PlacedItem { displacement: 0, len: 0, place: ItemPlace::NoItem },
        PlacedItem { displacement: 1100, len: 9, place: ItemPlace::TooShort },
        PlacedItem { displacement: 1200, len: 1200, place: ItemPlace::Explicit(Elements::new(&written)) },
        PlacedItem { displacement: 2400, len: 300, place: buffers(&[2]) },
    ];
    assert_eq!(items[..count], expected);
    // And the Requester finds nothing wrong with them.
    let expected: Vec<_> =
        sets.iter().flat_map(|set| set.items.iter()).map(|found| ExpectedResult::of(&found)).collect();
    let sum = |_, segments: &Elements<'_, Segment>| Ok(segments.iter().map(|segment| segment.length).sum());
    assert_eq!(ExpectedResult::check_all(&expected, &Elements::new(&items[..count]), sum), Ok(()));
}

#[test]
fn who_has_a_choice_yields_to_who_has_none() {
    // RTR-7.4-e RTR-X-2
    let [_, targets, choice, by_size] = places();
    let layout = ReceiveLayout::with_targets(200, 2, 500, 0);
    let place = |places: &[DirectedPlace<'_>], lens: &[u32]| {
        let directions: Vec<_> =
            places.iter().map(|place| ResultDirection { min_len: 0, place: *place }).collect();
        let sets = [DirectionSet { begin: 0, end: 1, items: Elements::new(&directions) }];
        let results: Vec<_> = lens.iter().zip(0..).map(|(len, nth)| item(0, 2000 * nth, *len)).collect();
        PlacedResults::new(&Elements::new(&sets), &results, &layout, 1)
            .map(|placed| placed.iter().map(|entry| entry.place).collect::<Vec<_>>())
    };
    use ResultPlace::*;
    // Even so it does not fit.
    assert_eq!(place(&[choice, targets], &[600, 1001]), Err(DirectionError::Room { direction: 1 }));
    assert_eq!(place(&[choice, targets], &[600, 1000]), Ok(vec![Explicit, Targets]));
    assert_eq!(place(&[choice, by_size], &[600, 600]), Ok(vec![Targets, Explicit]), "the last first");
    assert_eq!(place(&[targets, choice, by_size], &[500, 500, 500]), Ok(vec![Targets, Targets, Explicit]));
    assert_eq!(place(&[targets, targets], &[600, 1]), Err(DirectionError::Room { direction: 1 }));
    let too_many = [targets; DIRECTIONS_MAX + 1];
    assert_eq!(place(&too_many, &[]), Err(DirectionError::TooMany));
    assert_eq!(place(&too_many[1..], &[]), Ok(vec![NoItem; DIRECTIONS_MAX]));
}

#[test]
fn results_that_were_not_asked_for_so_are_refused() {
    // RTR-7.4-f RTR-X-3
    let buffers = ItemPlace::Buffers { offset: 0, numbers: Elements::new(&[0]) };
    let results = [ItemPlace::Explicit(segments()), buffers, ItemPlace::TooShort, ItemPlace::NoItem];
    // Table 2: rows are directions, columns results.
    let permitted = [
        [true, false, true, true],
        [false, true, true, true],
        [true, true, true, true],
        [true, true, true, true],
    ];
    let whole = |_, _: &Elements<'_, Segment>| Ok(1500);
    for (place, row) in places().into_iter().zip(permitted) {
        let expected = [ExpectedResult::of(&ResultDirection { min_len: 100, place })];
        for (result, is_permitted) in results.into_iter().zip(row) {
            let len = if matches!(result, ItemPlace::TooShort) { 99 } else { 1500 };
            let check = |len| {
                let items = [PlacedItem { displacement: 24, len, place: result }];
                ExpectedResult::check_all(&expected, &Elements::new(&items), whole)
            };
            assert_eq!(check(len), if is_permitted { Ok(()) } else { Err(ResultFault::Place) });
            let wrong = match result {
                ItemPlace::NoItem => Ok(()),
                _ if is_permitted => Err(ResultFault::MinimumLen),
                _ => Err(ResultFault::Place),
            };
            let other_len = if matches!(result, ItemPlace::TooShort) { 100 } else { 99 };
            assert_eq!(check(other_len), wrong);
        }
        assert_eq!(ExpectedResult::check_all(&expected, &Elements::EMPTY, whole), Err(ResultFault::Count));
    }
    let expected = [ExpectedResult::of(&ResultDirection { min_len: 0, place: places()[0] })];
    let items = [PlacedItem { displacement: 24, len: 1499, place: ItemPlace::Explicit(segments()) }];
    let check = |written| ExpectedResult::check_all(&expected, &Elements::new(&items), |_, _| written);
    assert_eq!(check(Ok(1500)), Err(ResultFault::Len));
    let violation = Violation::SegmentChanged;
    assert_eq!(check(Err(violation)), Err(ResultFault::Segments(violation)));
}
