//! A WRITE's data lands in pages of the Receive, and those are the file's.

use stag_stores::memory::MemoryStoreStatistics;

use super::pair::{PAGE, Pair};
use super::transfers::{pattern, read, write};

#[test]
fn data_of_a_write_is_not_copied_by_the_server() {
    // RTR-5.3-a RTR-9.2-a
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    for pages in [1, 2, 3, 8, 16] {
        let file = pair.create(&root, format!("f{pages}").as_bytes());
        let octets = pattern(pages * PAGE);
        let before = pair.server.statistics().items_placed;
        assert_eq!(write(&mut pair, &file, 0, &octets, true), Ok(octets.len() as u32));
        assert_eq!(pair.server.statistics().items_placed, before + 1, "{pages} pages");
        let (found, _) = read(&mut pair, &file, 0, octets.len() as u32, true);
        assert!(found == octets, "{pages} pages");
    }
    let statistics = *pair.server.statistics();
    assert_eq!((statistics.read_bytes, statistics.write_bytes), (0, 0), "no RDMA");
    assert!(pair.entry_pool().stored() >= 30, "they are the file's");
    assert_eq!(
        pair.memory_statistics(),
        MemoryStoreStatistics { octets_copied: 0, pages_placed: 30, pages_read: 30 }
    );
}
