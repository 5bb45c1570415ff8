//! The cost of memory at run time: taking and dropping buffers, and sharing them.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use stag_memory::{Arena, ArenaConfig, Budget, PageChoice, Pool};

const PAGE_LEN: usize = 4096;
const PAGES: usize = 4096;

fn pools(criterion: &mut Criterion) {
    let budget = Budget::new(64 << 20);
    let len = Pool::footprint(1024, 64) + Pool::footprint(PAGE_LEN, PAGES);
    let page = PageChoice::Auto;
    let arena = Arena::new(&ArenaConfig { name: "bench", len, page, node: None, budget: &budget })
        .expect("32 MiB of memory");
    let messages = Pool::fixed(&arena, "messages", 1024, 64).expect("it is sized for it");
    let payload = Pool::runs(&arena, "payload", PAGE_LEN, PAGES).expect("it is sized for it");

    let mut group = criterion.benchmark_group("pool");
    group.bench_function("message: take, drop", |b| b.iter(|| drop(black_box(messages.take()))));
    group.bench_function("4 KiB: take, drop", |b| b.iter(|| drop(black_box(payload.take_len(PAGE_LEN)))));
    group.bench_function("1 MiB run: take, drop", |b| b.iter(|| drop(black_box(payload.take_len(1 << 20)))));
    // As a store's pages come back: one by one, in order.
    group.bench_function("1 MiB run: take, share, drop by page", |b| {
        b.iter(|| {
            let mut left = payload.take_len(1 << 20).expect("there is room").share();
            while left.len() > PAGE_LEN {
                let (page, rest) = left.split_at(PAGE_LEN);
                drop(black_box(page));
                left = rest;
            }
        });
    });
    let shared = payload.take_len(PAGE_LEN).expect("there is room").share();
    group.bench_function("shared: clone, drop", |b| b.iter(|| drop(black_box(shared.clone()))));
    group.finish();
}

criterion_group!(benches, pools);
criterion_main!(benches);
