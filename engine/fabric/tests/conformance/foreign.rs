//! Memory that the program had before there was an arena: by a descriptor, and by an address alone.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::os::fd::AsFd;
use std::ptr::NonNull;

use stag_fabric::{Exposed, Provider, SendRequest, WriteRequest};
use stag_memory::{Arena, Buf, Mapping, Pool};

use crate::bench::{A, B, Bench, Harness, Kind, pattern};

const PAGE: usize = 4096;
const LEN: usize = 8 * PAGE;

/// Pages of the heap.
struct Heap(NonNull<u8>);

const LAYOUT: Layout = match Layout::from_size_align(LEN, PAGE) {
    Ok(layout) => layout,
    Err(_) => panic!("pages"),
};

impl Heap {
    fn new() -> Heap {
        // SAFETY: the layout has a size.
        Heap(NonNull::new(unsafe { alloc_zeroed(LAYOUT) }).expect("some pages"))
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated so, and not freed since.
        unsafe { dealloc(self.0.as_ptr(), LAYOUT) };
    }
}

// SAFETY: plain memory, which this type does not touch.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

/// Fills `LEN` octets with a pattern, before an arena is made of them.
fn fill(base: NonNull<u8>, seed: u64) {
    // SAFETY: `LEN` octets that nothing else has yet.
    unsafe { base.copy_from_nonoverlapping(NonNull::from(&pattern(LEN, seed)[..]).cast(), LEN) };
}

/// Data that lies in memory of the program's own is sent, read and written there, without a copy to an arena. Every fabric takes a
/// descriptor; one that passes descriptors does not take an address alone.
pub(crate) fn memory_that_the_program_has<H: Harness>(bench: &mut Bench<H>) {
    let mapped = Mapping::on_demand("theirs", LEN).expect("some pages");
    fill(mapped.base(), 1);
    let descriptor = mapped.as_fd().try_clone_to_owned().expect("a descriptor");
    let adopted = Arena::adopt("adopted", descriptor, LEN).expect("it is sealed, and as long as that");
    let heap = Heap::new();
    let base = heap.0;
    fill(base, 2);
    // SAFETY: the owner keeps it, and nothing else touches it while a buffer of the arena is held.
    let foreign = unsafe { Arena::foreign("foreign", base, LEN, Box::new(heap)) }.expect("whole pages");

    let provider = bench[A].provider();
    provider.register(&adopted).expect("any fabric takes a descriptor");
    let mut arenas = vec![(adopted, mapped.base(), 1)];
    let name = provider.name();
    match provider.register(&foreign) {
        Ok(()) => arenas.push((foreign, base, 2)),
        Err(error) => {
            assert_eq!(name, "shm");
            assert!(error.to_string().contains("use Arena::adopt"), "{error}");
            assert!(!bench[A].provider().is_registered(foreign.id()));
        }
    }
    assert!(name == "shm" || arenas.len() == 2, "{name} takes an address");

    let [qa, qb] = bench.connect();
    for (arena, base, seed) in arenas {
        let pool = Pool::fixed(&arena, "theirs", PAGE, LEN / PAGE).expect("all of it");
        let expected = pattern(LEN, seed);
        let page = |at: usize| &expected[at * PAGE..][..PAGE];
        // In the order in which they lie there.
        let mut pages: Vec<Buf> = std::iter::from_fn(|| pool.take()).collect();
        assert!(
            pages.iter().zip(0..).all(|(buf, at)| buf[..] == *page(at)),
            "they are as their owner left them"
        );

        // Read by the peer, from where it lies.
        let data = pages.remove(0).share();
        let segment = bench[A].try_expose(qa, Exposed::Read(data)).expect("it is registered");
        bench.tell(A, [qa, qb]);
        bench[B].post_read(qb, 1, PAGE as u32, segment);
        assert!(bench.read(B, qb, 1)[..] == *page(0));
        bench.fenced(A, qa, segment.handle, 1);

        // Written to the peer.
        let target = bench.offer_write(B, [qa, qb], PAGE);
        bench[B].post_receive(qb, 2);
        let source = pages.remove(0).share();
        bench[A]
            .try_write(qa, WriteRequest { id: 2, source, target, signaled: true })
            .expect("within capacity");
        bench[A].post_send(qa, 3, b"written");
        bench.message(B, qb, 2);
        assert!(bench.fenced_buf(B, qb, target.handle, 2)[..] == *page(1));
        assert_eq!(bench.completion(A, qa, Kind::Write, 2).result, Ok(()));
        assert_eq!(bench.completion(A, qa, Kind::Send, 3).result, Ok(()));

        // A message in it.
        bench[B].post_receive(qb, 4);
        let mut buf = pages.remove(0);
        buf.set_len(100);
        let request = SendRequest { id: 4, buf, invalidate: None, signaled: true };
        bench[A].try_send(qa, request).expect("within capacity");
        assert!(bench.message(B, qb, 4)[..] == page(2)[..100]);
        assert_eq!(bench.completion(A, qa, Kind::Send, 4).result, Ok(()));

        // Written by the peer: the program finds it at its own address.
        let segment = bench[A].try_expose(qa, Exposed::Write(pages.remove(0))).expect("it is registered");
        bench.tell(A, [qa, qb]);
        let written = pattern(PAGE, 99);
        bench[B].post_write(qb, 5, &written, segment);
        assert_eq!(bench.completion(B, qb, Kind::Write, 5).result, Ok(()));
        bench.tell(B, [qa, qb]);
        drop(bench.fenced_buf(A, qa, segment.handle, 5));
        let mut found = vec![0; PAGE];
        // SAFETY: within the memory, which no buffer has any more.
        unsafe { base.add(3 * PAGE).copy_to_nonoverlapping(NonNull::from(&mut found[..]).cast(), PAGE) };
        assert!(found == written);
    }
}
