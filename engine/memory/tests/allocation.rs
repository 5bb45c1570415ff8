//! Taking, sharing, slicing, joining and dropping buffers never allocates: after a pool is made, the heap is
//! not touched.
#![cfg(not(any(loom, miri)))]

use stag_memory::{Arena, ArenaConfig, Budget, Buf, PageChoice, Pool, Shared};
use stag_testing::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// How often this thread has called the allocator.
fn touched() -> u64 {
    CountingAllocator::allocations() + CountingAllocator::frees()
}

#[test]
fn buffers_live_and_die_without_the_heap() {
    let budget = Budget::new(64 << 20);
    let arena = Arena::new(&ArenaConfig {
        name: "heap",
        len: 16 << 20,
        page: PageChoice::Auto,
        node: None,
        budget: &budget,
    })
    .unwrap();
    let headers = Pool::fixed(&arena, "headers", 1024, 1024).unwrap();
    let pages = Pool::runs(&arena, "pages", 4096, 3800).unwrap();
    let mut held: Vec<Buf> = Vec::with_capacity(3000);
    let mut shares: Vec<Shared> = Vec::with_capacity(600);

    let before = touched();
    drop(Box::new(1_u8));
    assert_eq!(touched(), before + 2, "the count works");

    let before = touched();
    for round in 0..50 {
        held.extend((0..100).map(|_| headers.take().unwrap()));
        held.extend((0..1000).map(|_| pages.take().unwrap()));
        held.extend((0..2).map(|_| pages.take_len(1 << 20).unwrap()));
        assert!(pages.take_pieces(300 * 4096 + round, &mut held));
        let mut whole = pages.take_len(256 * 4096).unwrap().share();
        for _ in 0..255 {
            let (page, rest) = whole.split_at(4096);
            shares.push(page.clone());
            shares.push(page.slice(1..7));
            whole = rest;
        }
        let (mut low, high) = whole.split_at(100);
        low.try_join(high).unwrap();
        held.push(low.into_buf().unwrap());
        // Not in the order they were taken, so that every way back into the pool is taken.
        while !held.is_empty() {
            drop(held.swap_remove(held.len() / 3));
        }
        shares.clear();
        let _handle = pages.clone();
    }
    assert_eq!(touched(), before);
    assert_eq!((headers.outstanding(), pages.outstanding()), (0, 0));
}
