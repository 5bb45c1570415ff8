//! Objects in files, by `stag::disk`: no octet is copied, and no thread of the program's own is needed.
//!
//! ```text
//! disk serve URL FOLDER
//! disk put URL NAME FILE
//! disk get URL NAME FILE
//! ```
//!
//! The data of a PUT goes from the memory where RDMA placed it to the file; that of a GET from the file to memory that RDMA sends from.
//! io_uring does both while the core goes on with other Calls; where it is not permitted, helper threads of `Disk` do.

use std::collections::HashMap;
use std::error::Error;
use std::fs::{self, File};
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use stag::disk::{Data, Disk, DiskCompletion, DiskConfig, DiskFile, Pieces, Sync};
use stag::prelude::*;
use stag::rpc::Token;

const PROGRAM: u32 = 0x2000_7a74;
const NAME_LEN_MAX: u32 = 64;
const DATA_LEN_MAX: u32 = 1 << 20;

/// `status put(opaque name, opaque data)`
const PUT: u32 = 1;
/// `(status, opaque data) get(opaque name)`
const GET: u32 = 2;

static PROCEDURES: [Procedure; 2] = [
    Procedure { eligible_arguments: 1, ..Procedure::plain("PUT") }.once(),
    Procedure { eligible_results: 1, ..Procedure::plain("GET") },
];

const DONE: u32 = 0;
const FAILED: u32 = 1;

/// The objects of a folder.
struct Files {
    folder: PathBuf,
    payload: Pool,
    disk: Disk,
    /// Calls whose operation is under way, by the operation's tag.
    under_way: HashMap<u64, Token>,
    last_tag: u64,
    /// Operations that are over, until their Calls are answered.
    over: HashMap<Token, DiskCompletion>,
}

impl Files {
    fn new(seat: &Seat, folder: PathBuf) -> Files {
        // The kernel learns once where the memory is, not with each operation.
        let disk = Disk::new(&DiskConfig::default(), &[seat.arena()]);
        let payload = seat.payload().clone();
        Files { folder, payload, disk, under_way: HashMap::new(), last_tag: 0, over: HashMap::new() }
    }

    /// Opening may wait for a device, too: a server of many files does it in `stag::disk::Helpers`.
    fn open(&self, name: &[u8], how: impl Fn(PathBuf) -> io::Result<File>) -> Option<File> {
        // Names are any octets.
        how(self.folder.join(name.iter().map(|octet| format!("{octet:02x}")).collect::<String>())).ok()
    }

    /// Begins to write. `None`: it cannot.
    fn put(&mut self, call: &mut Call<'_>) -> Option<u64> {
        let mut arguments = call.arguments();
        let name = arguments.opaque(NAME_LEN_MAX).ok()?;
        let pieces: Pieces<Shared> = match arguments.eligible_opaque(DATA_LEN_MAX).ok()? {
            Item::Reduced { index, len } => {
                let placed = call.placed(index);
                if placed.is_missing() {
                    return None;
                }
                placed.take_item(len).collect()
            }
            // Little data comes in the message, which is used again.
            Item::Inline(octets) => {
                let mut buf = self.payload.take_len(octets.len())?;
                buf.copy_from_slice(octets);
                [buf.share()].into_iter().collect()
            }
        };
        let file = shared(self.open(name, File::create)?);
        self.last_tag += 1;
        // As many operations as possible may be under way: then the client hears so.
        self.disk.write(self.last_tag, &file, 0, pieces, Sync::Data).ok()?;
        Some(self.last_tag)
    }

    /// Begins to read. `None`: it cannot.
    fn get(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Option<u64> {
        let file = self.open(call.arguments().opaque(NAME_LEN_MAX).ok()?, File::open)?;
        let len = file.metadata().ok()?.len().min(DATA_LEN_MAX.into()) as u32;
        // Memory of the client's part, which may be sent.
        let room = reply.data_room(len)?.into_buf().ok()?;
        self.last_tag += 1;
        self.disk.read(self.last_tag, &shared(file), 0, [room].into_iter().collect()).ok()?;
        Some(self.last_tag)
    }
}

/// A file, as operations share it.
fn shared(file: File) -> Arc<DiskFile> {
    Arc::new(DiskFile::from(OwnedFd::from(file)))
}

fn status(reply: &mut Reply<'_>, status: u32) {
    reply.success(|writer| writer.u32(status));
}

impl Service for Files {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (1, 1)
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<&'static Procedure> {
        PROCEDURES.get(procedure.checked_sub(1)? as usize)
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        let begun = if call.procedure == PUT { self.put(call) } else { self.get(call, reply) };
        let Some(tag) = begun else {
            status(reply, FAILED);
            return Outcome::Done;
        };
        self.under_way.insert(tag, call.token());
        Outcome::Later(call.token())
    }

    /// Hands new operations to the kernel, and looks for those that are over.
    fn poll_later(&mut self, _: Duration) -> Option<Token> {
        let completion = self.disk.poll()?;
        let token = self.under_way.remove(&completion.tag)?;
        self.over.insert(token, completion);
        Some(token)
    }

    fn finish(&mut self, token: Token, reply: &mut Reply<'_>) {
        match self.over.remove(&token) {
            Some(DiskCompletion { result: Ok(_), data: Data::Read(pieces), .. }) => {
                let pieces: Vec<Shared> = pieces.into_iter().map(Buf::share).collect();
                reply.success_with_item(&pieces, |writer| writer.u32(DONE));
            }
            // A disk that is full may take a part.
            Some(DiskCompletion { result: Ok(count), data, .. }) if data.len() == count as usize => {
                status(reply, DONE);
            }
            _ => status(reply, FAILED),
        }
    }

    /// The client is gone.
    fn abandoned(&mut self, token: Token) {
        self.over.remove(&token);
    }

    /// Wakes the core when an operation is over.
    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.extend(self.disk.descriptor());
    }
}

/// Makes an error of a status word that is one.
fn check(reader: &mut Reader<'_>) -> Result<(), Box<dyn Error>> {
    if reader.u32()? == DONE { Ok(()) } else { Err("the server cannot do it".into()) }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", url, folder] => {
            let folder = PathBuf::from(folder);
            let running = Server::new(move |seat| (Files::new(seat, folder.clone()),)).listen(url).start()?;
            println!("ready: {}", running.urls()[0]);
            println!("{:?}", running.until_signal()?);
        }
        ["put", url, name, file] => {
            let client = Client::connect(url)?;
            let request = client.request(PROGRAM, 1, PUT).data(fs::read(file)?);
            check(&mut request.call(|writer| writer.opaque(name.as_bytes()))?.reader())?;
        }
        ["get", url, name, file] => {
            let client = Client::connect(url)?;
            let request = client.request(PROGRAM, 1, GET).room(DATA_LEN_MAX as usize);
            let answer = request.call(|writer| writer.opaque(name.as_bytes()))?;
            let mut reader = answer.reader();
            check(&mut reader)?;
            fs::write(file, answer.item(&mut reader, DATA_LEN_MAX)?)?;
        }
        _ => return Err("unknown words; disk.rs begins with those that it knows")?,
    }
    Ok(())
}
