//! Many Calls in flight, on a fabric that takes every liberty it has.

use stag_fabric::sim::{FaultPlan, Random, sweep};
use stag_nfs::client::FinishedCall;
use stag_rpc::{CallError, Chunks, EngineConfig};
use stag_wire::nfs3::{Data, Handle, ReadArguments, Stable, WriteArguments};
use stag_wire::xdr::Item;

use super::pair::{PAGE, Pair};

/// Octets of the file: whole pages, and a part of one.
const LEN: usize = 5 * PAGE + 100;
const CALLS: u64 = 120;
const DEPTH: u64 = 8;

/// In a Call's user number: it is a WRITE.
const WRITE: u64 = 1 << 32;

/// Each WRITE puts one value into all of the file. So a READ must find one value, however many WRITEs are
/// executed while its pages are on their way: never a torn page, never a page of another time.
#[test]
fn reads_in_flight_are_never_torn() {
    sweep("reads_in_flight_are_never_torn", 0..40, |seed| {
        let mut pair = Pair::of_seed(&["/data,root_squash=no"], seed);
        let mut random = Random::new(seed);
        let root = pair.root.clone();
        let file = pair.create(&root, b"f");
        write(&mut pair, &file, 0, true, 0);
        let completed = pair.until(|pair| pair.client.completed());
        assert!(completed.result.is_ok());

        pair.world.set_plan(FaultPlan::rough());
        let (mut begun, mut over) = (0, 0);
        while over < CALLS {
            while begun < CALLS && begun - over < DEPTH {
                begun += 1;
                let by_chunk = random.below(4) > 0;
                if random.below(2) == 0 {
                    write(&mut pair, &file, begun as u8, by_chunk, begun);
                } else {
                    read(&mut pair, &file, by_chunk, begun);
                }
            }
            let completed = pair.until(|pair| pair.client.completed());
            over += 1;
            let user = completed.user;
            // The send queue was full just then: the Call was not executed.
            if matches!(completed.result, Err(CallError::NotSent | CallError::NotPosted(_))) {
                continue;
            }
            let finished = FinishedCall::new(completed);
            if user & WRITE != 0 {
                let ok = finished.reply::<WriteArguments<'_>>().unwrap().unwrap();
                assert_eq!(ok.count as usize, LEN);
                continue;
            }
            let ok = finished.reply::<ReadArguments<'_>>().unwrap().unwrap();
            let octets: Vec<u8> = finished.octets(&ok.data.0).flatten().copied().collect();
            assert_eq!((octets.len(), ok.eof), (LEN, true));
            let first = octets[0];
            assert!(u64::from(first) <= begun, "a value that was never written");
            let other = octets.iter().position(|octet| *octet != first);
            assert_eq!(other, None, "Call {user} found two values");
        }

        // The server holds the file's pages and nothing else: what READs held is back.
        // Receives of version 2 have pages, too.
        let [in_server, in_client] =
            [pair.server.config(), pair.client.config()].map(EngineConfig::target_pages);
        pair.until(|pair| (pair.server.pools().payload.outstanding() <= 16 + 6 + in_server).then_some(()));
        let used = pair.memory_usage();
        assert_eq!((used.bytes_total - used.bytes_free) as usize, 6 * PAGE);
        assert!(pair.client.pools().payload.outstanding() <= in_client);
    });
}

fn write(pair: &mut Pair, file: &[u8], value: u8, by_chunk: bool, user: u64) {
    let octets = [value; LEN];
    let (chunks, item) = if by_chunk {
        let mut buf = pair.client.pools().payload.take_len(LEN).unwrap();
        buf.fill(value);
        (Chunks::read(buf.share()), Item::Reduced { index: 0, len: LEN as u32 })
    } else {
        (Chunks::default(), Item::Inline(&octets[..]))
    };
    let (count, stable) = (LEN as u32, Stable::FileSync);
    let arguments = WriteArguments { file: Handle(file), offset: 0, count, stable, data: Data(item) };
    pair.begin(&arguments, chunks, user | WRITE);
}

fn read(pair: &mut Pair, file: &[u8], by_chunk: bool, user: u64) {
    let chunks = if by_chunk {
        Chunks::write(pair.client.pools().payload.take_len(LEN).unwrap())
    } else {
        Chunks::default()
    };
    pair.begin(&ReadArguments { file: Handle(file), offset: 0, count: LEN as u32 }, chunks, user);
}
