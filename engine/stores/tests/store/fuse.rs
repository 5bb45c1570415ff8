//! A file system of the test's own, by the kernel's FUSE protocol: it answers when the test lets it.
//!
//! Its root has files `f0`, `f1`, … and what is made in it. Nothing is kept in the kernel's memory: each look-up and each question
//! for attributes comes here.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use stag_testing::Scratch;

const IN_HEADER_LEN: usize = 40;
const ROOT_NODE: u64 = 1;

/// How long it stands still at most.
const PATIENCE: Duration = Duration::from_secs(60);
const FIRST_FILE: u64 = 1000;

/// A mounted file system. Dropping it takes it away.
pub(crate) struct Fuse {
    pub(crate) scratch: Scratch,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stands_still: bool,
    /// How long a look-up takes.
    delay: Duration,
    /// Look-ups that are under way, and the most that were at once.
    under_way: usize,
    most: usize,
    /// What was made: numbers by name.
    made: HashMap<Vec<u8>, u64>,
}

impl Fuse {
    /// `None`: it cannot be mounted here.
    pub(crate) fn mount() -> Option<Fuse> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").ok()?;
        let scratch = Scratch::folder();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let options = CString::new(options).unwrap();
        mount("stag-test", &scratch.0, "fuse", MountFlags::NOSUID | MountFlags::NODEV, Some(&*options))
            .ok()?;
        let shared = Arc::new(Shared::default());
        let server = shared.clone();
        thread::spawn(move || serve(device, &server));
        Some(Fuse { scratch, shared })
    }

    /// Lets it answer nothing, or answer again.
    pub(crate) fn stand_still(&self, stands_still: bool) {
        self.shared.state.lock().unwrap().stands_still = stands_still;
        self.shared.changed.notify_all();
    }

    /// Takes it away, with all that waits for it.
    pub(crate) fn abort(&self) {
        unmount(&self.scratch.0, UnmountFlags::FORCE | UnmountFlags::DETACH).unwrap();
    }

    /// Lets each look-up take this long.
    pub(crate) fn delay(&self, delay: Duration) {
        self.shared.state.lock().unwrap().delay = delay;
    }

    /// The most look-ups that were under way at once.
    pub(crate) fn most_at_once(&self) -> usize {
        self.shared.state.lock().unwrap().most
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        self.stand_still(false);
        // What waits for it still, fails.
        let _ = unmount(&self.scratch.0, UnmountFlags::FORCE);
        let _ = unmount(&self.scratch.0, UnmountFlags::DETACH);
    }
}

fn serve(device: File, shared: &Arc<Shared>) {
    let device = Arc::new(device);
    let mut space = vec![0; 1 << 17];
    while let Ok(len) = (&*device).read(&mut space) {
        let request = Request { octets: space[..len].to_vec() };
        let (device, shared) = (device.clone(), shared.clone());
        if request.opcode() == 26 {
            request.answer(&shared, &device);
            continue;
        }
        thread::spawn(move || request.answer(&shared, &device));
    }
}

struct Request {
    octets: Vec<u8>,
}

impl Request {
    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.octets[at..at + 4].try_into().unwrap())
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.octets[at..at + 8].try_into().unwrap())
    }

    fn opcode(&self) -> u32 {
        self.u32(4)
    }

    fn name(&self, skip: usize) -> &[u8] {
        let rest = &self.octets[IN_HEADER_LEN + skip..];
        rest.split(|octet| *octet == 0).next().unwrap()
    }

    fn answer(&self, shared: &Shared, device: &File) {
        let is_lookup = self.opcode() == 1;
        if is_lookup {
            let mut state = shared.state.lock().unwrap();
            state.under_way += 1;
            state.most = state.most.max(state.under_way);
            let delay = state.delay;
            drop(state);
            thread::sleep(delay);
        }
        let mut state = shared.state.lock().unwrap();
        while state.stands_still && self.opcode() != 26 {
            let (next, waited) = shared.changed.wait_timeout(state, PATIENCE).unwrap();
            state = next;
            // A test that hangs would not even end: the kernel lets no process go that waits for itself.
            state.stands_still &= !waited.timed_out();
        }
        state.under_way -= usize::from(is_lookup);
        let Some(result) = self.result(&mut state) else { return };
        drop(state);
        let (error, body) = match result {
            Ok(body) => (0, body),
            Err(error) => (-error.raw_os_error(), Vec::new()),
        };
        let mut answer = Vec::new();
        answer.extend((16 + body.len() as u32).to_ne_bytes());
        answer.extend(error.to_ne_bytes());
        answer.extend(self.u64(8).to_ne_bytes());
        answer.extend(body);
        let _ = (&*device).write(&answer);
    }

    /// `None`: it has no answer.
    fn result(&self, state: &mut State) -> Option<Result<Vec<u8>, rustix::io::Errno>> {
        use rustix::io::Errno;
        Some(match self.opcode() {
            1 => match self.name(0) {
                b"io" => Err(Errno::IO),
                b"stale" => Err(Errno::STALE),
                name => match state.made.get(name).copied().or_else(|| number(name)) {
                    Some(node) => Ok(entry(node)),
                    None => Err(Errno::NOENT),
                },
            },
            2 | 36 | 42 => return None,
            3 => {
                let mut body = vec![0; 16];
                body.extend(attributes(self.u64(16)));
                Ok(body)
            }
            // MKDIR
            9 => match self.name(8) {
                b"full" => Err(Errno::NOSPC),
                b"quota" => Err(Errno::DQUOT),
                name => {
                    let node = 10 + state.made.len() as u64;
                    state.made.insert(name.to_vec(), node);
                    Ok(entry(node))
                }
            },
            // RMDIR
            11 => state.made.remove(self.name(0)).map(|_| Vec::new()).ok_or(Errno::NOENT),
            17 => Ok(vec![0; 80]),
            14 | 27 => Ok(vec![0; 16]),
            18 | 20 | 25 | 29 | 30 => Ok(Vec::new()),
            // INIT: look-ups in one directory may come at once.
            26 => {
                let mut body = Vec::new();
                for word in [7_u32, 31, 0, 1 << 18] {
                    body.extend(word.to_ne_bytes());
                }
                body.resize(64, 0);
                body[20..24].copy_from_slice(&(1_u32 << 16).to_ne_bytes());
                Ok(body)
            }
            _ => Err(Errno::NOSYS),
        })
    }
}

fn number(name: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(name.strip_prefix(b"f")?).ok()?;
    digits.parse::<u64>().ok().map(|number| FIRST_FILE + number)
}

/// What is told of a node, which is not good for any time.
fn entry(node: u64) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend(node.to_ne_bytes());
    body.resize(40, 0);
    body.extend(attributes(node));
    body
}

fn attributes(node: u64) -> Vec<u8> {
    let is_directory = node == ROOT_NODE || node < FIRST_FILE;
    let mut body = Vec::new();
    body.extend(node.to_ne_bytes());
    body.resize(60, 0);
    let (mode, links): (u32, u32) = if is_directory { (0o40755, 2) } else { (0o100_644, 1) };
    body.extend(mode.to_ne_bytes());
    body.extend(links.to_ne_bytes());
    body.resize(88, 0);
    body
}
