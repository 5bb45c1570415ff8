//! After set-up, the providers of real traffic allocate nothing: counted, for every verb.
//!
//! A program of its own, because it replaces the allocator.

#[path = "fake/mod.rs"]
mod fake;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::VecDeque;
use std::time::Duration;

use stag_fabric::verbs::SharedReceives;
use stag_fabric::{
    Completed, Completion, Event, Exposed, ExposureKind, Fence, Iwarp, IwarpConfig, Provider,
    QueuePairCapacity, QueuePairId, ReadPart, ReadRequest, SendRequest, Shm, ShmConfig, Verbs, VerbsConfig,
    WriteRequest,
};
use stag_memory::{Arena, ArenaConfig, Budget, PageChoice, PageSize, Pool};

/// Counts the allocations of each thread: what runs the tests allocates beside them.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Octets that are allocated, less those that were before and are free now; not those of the device.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: it is the system's allocator; counting allocates nothing, in a thread-local made by a constant, without a
// destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let is_devices = fake::IS_INSIDE.try_with(Cell::get).unwrap_or(false);
        ALLOCATIONS.set(ALLOCATIONS.get() + u64::from(!is_devices));
        HELD.set(HELD.get() + if is_devices { 0 } else { layout.size() as isize });
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        let is_devices = fake::IS_INSIDE.try_with(Cell::get).unwrap_or(false);
        let _ =
            HELD.try_with(|held| held.set(held.get() - if is_devices { 0 } else { layout.size() as isize }));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CAPACITY: QueuePairCapacity = QueuePairCapacity {
    receives: 16,
    sends: 16,
    exposures: 8,
    send_len_max: 1024,
    receive_len_max: 1024,
    receive_targets: 0,
};

struct Side<P> {
    provider: P,
    pool: Pool,
    completions: VecDeque<Completion>,
    pair: Option<QueuePairId>,
}

impl<P: Provider> Side<P> {
    fn new(mut provider: P) -> Side<P> {
        let budget = Budget::new(16 << 20);
        let page = PageChoice::Size(PageSize::Base);
        let config = ArenaConfig { name: "allocation", len: 1 << 20, page, node: None, budget: &budget };
        let arena = Arena::new(&config).expect("a megabyte");
        let pool = Pool::runs(&arena, "all", 1024, 512).expect("it fits");
        provider.register(&arena).expect("an arena is sealed");
        Side { provider, pool, completions: VecDeque::with_capacity(64), pair: None }
    }

    fn turn(&mut self, now: Duration) {
        self.provider.ring_doorbells();
        self.provider.poll(now, &mut self.completions, 64);
        match self.provider.poll_event() {
            Some(Event::ConnectRequest { request, .. }) => {
                let pair = self.provider.prepare(request, CAPACITY).expect("it fits");
                self.provider.accept(pair, b"").expect("just prepared");
            }
            Some(Event::Established { queue_pair, .. }) => self.pair = Some(queue_pair),
            Some(event) => panic!("unexpected: {event:?}"),
            None => {}
        }
    }
}

#[test]
fn the_steady_state_allocates_nothing() {
    let shm = || Shm::open(ShmConfig::default()).expect("it needs nothing");
    let mut b = Side::new(shm());
    let name = format!("allocation-{}", std::process::id());
    b.provider.listen(&name).expect("the name is free");
    let mut a = Side::new(shm());
    connect(&name, &mut a, &mut b);
    check("shm", a, b);

    let iwarp = || Iwarp::open(IwarpConfig::default()).expect("it needs nothing");
    let mut b = Side::new(iwarp());
    let listener = b.provider.listen("127.0.0.1:0").expect("the system finds a port");
    let address = b.provider.listener_address(listener).expect("it listens").to_string();
    let mut a = Side::new(iwarp());
    connect(&address, &mut a, &mut b);
    check("iwarp", a, b);

    for (has_windows, is_iwarp, exposure, shares) in [
        (true, false, None, false),
        (false, false, None, false),
        (false, true, None, false),
        (true, false, None, true),
        (false, false, Some(ExposureKind::Standing), true),
    ] {
        fake::reset(has_windows);
        fake::with(|world| world.is_iwarp = is_iwarp);
        let shared = SharedReceives { count: 64, len: CAPACITY.receive_len_max };
        let config = VerbsConfig {
            completions: 1024,
            exposure,
            shared_receives: shares.then_some(shared),
            ..VerbsConfig::default()
        };
        // SAFETY: the fake does as the manual pages say.
        let verbs = || unsafe { Verbs::open_with(&fake::FAKE, config.clone()) }.expect("there is a device");
        let mut b = Side::new(verbs());
        b.provider.listen("127.0.0.1:20049").expect("the address is free");
        let what = format!("verbs, {:?}, iWARP {is_iwarp}", b.provider.limits());
        let before = HELD.get() + mapped();
        let mut a = Side::new(verbs());
        let opened = HELD.get() + mapped() - before;
        connect("127.0.0.1:20049", &mut a, &mut b);
        if !shares {
            // The provider sets its part of the completions aside when it is opened.
            let aside = Verbs::completions_needed(&CAPACITY) as usize * size_of::<Completion>();
            let each = (HELD.get() + mapped() - before - opened) / 2 + aside as isize;
            let said = Verbs::queue_pair_len(&CAPACITY) as isize;
            println!("{what}: {each} octets for a queue pair, {said} are said");
            assert!(each <= said && said <= each + each / 4, "{what}: {each} octets, {said} are said");
        }
        check(&what, a, b);
    }
}

/// Octets of anonymous shared memory of this process, in which messages are built. Arenas are not of that kind.
fn mapped() -> isize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("it can be read");
    let len = |line: &str| {
        let (first, end) = line.split_once(' ')?.0.split_once('-')?;
        let at = |number| isize::from_str_radix(number, 16).ok();
        Some(at(end)? - at(first)?)
    };
    maps.lines().filter(|line| line.ends_with("/dev/zero (deleted)")).filter_map(len).sum()
}

/// Connects both sides.
fn connect<P: Provider>(address: &str, a: &mut Side<P>, b: &mut Side<P>) {
    a.provider.connect(address, b"", CAPACITY).expect("the address is fine");
    let mut now = Duration::ZERO;
    while a.pair.is_none() || b.pair.is_none() {
        now += Duration::from_micros(10);
        a.turn(now);
        b.turn(now);
    }
}

fn check<P: Provider>(what: &str, mut a: Side<P>, mut b: Side<P>) {
    let mut now = Duration::from_secs(1);
    let mut turn = |a: &mut Side<P>, b: &mut Side<P>| {
        now += Duration::from_micros(10);
        a.turn(now);
        b.turn(now);
    };
    let (Some(qa), Some(qb)) = (a.pair, b.pair) else { return };

    let invalidates = a.provider.limits().send_with_invalidate;
    let mut before = 0;
    for round in 0..300 {
        if round == 100 {
            before = ALLOCATIONS.get();
        }
        // A exposes, B uses it and invalidates one of the two; more Sends than may be posted, both kinds.
        let exposed = Exposed::Read(a.pool.take_len(4096).expect("free").share());
        let from = a.provider.expose(qa, exposed).expect("within the capacity");
        let exposed = Exposed::Write(a.pool.take_len(4096).expect("free"));
        let to = a.provider.expose(qa, exposed).expect("within the capacity");
        turn(&mut a, &mut b);
        turn(&mut a, &mut b);
        let target = b.pool.take_len(4096).expect("free");
        let part = ReadPart { at: 0, len: 4096, source: from };
        b.provider.post_read(qb, ReadRequest { id: 1, target }, &[part]).expect("within the capacity");
        let source = b.pool.take_len(4096).expect("free").share();
        let request = WriteRequest { id: 2, source, target: to, signaled: true };
        b.provider.post_write(qb, request).expect("within the capacity");
        let mut sent = 0;
        for i in 0..30 {
            let buf = b.pool.take().expect("free");
            let invalidate = (i == 0 && invalidates).then_some(to.handle);
            let request = SendRequest { id: 3, buf, invalidate, signaled: i % 4 == 0 };
            sent += u32::from(b.provider.post_send(qb, request).is_ok());
        }
        let mut received = 0;
        while received < sent {
            for _ in 0..16 {
                let buf = a.pool.take().expect("free");
                if a.provider.post_receive(qa, 4, buf).is_err() {
                    break;
                }
            }
            turn(&mut a, &mut b);
            for completion in a.completions.drain(..) {
                assert_eq!(completion.result, Ok(()));
                received += u32::from(matches!(completion.completed, Completed::Receive { .. }));
            }
            b.completions.clear();
        }
        for handle in [from.handle, to.handle] {
            match a.provider.fence(qa, handle, 5) {
                None => assert!(invalidates && handle == to.handle, "it is exposed"),
                Some(Fence::Done(_)) => {}
                Some(Fence::Pending) => {
                    while !a.completions.iter().any(|done| matches!(done.completed, Completed::Fence { .. }))
                    {
                        turn(&mut a, &mut b);
                    }
                    a.completions.clear();
                }
            }
        }
    }
    let after = ALLOCATIONS.get();
    assert_eq!(after - before, 0, "{what}: allocations in 200 rounds");
}
