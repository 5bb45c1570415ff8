//! Buffers that other threads fill and read: [`SendBuf`], and [`SendHome`] on the thread of their pool.
//!
//! ```text
//!   reactor                                 any thread
//!   SendHome::send(Buf) ── SendBuf ───────▶ writes its bytes
//!   SendBuf::into_buf  ◀── SendBuf ────────┘      │ dropped
//!   SendHome::collect  ◀── list of the strays ◀───┘
//! ```
//!
//! Counts of a pool are plain numbers of its reactor. So no other thread touches them: a [`SendBuf`] that is dropped elsewhere goes
//! to a list, and the reactor gives its units back.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use crate::buf::Buf;

/// A [`Buf`] that any thread may fill and read: it goes from the thread of its pool to others, and back, without a copy.
///
/// Dropped on another thread, its units go back to the pool with the next [`SendHome::collect`]. Dropped there after its
/// [`SendHome`] is gone, its units stay in use for ever.
pub struct SendBuf {
    // Invariants:
    // - It is the buffer's only owner.
    // - `home` is of the thread that the buffer's pool belongs to.
    // - `capacity` is the buffer's.
    buf: ManuallyDrop<Buf>,
    capacity: usize,
    home: Arc<Home>,
}

/// What is known everywhere of the thread of a pool.
struct Home {
    thread: ThreadId,
    /// Whether there may be strays. Relaxed: it is advice, the lock orders the rest.
    has_strays: AtomicBool,
    /// Buffers that were dropped elsewhere. `None`: no one will collect them.
    strays: Mutex<Option<Vec<Stray>>>,
}

/// A buffer that is nothing but carried home.
struct Stray {
    _buf: Buf,
}

// SAFETY: a `Stray` is only made where a `SendBuf` is dropped, and only moved until `SendHome` drops it on the thread of its pool.
unsafe impl Send for Stray {}

// SAFETY: other threads than the pool's use only `pointer` and `len` of the buffer, and its bytes, which are its own alone. Of the
// pool they touch nothing: `into_buf` and `drop` compare the thread first.
unsafe impl Send for SendBuf {}
// SAFETY: by reference only `pointer`, `len` and the bytes are read.
unsafe impl Sync for SendBuf {}

impl Home {
    fn strays(&self) -> MutexGuard<'_, Option<Vec<Stray>>> {
        // Nothing panics while it is locked.
        self.strays.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes [`SendBuf`]s of the buffers of its thread, and takes back those that other threads dropped.
pub struct SendHome {
    home: Arc<Home>,
    /// It belongs to one thread.
    _not_send: PhantomData<*const ()>,
}

impl Default for SendHome {
    fn default() -> SendHome {
        SendHome::new()
    }
}

impl SendHome {
    /// That of the calling thread.
    #[must_use]
    pub fn new() -> SendHome {
        let home = Home {
            thread: thread::current().id(),
            has_strays: AtomicBool::new(false),
            strays: Mutex::new(Some(Vec::new())),
        };
        SendHome { home: Arc::new(home), _not_send: PhantomData }
    }

    /// Makes `buf` fit to be sent to other threads.
    #[must_use]
    pub fn send(&self, buf: Buf) -> SendBuf {
        // `Buf` and `SendHome` cannot leave their threads, so both are of this one.
        SendBuf { capacity: buf.capacity(), buf: ManuallyDrop::new(buf), home: self.home.clone() }
    }

    /// Gives the units of buffers back that other threads have dropped. Cheap when there are none.
    #[inline]
    pub fn collect(&self) {
        if self.home.has_strays.load(Ordering::Relaxed) {
            self.home.has_strays.store(false, Ordering::Relaxed);
            let strays = self.home.strays().as_mut().map(std::mem::take);
            drop(strays);
        }
    }
}

impl Drop for SendHome {
    fn drop(&mut self) {
        let strays = self.home.strays().take();
        drop(strays);
    }
}

impl SendBuf {
    /// Bytes in use.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.buf.len()
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that there is room for.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Says how many bytes are in use. What is gained holds whatever was there.
    ///
    /// # Panics
    ///
    /// If `len` is more than [`SendBuf::capacity`], or than 4 GiB - 1.
    pub fn set_len(&mut self, len: usize) {
        let limit = self.capacity.min(u32::MAX as usize);
        assert!(len <= limit, "{len} bytes in a buffer of {limit}");
        self.buf.set_len_within(len as u32);
    }

    /// Whether `home` made it.
    #[must_use]
    pub fn is_of(&self, home: &SendHome) -> bool {
        Arc::ptr_eq(&self.home, &home.home)
    }

    /// The buffer, on the thread of its pool.
    ///
    /// # Errors
    ///
    /// Itself, on any other thread.
    pub fn into_buf(self) -> Result<Buf, SendBuf> {
        if thread::current().id() != self.home.thread {
            return Err(self);
        }
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so neither field is used again. The buffer is on the thread of its pool.
        unsafe {
            let buf = ManuallyDrop::take(&mut this.buf);
            std::ptr::drop_in_place(&raw mut this.home);
            Ok(buf)
        }
    }
}

impl Deref for SendBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.buf
    }
}

impl DerefMut for SendBuf {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buf
    }
}

impl AsRef<[u8]> for SendBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for SendBuf {
    fn drop(&mut self) {
        // SAFETY: this is the end of `self`: the field is not used again.
        let buf = unsafe { ManuallyDrop::take(&mut self.buf) };
        if thread::current().id() == self.home.thread {
            return drop(buf);
        }
        let stray = Stray { _buf: buf };
        match &mut *self.home.strays() {
            Some(strays) => strays.push(stray),
            // The pool's thread has ended, or will not look again. The memory stays mapped: the buffer counts as in use.
            None => return std::mem::forget(stray),
        }
        self.home.has_strays.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for SendBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendBuf")
            .field("len", &self.len())
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SendHome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendHome").field("thread", &self.home.thread).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Arena, ArenaConfig, Budget, PageChoice, Pool};

    fn pool() -> Pool {
        let budget = Budget::new(1 << 20);
        let page = PageChoice::Auto;
        let config = ArenaConfig { name: "abroad", len: 1 << 16, page, node: None, budget: &budget };
        let arena = Arena::on_demand(&config).expect("64 KiB");
        Pool::runs(&arena, "pages", 4096, 4).expect("it fits")
    }

    fn taken(pool: &Pool, len: usize) -> Buf {
        let mut buf = pool.take_len(len).expect("it is free");
        buf.set_len(len);
        buf
    }

    #[test]
    fn another_thread_fills_it_and_it_comes_back_without_a_copy() {
        let (pool, home) = (pool(), SendHome::new());
        let buf = taken(&pool, 5000);
        let place = buf.as_ptr() as usize;
        let mut sent = home.send(buf);
        let sent = thread::spawn(move || {
            sent.fill(7);
            sent.set_len(4999);
            assert_eq!((sent.len(), sent.capacity()), (4999, 8192));
            sent.into_buf().expect_err("it is not this thread's")
        });
        let buf = sent.join().expect("no panic").into_buf().expect("it is ours");
        assert_eq!((buf.as_ptr() as usize, buf.len()), (place, 4999));
        assert!(buf.iter().all(|octet| *octet == 7));
        drop(buf);
        assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn what_another_thread_drops_is_collected() {
        let (pool, home) = (pool(), SendHome::new());
        let sent = [home.send(taken(&pool, 1)), home.send(taken(&pool, 9000))];
        thread::spawn(move || drop(sent)).join().expect("no panic");
        assert_eq!(pool.outstanding(), 4);
        home.collect();
        assert_eq!(pool.outstanding(), 0);
        drop(home.send(taken(&pool, 1)));
        assert_eq!(pool.outstanding(), 0, "at home at once");
    }

    #[test]
    fn the_end_of_a_home_collects_and_what_comes_later_stays_in_use() {
        let (pool, home) = (pool(), SendHome::new());
        let [early, late] = [home.send(taken(&pool, 1)), home.send(taken(&pool, 1))];
        thread::spawn(move || drop(early)).join().expect("no panic");
        drop(home);
        assert_eq!(pool.outstanding(), 1);
        thread::spawn(move || drop(late)).join().expect("no panic");
        assert_eq!(pool.outstanding(), 1);
    }

    #[test]
    #[should_panic(expected = "8193 bytes in a buffer of 8192")]
    fn it_is_not_longer_than_its_units() {
        let (pool, home) = (pool(), SendHome::new());
        home.send(taken(&pool, 5000)).set_len(8193);
    }
}
