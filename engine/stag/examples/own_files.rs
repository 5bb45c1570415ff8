//! A store of one's own, served by NFSv3 so that Linux mounts it: a small tree of files that nothing can change.
//!
//! ```sh
//! cargo run -p stag --example own_files -- tcp://0.0.0.0:2049
//! mount -t nfs -o ro,vers=3,proto=tcp,port=2049,mountport=2049,nolock HOST:/files /mnt
//! ```
//!
//! The same over RDMA: `iwarp://0.0.0.0:20049`, and `proto=rdma,port=20049` with MOUNT by TCP.

use std::error::Error;

use stag::nfs::export::Export;
use stag::nfs::handle::HandleKey;
use stag::nfs::server::{ExportTable, TimeOfDay, services};
use stag::prelude::*;
use stag::runtime::WallClock;
use stag::vfs::{
    Capabilities, ChangeStep, EntryName, FsError, ListStart, Listed, ObjectId, ObjectKind, ObjectStat,
    Progress, ReadDone, ReadStep, Store, StoreProfile, Timestamp, UserIdentity,
};

/// The place of a node in the table is its number, less 1.
struct Node {
    name: &'static str,
    /// The number of the folder that it is in. The root is in itself.
    above: u64,
    /// Of a file.
    data: Option<&'static [u8]>,
}

static NODES: [Node; 4] = [
    Node { name: "", above: 1, data: None },
    Node { name: "readme.txt", above: 1, data: Some(b"These files are a table in a program.\n") },
    Node { name: "notes", above: 1, data: None },
    Node { name: "today.txt", above: 3, data: Some(b"Nothing happened.\n") },
];

/// When all of it was made: 1 January 2026.
const MADE: Timestamp = Timestamp { seconds: 1_767_225_600, nanoseconds: 0 };

struct Files {
    /// What READ sends from.
    pool: Pool,
}

fn id(number: u64) -> ObjectId {
    // No number is used again, so one generation is enough.
    ObjectId { fileid: number, generation: 1 }
}

fn node(object: ObjectId) -> Result<&'static Node, FsError> {
    let index = usize::try_from(object.fileid).map_err(|_| FsError::Stale)?.wrapping_sub(1);
    NODES.get(index).filter(|_| object.generation == 1).ok_or(FsError::Stale)
}

/// The numbers and names of what is in a folder.
fn entries(folder: ObjectId) -> impl Iterator<Item = (u64, &'static str)> {
    let numbered = (1..).zip(&NODES).skip(1);
    numbered.filter(move |(_, node)| node.above == folder.fileid).map(|(number, node)| (number, node.name))
}

impl Store for Files {
    fn profile(&self) -> StoreProfile {
        // READ copies into the pool, of which one client must not take all.
        let can = Capabilities { reads_take_memory: true, ..Capabilities::default() };
        StoreProfile { can, ..StoreProfile::new(1, id(1)) }
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn stat(&self, object: ObjectId) -> ReadStep<ObjectStat> {
        let (kind, mode, size) = match node(object)?.data {
            Some(data) => (ObjectKind::Regular, 0o444, data.len() as u64),
            None => (ObjectKind::Directory, 0o555, 4096),
        };
        let empty = ObjectStat::new(object, kind, mode);
        Ok(ObjectStat { size, used: size, atime: MADE, mtime: MADE, ctime: MADE, ..empty })
    }

    fn entry(&self, at: EntryName<'_>) -> ReadStep<ObjectStat> {
        if at.name == b".." {
            return self.stat(id(node(at.directory.object)?.above));
        }
        let found = entries(at.directory.object).find(|(_, name)| name.as_bytes() == at.name);
        self.stat(id(found.ok_or(FsError::NotFound)?.0))
    }

    fn list(
        &self,
        directory: ObjectId,
        start: ListStart,
        _: Timestamp,
        visit: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> ReadStep<bool> {
        let dots = [(directory.fileid, "."), (node(directory)?.above, "..")];
        // The cookie of an entry is its place in the folder.
        for (cookie, (number, name)) in (1..).zip(dots.into_iter().chain(entries(directory))) {
            let object = id(number);
            let attributes = if start.attributes { Some(self.stat(object)?) } else { None };
            let listed = Listed { object, name: name.as_bytes(), cookie, attributes };
            if cookie > start.cookie && !visit(listed) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn read(
        &mut self,
        _: &UserIdentity,
        object: ObjectId,
        offset: u64,
        count: u32,
        pieces: &mut Vec<Shared>,
        _: Timestamp,
    ) -> ChangeStep<ReadDone> {
        let data = node(object)?.data.ok_or(FsError::IsDirectory)?;
        let rest = &data[data.len().min(usize::try_from(offset).unwrap_or(usize::MAX))..];
        let wanted = &rest[..rest.len().min(count as usize)];
        if !wanted.is_empty() {
            let mut buf = self.pool.take_len(wanted.len()).ok_or(FsError::Busy)?;
            buf.copy_from_slice(wanted);
            pieces.push(buf.share());
        }
        Ok(Progress::Done(ReadDone { count: wanted.len() as u32, eof: wanted.len() == rest.len() }))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "tcp://127.0.0.1:2049".to_owned());
    // All engines of the server know each other's handles.
    let key = HandleKey::new();
    let server = Server::new(move |seat: &Seat| {
        let pool = seat.payload().clone();
        let files: Box<dyn Store> = Box::new(Files { pool: pool.clone() });
        let exports = ExportTable::new(vec![(Export::new("/files"), files)], pool).expect("one export");
        let time = TimeOfDay::System(WallClock::new(seat.clock().now()));
        services(exports.with_key(key.clone()), time)
    });
    let running = server.listen(&url).start()?;
    println!("ready: {}", running.urls()[0]);
    running.until_signal()?;
    Ok(())
}
