//! The lock table against a map of octets, which cannot be wrong because it is so simple.

use proptest::collection::vec;
use proptest::prelude::*;
use stag_state::client::ClientId;
use stag_state::open::ShareModes;
use stag_state::{
    Counts, FileKey, HostId, HostNumber, HostSite, LockConfig, LockRefused, LockRequest, LockTable, Range,
};
use stag_vfs::ObjectId;

/// Octets of the model; the last stands for all from there to the end.
const OCTETS: usize = 12;
const HOSTS: usize = 2;
/// Owners 0 and 1 are host 0's; 2 and 3 host 1's, with the same numbers and names.
const OWNERS: usize = 4;
const FILES: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    file: usize,
    owner: usize,
    first: usize,
    last: usize,
    exclusive: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Lock(Wanted),
    LockOrWait(Wanted),
    Unlock(Wanted),
    Cancel(Wanted),
    CancelOldest(usize),
    FreeHost(usize),
}

/// A host at an address of its own.
fn host(number: u32) -> HostId {
    HostId { number: HostNumber::Nlm(number), site: HostSite(number.into()) }
}

fn file(index: usize) -> FileKey {
    FileKey { volume: 1, object: ObjectId { fileid: index as u64, generation: 1 } }
}

impl Wanted {
    fn request(&self) -> LockRequest<'static> {
        let last = if self.last == OCTETS - 1 { u64::MAX } else { self.last as u64 };
        let handle: &'static [u8] = if self.owner.is_multiple_of(2) { b"even" } else { b"odd" };
        LockRequest {
            file: file(self.file),
            host: host((self.owner / 2) as u32),
            svid: 7,
            handle,
            range: Range::between(self.first as u64, last).unwrap(),
            exclusive: self.exclusive,
        }
    }
}

/// What an owner has of an octet: nothing, shared, exclusive.
type Kind = Option<bool>;

#[derive(Default)]
struct Model {
    octets: [[[Kind; OWNERS]; OCTETS]; FILES],
    waiting: Vec<Wanted>,
    granted: Vec<Wanted>,
}

impl Model {
    fn is_free(&self, wanted: &Wanted) -> bool {
        self.octets[wanted.file][wanted.first..=wanted.last].iter().all(|octet| {
            let others = octet.iter().enumerate().filter(|(owner, _)| *owner != wanted.owner);
            others.into_iter().all(|(_, kind)| match kind {
                None => true,
                Some(exclusive) => !exclusive && !wanted.exclusive,
            })
        })
    }

    fn set(&mut self, wanted: &Wanted, kind: Kind) {
        for octet in &mut self.octets[wanted.file][wanted.first..=wanted.last] {
            octet[wanted.owner] = kind;
        }
    }

    fn settle(&mut self) {
        while let Some(place) = self.waiting.iter().position(|wanted| self.is_free(wanted)) {
            let wanted = self.waiting.remove(place);
            self.set(&wanted, Some(wanted.exclusive));
            self.granted.push(wanted);
        }
    }

    fn lock(&mut self, wanted: &Wanted) -> bool {
        if !self.is_free(wanted) {
            return false;
        }
        self.set(wanted, Some(wanted.exclusive));
        self.waiting.retain(|waiting| waiting != wanted);
        self.settle();
        true
    }
}

fn step() -> impl Strategy<Value = Step> {
    let wanted = (0..FILES, 0..OWNERS, 0..OCTETS, 0..OCTETS, any::<bool>()).prop_map(
        |(file, owner, a, b, exclusive)| Wanted { file, owner, first: a.min(b), last: a.max(b), exclusive },
    );
    prop_oneof![
        6 => wanted.clone().prop_map(Step::Lock),
        8 => wanted.clone().prop_map(Step::LockOrWait),
        8 => wanted.clone().prop_map(Step::Unlock),
        1 => wanted.prop_map(Step::Cancel),
        2 => (0..8_usize).prop_map(Step::CancelOldest),
        1 => (0..HOSTS).prop_map(Step::FreeHost),
    ]
}

/// The locks of a file are those of the model, in as few pieces as can be.
fn check(table: &LockTable<Wanted>, model: &Model) {
    let mut count = 0;
    for index in 0..FILES {
        let held = table.held(file(index));
        assert!(held.is_sorted_by_key(|held| held.range.first()));
        for owner in 0..OWNERS {
            let name = Wanted { file: index, owner, first: 0, last: 0, exclusive: false }.request();
            let mut expected: Vec<(u64, u64, bool)> = Vec::new();
            for (at, octet) in model.octets[index].iter().enumerate() {
                let Some(exclusive) = octet[owner] else { continue };
                let (at, last) = (at as u64, if at == OCTETS - 1 { u64::MAX } else { at as u64 });
                match expected.last_mut() {
                    Some((_, end, kind)) if *end + 1 == at && *kind == exclusive => *end = last,
                    _ => expected.push((at, last, exclusive)),
                }
            }
            let own =
                held.iter().filter(|held| held.owner.host == name.host && *held.owner.handle == *name.handle);
            let found: Vec<_> =
                own.map(|held| (held.range.first(), held.range.last(), held.exclusive)).collect();
            assert_eq!(found, expected, "file {index}, owner {owner}");
            count += found.len();
        }
    }
    assert_eq!(table.counts(), Counts { locks: count as u32, waiting: model.waiting.len() as u32 });
    for index in 0..FILES {
        for (first, last) in [(0, OCTETS - 1), (0, 4), (3, 8), (5, 5), (7, OCTETS - 1)] {
            check_locked(table, model, index, first, last);
        }
    }
}

/// What all owners together have of a range is the strongest of what each has, in as few pieces as can be.
fn check_locked(table: &LockTable<Wanted>, model: &Model, index: usize, first: usize, last: usize) {
    let end = |at: usize| if at == OCTETS - 1 { u64::MAX } else { at as u64 };
    let mut expected: Vec<(u64, u64, bool)> = Vec::new();
    for (at, octet) in model.octets[index].iter().enumerate().take(last + 1).skip(first) {
        let Some(exclusive) = octet.iter().flatten().max().copied() else { continue };
        match expected.last_mut() {
            Some((_, before, kind)) if *before + 1 == at as u64 && *kind == exclusive => *before = end(at),
            _ => expected.push((at as u64, end(at), exclusive)),
        }
    }
    let range = Range::between(first as u64, end(last)).unwrap();
    let found = table.locked(file(index), range);
    let found: Vec<_> =
        found.iter().map(|found| (found.range.first(), found.range.last(), found.exclusive)).collect();
    assert_eq!(found, expected, "file {index}, {first} to {last}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn the_table_is_a_map_of_octets(steps in vec(step(), 0..60)) {
        let mut table = LockTable::new(LockConfig::default());
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::Lock(wanted) | Step::LockOrWait(wanted) => {
                    let request = wanted.request();
                    assert_eq!(table.test(&request).is_none(), model.is_free(&wanted));
                    let done = table.lock(&request);
                    assert_eq!(done, if model.lock(&wanted) { Ok(()) } else { Err(LockRefused::Conflict) });
                    if done.is_err() && matches!(step, Step::LockOrWait(_)) {
                        table.wait(&request, wanted).unwrap();
                        if !model.waiting.contains(&wanted) {
                            model.waiting.push(wanted);
                        }
                    }
                }
                Step::Unlock(wanted) => {
                    table.unlock(&wanted.request()).unwrap();
                    model.set(&wanted, None);
                    model.settle();
                }
                Step::Cancel(wanted) => {
                    let found = model.waiting.contains(&wanted);
                    assert_eq!(table.cancel(&wanted.request()), found);
                    model.waiting.retain(|waiting| *waiting != wanted);
                }
                Step::CancelOldest(place) => {
                    if place < model.waiting.len() {
                        assert!(table.cancel(&model.waiting.remove(place).request()));
                    }
                }
                Step::FreeHost(number) => {
                    table.free_host(host(number as u32));
                    let is_of = |owner: usize| owner / 2 == number;
                    model.waiting.retain(|waiting| !is_of(waiting.owner));
                    for octet in model.octets.iter_mut().flatten() {
                        octet.iter_mut().enumerate().filter(|(owner, _)| is_of(*owner)).for_each(|(_, kind)| *kind = None);
                    }
                    model.settle();
                }
            }
            // In the order of the files' queues; between files there is no order.
            let found: Vec<_> =
                std::iter::from_fn(|| table.poll_granted()).map(|granted| granted.request.waiter).collect();
            for index in 0..FILES {
                let of_file = |all: &[Wanted]| all.iter().filter(|w| w.file == index).copied().collect::<Vec<_>>();
                assert_eq!(of_file(&found), of_file(&model.granted));
            }
            model.granted.clear();
            check(&table, &model);
        }
        for number in 0..HOSTS {
            table.free_host(host(number as u32));
        }
        assert_eq!(table.counts(), Counts::default());
    }
}

fn wanted(owner: usize, first: usize, last: usize, exclusive: bool) -> LockRequest<'static> {
    Wanted { file: 0, owner, first, last, exclusive }.request()
}

#[test]
fn the_oldest_that_fits_is_granted_first() {
    let mut table = LockTable::new(LockConfig::default());
    table.lock(&wanted(0, 0, 5, true)).unwrap();
    table.wait(&wanted(1, 0, 5, true), "first").unwrap();
    table.wait(&wanted(2, 3, 5, false), "second").unwrap();
    table.wait(&wanted(3, 0, 2, false), "third").unwrap();
    // Asked again: it keeps its place.
    table.wait(&wanted(1, 0, 5, true), "first again").unwrap();
    let fetch = |table: &mut LockTable<&'static str>| {
        std::iter::from_fn(|| table.poll_granted()).map(|granted| granted.request.waiter).collect::<Vec<_>>()
    };
    table.unlock(&wanted(0, 4, 5, true)).unwrap();
    assert!(fetch(&mut table).is_empty(), "octet 3 is still in the way of all");
    table.unlock(&wanted(0, 3, 3, true)).unwrap();
    assert_eq!(fetch(&mut table), ["second"], "which does not want what is still held");
    table.unlock(&wanted(0, 0, 2, true)).unwrap();
    assert_eq!(fetch(&mut table), ["third"], "the first still waits for the second");
    table.unlock(&wanted(3, 0, 2, false)).unwrap();
    table.unlock(&wanted(2, 3, 5, false)).unwrap();
    assert_eq!(fetch(&mut table), ["first again"]);
}

/// Something besides the table may be in the way of a request that is held back.
#[test]
fn what_is_held_back_is_granted_when_told() {
    let mut table = LockTable::new(LockConfig::default());
    let (held, request, younger) = (wanted(0, 0, 5, true), wanted(1, 0, 5, true), wanted(2, 0, 5, false));
    table.lock(&held).unwrap();
    table.wait(&request, "first").unwrap();
    table.hold_back(&request);
    table.wait(&younger, "second").unwrap();
    assert_eq!(table.grant(&request), Err(LockRefused::Conflict));
    table.unlock(&held).unwrap();
    let granted = table.poll_granted().unwrap();
    assert_eq!((granted.request.waiter, table.poll_granted()), ("second", None));
    assert_eq!(table.waiting(file(0)).map(|waiting| waiting.waiter).collect::<Vec<_>>(), ["first"]);
    table.unlock(&younger).unwrap();
    assert_eq!(table.poll_granted(), None);
    assert_eq!(table.grant(&request), Ok(()));
    assert_eq!(table.poll_granted().unwrap().request.waiter, "first");
    assert_eq!((table.grant(&request), table.poll_granted()), (Ok(()), None), "it waits no longer");
    assert_eq!(table.counts(), Counts { locks: 1, waiting: 0 });
}

/// What a request that was held back gives up in its turn, others get.
#[test]
fn a_grant_that_frees_lets_others_go_on() {
    let mut table = LockTable::new(LockConfig::default());
    table.lock(&wanted(0, 0, 5, true)).unwrap();
    let (weaker, other) = (wanted(0, 0, 5, false), wanted(1, 0, 5, false));
    table.wait(&weaker, "weaker").unwrap();
    table.hold_back(&weaker);
    table.wait(&other, "other").unwrap();
    assert_eq!(table.grant(&weaker), Ok(()));
    let granted: Vec<_> = std::iter::from_fn(|| table.poll_granted()).map(|it| it.request.waiter).collect();
    assert_eq!(granted, ["weaker", "other"]);
}

const NO_ROOM: Result<(), LockRefused> = Err(LockRefused::NoRoom(stag_state::NoRoom));

/// A lock of its own: nothing that touches another.
fn lone(host: HostId, on: usize, index: u64, handle: &[u8]) -> LockRequest<'_> {
    let range = Range::new(2 * index, 1).unwrap();
    LockRequest { file: file(on), host, svid: 1, handle, range, exclusive: true }
}

/// Takes locks until there is no room; how many there were.
fn take_all(table: &mut LockTable<u32>, host: HostId, on: usize, first: u64, handle: &[u8]) -> u64 {
    let taken = (first..).take_while(|index| table.lock(&lone(host, on, *index, handle)).is_ok()).count();
    assert_eq!(table.lock(&lone(host, on, first + taken as u64, handle)), NO_ROOM);
    taken as u64
}

#[test]
fn one_host_cannot_take_all_the_room() {
    let config = LockConfig { host_locks_max: 20, host_waiting_max: 3, ..LockConfig::default() };
    let mut table: LockTable<u32> = LockTable::new(config);
    assert_eq!(take_all(&mut table, host(0), 0, 0, b"a"), 20);
    // Joins two: there are fewer afterwards.
    let joins = LockRequest { range: Range::new(1, 1).unwrap(), ..lone(host(0), 0, 0, b"a") };
    assert_eq!(table.lock(&joins), Ok(()));
    assert_eq!(table.counts().locks, 19);
    assert_eq!(take_all(&mut table, host(0), 0, 20, b"a"), 1);
    // To take out of the middle makes two of one.
    assert!(table.unlock(&joins).is_err());
    assert_eq!(table.counts().locks, 20, "and nothing changed");
    assert_eq!(table.unlock(&lone(host(0), 0, 19, b"a")), Ok(()));
    assert_eq!(table.unlock(&joins), Ok(()));
    for index in 2..5 {
        assert_eq!(table.wait(&lone(host(1), 0, index, b"b"), 0), Ok(()));
    }
    assert!(table.wait(&lone(host(1), 0, 5, b"b"), 0).is_err(), "of the host");
    assert_eq!(table.wait(&lone(host(2), 0, 5, b"c"), 0), Ok(()));
    table.free_host(host(0));
    assert_eq!(table.counts(), Counts { locks: 4, waiting: 0 });
}

/// One address makes up hosts: together they get no more of anything than they leave to others.
#[test]
fn one_site_cannot_take_all_the_room() {
    let at = |site: u128| move |number: u32| HostId { number: HostNumber::Nlm(number), site: HostSite(site) };
    let (here, there) = (at(1), at(2));
    let small = LockConfig { locks_max: 31, ..LockConfig::default() };
    let mut table: LockTable<u32> = LockTable::new(small);
    let taken: u64 =
        (0..4).map(|number| take_all(&mut table, here(number), 0, 100 * u64::from(number), b"a")).sum();
    assert_eq!(taken, 16, "of all locks");
    assert_eq!(take_all(&mut table, there(0), 1, 0, b"b"), 8);
    assert_eq!(take_all(&mut table, at(3)(0), 1, 1000, b"b"), 4);
    table.free_host(here(0));
    assert_eq!(take_all(&mut table, there(1), 1, 5000, b"b"), 6);

    let mut table: LockTable<u32> =
        LockTable::new(LockConfig { file_locks_max: 31, file_waiting_max: 7, ..LockConfig::default() });
    assert_eq!(take_all(&mut table, here(0), 0, 0, b"a"), 16, "of one file");
    assert_eq!(take_all(&mut table, here(1), 0, 100, b"a"), 0);
    assert_eq!(take_all(&mut table, there(0), 0, 200, b"a"), 8);
    let queue = |table: &mut LockTable<u32>, from: &dyn Fn(u32) -> HostId| {
        (0..9).filter(|number| table.wait(&lone(from(*number), 0, 0, b"c"), 0).is_ok()).count()
    };
    assert_eq!((queue(&mut table, &here), queue(&mut table, &there)), (4, 2), "of those that wait for it");

    let mut table: LockTable<u32> = LockTable::new(LockConfig { waiting_max: 7, ..LockConfig::default() });
    table.lock(&lone(at(9)(0), 0, 0, b"a")).unwrap();
    assert_eq!((queue(&mut table, &here), queue(&mut table, &there)), (4, 2), "of all that wait");
    // Seven hosts have something, four of them here.
    assert!(!table.has_room_for_host(HostSite(1), 11) && table.has_room_for_host(HostSite(1), 12));
    assert!(!table.has_room_for_host(HostSite(5), 7) && table.has_room_for_host(HostSite(5), 8));

    let long = [b'x'; 100];
    let mut table: LockTable<u32> =
        LockTable::new(LockConfig { handle_octets_max: 700, ..LockConfig::default() });
    assert_eq!(take_all(&mut table, here(0), 0, 0, &long), 4, "of octets");
    assert_eq!(take_all(&mut table, here(1), 0, 100, &long), 0);
    assert_eq!(take_all(&mut table, there(0), 0, 200, &long), 2);
    for owner in [here(0), here(1), there(0)] {
        table.free_host(owner);
    }
    assert_eq!(table.counts(), Counts::default());
    assert_eq!(take_all(&mut table, here(7), 0, 0, &long), 4, "all is given back");
}

#[test]
fn shares_deny_others_and_not_their_owner() {
    let mut table: LockTable<()> = LockTable::new(LockConfig::default());
    const READ: u32 = 1;
    const WRITE: u32 = 2;
    let (ours, theirs) = (wanted(0, 0, 0, false), wanted(2, 0, 0, false));
    assert_eq!(table.share(&ours, WRITE, READ), Ok(()));
    assert_eq!(table.share(&theirs, 0, WRITE), Err(LockRefused::Conflict), "they want what we deny");
    assert_eq!(table.share(&theirs, READ, 0), Err(LockRefused::Conflict), "they deny what we have");
    assert_eq!(table.share(&theirs, 0, READ), Ok(()));
    assert_eq!(table.share(&ours, WRITE, READ | WRITE), Ok(()), "our own does not matter");
    assert_eq!(table.counts().locks, 2);
    table.unshare(&ours);
    table.unshare(&ours);
    assert_eq!(table.share(&theirs, READ, WRITE), Ok(()));
    table.free_host(theirs.host);
    assert_eq!(table.counts(), Counts::default());
}

/// A process of an NLM host and a lock owner of an NFSv4 client are different owners in one table, whatever their numbers.
#[test]
fn owners_of_both_protocols_exclude_each_other() {
    let mut table: LockTable<()> = LockTable::new(LockConfig::default());
    let site = HostSite(1);
    let nlm = HostId { number: HostNumber::Nlm(7), site };
    let client = HostId { number: HostNumber::Client(ClientId(7)), site };
    let range = Range::new(0, 10).unwrap();
    let request = |host| LockRequest { file: file(0), host, svid: 0, handle: b"o", range, exclusive: true };
    table.lock(&request(client)).unwrap();
    assert_eq!(table.lock(&request(nlm)), Err(LockRefused::Conflict));
    assert_eq!(table.test(&request(nlm)).unwrap().owner.host.client(), Some(ClientId(7)));
    assert!(table.holds(&request(client)) && !table.holds(&request(nlm)));
    table.wait(&request(nlm), ()).unwrap();
    table.free_host(client);
    assert_eq!(table.poll_granted().unwrap().request.owner.host, nlm, "a client that ends makes way");
    assert_eq!(table.test(&request(client)).unwrap().owner.host.client(), None);
}

/// What opens of NFSv4 must respect: all shares of a file together.
#[test]
fn shares_of_a_file_are_told_together() {
    let mut table: LockTable<()> = LockTable::new(LockConfig::default());
    let range = Range::new(0, 0).unwrap();
    let request = |number| LockRequest {
        file: file(0),
        host: host(number),
        svid: 0,
        handle: b"o",
        range,
        exclusive: false,
    };
    table.share(&request(0), 0, 1).unwrap();
    table.share(&request(1), 2, 1).unwrap();
    assert_eq!(table.share_modes(file(0)), ShareModes { access: 1, deny: 2 });
    assert_eq!(table.share_modes(file(1)), ShareModes::default());
    table.unshare(&request(1));
    assert_eq!(table.share_modes(file(0)), ShareModes { access: 1, deny: 0 });
}

/// A file system that is no longer served: nothing of it is left, and all else stays.
#[test]
fn locks_of_a_volume_end_together() {
    let mut table = LockTable::new(LockConfig::default());
    let on = |volume, host_number| LockRequest {
        file: FileKey { volume, ..file(1) },
        host: host(host_number),
        ..Wanted { file: 1, owner: 0, first: 0, last: 3, exclusive: true }.request()
    };
    table.lock(&on(1, 1)).unwrap();
    table.wait(&on(1, 2), 0).unwrap();
    table.share(&on(1, 3), 1, 1).unwrap();
    table.lock(&on(2, 1)).unwrap();
    table.wait(&on(2, 2), 0).unwrap();
    table.free_volume(1);
    assert_eq!(table.counts(), Counts { locks: 1, waiting: 1 });
    assert_eq!(table.poll_granted(), None);
    assert_eq!(table.host_counts(host(3)), Counts::default());
    table.lock(&on(1, 2)).unwrap();
    table.unlock(&on(2, 1)).unwrap();
    assert_eq!(table.poll_granted().map(|granted| granted.file.volume), Some(2));
}
