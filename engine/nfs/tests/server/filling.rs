//! Memory for files belongs to the engine that has them, whichever engine their data comes in at.

use stag_wire::nfs3::{DirectoryName, Handle, Name, RemoveArguments, Status};

use super::pair::{PAGE, Pair};
use super::transfers::{pattern, read, write};

const MEBI: usize = 1 << 20;

/// One client, whose engine has less memory than it writes, fills the export, reads it back, removes all, and fills it
/// again.
#[test]
fn a_client_of_one_engine_fills_the_memory_of_another() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    let (entry, home) = (pair.entry_pool(), pair.server.pools().payload.clone());
    let before = (entry.outstanding(), home.outstanding());
    let room = {
        let exports = pair.server.services_mut().0.exports().clone();
        let exports = exports.borrow();
        exports.shares()[0].volume().store().usage().unwrap().bytes_free
    };
    assert!(room > 2 * (entry.units() * PAGE) as u64, "the entry cannot keep it");
    let octets = pattern(MEBI);
    for round in 0..3 {
        let file = pair.create(&root, b"large");
        let mut len = 0;
        let status = loop {
            match write(&mut pair, &file, len, &octets, true) {
                Ok(count) => len += u64::from(count),
                Err(status) => break status,
            }
        };
        assert_eq!((status, len), (Status::NoSpc, room), "round {round}");
        for at in (0..len).step_by(MEBI) {
            let count = (len - at).min(MEBI as u64) as usize;
            let (found, _) = read(&mut pair, &file, at, count as u32, true);
            assert!(found == octets[..count], "at {at}");
        }
        let object = DirectoryName { directory: Handle(&root), name: Name(b"large") };
        pair.ask(RemoveArguments { object }, |reply| reply.map(drop).unwrap());
        pair.until(|_| ((entry.outstanding(), home.outstanding()) == before).then_some(()));
    }
    assert_eq!(pair.memory_statistics().octets_copied, 3 * room);
}
