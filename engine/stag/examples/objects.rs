//! An object store on several cores: put and get of 1 byte to 8 MiB, list, delete, save; a disk thread writes and reads what is saved.
//!
//! ```text
//! objects serve URL FOLDER [THREADS [METRICS]]   URL is shm://NAME, iwarp://HOST:PORT, ...; saved objects lie in FOLDER
//! objects put URL NAME FILE               also: get URL NAME FILE, delete URL NAME, save URL NAME
//! objects list URL
//! ```
//!
//! Each object has a home: the core that its name leads to. No lock is needed, and no octet of an object is copied between cores:
//! data lies where it arrived, and is sent from there. `save` writes an object to the folder, from where the next server's `get`
//! brings it. That takes a while, so a thread does it (`disk.rs` needs none). Another serves Prometheus counters at METRICS (HOST:PORT).

use std::collections::BTreeMap;
use std::error::Error;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::mpsc::{self, Sender};
use std::thread;

use stag::prelude::*;

const PROGRAM: u32 = 0x2000_7a73;
const NAME_LEN_MAX: u32 = 64;
const DATA_LEN_MAX: u32 = 8 << 20;
/// Names that a core tells at most: as many as an answer has room for.
const NAMES_MAX: usize = 10_000;

/// `void put(opaque name, opaque data)`
const PUT: u32 = 1;
/// `opaque get(opaque name)`, as all below with a status word first
const GET: u32 = 2;
/// `list(unsigned core) -> (unsigned cores, opaque names<>)`: the first names of one core
const LIST: u32 = 3;
/// `void delete(opaque name)`
const DELETE: u32 = 4;
/// `void save(opaque name)`
const SAVE: u32 = 5;

static PROCEDURES: [Procedure; 5] = [
    Procedure { eligible_arguments: 1, ..Procedure::plain("PUT") }.once(),
    Procedure { eligible_results: 1, ..Procedure::plain("GET") },
    Procedure::plain("LIST"),
    Procedure::plain("DELETE").once(),
    Procedure::plain("SAVE").once(),
];

/// Statuses.
const DONE: u32 = 0;
const NO_OBJECT: u32 = 1;
const FAILED: u32 = 2;

/// Work for the disk thread of a core; the answer is its last step.
type Job = Box<dyn FnOnce() + Send>;

/// The objects of one core.
struct Objects {
    seat: Seat,
    /// In memory, each in as many pieces as it came in.
    objects: BTreeMap<Vec<u8>, Vec<Shared>>,
    folder: PathBuf,
    disk: Sender<Job>,
}

impl Objects {
    fn new(seat: &Seat, folder: PathBuf) -> Objects {
        let (disk, jobs) = mpsc::channel::<Job>();
        // It ends when the service is dropped, which has the sender.
        thread::spawn(move || jobs.into_iter().for_each(|job| job()));
        Objects { seat: seat.clone(), objects: BTreeMap::new(), folder, disk }
    }

    /// Where a saved object is. Names are any octets, so they are written in hexadecimal.
    fn path(&self, name: &[u8]) -> PathBuf {
        self.folder.join(name.iter().map(|octet| format!("{octet:02x}")).collect::<String>())
    }

    fn put(&mut self, call: &mut Call<'_>) -> Option<u32> {
        let mut arguments = call.arguments();
        let name = arguments.opaque(NAME_LEN_MAX).ok()?;
        let pieces: Vec<Shared> = match arguments.eligible_opaque(DATA_LEN_MAX).ok()? {
            // It stays where it was placed.
            Item::Reduced { index, len } => {
                let placed = call.placed(index);
                if placed.is_missing() {
                    return Some(FAILED);
                }
                placed.take_item(len).collect()
            }
            Item::Inline(octets) => {
                let Some(mut buf) = self.seat.payload().take_len(octets.len()) else {
                    return Some(FAILED);
                };
                buf.copy_from_slice(octets);
                vec![buf.share()]
            }
        };
        // What stays is not on its way any more: it does not count against the client.
        pieces.iter().for_each(Shared::mark_stored);
        self.objects.insert(name.to_vec(), pieces);
        Some(DONE)
    }

    fn get(&self, call: &Call<'_>, reply: &mut Reply<'_>) -> Option<Outcome> {
        let name = call.arguments().opaque(NAME_LEN_MAX).ok()?;
        if let Some(pieces) = self.objects.get(name) {
            return Some(give(reply, pieces));
        }
        let Ok(metadata) = fs::metadata(self.path(name)) else {
            return Some(status(reply, NO_OBJECT));
        };
        let room = reply.data_room(metadata.len().min(DATA_LEN_MAX.into()) as u32);
        let (Some(mut room), Ok(deferred)) = (room, reply.defer(call)) else {
            return Some(status(reply, FAILED));
        };
        let (token, path) = (deferred.token(), self.path(name));
        let job = move || {
            // From the disk into memory that goes to the client as it is.
            let read = File::open(path).and_then(|mut file| file.read_exact(&mut room));
            deferred.finish(move |reply| match (read, room.into_buf()) {
                (Ok(()), Ok(buf)) => _ = give(reply, &[buf.share()]),
                _ => _ = status(reply, FAILED),
            });
        };
        // A thread that is gone drops the job, and with it the Deferred, which answers SYSTEM_ERR.
        let _ = self.disk.send(Box::new(job));
        Some(Outcome::Later(token))
    }

    fn save(&mut self, call: &Call<'_>, reply: &mut Reply<'_>) -> Option<Outcome> {
        let name = call.arguments().opaque(NAME_LEN_MAX).ok()?;
        let (Some(pieces), Ok(deferred)) = (self.objects.get(name), reply.defer(call)) else {
            return Some(status(reply, NO_OBJECT));
        };
        // Memory that others may be reading stays on this core: the thread gets a copy.
        let data = pieces.iter().map(|piece| &piece[..]).collect::<Vec<_>>().concat();
        let (token, path) = (deferred.token(), self.path(name));
        let job = move || {
            let draft = path.with_extension("draft");
            let written = fs::write(&draft, &data).and_then(|()| File::open(&draft)?.sync_all());
            let end = written.and_then(|()| fs::rename(&draft, &path)).map_or(FAILED, |()| DONE);
            deferred.finish(move |reply| _ = status(reply, end));
        };
        let _ = self.disk.send(Box::new(job));
        Some(Outcome::Later(token))
    }

    fn delete(&mut self, call: &Call<'_>) -> Option<u32> {
        let name = call.arguments().opaque(NAME_LEN_MAX).ok()?;
        let was_in_memory = self.objects.remove(name).is_some();
        let was_saved = fs::remove_file(self.path(name)).is_ok();
        Some(if was_in_memory || was_saved { DONE } else { NO_OBJECT })
    }

    fn list(&self, reply: &mut Reply<'_>) -> Outcome {
        let count = self.objects.len().min(NAMES_MAX);
        reply.success(|writer| {
            [DONE, self.seat.count() as u32, count as u32].iter().try_for_each(|word| writer.u32(*word))?;
            self.objects.keys().take(count).try_for_each(|name| writer.opaque(name))
        });
        Outcome::Done
    }
}

fn status(reply: &mut Reply<'_>, status: u32) -> Outcome {
    reply.success(|writer| writer.u32(status));
    Outcome::Done
}

/// Answers with an object.
fn give(reply: &mut Reply<'_>, pieces: &[Shared]) -> Outcome {
    reply.success_with_item(pieces, |writer| writer.u32(DONE));
    Outcome::Done
}

impl Service for Objects {
    fn program(&self) -> u32 {
        PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        (1, 1)
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<&'static Procedure> {
        PROCEDURES.get(procedure.checked_sub(1)? as usize)
    }

    /// The same name leads to the same core, whatever connection it comes from.
    fn home(&self, call: &Call<'_>) -> Home {
        let mut arguments = call.arguments();
        let number = match call.procedure {
            LIST => arguments.u32().unwrap_or(0) as usize,
            _ => arguments.opaque(NAME_LEN_MAX).map_or(0, |name| {
                name.iter().fold(0, |sum: usize, octet| sum.wrapping_mul(31).wrapping_add((*octet).into()))
            }),
        };
        ReactorId::new(number % self.seat.count()).map_or(Home::Here, Home::At)
    }

    fn give_back(&mut self) {
        self.objects.clear();
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        let outcome = match call.procedure {
            PUT => self.put(call).map(|end| status(reply, end)),
            GET => self.get(call, reply),
            LIST => Some(self.list(reply)),
            DELETE => self.delete(call).map(|end| status(reply, end)),
            _ => self.save(call, reply),
        };
        outcome.unwrap_or_else(|| {
            reply.garbage_arguments();
            Outcome::Done
        })
    }
}

/// The status word, as an error if it is one.
fn check(reader: &mut Reader<'_>) -> Result<(), Box<dyn Error>> {
    match reader.u32()? {
        DONE => Ok(()),
        NO_OBJECT => Err("there is no such object".into()),
        _ => Err("the server has no memory for it now, or its disk failed".into()),
    }
}

/// Answers each request at `place` with the counters of the server's cores.
fn serve_metrics(place: &str, statistics: StatisticsHandle) -> io::Result<()> {
    let listener = TcpListener::bind(place)?;
    println!("metrics: http://{}/metrics", listener.local_addr()?);
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            // It is the same answer for all. Errors: the client may be gone.
            let request = BufReader::new((&client).take(8192)).lines().map_while(Result::ok);
            request.take_while(|line| !line.is_empty()).for_each(drop);
            let Some(counted) = statistics.read() else { continue };
            let mut text = format!("objects_sent_bytes_total {}\n", counted.engines.write_bytes);
            for it in &counted.procedures {
                text += &format!("objects_calls_total{{procedure=\"{}\"}} {}\n", it.name, it.calls);
            }
            let _ = write!(client, "HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n{text}");
        }
    });
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    // Memory for a few objects of the largest size.
    let connect = |url| Client::builder().memory(32 << 20).connect(url);
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", url, folder, ref more @ ..] => {
            let folder = PathBuf::from(folder);
            let threads = more.first().map_or(Ok(1), |count| count.parse())?;
            let make = move |seat: &Seat| Observed::new((Objects::new(seat, folder.clone()),));
            let server = Server::new(make).listen(url).data_max(DATA_LEN_MAX);
            let running = server.threads(threads).memory(threads * (96 << 20)).start()?;
            println!("ready: {}", running.urls()[0]);
            more.get(1).map_or(Ok(()), |place| serve_metrics(place, running.statistics_handle()))?;
            println!("{:?}", running.until_signal()?);
        }
        ["get", url, name, file] => {
            let client = connect(url)?;
            let request = client.request(PROGRAM, 1, GET).room(DATA_LEN_MAX as usize);
            let answer = request.call(|writer| writer.opaque(name.as_bytes()))?;
            let mut reader = answer.reader();
            check(&mut reader)?;
            fs::write(file, answer.item(&mut reader, DATA_LEN_MAX)?)?;
        }
        [verb @ ("put" | "delete" | "save"), url, name, ref file @ ..] => {
            let client = connect(url)?;
            let procedure = [("put", PUT), ("delete", DELETE)].iter().find(|(known, _)| *known == verb);
            let mut request = client.request(PROGRAM, 1, procedure.map_or(SAVE, |(_, number)| *number));
            if let Some(file) = file.first() {
                request = request.data(fs::read(file)?);
            }
            check(&mut request.call(|writer| writer.opaque(name.as_bytes()))?.reader())?;
        }
        ["list", url] => {
            let client = connect(url)?;
            let (mut core, mut cores) = (0, 1);
            while core < cores {
                let request = client.request(PROGRAM, 1, LIST).results_max(1 << 20);
                let answer = request.call(|writer| writer.u32(core))?;
                let mut reader = answer.reader();
                check(&mut reader)?;
                cores = reader.u32()?;
                for _ in 0..reader.u32()? {
                    println!("{}", String::from_utf8_lossy(reader.opaque(NAME_LEN_MAX)?));
                }
                core += 1;
            }
        }
        _ => return Err("unknown words; objects.rs begins with those that it knows")?,
    }
    Ok(())
}
