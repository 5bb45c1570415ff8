//! The memory orderings that two processes rely on, and nothing else.
//!
//! Every rule about what one side must see before the other does something is a function of this file,
//! written over [`Word`], so that the production code itself runs under loom:
//!
//! - **doorbell**: [`clear`] and [`publish`] with [`observe`];
//! - **fence of an exposure**: [`access_begin`], [`is_dead`], [`access_end`] with [`kill`], [`is_over`];
//! - **sleep**: [`sleep_announce`] then [`observe`], with [`publish`] then [`asleep`];
//! - **bell** of an idle connection: [`mark`] with [`take_mark`].
//!
//! Each word has one writer, but for bells. A side maps the words of its peer read-only, but for bells.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

/// One aligned word of shared memory: an atomic of `std`, or one of loom in its tests.
pub(super) trait Word {
    /// What it holds.
    type Value: Copy + PartialEq;

    /// Loads without ordering anything.
    fn get(&self) -> Self::Value;

    /// Loads, and orders everything after it. (A relaxed load and a fence, because an acquire load from
    /// memory that is mapped read-only is not something that the language promises.)
    fn get_acquire(&self) -> Self::Value;

    /// Stores without ordering anything.
    fn set(&self, value: Self::Value);

    /// Stores after everything before it.
    fn set_release(&self, value: Self::Value);

    /// Stores 0 and returns the old value, and orders everything after it.
    fn take(&self) -> Self::Value;

    /// Stores 1 after everything before it, and hands on what others published by the same word.
    fn put(&self);

    /// Orders the loads before it before those behind it.
    fn fence_acquire();

    /// A sequentially consistent fence: of two sides that each store, fence, then load the other's word,
    /// at least one sees the other's store.
    fn fence();
}

macro_rules! word {
    ($atomic:ty, $value:ty) => {
        impl Word for $atomic {
            type Value = $value;

            #[inline(always)]
            fn get(&self) -> $value {
                <$atomic>::load(self, Ordering::Relaxed)
            }

            #[inline(always)]
            fn get_acquire(&self) -> $value {
                let value = <$atomic>::load(self, Ordering::Relaxed);
                fence(Ordering::Acquire);
                value
            }

            #[inline(always)]
            fn set(&self, value: $value) {
                <$atomic>::store(self, value, Ordering::Relaxed);
            }

            #[inline(always)]
            fn set_release(&self, value: $value) {
                <$atomic>::store(self, value, Ordering::Release);
            }

            #[inline(always)]
            fn take(&self) -> $value {
                <$atomic>::swap(self, 0, Ordering::AcqRel)
            }

            #[inline(always)]
            fn put(&self) {
                <$atomic>::swap(self, 1, Ordering::AcqRel);
            }

            #[inline(always)]
            fn fence_acquire() {
                fence(Ordering::Acquire);
            }

            #[inline(always)]
            fn fence() {
                full_fence();
            }
        }
    };
}

word!(AtomicU8, u8);
word!(AtomicU32, u32);
word!(AtomicU64, u64);

/// A sequentially consistent fence.
#[inline(always)]
pub(super) fn full_fence() {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: or-ing 0 to a word of our own stack changes nothing. Any locked instruction orders all loads
    // and stores of ordinary memory before and behind it, as MFENCE does, which the compiler would take
    // for `fence(SeqCst)` and which is several times slower on some processors. `asm!` without `nomem`
    // keeps the compiler from moving memory accesses across.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp], 0", options(nostack));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    fence(Ordering::SeqCst);
}

/// Clears the first word of a line where a later batch may start, so that the consumer finds no stale bytes there. Before
/// the [`publish`] of the batch that ends at this line.
#[inline(always)]
pub(super) fn clear<W: Word<Value = u64>>(next: &W) {
    next.set(0);
}

/// Rings the doorbell: everything stored before becomes visible with `header`, which `first` takes. Pairs with [`observe`].
#[inline(always)]
pub(super) fn publish<W: Word<Value = u64>>(first: &W, header: u64) {
    first.set_release(header);
}

/// The header at the start of a batch, 0 while there is none. Pairs with [`publish`].
#[inline(always)]
pub(super) fn observe<W: Word<Value = u64>>(first: &W) -> u64 {
    first.get_acquire()
}

/// Initiator: starts a span of accesses. `epoch` is odd during a span, and never repeats.
///
/// One span, so one fence, covers all the accesses of one doorbell. Pairs with [`kill`]: either that
/// sees the odd epoch and waits for the span to end, or every [`is_dead`] of this span sees the kill.
#[inline(always)]
pub(super) fn access_begin<W: Word<Value = u64>>(epoch: &W, odd: u64) {
    debug_assert!(odd % 2 == 1);
    // Release: a target that waited for the span before and finds this one instead has seen that one's end.
    epoch.set_release(odd);
    W::fence();
}

/// Initiator, within a span: whether the exposure that was announced with `alive` was killed since.
#[inline(always)]
pub(super) fn is_dead<W: Word<Value = u32>>(kills: &W, alive: u32) -> bool {
    kills.get() != alive
}

/// Initiator, behind a copy out of the exposure: whether it was killed meanwhile. If not, what was copied is what the owner exposed: the
/// owner uses the memory for something else only after [`kill`], whose fence this pairs with.
#[inline(always)]
pub(super) fn was_killed<W: Word<Value = u32>>(kills: &W, alive: u32) -> bool {
    W::fence_acquire();
    kills.get() != alive
}

/// Initiator: ends the span; its accesses are done. Pairs with the acquire loads of [`kill`] and [`is_over`].
#[inline(always)]
pub(super) fn access_end<W: Word<Value = u64>>(epoch: &W, even: u64) {
    debug_assert!(even.is_multiple_of(2));
    epoch.set_release(even);
}

/// Target: kills the exposure by counting up its `kills` word. `None`: no access is under way or will come.
/// `Some(span)`: one may be, until [`is_over`] says otherwise.
#[inline]
pub(super) fn kill<K: Word<Value = u32>, E: Word<Value = u64>>(
    kills: &K,
    count: u32,
    epoch: &E,
) -> Option<u64> {
    kills.set(count);
    K::fence();
    let span = epoch.get_acquire();
    (span % 2 == 1).then_some(span)
}

/// Target: whether the span that [`kill`] met has ended. A later span has seen the kill.
#[inline]
pub(super) fn is_over<W: Word<Value = u64>>(epoch: &W, span: u64) -> bool {
    epoch.get_acquire() != span
}

/// What the sleep behind the sleep `number` is called: never 0, which means awake.
#[inline]
pub(super) const fn next_sleep(number: u32) -> u32 {
    if number == u32::MAX { 1 } else { number + 1 }
}

/// Sleeper: says that it goes to sleep, and what this sleep is called: another [`next_sleep`] each time. It must look at
/// every ring once more ([`observe`]) before it does.
#[inline]
pub(super) fn sleep_announce<W: Word<Value = u32>>(sleeping: &W, number: u32) {
    debug_assert!(number != 0);
    sleeping.set(number);
}

/// Producer, after [`publish`]: the sleep that the peer must be woken from, unless that was done since this sleep began.
/// Pairs with [`sleep_announce`] and a fence.
#[inline]
pub(super) fn asleep<W: Word<Value = u32>>(sleeping: &W) -> Option<u32> {
    W::fence();
    match sleeping.get() {
        0 => None,
        number => Some(number),
    }
}

/// Peer of an idle connection: rings its bell, then the marks that lead to it, from the last one up.
///
/// Several peers put the same marks. Each by an exchange: the one that takes a mark that two have put sees the bells of both. A
/// plain store would hide the bell of the one that it overwrites.
#[inline]
pub(super) fn mark<W: Word<Value = u8>>(bell: &W, group: &W, any: &W) {
    bell.set_release(1);
    group.put();
    any.put();
}

/// Owner: takes a mark back before it looks at what the mark stands for, so that what is rung later is marked anew. `false`: there
/// was none. Pairs with [`mark`].
#[inline]
pub(super) fn take_mark<W: Word<Value = u8>>(mark: &W) -> bool {
    mark.get() != 0 && mark.take() != 0
}

#[cfg(all(test, loom))]
mod loom_tests {
    //! Run with `RUSTFLAGS="--cfg loom" cargo test -p stag-fabric --lib --release loom`, as ci/loom.sh does.

    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
    use loom::thread;

    use super::*;

    macro_rules! word {
        ($atomic:ty, $value:ty) => {
            impl Word for $atomic {
                type Value = $value;
                fn get(&self) -> $value {
                    <$atomic>::load(self, Ordering::Relaxed)
                }
                fn get_acquire(&self) -> $value {
                    let value = <$atomic>::load(self, Ordering::Relaxed);
                    fence(Ordering::Acquire);
                    value
                }
                fn set(&self, value: $value) {
                    <$atomic>::store(self, value, Ordering::Relaxed);
                }
                fn set_release(&self, value: $value) {
                    <$atomic>::store(self, value, Ordering::Release);
                }
                fn take(&self) -> $value {
                    <$atomic>::swap(self, 0, Ordering::AcqRel)
                }
                fn put(&self) {
                    <$atomic>::swap(self, 1, Ordering::AcqRel);
                }
                fn fence_acquire() {
                    fence(Ordering::Acquire);
                }
                fn fence() {
                    fence(Ordering::SeqCst);
                }
            }
        };
    }

    word!(AtomicU8, u8);
    word!(AtomicU32, u32);
    word!(AtomicU64, u64);

    /// Two peers ring their bells while the owner collects: both are heard, by this look or by the one that the marks ask for.
    #[test]
    fn no_bell_is_lost() {
        loom::model(|| {
            let new = || Arc::new(AtomicU8::new(0));
            let (any, group, bells) = (new(), new(), [new(), new()]);
            let peers: Vec<_> = bells
                .iter()
                .map(|bell| {
                    let (bell, group, any) = (Arc::clone(bell), Arc::clone(&group), Arc::clone(&any));
                    thread::spawn(move || mark(&*bell, &*group, &*any))
                })
                .collect();
            let mut heard = [false; 2];
            let mut look = || {
                if take_mark(&*any) && take_mark(&*group) {
                    for (heard, bell) in heard.iter_mut().zip(&bells) {
                        *heard |= bell.get() != 0;
                    }
                }
            };
            look();
            peers.into_iter().for_each(|peer| peer.join().unwrap());
            look();
            assert_eq!(heard, [true; 2]);
        });
    }

    /// Exposed memory is used again as soon as its fence is done: the initiator must not write to it then.
    #[test]
    fn no_access_after_a_fence() {
        loom::model(|| {
            let kills = Arc::new(AtomicU32::new(0));
            let epoch = Arc::new(AtomicU64::new(0));
            // loom's cell finds two sides that touch it at once, or without an order between them.
            let memory = Arc::new(loom::cell::UnsafeCell::new(0u32));

            let initiator = {
                let (kills, epoch, memory) = (kills.clone(), epoch.clone(), memory.clone());
                thread::spawn(move || {
                    // One span with two accesses, as two Writes behind one doorbell are.
                    access_begin(&*epoch, 1);
                    for _ in 0..2 {
                        if !is_dead(&*kills, 0) {
                            // SAFETY: loom fails the test when the target touches it meanwhile.
                            memory.with_mut(|m| unsafe { *m += 1 });
                        }
                    }
                    access_end(&*epoch, 2);
                })
            };

            if let Some(span) = kill(&*kills, 1, &*epoch) {
                while !is_over(&*epoch, span) {
                    thread::yield_now();
                }
            }
            // SAFETY: the fence is done; loom fails the test when the initiator still touches it.
            memory.with_mut(|m| unsafe { *m += 10 });
            initiator.join().unwrap();
        });
    }

    /// Memory that is exposed to be read is used again right after its kill: an initiator that copied the new contents notices,
    /// and discards them.
    #[test]
    fn a_read_of_memory_that_was_used_again_is_found_out() {
        loom::model(|| {
            let kills = Arc::new(AtomicU32::new(0));
            let epoch = Arc::new(AtomicU64::new(0));
            let memory = Arc::new(AtomicU32::new(7));
            let initiator = {
                let (kills, epoch, memory) = (kills.clone(), epoch.clone(), memory.clone());
                thread::spawn(move || {
                    access_begin(&*epoch, 1);
                    if !is_dead(&*kills, 0) {
                        let copied = memory.load(Ordering::Relaxed);
                        assert!(copied == 7 || was_killed(&*kills, 0));
                    }
                    access_end(&*epoch, 2);
                })
            };
            kill(&*kills, 1, &*epoch);
            memory.store(8, Ordering::Relaxed);
            initiator.join().unwrap();
        });
    }

    /// A span that starts after the kill sees it, even when the target waits for the span before it.
    #[test]
    fn a_later_span_sees_the_kill() {
        loom::model(|| {
            let kills = Arc::new(AtomicU32::new(0));
            let epoch = Arc::new(AtomicU64::new(0));
            let memory = Arc::new(loom::cell::UnsafeCell::new(0u32));
            let initiator = {
                let (kills, epoch, memory) = (kills.clone(), epoch.clone(), memory.clone());
                thread::spawn(move || {
                    for span in [1, 3] {
                        access_begin(&*epoch, span);
                        if !is_dead(&*kills, 0) {
                            // SAFETY: as above.
                            memory.with_mut(|m| unsafe { *m += 1 });
                        }
                        access_end(&*epoch, span + 1);
                    }
                })
            };
            if let Some(span) = kill(&*kills, 1, &*epoch) {
                while !is_over(&*epoch, span) {
                    thread::yield_now();
                }
            }
            // SAFETY: as above.
            memory.with_mut(|m| unsafe { *m += 10 });
            initiator.join().unwrap();
        });
    }

    /// A producer that finds the sleeper awake has been seen by the sleeper's last look.
    #[test]
    fn no_lost_wake() {
        loom::model(|| {
            let ring = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
            let sleeping = Arc::new(AtomicU32::new(0));
            let woken = Arc::new(AtomicU32::new(0));
            let producer = {
                let (ring, sleeping, woken) = (ring.clone(), sleeping.clone(), woken.clone());
                thread::spawn(move || {
                    clear(&ring[1]);
                    publish(&ring[0], 7);
                    if let Some(sleep) = asleep(&*sleeping) {
                        woken.store(sleep, Ordering::Relaxed);
                    }
                })
            };
            sleep_announce(&*sleeping, 1);
            AtomicU32::fence();
            let seen = observe(&ring[0]);
            producer.join().unwrap();
            assert!(seen == 7 || woken.load(Ordering::Relaxed) == 1, "asleep with work in the ring");
        });
    }

    /// One wake-up for each sleep is enough: that the first sleep was ended does not hide the second.
    #[test]
    fn no_lost_wake_in_a_second_sleep() {
        loom::model(|| {
            let ring = Arc::new([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)]);
            let sleeping = Arc::new(AtomicU32::new(1));
            let producer = {
                let (ring, sleeping) = (ring.clone(), sleeping.clone());
                thread::spawn(move || {
                    let mut woken = 0;
                    for batch in 0..2 {
                        clear(&ring[batch + 1]);
                        publish(&ring[batch], 7);
                        if let Some(sleep) = asleep(&*sleeping)
                            && sleep != woken
                        {
                            woken = sleep;
                        }
                    }
                    woken
                })
            };
            // Something else ended the first sleep. What the first batch brings does not matter here.
            sleeping.set(0);
            sleep_announce(&*sleeping, next_sleep(1));
            AtomicU32::fence();
            let seen = observe(&ring[1]);
            let woken = producer.join().unwrap();
            assert!(seen == 7 || woken == 2, "asleep with work in the ring");
        });
    }

    /// A consumer follows a ring of three lines of two words, and meets neither stale nor torn batches. Lines are cleared
    /// one ahead, behind a doorbell.
    #[test]
    fn batches_arrive_whole_and_in_order() {
        loom::model(|| {
            // {header, payload} of each line. What a former lap left in the third: nonsense that must never be taken.
            let ring = Arc::new([0, 99, 0, 97, 96, 95].map(AtomicU64::new));
            let head = Arc::new(AtomicU64::new(0));
            let producer = {
                let (ring, head) = (ring.clone(), head.clone());
                thread::spawn(move || {
                    for batch in 0..3usize {
                        let at = batch % 3 * 2;
                        Word::set(&ring[at + 1], batch as u64 + 10);
                        publish(&ring[at], batch as u64 + 1);
                        if batch == 2 {
                            break;
                        }
                        // The line is free when the batch that was there a lap ago has been read.
                        while Word::get_acquire(&*head) < batch as u64 {
                            thread::yield_now();
                        }
                        clear(&ring[(batch + 2) % 3 * 2]);
                    }
                })
            };
            for batch in 0..3usize {
                let at = batch % 3 * 2;
                let header = loop {
                    match observe(&ring[at]) {
                        0 => thread::yield_now(),
                        header => break header,
                    }
                };
                assert_eq!(header, batch as u64 + 1);
                assert_eq!(Word::get(&ring[at + 1]), batch as u64 + 10);
                head.set_release(batch as u64 + 1);
            }
            producer.join().unwrap();
            assert_eq!(observe(&ring[0]), 0, "a batch of the lap before");
        });
    }
}
