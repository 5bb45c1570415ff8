//! How much memory of peers this process has mapped, and how much it may have mapped.
//!
//! A peer chooses how long its arenas are and how many there are; a memfd may be sparse, so length costs it nothing. Address space
//! and mappings belong to the process, whose next allocation fails when either is used up. So all providers of a
//! process share one account, and each user of the machine may have half of it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::FabricError;
use crate::setup::check_limit;

/// What all peers together may have mapped, as a multiple of this machine's memory. An honest arena is never longer than that
/// memory, but each provider of a process maps it once.
const MEMORIES_MAX: u64 = 32;
/// Peers may have this fraction of the address space, and of the kernel's limit of mappings: a quarter.
const SHARE: u64 = 4;
/// The kernel's limit of mappings where it cannot be read: `vm.max_map_count`, unless somebody changed it.
const MAPPINGS: u64 = 65_530;

/// Octets that are mapped, and mappings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Extent {
    octets: u64,
    mappings: u64,
}

impl Extent {
    fn is_none(self) -> bool {
        self == Extent::default()
    }
}

/// What peers have mapped here, by user.
#[derive(Debug)]
pub(super) struct MappedMemory {
    /// What all may have together. One user may have half.
    limit: Extent,
    users: Mutex<Vec<(u32, Extent)>>,
}

impl MappedMemory {
    fn new(octets: u64, mappings: u64) -> MappedMemory {
        MappedMemory { limit: Extent { octets, mappings }, users: Mutex::default() }
    }

    /// That of this process.
    pub(super) fn of_process() -> Arc<MappedMemory> {
        static ACCOUNT: OnceLock<Arc<MappedMemory>> = OnceLock::new();
        let new = || {
            Arc::new(MappedMemory::new(
                memory().saturating_mul(MEMORIES_MAX).min(space() / SHARE),
                mappings() / SHARE,
            ))
        };
        Arc::clone(ACCOUNT.get_or_init(new))
    }

    /// Counts a mapping of `octets` for `user`, until the charge is dropped.
    ///
    /// # Errors
    ///
    /// [`FabricError::Limit`]: it is more than the user, or all users together, may have.
    pub(super) fn charge(self: &Arc<Self>, user: u32, octets: u64) -> Result<MappedCharge, FabricError> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let of_user =
            users.iter().find(|(other, _)| *other == user).map_or(Extent::default(), |(_, extent)| *extent);
        let all = users.iter().fold(Extent::default(), |sum, (_, extent)| Extent {
            octets: sum.octets + extent.octets,
            mappings: sum.mappings + extent.mappings,
        });
        let Extent { octets: most, mappings: most_mappings } = self.limit;
        let repair = "offer smaller arenas, or end other connections";
        let more_mappings =
            "end other connections, or raise vm.max_map_count and start again the process that maps them";
        let (wanted, wanted_mappings) = (of_user.octets.saturating_add(octets), of_user.mappings + 1);
        check_limit("octets of shared memory of one user that are mapped", wanted, most / 2, repair)?;
        check_limit(
            "mappings of shared memory of one user",
            wanted_mappings,
            most_mappings / 2,
            more_mappings,
        )?;
        let sum = all.octets.saturating_add(octets);
        check_limit("octets of shared memory of all users that are mapped", sum, most, repair)?;
        check_limit(
            "mappings of shared memory of all users",
            all.mappings + 1,
            most_mappings,
            more_mappings,
        )?;
        users.retain(|(other, _)| *other != user);
        users.push((user, Extent { octets: wanted, mappings: wanted_mappings }));
        Ok(MappedCharge { account: Arc::clone(self), user, octets })
    }

    fn give_back(&self, user: u32, octets: u64) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, extent)) = users.iter_mut().find(|(other, _)| *other == user) {
            extent.octets -= octets;
            extent.mappings -= 1;
        }
        users.retain(|(_, extent)| !extent.is_none());
    }
}

/// A mapping that is counted.
#[derive(Debug)]
pub(super) struct MappedCharge {
    account: Arc<MappedMemory>,
    user: u32,
    octets: u64,
}

impl Drop for MappedCharge {
    fn drop(&mut self) {
        self.account.give_back(self.user, self.octets);
    }
}

/// Octets of this machine's memory.
fn memory() -> u64 {
    // SAFETY: no pointers. A negative answer is none.
    let (pages, len) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    u64::try_from(pages).unwrap_or(0).saturating_mul(u64::try_from(len).unwrap_or(0)).max(1 << 30)
}

/// Octets of address space that this process may have.
fn space() -> u64 {
    let on_stack = 0u8;
    // The stack is near the upper end.
    let end = (&raw const on_stack).addr() as u64;
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: room for the answer. A failure leaves it without a limit.
    unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
    end.checked_next_power_of_two().unwrap_or(u64::MAX).min(limit.rlim_cur)
}

/// Mappings that this process may have.
fn mappings() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(MAPPINGS)
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn one_user_has_half_and_what_is_unmapped_is_free_again() {
        let account = Arc::new(MappedMemory::new(100, 1000));
        let first = account.charge(1, 50).unwrap();
        let refused = |user, octets| account.charge(user, octets).unwrap_err().to_string();
        let full = refused(1, 1);
        assert!(
            full.contains("one user") && full.contains("51 wanted, the limit is 50; offer smaller arenas"),
            "{full}"
        );
        assert!(refused(2, u64::MAX).contains("one user"));
        let second = account.charge(2, 40).unwrap();
        let full = refused(3, 11);
        assert!(full.contains("all users") && full.contains("101 wanted, the limit is 100"), "{full}");
        drop(first);
        let third = account.charge(3, 50).unwrap();
        drop((second, third));
        assert!(account.users.lock().unwrap().is_empty());
    }

    #[test]
    fn small_mappings_are_counted_too() {
        let account = Arc::new(MappedMemory::new(1 << 40, 4));
        let kept: Vec<_> = [1, 1, 2, 2].map(|user| account.charge(user, 1).unwrap()).into();
        assert!(account.charge(1, 1).unwrap_err().to_string().contains("one user: 3 wanted, the limit is 2"));
        assert!(
            account.charge(3, 1).unwrap_err().to_string().contains("all users: 5 wanted, the limit is 4")
        );
        drop(kept);
    }

    #[test]
    fn this_process_has_limits_and_an_honest_arena_fits() {
        let Extent { octets, mappings } = MappedMemory::of_process().limit;
        assert!(octets >= 8 * memory() && octets <= space() / 4, "{octets}");
        assert!((1000..1 << 40).contains(&mappings), "{mappings}");
    }
}
