//! One large piece of registered memory, from which pools are cut.

use std::any::Any;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
#[cfg(not(miri))]
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use stag_hugepages::{MapError, PageChoice, PageSize};

use crate::budget::{Budget, BudgetError};

/// Names an arena; unique in this process, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ArenaId(pub u32);

/// What arena to make.
#[derive(Clone, Copy, Debug)]
pub struct ArenaConfig<'a> {
    /// For humans: shown in `/proc/PID/maps` and in errors.
    pub name: &'a str,
    /// Bytes wanted; rounded up to whole pages.
    pub len: usize,
    /// The pages to begin with; it steps down if the machine has none, see [`Arena::notes`].
    pub page: PageChoice,
    /// The NUMA node of the reactor that will use it.
    pub node: Option<u32>,
    /// What the memory is taken from, and given back to when the arena goes.
    pub budget: &'a Budget,
}

impl<'a> ArenaConfig<'a> {
    /// An arena of `len` bytes on the largest pages that the machine has, on any NUMA node.
    #[must_use]
    pub fn new(name: &'a str, len: usize, budget: &'a Budget) -> ArenaConfig<'a> {
        ArenaConfig { name, len, page: PageChoice::Auto, node: None, budget }
    }
}

/// Why there is no arena.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// It does not fit the budget.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// The system did not give the memory.
    #[error(transparent)]
    Map(#[from] MapError),
    /// More than any machine has.
    #[error("arena {name:?}: {wanted} bytes wanted, the limit is {limit}; ask for less")]
    TooLarge {
        /// Which.
        name: String,
        /// Bytes wanted.
        wanted: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// Foreign memory that is not whole pages.
    #[error(
        "arena {name:?}: its memory begins at {address:#x} and has {len} bytes; both have to be multiples of 4096, and not 0"
    )]
    NotPages {
        /// Which.
        name: String,
        /// Where it begins.
        address: usize,
        /// Its bytes.
        len: usize,
    },
}

/// A sealed memfd, mapped, zeroed and (but for [`Arena::on_demand`]) pre-faulted; of one size for as long as it lives. Clones name the same
/// memory; it is unmapped, and given back to the budget, after the last of them and of the pools cut from it.
///
/// [`Arena::adopt`] and [`Arena::foreign`] make one of memory that the program has already: it is not zeroed, and counts for no budget.
///
/// May be shared between threads: it only hands out addresses and, once each, sub-ranges.
#[derive(Clone)]
pub struct Arena(Arc<Inner>);

struct Inner {
    id: ArenaId,
    name: String,
    base: Base,
    len: usize,
    backing: Backing,
    /// First byte that no pool has yet.
    next: AtomicUsize,
    // Declared after `backing`, so that the budget gets the bytes back when they are really free.
    _taken: Option<Taken>,
}

/// Where an arena begins.
struct Base(NonNull<u8>);

// SAFETY: an address alone. Who may touch what it points to is said where it is handed out (`Arena::base`); all that an arena stands on
// is valid from any thread.
unsafe impl Send for Base {}
// SAFETY: as above.
unsafe impl Sync for Base {}

/// What an arena stands on.
enum Backing {
    /// A descriptor that is mapped.
    Mapped(Memory),
    /// Memory that somebody else keeps as long as this lives.
    Foreign { _owner: Box<dyn Any + Send + Sync> },
}

impl Arena {
    /// The largest arena, in bytes.
    pub const LEN_MAX: usize = 1 << 46;

    /// Maps an arena. Takes seconds for many GiB: every page is touched here, so that none faults later.
    pub fn new(config: &ArenaConfig<'_>) -> Result<Arena, ArenaError> {
        Arena::of(config, Memory::new)
    }

    /// As [`Arena::new`], but ordinary pages are not touched: they come with [`Arena::populate`], or each with its first use, so
    /// that memory for clients who are not there takes none. For fabrics that pin nothing; a device that registers the
    /// arena brings all of its pages.
    pub fn growing(config: &ArenaConfig<'_>) -> Result<Arena, ArenaError> {
        Arena::of(config, Memory::growing)
    }

    /// As [`Arena::new`], of ordinary pages on any node, each of which comes when it is first touched: for memory that no device
    /// reads, as that of simulations and tests, of which most is never used.
    pub fn on_demand(config: &ArenaConfig<'_>) -> Result<Arena, ArenaError> {
        Arena::of(config, Memory::on_demand)
    }

    /// Makes an arena of a descriptor that the program has: a memfd of exactly `len` bytes, whole pages, with the seals `F_SEAL_GROW`
    /// and `F_SEAL_SHRINK`. It is mapped once more, and its pages are touched; what is in them stays.
    ///
    /// Every fabric can register it. **Over shared memory, peers may read and write all of it.** As long as a buffer of one of its pools
    /// exists, the program keeps the rules of the crate for those bytes through its own mapping, too: it writes none that is held
    /// as a [`Shared`](crate::Shared), and touches none that is held as a [`Buf`](crate::Buf).
    ///
    /// # Errors
    ///
    /// When the descriptor is not such memory, or cannot be mapped.
    #[cfg(not(miri))]
    pub fn adopt(name: &str, memory: OwnedFd, len: usize) -> Result<Arena, ArenaError> {
        if len > Arena::LEN_MAX {
            return Err(ArenaError::TooLarge { name: name.to_owned(), wanted: len, limit: Arena::LEN_MAX });
        }
        let memory =
            Memory::attach(memory, len).map_err(|error| MapError { name: name.to_owned(), ..error })?;
        let (base, len) = (memory.base(), memory.len());
        Ok(Arena::with(name, (base, len), Backing::Mapped(memory), None))
    }

    /// Makes an arena of memory that the program has at an address: `len` bytes from `base` on, whole pages of 4096 bytes. `owner` is
    /// dropped when no arena and no buffer of it is left. What is in the memory stays.
    ///
    /// A fabric that passes descriptors (shared memory) cannot register it: see [`Arena::adopt`].
    ///
    /// # Errors
    ///
    /// When it is not whole pages, or is longer than an arena may be.
    ///
    /// # Safety
    ///
    /// Until `owner` is dropped:
    ///
    /// - the bytes are initialised, and valid for reads and writes from any thread, at this address;
    /// - the program makes no reference into bytes that a pool of the arena has, and touches them by pointers only so: it writes none
    ///   that is held as a [`Shared`](crate::Shared), and neither reads nor writes any that is held as a [`Buf`](crate::Buf);
    /// - no other arena has any of these bytes.
    pub unsafe fn foreign(
        name: &str,
        base: NonNull<u8>,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Arena, ArenaError> {
        let page = PageSize::Base.bytes();
        let address = base.addr().get();
        if len == 0 || !len.is_multiple_of(page) || !address.is_multiple_of(page) {
            return Err(ArenaError::NotPages { name: name.to_owned(), address, len });
        }
        if len > Arena::LEN_MAX {
            return Err(ArenaError::TooLarge { name: name.to_owned(), wanted: len, limit: Arena::LEN_MAX });
        }
        Ok(Arena::with(name, (base, len), Backing::Foreign { _owner: owner }, None))
    }

    fn with(name: &str, (base, len): (NonNull<u8>, usize), backing: Backing, taken: Option<Taken>) -> Arena {
        // Partner of nothing: only uniqueness matters.
        static NEXT_ID: AtomicU32 = AtomicU32::new(1);

        let id = ArenaId(NEXT_ID.fetch_add(1, Ordering::Relaxed));
        assert!(id.0 != 0, "4 billion arenas were made");
        Arena(Arc::new(Inner {
            id,
            name: name.to_owned(),
            base: Base(base),
            len,
            backing,
            next: AtomicUsize::new(0),
            _taken: taken,
        }))
    }

    fn of(
        config: &ArenaConfig<'_>,
        map: impl FnOnce(&ArenaConfig<'_>) -> Result<Memory, MapError>,
    ) -> Result<Arena, ArenaError> {
        if config.len > Arena::LEN_MAX {
            let name = config.name.to_owned();
            return Err(ArenaError::TooLarge { name, wanted: config.len, limit: Arena::LEN_MAX });
        }
        // Taken before it is mapped, so that two arenas at once cannot both pin what only one may.
        let wanted = config.len as u64;
        let mut taken = Taken { budget: config.budget.clone(), bytes: 0 };
        taken.take(config.name, wanted)?;
        let memory = map(config)?;
        // Rounding up to whole pages is paid for too.
        let rounding = format!("rounding {} up to {}", config.name, memory.page_size());
        taken.take(&rounding, memory.len() as u64 - wanted)?;

        let place = (memory.base(), memory.len());
        let arena = Arena::with(config.name, place, Backing::Mapped(memory), Some(taken));
        arena.log_notes();
        Ok(arena)
    }

    /// Logs how the pages differ from those that were asked for: at INFO once in the process, since the next arena has the same reasons.
    fn log_notes(&self) {
        static IS_SAID: AtomicBool = AtomicBool::new(false);
        let arena = self.name();
        // Relaxed: it guards nothing.
        let is_said = self.notes().is_empty() || IS_SAID.swap(true, Ordering::Relaxed);
        for note in self.notes() {
            if is_said {
                tracing::debug!(arena, "{note}");
            } else {
                tracing::info!(arena, "{note}");
            }
        }
    }

    /// Its name within this process.
    #[inline]
    #[must_use]
    pub fn id(&self) -> ArenaId {
        self.0.id
    }

    /// Its name for humans.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Bytes mapped: what was asked for, rounded up to whole pages.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an arena is never empty")]
    pub fn len(&self) -> usize {
        self.0.len
    }

    /// What it stands on. Of foreign memory that is not known: [`PageSize::Base`].
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        match &self.0.backing {
            Backing::Mapped(memory) => memory.page_size(),
            Backing::Foreign { .. } => PageSize::Base,
        }
    }

    /// The sealed memfd, for a peer process to map or a device to register. `None`: it is foreign memory, of which only the address is
    /// known.
    #[must_use]
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.0.backing {
            Backing::Mapped(memory) => Some(memory.fd()),
            Backing::Foreign { .. } => None,
        }
    }

    /// The first byte; valid for reads and writes of [`Arena::len`] bytes while the arena lives.
    ///
    /// For providers: to register the memory, and to reach what they [reserved](Arena::reserve). What belongs
    /// to a pool is reached through its buffers only.
    #[inline]
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.0.base.0
    }

    /// What it stepped down from and why, and what else is less than asked for: sentences for the log.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        match &self.0.backing {
            Backing::Mapped(memory) => memory.notes(),
            Backing::Foreign { .. } => &[],
        }
    }

    /// Gives the next `len` bytes whose offset is a multiple of `align` (a power of two, at most the page size)
    /// to the caller for good. They are zero, but for memory that the program had, and are never given out again. `None` if that much is
    /// not left.
    #[must_use]
    pub fn reserve(&self, len: usize, align: usize) -> Option<Range<usize>> {
        if !align.is_power_of_two() || align > self.page_size().bytes() {
            return None;
        }
        let mut range = 0..0;
        // Relaxed: a range is handed to one caller and guards no other memory.
        self.0
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| {
                let start = next.checked_next_multiple_of(align)?;
                let end = start.checked_add(len)?;
                range = start..end;
                (end <= self.len()).then_some(end)
            })
            .ok()?;
        Some(range)
    }

    /// Makes the pages of `range` (bytes from the start) exist, from any thread: what is in them stays. Of use with
    /// [`Arena::growing`]. Waits for the system, which takes and clears pages.
    ///
    /// # Errors
    ///
    /// The system has no memory left for them.
    ///
    /// # Panics
    ///
    /// If the range is not within the arena.
    pub fn populate(&self, range: Range<usize>) -> io::Result<()> {
        assert!(range.end <= self.len(), "the range ends within the arena");
        match &self.0.backing {
            Backing::Mapped(memory) => memory.populate(range),
            Backing::Foreign { .. } => Ok(()),
        }
    }

    /// Bytes that are not reserved.
    #[must_use]
    pub fn left(&self) -> usize {
        self.len() - self.0.next.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("id", &self.0.id.0)
            .field("name", &self.0.name)
            .field("len", &self.len())
            .field("page_size", &self.page_size())
            .field("left", &self.left())
            .finish()
    }
}

/// What the arena owes to the budget; given back when dropped.
struct Taken {
    budget: Budget,
    bytes: u64,
}

impl Taken {
    fn take(&mut self, what: &str, bytes: u64) -> Result<(), BudgetError> {
        self.budget.take(what, bytes)?;
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.budget.give(self.bytes);
    }
}

#[cfg(miri)]
use heap::Memory;
#[cfg(not(miri))]
use mapped::Memory;

#[cfg(not(miri))]
mod mapped {
    use std::os::fd::AsFd;

    use stag_hugepages::{MapConfig, Mapping};

    use super::*;

    /// The arena's memory: a mapping.
    pub(super) struct Memory(Mapping);

    impl Memory {
        pub(super) fn new(config: &ArenaConfig<'_>) -> Result<Memory, MapError> {
            let ArenaConfig { name, len, page, node, .. } = *config;
            Mapping::new(&MapConfig { name, len, page, node }).map(Memory)
        }

        pub(super) fn growing(config: &ArenaConfig<'_>) -> Result<Memory, MapError> {
            let ArenaConfig { name, len, page, node, .. } = *config;
            Mapping::growing(&MapConfig { name, len, page, node }).map(Memory)
        }

        pub(super) fn populate(&self, range: Range<usize>) -> io::Result<()> {
            self.0.populate(range)
        }

        pub(super) fn attach(fd: OwnedFd, len: usize) -> Result<Memory, MapError> {
            Mapping::attach(fd, len).map(Memory)
        }

        pub(super) fn on_demand(config: &ArenaConfig<'_>) -> Result<Memory, MapError> {
            Mapping::on_demand(config.name, config.len).map(Memory)
        }

        #[inline]
        pub(super) fn base(&self) -> NonNull<u8> {
            self.0.base()
        }

        #[inline]
        pub(super) fn len(&self) -> usize {
            self.0.len()
        }

        pub(super) fn page_size(&self) -> PageSize {
            self.0.page_size()
        }

        pub(super) fn fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }

        pub(super) fn notes(&self) -> &[String] {
            self.0.notes()
        }
    }
}

#[cfg(miri)]
mod heap {
    use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

    use super::*;

    /// The arena's memory under miri, which knows no memfd: the heap.
    pub(super) struct Memory {
        base: NonNull<u8>,
        layout: Layout,
    }

    // SAFETY: plain memory, valid from any thread, which `Memory` itself never reads or writes.
    unsafe impl Send for Memory {}
    // SAFETY: as above.
    unsafe impl Sync for Memory {}

    impl Memory {
        pub(super) fn new(config: &ArenaConfig<'_>) -> Result<Memory, MapError> {
            let page = PageSize::Base.bytes();
            let layout = Layout::from_size_align(config.len.max(1).next_multiple_of(page), page)
                .expect("at most LEN_MAX bytes");
            // SAFETY: the layout's size is not zero.
            let base = unsafe { alloc_zeroed(layout) };
            let base = NonNull::new(base).unwrap_or_else(|| handle_alloc_error(layout));
            Ok(Memory { base, layout })
        }

        pub(super) fn growing(config: &ArenaConfig<'_>) -> Result<Memory, MapError> {
            Memory::new(config)
        }

        pub(super) fn populate(&self, _: Range<usize>) -> io::Result<()> {
            Ok(())
        }

        pub(super) fn on_demand(config: &ArenaConfig<'_>) -> Result<Memory, MapError> {
            Memory::new(config)
        }

        pub(super) fn base(&self) -> NonNull<u8> {
            self.base
        }

        pub(super) fn len(&self) -> usize {
            self.layout.size()
        }

        pub(super) fn page_size(&self) -> PageSize {
            PageSize::Base
        }

        pub(super) fn fd(&self) -> BorrowedFd<'_> {
            unreachable!("miri has no memfd, and nothing that miri runs may ask for one")
        }

        pub(super) fn notes(&self) -> &[String] {
            &[]
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            // SAFETY: allocated in `new` with this layout, and not freed since.
            unsafe { dealloc(self.base.as_ptr(), self.layout) };
        }
    }
}
