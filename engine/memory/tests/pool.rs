//! Pools, buffers and the ledger, one promise at a time.
#![cfg(not(loom))]

use stag_memory::{
    Arena, ArenaConfig, ArenaError, Budget, Buf, Ledger, PageChoice, PageSize, Pool, PoolError, Shared,
};

fn arena(len: usize) -> Arena {
    let page = PageChoice::Size(PageSize::Base);
    Arena::new(&ArenaConfig { name: "test", len, page, node: None, budget: &Budget::new(1 << 30) }).unwrap()
}

fn fixed(unit_len: usize, count: usize) -> Pool {
    Pool::fixed(&arena(Pool::footprint(unit_len, count)), "fixed", unit_len, count).unwrap()
}

fn pages(count: usize) -> Pool {
    Pool::runs(&arena(count * 4096), "pages", 4096, count).unwrap()
}

#[test]
fn an_exhausted_pool_says_none_and_recovers() {
    for pool in [fixed(256, 10), pages(10)] {
        let mut taken: Vec<Buf> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!((taken.len(), pool.free_units(), pool.outstanding()), (10, 0, 10));
        assert!(pool.take_len(1).is_none());
        let offset = taken[3].location().offset;
        drop(taken.remove(3));
        assert_eq!(pool.take().unwrap().location().offset, offset, "the only free one");
        let mut offsets: Vec<u64> = taken.iter().map(|buf| buf.location().offset).collect();
        offsets.sort_unstable();
        offsets.dedup();
        assert_eq!(offsets.len(), 9);
        drop(taken);
        assert_eq!((pool.outstanding(), pool.outstanding_max()), (0, 10));
    }
}

#[test]
fn a_copy_is_of_a_unit_at_most() {
    for pool in [fixed(64, 1), pages(1)] {
        let octets = vec![7; pool.unit_len() + 1];
        for len in [0, 1, pool.unit_len()] {
            let copy = pool.take_copy(&octets[..len]).unwrap();
            assert_eq!((&copy[..], copy.capacity()), (&octets[..len], pool.unit_len()));
            assert!(pool.take_copy(&[]).is_none(), "no unit is free");
        }
        assert!(pool.take_copy(&octets).is_none());
        assert_eq!((pool.outstanding(), pool.outstanding_max()), (0, 1));
    }
}

#[test]
fn the_last_one_given_is_the_first_one_taken() {
    for pool in [fixed(64, 8), pages(8)] {
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        let offsets = [a.location().offset, b.location().offset];
        drop(a);
        drop(b);
        let (first, second) = (pool.take().unwrap(), pool.take().unwrap());
        assert_eq!([second.location().offset, first.location().offset], offsets);
    }
}

#[test]
fn a_run_that_comes_back_page_by_page_is_one_run_again() {
    let pool = pages(64);
    for ascending in [true, false] {
        let run = pool.take_len(16 * 4096).unwrap();
        let _other = pool.take_len(2 * 4096).unwrap();
        let offset = run.location().offset;
        let shared = run.share();
        let mut parts: Vec<Shared> = (0..16).map(|at| shared.slice(at * 4096..(at + 1) * 4096)).collect();
        drop(shared);
        if !ascending {
            parts.reverse();
        }
        drop(parts);
        let again = pool.take_len(16 * 4096).unwrap();
        assert_eq!(again.location().offset, offset, "the most recent one, ascending {ascending}");
    }
    assert!(pool.take_len(64 * 4096).is_some());
}

#[test]
fn single_units_come_from_a_long_run_only_if_there_is_nothing_else() {
    let pool = pages(300);
    let long = pool.take_len(200 * 4096).unwrap();
    let offset = long.location().offset;
    drop(long);
    let singles: Vec<Buf> = (0..100).map(|_| pool.take().unwrap()).collect();
    let long = pool.take_len(200 * 4096).expect("left whole");
    assert_eq!(long.location().offset, offset);
    drop(long);
    let rest: Vec<Buf> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!((rest.len(), pool.free_units()), (200, 0));
    drop((singles, rest));
    assert!(pool.take_len(300 * 4096).is_some());
}

#[test]
fn buffers_are_aligned_and_zero_at_first() {
    for (unit_len, align) in [(64, 64), (4096, 4096), (8192, 4096), (192, 64), (1000, 8), (12288, 4096)] {
        let pool = fixed(unit_len, 5);
        let taken: Vec<Buf> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(taken.len(), 5);
        for buf in &taken {
            assert_eq!(buf.as_ptr().addr() % align, 0, "{unit_len}");
            assert_eq!((buf.len(), buf.capacity()), (unit_len, unit_len));
            assert!(buf.iter().all(|&byte| byte == 0));
        }
    }
}

#[test]
fn a_run_is_contiguous_page_aligned_and_as_long_as_asked() {
    let pool = pages(300);
    for (len, capacity) in [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (1 << 20, 1 << 20)] {
        let buf = pool.take_len(len).unwrap();
        assert_eq!((buf.len(), buf.capacity(), buf.as_ptr().addr() % 4096), (len, capacity, 0));
    }
    assert!(pool.take_len(301 * 4096).is_none());
    assert!(pool.take_len(usize::MAX).is_none());
    assert!(fixed(4096, 4).take_len(4097).is_none(), "fixed units do not join");
}

#[test]
fn shrinking_gives_the_tail_back() {
    let pool = pages(16);
    let mut buf = pool.take_len(16 * 4096).unwrap();
    buf[4096] = 9;
    buf.shrink_to(4097);
    assert_eq!((buf.len(), buf.capacity(), pool.outstanding(), buf[4096]), (4097, 8192, 2, 9));
    buf.shrink_to(0);
    assert_eq!((buf.len(), buf.capacity(), pool.outstanding()), (0, 4096, 1));
    drop(buf);
    assert!(pool.take_len(16 * 4096).is_some());
}

#[test]
#[should_panic(expected = "4097 bytes in a buffer of 4096")]
fn a_length_beyond_the_capacity_is_a_bug() {
    pages(1).take().unwrap().set_len(4097);
}

#[test]
fn pieces_cover_fragmented_memory_all_or_nothing() {
    let pool = pages(16);
    let mut taken: Vec<Option<Buf>> = std::iter::from_fn(|| pool.take()).map(Some).collect();
    taken.sort_by_key(|buf| buf.as_ref().map(|buf| buf.location().offset));
    // Free: two runs of 3 and one of 2.
    for index in [1, 2, 3, 6, 7, 8, 11, 12] {
        taken[index] = None;
    }
    let mut pieces = Vec::with_capacity(8);
    assert!(pool.take_len(7 * 4096 + 1).is_none());
    assert!(!pool.take_pieces(9 * 4096, &mut pieces), "more than is free");
    assert!(pieces.is_empty());
    assert_eq!(pool.outstanding(), 8);
    assert!(pool.take_pieces(7 * 4096 + 1, &mut pieces));
    assert_eq!(pieces.iter().map(Buf::len).collect::<Vec<_>>(), [3 * 4096, 3 * 4096, 4097]);
    assert_eq!(pool.free_units(), 0);

    pieces.clear();
    taken.clear();
    assert!(pool.take_pieces(16 * 4096, &mut pieces));
    assert_eq!(pieces.len(), 1, "contiguous if possible");

    // Every other unit is in use: as many pieces as units, in whatever order.
    drop(pieces.drain(..));
    let mut taken: Vec<Option<Buf>> = std::iter::from_fn(|| pool.take()).map(Some).collect();
    taken.sort_by_key(|buf| buf.as_ref().map(|buf| buf.location().offset));
    taken.iter_mut().step_by(2).for_each(|buf| *buf = None);
    assert!(pool.take_pieces(8 * 4096, &mut pieces));
    assert_eq!(pieces.len(), 8);
    assert!(pool.take_up_to(8192).is_none(), "nothing is free");
    pieces.truncate(7);
    assert_eq!(pool.take_up_to(8192).map(|buf| (buf.len(), buf.capacity())), Some((4096, 4096)));

    let pool = fixed(512, 4);
    pieces.clear();
    assert!(pool.take_pieces(3 * 512 + 1, &mut pieces));
    assert_eq!(pieces.iter().map(Buf::len).collect::<Vec<_>>(), [512, 512, 512, 1]);
}

#[test]
fn what_is_stored_and_what_is_in_transit_are_counted_apart() {
    let pool = pages(16);
    assert_eq!((pool.set_aside(10), pool.transit(), pool.transit_free()), (10, 6, 6));
    assert_eq!(pool.set_aside(10), 4, "some stay for transit");
    assert_eq!((pool.stored_max(), pool.transit()), (14, 2));

    let pool = pages(16);
    assert_eq!(pool.set_aside(8), 8);
    let placed = pool.take_len(4 * 4096).unwrap().share();
    assert_eq!((pool.stored(), pool.transit_free()), (0, 4));
    // A store keeps the pages one by one; one of them twice.
    let kept: Vec<_> = (0..3).map(|page| placed.slice(page * 4096..(page + 1) * 4096)).collect();
    kept.iter().chain(&kept[..1]).for_each(stag_memory::Shared::mark_stored);
    assert_eq!((pool.stored(), pool.transit_free()), (3, 7));
    drop(placed);
    assert_eq!((pool.stored(), pool.transit_free(), pool.outstanding()), (3, 8, 3));
    // What is still read counts as stored until it is not.
    let read = kept[1].slice(7..9);
    drop(kept);
    assert_eq!((pool.stored(), pool.transit_free(), pool.outstanding()), (1, 8, 1));
    drop(read);
    assert_eq!((pool.stored(), pool.transit_free(), pool.outstanding()), (0, 8, 0));
    // The mark is gone with the last reference, also where a run goes back in parts.
    let run = pool.take_len(3 * 4096).unwrap().share();
    run.slice(4096..8192).mark_stored();
    let (last, middle) = (run.slice(8192..), run.slice(4096..8192));
    drop(run);
    assert_eq!((pool.stored(), pool.outstanding()), (1, 2));
    drop((last, middle));
    assert_eq!((pool.stored(), pool.outstanding()), (0, 0));
    // A buffer again: not stored.
    let one = pool.take().unwrap().share();
    one.mark_stored();
    let one = one.into_buf().unwrap();
    assert_eq!((pool.stored(), pool.transit_free()), (0, 7));
    drop(one);
}

#[test]
fn slices_keep_only_the_units_that_they_touch() {
    let pool = pages(8);
    let mut buf = pool.take_len(5 * 4096).unwrap();
    buf.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index / 4096) as u8);
    buf.set_len(4 * 4096 + 1);
    let shared = buf.share();
    assert_eq!(pool.outstanding(), 5);
    let middle = shared.slice(4000..8193);
    assert_eq!((middle.len(), middle[0], middle[96], middle[4192]), (4193, 0, 1, 2));
    drop(shared);
    assert_eq!(pool.outstanding(), 3);
    let empty = middle.slice(7..7);
    drop(middle);
    assert_eq!((pool.outstanding(), empty.len()), (0, 0));
    assert!(pool.take_len(8 * 4096).is_some(), "all merged");
}

#[test]
fn sharing_a_short_buffer_gives_the_rest_back() {
    let pool = pages(8);
    let mut buf = pool.take_len(8 * 4096).unwrap();
    buf.set_len(4097);
    let shared = buf.share();
    assert_eq!(pool.outstanding(), 2);
    let mut none = pool.take().unwrap();
    none.set_len(0);
    let none = none.share();
    assert_eq!((pool.outstanding(), none.is_empty()), (2, true));
    assert!(none.into_buf().is_err(), "it has no unit any more");
    assert_eq!(shared.into_buf().unwrap().capacity(), 8192);
}

#[test]
fn neighbours_join_and_others_do_not() {
    let pool = pages(8);
    let whole = pool.take_len(4 * 4096).unwrap().share();
    for at in [0, 1, 4096, 5000, 4 * 4096] {
        let (mut a, b) = whole.clone().split_at(at);
        let c = b.slice(b.len()..);
        a.try_join(b).unwrap();
        a.try_join(c).unwrap();
        assert_eq!((a.len(), a.location()), (whole.len(), whole.location()));
    }
    let (mut a, b) = whole.clone().split_at(5000);
    let (c, d) = b.split_at(5000);
    let d = a.try_join(d).unwrap_err();
    let mut d = d;
    assert!(d.try_join(c).is_err(), "wrong order");
    assert!(a.try_join(pages(1).take().unwrap().share()).is_err(), "another pool");
    drop((a, d));
    assert!(whole.is_unique(), "every count was given back");
}

#[test]
fn a_shared_unit_is_written_only_when_it_is_unique() {
    let pool = pages(4);
    let mut shared = pool.take_len(3 * 4096).unwrap().share();
    let other = shared.slice(9000..9001);
    assert!(shared.get_mut().is_none());
    let (mut low, high) = shared.split_at(8192);
    low.get_mut().expect("the other touches only the third unit")[0] = 1;
    let high = high.into_buf().unwrap_err();
    drop(other);
    let buf = high.into_buf().unwrap();
    assert_eq!((buf.len(), buf.capacity(), pool.outstanding()), (4096, 4096, 3));
    let inside = low.slice(1..);
    drop(low);
    let inside = inside.into_buf().expect_err("does not begin a unit");
    assert_eq!(inside.len(), 8191);
}

#[test]
fn a_pool_outlives_its_handle_until_the_last_buffer() {
    let budget = Budget::new(1 << 20);
    let config = ArenaConfig {
        name: "order",
        len: 65536,
        page: PageChoice::Size(PageSize::Base),
        node: None,
        budget: &budget,
    };
    type Last = fn(&Pool) -> Box<dyn std::any::Any>;
    let lasts: [Last; 5] = [
        |pool| Box::new(pool.take()),
        |pool| Box::new(pool.take_len(12288).map(Buf::share)),
        |pool| Box::new(pool.take_len(12288).map(|buf| buf.share().slice(5000..5001))),
        |pool| Box::new(pool.take().map(|buf| buf.share().slice(0..0))),
        |pool| Box::new((pool.take(), pool.clone(), pool.take().map(|buf| buf.share().slice(0..0)))),
    ];
    for last in lasts {
        let arena = Arena::new(&config).unwrap();
        let pool = Pool::runs(&arena, "order", 4096, 16).unwrap();
        let last = last(&pool);
        drop(arena);
        drop(pool);
        assert_eq!(budget.spent(), 65536, "still mapped");
        drop(last);
        assert_eq!(budget.spent(), 0, "gone with the last buffer");
    }
}

#[test]
fn pools_share_an_arena_and_stay_apart() {
    let arena = arena(Pool::footprint(1000, 3) + 8 * 4096);
    let small = Pool::fixed(&arena, "small", 1000, 3).unwrap();
    let large = Pool::runs(&arena, "large", 4096, 8).unwrap();
    assert_eq!(arena.left(), 0);
    let mut a = small.take().unwrap();
    let mut b = large.take_len(8 * 4096).unwrap();
    a.fill(1);
    b.fill(2);
    assert!(a.iter().all(|&byte| byte == 1));
    assert_eq!((a.location().arena, b.location().offset), (arena.id(), 4096));
    assert_eq!(
        Pool::fixed(&arena, "late", 64, 1).unwrap_err(),
        PoolError::ArenaFull { pool: "late", wanted: 4096, left: 0, len: 9 * 4096 }
    );
    assert!(matches!(Pool::fixed(&arena, "none", 0, 1), Err(PoolError::Empty { .. })));
    assert!(matches!(Pool::runs(&arena, "huge", 4096, usize::MAX), Err(PoolError::TooLarge { .. })));
}

#[test]
fn an_arena_is_paid_for_and_refused_when_it_does_not_fit() {
    let budget = Budget::new(100_000);
    let page = PageChoice::Size(PageSize::Base);
    let config = ArenaConfig { name: "payload", len: 50_000, page, node: None, budget: &budget };
    let arena = Arena::new(&config).unwrap();
    assert_eq!((arena.len() as u64, budget.spent()), (53_248, 53_248));
    let error = Arena::new(&config).unwrap_err();
    assert!(matches!(error, ArenaError::Budget(_)));
    assert!(
        error
            .to_string()
            .starts_with("payload: 48.8 KiB wanted, but memory.budget has 45.7 KiB left of 97.7 KiB"),
        "{error}"
    );
    // What fits only before it is rounded up to pages is not half taken.
    let error = Arena::new(&ArenaConfig { len: 46_752, ..config }).unwrap_err().to_string();
    assert!(error.starts_with("rounding payload up to 4 KiB pages: 2.3 KiB wanted"), "{error}");
    assert_eq!(budget.spent(), 53_248);
    assert!(matches!(
        Arena::new(&ArenaConfig { len: usize::MAX, ..config }),
        Err(ArenaError::TooLarge { .. })
    ));
    let other = arena.clone();
    drop(arena);
    assert_eq!(budget.spent(), 53_248);
    drop(other);
    assert_eq!(budget.spent(), 0);
}

#[test]
fn an_arena_hands_out_each_range_once() {
    let arena = arena(16384);
    assert_eq!(arena.reserve(100, 64), Some(0..100));
    assert_eq!(arena.reserve(4, 4096), Some(4096..4100));
    assert_eq!(arena.reserve(1, 3), None);
    assert_eq!(arena.reserve(usize::MAX, 1), None);
    assert_eq!(arena.reserve(12285, 1), None);
    assert_eq!(arena.reserve(12284, 1), Some(4100..16384));
    assert_eq!((arena.reserve(1, 1), arena.reserve(0, 1)), (None, Some(16384..16384)));
}

#[test]
fn the_ledger_names_what_did_not_come_back() {
    let (a, b) = (fixed(256, 10), pages(10));
    let mut ledger = Ledger::new();
    ledger.register(&a);
    ledger.register(&b);
    assert_eq!((ledger.outstanding(), ledger.to_string().as_str()), (0, "2 pools, every buffer returned"));
    let kept: Shared = b.take_len(5000).unwrap().into();
    assert_eq!(ledger.outstanding(), 2);
    assert_eq!(ledger.to_string(), "pool pages: 2 of 10 units of 4096 bytes not returned\n");
    drop((kept, a, b));
    assert_eq!((ledger.outstanding(), ledger.pools().len()), (0, 2));
}

#[test]
fn debug_shows_no_addresses() {
    let pool = pages(2);
    let buf = pool.take_len(10).unwrap();
    assert_eq!(format!("{buf:?}"), r#"Buf { pool: "pages", len: 10, capacity: 4096, offset: 0 }"#);
    assert_eq!(format!("{:?}", buf.share()), r#"Shared { pool: "pages", len: 10, offset: 0 }"#);
    assert!(format!("{pool:?}").starts_with(r#"Pool { name: "pages", unit_len: 4096, units: 2,"#));
}
