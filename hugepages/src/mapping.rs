//! Sealed shared memory, mapped, bound and pre-faulted: the largest pages that the machine gives.

use std::ffi::{CStr, CString};
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::ptr::NonNull;

use rustix::fs::SealFlags;

use crate::bytes::Bytes;
use crate::inventory::{Inventory, Transparent};
use crate::kernel::{self, Region};
use crate::page::{PageChoice, PageSize};

/// Neither longer nor shorter: a process that maps all of it never faults beyond its end.
const SEALS: SealFlags = SealFlags::GROW.union(SealFlags::SHRINK);

/// What to map.
#[derive(Clone, Copy, Debug)]
pub struct MapConfig<'a> {
    /// Shown in `/proc/PID/maps` as `/memfd:NAME`. At most 249 bytes.
    pub name: &'a str,
    /// Bytes wanted; rounded up to whole pages.
    pub len: usize,
    /// The pages to begin with.
    pub page: PageChoice,
    /// The NUMA node to bind to.
    pub node: Option<u32>,
}

impl<'a> MapConfig<'a> {
    /// A mapping of `len` bytes on the largest pages that the machine has, on any NUMA node.
    #[must_use]
    pub fn new(name: &'a str, len: usize) -> MapConfig<'a> {
        MapConfig { name, len, page: PageChoice::Auto, node: None }
    }
}

/// Why nothing could be mapped.
#[derive(Debug, thiserror::Error)]
#[error("memory {name:?} of {}: {doing}: {source}", Bytes(*len as u64))]
pub struct MapError {
    /// Whose.
    pub name: String,
    /// Bytes wanted.
    pub len: usize,
    /// The step that failed.
    pub doing: &'static str,
    /// The system's answer.
    pub source: io::Error,
}

/// A sealed memfd (it can neither grow nor shrink), mapped for reading and writing, zeroed and
/// pre-faulted. Unmapped when dropped.
///
/// [`Mapping::new`] begins with the pages asked for and steps down: 1 GiB, 2 MiB, transparent, 4 KiB. What it
/// gave up, and why, is in [`Mapping::notes`].
pub struct Mapping {
    region: Region,
    page: PageSize,
    fd: OwnedFd,
    notes: Vec<String>,
}

/// When ordinary pages are touched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Touch {
    AtOnce,
    Later,
}

/// A step of mapping that failed.
struct Failed(&'static str, io::Error);

impl Mapping {
    /// Maps `config.len` bytes, on the largest pages that can be had. Fails only if not even ordinary pages
    /// can be. Touches every page, so it takes about a second for 4 GiB.
    pub fn new(config: &MapConfig<'_>) -> Result<Mapping, MapError> {
        Mapping::made(config, Touch::AtOnce)
    }

    /// As [`Mapping::new`], but ordinary pages stay untouched: each comes with [`Mapping::populate`] or when it is first used.
    /// Locked, where that is allowed, as they come.
    pub fn growing(config: &MapConfig<'_>) -> Result<Mapping, MapError> {
        Mapping::made(config, Touch::Later)
    }

    fn made(config: &MapConfig<'_>, touch: Touch) -> Result<Mapping, MapError> {
        let fail =
            |Failed(doing, source)| MapError { name: config.name.into(), len: config.len, doing, source };
        let name = CString::new(config.name)
            .map_err(|error| fail(Failed("its name has a zero byte", io::Error::other(error))))?;
        if config.len > isize::MAX as usize / 2 {
            return Err(fail(Failed("its length", io::ErrorKind::InvalidInput.into())));
        }
        let inventory = Inventory::read(Path::new("/"));
        let mut notes = Vec::new();
        for page in candidates(config.page, config.len) {
            if page == PageSize::Transparent
                && let Some(why) = cannot_be_transparent(&inventory.transparent, config.len)
            {
                notes.push(format!("{page}: {why}; using smaller ones"));
                continue;
            }
            let mut own_notes = Vec::new();
            match Mapping::on(page, touch, &name, config, &inventory, &mut own_notes) {
                Ok(mut mapping) => {
                    notes.append(&mut own_notes);
                    mapping.notes = notes;
                    return Ok(mapping);
                }
                Err(failed) if page == PageSize::Base => return Err(fail(failed)),
                Err(Failed(doing, error)) => {
                    let why = why_no_pages(page, config, &inventory);
                    notes.push(format!("{page}: {why} ({doing}: {error}); using smaller ones"));
                }
            }
        }
        unreachable!("ordinary pages are the last candidate, and return")
    }

    /// Maps `len` bytes of ordinary pages, each of which comes when it is first touched, and may be swapped out: for memory that
    /// no device reads, as that of simulations and tests, of which most is never used.
    pub fn on_demand(name: &str, len: usize) -> Result<Mapping, MapError> {
        let fail = |Failed(doing, source)| MapError { name: name.into(), len, doing, source };
        let step = |doing| move |error| fail(Failed(doing, error));
        let c_name = CString::new(name)
            .map_err(|error| fail(Failed("its name has a zero byte", io::Error::other(error))))?;
        if len > isize::MAX as usize / 2 {
            return Err(fail(Failed("its length", io::ErrorKind::InvalidInput.into())));
        }
        let page = PageSize::Base;
        let whole = len.max(1).next_multiple_of(page.bytes_of_len());
        let fd = kernel::memfd(&c_name, page).map_err(step("memfd_create"))?;
        kernel::set_len(fd.as_fd(), whole).map_err(step("ftruncate"))?;
        let region = Region::map(fd.as_fd(), whole, page.bytes()).map_err(step("mmap"))?;
        kernel::add_seals(fd.as_fd(), SEALS | SealFlags::SEAL).map_err(step("sealing"))?;
        Ok(Mapping { region, page, fd, notes: Vec::new() })
    }

    /// Tries one kind of page.
    fn on(
        page: PageSize,
        touch: Touch,
        name: &CStr,
        config: &MapConfig<'_>,
        inventory: &Inventory,
        notes: &mut Vec<String>,
    ) -> Result<Mapping, Failed> {
        let step = |doing| move |error| Failed(doing, error);
        let len = config.len.max(1).next_multiple_of(page.bytes_of_len());
        let fd = kernel::memfd(name, page).map_err(step("memfd_create"))?;
        kernel::set_len(fd.as_fd(), len).map_err(step("ftruncate"))?;
        let align = if page == PageSize::Transparent { page.bytes() } else { PageSize::Base.bytes() };
        let mut region = Region::map(fd.as_fd(), len, align).map_err(step("mmap"))?;
        // All policies before the first touch: that is when pages are chosen.
        if page == PageSize::Transparent {
            region.advise_huge().map_err(step("madvise(MADV_HUGEPAGE)"))?;
        }
        if let Some(node) = config.node {
            notes.extend(bind(&region, node, page, inventory));
        }
        let is_touched = page != PageSize::Base || touch == Touch::AtOnce;
        if is_touched {
            region.populate(fd.as_fd()).map_err(step("pre-faulting"))?;
        }
        kernel::add_seals(fd.as_fd(), SEALS | SealFlags::SEAL).map_err(step("sealing"))?;

        let mut got = page;
        if page == PageSize::Transparent {
            if region.huge_bytes() < len as u64 {
                // Only an attempt; what counts is what is measured next.
                let _ = region.collapse();
            }
            let huge = region.huge_bytes().min(len as u64);
            if huge == 0 {
                got = PageSize::Base;
                notes.push(format!("{page}: the kernel had none free; using {got}"));
            } else if huge < (len - len % page.bytes()) as u64 {
                notes.push(format!("{page}: {} of {}", Bytes(huge), Bytes(len as u64)));
            }
        }
        if !page.is_reserved()
            && let Err(error) = if is_touched { region.lock() } else { region.lock_on_fault() }
        {
            notes.push(not_locked(len, &error));
        }
        Ok(Mapping { region, page: got, fd, notes: Vec::new() })
    }

    /// Maps memory that another process has made with [`Mapping::new`], and pre-faults it.
    ///
    /// Refuses a descriptor whose size is not `len`, or that is not sealed: its owner could shrink it, and a
    /// touch beyond its end would kill this process.
    pub fn attach(fd: OwnedFd, len: usize) -> Result<Mapping, MapError> {
        let fail = |Failed(doing, source)| MapError { name: "of a peer".into(), len, doing, source };
        let step = |doing| move |error| fail(Failed(doing, error));
        let refuse = |doing| fail(Failed(doing, io::ErrorKind::InvalidData.into()));

        let seals = kernel::seals(fd.as_fd()).map_err(step("reading its seals"))?;
        if !seals.contains(SEALS) {
            return Err(refuse("it is not sealed against growing and shrinking"));
        }
        let (size, page_len) = kernel::size(fd.as_fd()).map_err(step("fstat"))?;
        if len == 0 || size != len as u64 {
            return Err(refuse("its size is not the one announced"));
        }
        let page = match page_len {
            len if len == PageSize::Huge1G.bytes() as u64 => PageSize::Huge1G,
            len if len == PageSize::Huge2M.bytes() as u64 => PageSize::Huge2M,
            _ => PageSize::Base,
        };
        // Aligned as its owner's is, so that large pages can be mapped as such.
        let large = !page.is_reserved() && len >= PageSize::Transparent.bytes();
        let align = if large { PageSize::Transparent } else { PageSize::Base }.bytes();
        let mut region = Region::map(fd.as_fd(), len, align).map_err(step("mmap"))?;
        region.populate(fd.as_fd()).map_err(step("pre-faulting"))?;
        let page = if large && region.huge_bytes() > 0 { PageSize::Transparent } else { page };
        Ok(Mapping { region, page, fd, notes: Vec::new() })
    }

    /// Makes the pages of `range` (bytes from the start) exist, writable. Takes about a third of a millisecond for each MiB of
    /// ordinary pages that were not there, and little for those that were.
    ///
    /// # Errors
    ///
    /// The system has no memory left for them; what is in the range and there already stays as it is.
    pub fn populate(&self, range: Range<usize>) -> io::Result<()> {
        self.region.populate_part(range.start, range.len())
    }

    /// The first byte. Valid for reads and writes of [`Mapping::len`] bytes while `self` lives.
    #[inline]
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.region.base()
    }

    /// Bytes mapped: what was asked for, rounded up to whole pages.
    #[inline]
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// What it stands on.
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        self.page
    }

    /// What it stepped down from and why, and what else is less than asked for: sentences for the log.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut mapping = f.debug_struct("Mapping");
        mapping.field("len", &self.len()).field("page", &self.page).field("notes", &self.notes).finish()
    }
}

impl AsFd for Mapping {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The kinds of pages to try, in order.
fn candidates(choice: PageChoice, len: usize) -> impl Iterator<Item = PageSize> {
    PageSize::DESCENDING.into_iter().filter(move |&page| match choice {
        PageChoice::Size(size) => page <= size,
        // Not a page so large that rounding up to it wastes more than an eighth.
        PageChoice::Auto => {
            page == PageSize::Base || len.max(1).next_multiple_of(page.bytes()) - len <= len / 8
        }
    })
}

fn cannot_be_transparent(transparent: &Transparent, len: usize) -> Option<String> {
    if len < PageSize::Transparent.bytes() {
        return Some(format!("{} is less than one", Bytes(len as u64)));
    }
    match transparent.shmem.as_deref() {
        None => Some("this kernel has none for shared memory".to_owned()),
        Some(setting @ ("never" | "deny")) => Some(format!(
            "off for shared memory ({} is {setting:?}; \"advise\" allows them)",
            Transparent::SHMEM_PATH
        )),
        Some(_) => None,
    }
}

/// Says what the machine has, after it could not give pages.
fn why_no_pages(page: PageSize, config: &MapConfig<'_>, inventory: &Inventory) -> String {
    if !page.is_reserved() {
        return "not to be had".to_owned();
    }
    let wanted = config.len.max(1).div_ceil(page.bytes());
    let len = page.bytes() as u64;
    let size = if page == PageSize::Huge1G { "1g" } else { "2m" };
    let (free, total, at, node) = match config.node.and_then(|node| inventory.node(node)) {
        Some(node) => {
            let pages = node.pages.iter().find(|pages| pages.page_len == len);
            let (free, total) = pages.map_or((0, 0), |pages| (pages.free, pages.total));
            (free, total, format!(" on NUMA node {}", node.id), format!(" --node {}", node.id))
        }
        None => match inventory.pages.iter().find(|pages| pages.page_len == len) {
            Some(pages) => {
                (pages.free.saturating_sub(pages.reserved), pages.total, String::new(), String::new())
            }
            None => return "this kernel has none of that size".to_owned(),
        },
    };
    // `setup` counts those that there are, too.
    let count = total + (wanted as u64).saturating_sub(free);
    format!(
        "{wanted} wanted, {free} free{at}; `stag hugepages setup --size {size} --count {count}{node} --apply` reserves them"
    )
}

/// Binds `region` to `node`, and says what is less than that.
fn bind(region: &Region, node: u32, page: PageSize, inventory: &Inventory) -> Option<String> {
    let len = region.len() as u64;
    let free = inventory.node(node).and_then(|node| node.memory_free);
    // A strict policy on a full node makes the kernel kill processes; reserved pages merely fail.
    let strictly = page.is_reserved() || free.is_none_or(|free| free > len);
    match region.bind(node, strictly) {
        Ok(()) if strictly => None,
        Ok(()) => Some(format!(
            "NUMA node {node}: only preferred, not bound, because {} are wanted and {} are free there",
            Bytes(len),
            Bytes(free.unwrap_or(0))
        )),
        Err(_) if !inventory.nodes.is_empty() && inventory.node(node).is_none() => {
            Some(format!("NUMA node {node}: not bound, this machine has no such node"))
        }
        Err(error) => Some(format!("NUMA node {node}: not bound: mbind: {error}")),
    }
}

fn not_locked(len: usize, error: &io::Error) -> String {
    let limit = kernel::memlock_limit();
    let why = match limit {
        Some(limit) if limit < len as u64 => {
            format!("the limit of locked memory is {} (ulimit -l, LimitMEMLOCK=)", Bytes(limit))
        }
        _ => error.to_string(),
    };
    format!("{} not locked, so that they may be swapped out under pressure: {why}", Bytes(len as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{InventoryNode, NodePages, PageCounts};

    fn config(name: &str, len: usize, page: PageChoice) -> MapConfig<'_> {
        MapConfig { name, len, page, node: None }
    }

    #[test]
    fn auto_does_not_round_up_by_much_and_a_size_begins_there() {
        let auto = |len| candidates(PageChoice::Auto, len).collect::<Vec<_>>();
        use PageSize::*;
        assert_eq!(auto(0), [Base]);
        assert_eq!(auto(1 << 20), [Base]);
        assert_eq!(auto(2 << 20), [Huge2M, Transparent, Base]);
        assert_eq!(auto((2 << 20) + 1), [Base]);
        assert_eq!(auto((64 << 20) + 1), [Huge2M, Transparent, Base]);
        assert_eq!(auto(1 << 30), PageSize::DESCENDING);
        let from = |page| candidates(PageChoice::Size(page), 1).collect::<Vec<_>>();
        assert_eq!(from(Huge1G), PageSize::DESCENDING);
        assert_eq!(from(Base), [Base]);
    }

    #[test]
    fn growing_memory_takes_only_the_pages_that_are_populated() {
        let page = PageChoice::Size(PageSize::Base);
        let mapping = Mapping::growing(&config("growing", 8 << 20, page)).unwrap();
        let file = std::fs::File::from(mapping.as_fd().try_clone_to_owned().unwrap());
        let taken = || std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) * 512;
        assert_eq!(taken(), 0);
        mapping.populate(1 << 20..3 << 20).unwrap();
        mapping.populate(1 << 20..3 << 20).unwrap();
        assert_eq!(taken(), 2 << 20);
        mapping.populate(0..0).unwrap();
        // What lies within a page brings that page.
        mapping.populate(100..101).unwrap();
        assert_eq!(taken(), (2 << 20) + 4096);
    }

    #[test]
    fn memory_on_demand_is_zero_and_takes_nothing_before_it_is_touched() {
        let mapping = Mapping::on_demand("test", (64 << 20) + 1).unwrap();
        assert_eq!((mapping.len(), mapping.page_size()), ((64 << 20) + 4096, PageSize::Base));
        let file = std::fs::File::from(mapping.as_fd().try_clone_to_owned().unwrap());
        let blocks = || std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
        assert_eq!(blocks(), 0);
        let last = mapping.len() - 1;
        // SAFETY: within the mapping, whose address was not handed out yet.
        unsafe {
            let octet = mapping.region.base().as_ptr().add(last);
            assert_eq!(octet.read(), 0);
            octet.write(7);
        }
        assert_eq!(blocks(), 8);
        assert!(kernel::set_len(mapping.as_fd(), 1).is_err(), "it is sealed");
    }

    /// Whatever the machine has: the memory is there, it is zero, and what it is not is said.
    #[test]
    fn memory_is_there_on_any_machine_and_says_what_it_stepped_down_from() {
        for page in [PageChoice::Auto, PageChoice::Size(PageSize::Huge2M), PageChoice::Size(PageSize::Base)] {
            let mapping = Mapping::new(&config("test", 4 << 20, page)).unwrap();
            assert_eq!((mapping.len(), mapping.base().addr().get() % 4096), (4 << 20, 0));
            let wanted = match page {
                PageChoice::Auto => PageSize::Huge2M,
                PageChoice::Size(size) => size,
            };
            assert!(mapping.page_size() <= wanted);
            let stepped_down = mapping.notes().iter().any(|note| note.starts_with("2 MiB pages: "));
            assert_eq!(stepped_down, mapping.page_size() < wanted, "{:?}", mapping.notes());
            // SAFETY: just mapped, 4 MiB, and used only here.
            let bytes = unsafe { std::slice::from_raw_parts_mut(mapping.base().as_ptr(), 4 << 20) };
            assert!(bytes.iter().all(|&byte| byte == 0));
            bytes.fill(1);
        }
    }

    /// Even where the setting is off and `new` would not try: what is claimed is what was measured.
    #[test]
    fn transparent_pages_are_claimed_only_if_the_kernel_gave_some() {
        let inventory = Inventory::read(Path::new("/"));
        let config = config("transparent", (4 << 20) + 4096, PageChoice::Auto);
        let mut notes = Vec::new();
        let Ok(mapping) = Mapping::on(
            PageSize::Transparent,
            Touch::AtOnce,
            c"transparent",
            &config,
            &inventory,
            &mut notes,
        ) else {
            return stag_testing::skipped("this kernel has no transparent huge pages");
        };
        assert_eq!((mapping.len(), mapping.base().addr().get() % (2 << 20)), (config.len, 0));
        let huge = mapping.region.huge_bytes();
        assert_eq!(mapping.page_size() == PageSize::Transparent, huge > 0, "{huge} {notes:?}");
        assert_eq!(notes.iter().any(|note| note.starts_with("transparent")), huge < 4 << 20, "{notes:?}");
    }

    /// `setup` wants to know how many there shall be, not how many more.
    #[test]
    fn the_command_that_reserves_what_is_missing_is_told() {
        let pages = NodePages { page_len: 2 << 20, total: 10, free: 3, surplus: 0 };
        let node = InventoryNode { id: 1, memory_total: None, memory_free: None, pages: vec![pages] };
        let all = PageCounts { page_len: 1 << 30, total: 1, free: 1, reserved: 1, surplus: 0, overcommit: 0 };
        let inventory = Inventory { nodes: vec![node], pages: vec![all], ..Inventory::default() };
        let on_node = MapConfig { node: Some(1), ..config("test", 16 << 20, PageChoice::Auto) };
        assert_eq!(
            why_no_pages(PageSize::Huge2M, &on_node, &inventory),
            "8 wanted, 3 free on NUMA node 1; `stag hugepages setup --size 2m --count 15 --node 1 --apply` reserves them"
        );
        assert_eq!(
            why_no_pages(PageSize::Huge1G, &config("test", 1 << 30, PageChoice::Auto), &inventory),
            "1 wanted, 0 free; `stag hugepages setup --size 1g --count 2 --apply` reserves them"
        );
    }

    #[test]
    fn the_length_is_sealed() {
        let mapping = Mapping::new(&config("sealed", 5000, PageChoice::Auto)).unwrap();
        assert_eq!(mapping.len(), 8192);
        for len in [4096, 8191, 12288] {
            let error = kernel::set_len(mapping.as_fd(), len).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        }
        assert!(kernel::add_seals(mapping.as_fd(), SealFlags::FUTURE_WRITE).is_err(), "no more seals");
    }

    #[test]
    fn a_peer_sees_the_same_memory_and_only_what_is_sealed() {
        let mapping = Mapping::new(&config("peer", 8192, PageChoice::Auto)).unwrap();
        let fd = || mapping.as_fd().try_clone_to_owned().unwrap();
        let other = Mapping::attach(fd(), 8192).unwrap();
        // SAFETY: both are mapped, of two pages, and only this thread touches them.
        unsafe {
            mapping.base().as_ptr().add(8191).write_volatile(7);
            assert_eq!(other.base().as_ptr().add(8191).read_volatile(), 7);
        }
        let error = Mapping::attach(fd(), 4096).unwrap_err();
        assert!(error.to_string().contains("its size is not the one announced"), "{error}");
        let open = kernel::memfd(c"open", PageSize::Base).unwrap();
        kernel::set_len(open.as_fd(), 4096).unwrap();
        let error = Mapping::attach(open, 4096).unwrap_err();
        assert!(error.to_string().contains("not sealed"), "{error}");
    }

    #[test]
    fn a_node_that_is_not_there_is_said_and_not_fatal() {
        let mapping = Mapping::new(&MapConfig { node: Some(777), ..config("node", 4096, PageChoice::Auto) });
        let notes = mapping.unwrap().notes().join("\n");
        assert!(notes.contains("NUMA node 777: not bound"), "{notes}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(Mapping::new(&config("a\0b", 4096, PageChoice::Auto)).is_err());
        assert!(Mapping::new(&config("huge", usize::MAX, PageChoice::Auto)).is_err());
    }

    #[test]
    fn notes_name_the_setting_and_the_limit() {
        let transparent = Transparent { anonymous: None, shmem: Some("never".into()) };
        let why = cannot_be_transparent(&transparent, 2 << 20).unwrap();
        assert!(why.contains("shmem_enabled is \"never\""), "{why}");
        assert!(cannot_be_transparent(&transparent, 4096).unwrap().contains("4 KiB is less than one"));
    }
}
