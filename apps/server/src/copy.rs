//! Copies files and trees between this machine and servers, for `stag cp`, `get` and `put`.
//!
//! | module | subject |
//! |---|---|
//! | `tree` | the tree as jobs, and the workers that take them: several files at once, over one connection |
//! | `file` | one file: parts in flight, holes, and cleaning up after a failure |
//! | `flight` | parts in flight, and the memory that all of them share |
//! | `keep` | attributes, for `--preserve` |
//! | `options`, `halt` | the flags; why work ends early |
//! | `found` | the kind and attributes of an existing file |
//! | `report` | progress, and the summary |

mod file;
mod flight;
mod found;
mod halt;
mod keep;
mod options;
mod report;
mod tree;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use stag_runtime::Clock;

use crate::failure::CommandFailure;
use crate::output::Output;
use crate::remote::RemoteNode;
use crate::remote::session::{Session, Task, Tasks, run};
use crate::url::Place;
use found::{Found, Kind};
use halt::{local, remains};
pub use options::CopyOptions;
use report::{Copied, Progress};
use tree::{Copier, End, Folder, Job};

/// How long the removal of incomplete files may take after a signal.
const CLEANUP_MAX: Duration = Duration::from_secs(5);

/// Copies `source` to `target`, or into it if that is a folder, and tells how much it was.
pub fn copy(
    source: &Place,
    target: &Place,
    options: CopyOptions,
    out: &mut Output,
) -> Result<(), CommandFailure> {
    let clock = Clock::start_system();
    let tasks = Rc::new(Tasks::default());
    let (mut from, mut to) = (connect(source, &tasks, None)?, End::Local);
    if let Place::Remote(_) = target {
        to = connect(target, &tasks, Some((source, &from)))?;
    }
    let (found, node) = probe_path(source, &mut from, !options.recursive)?;
    let Some(found) = found else { return Err(CommandFailure::run(format_args!("{source}: no such file"))) };
    let mut target = target.clone();
    if let (Some(Found { kind: Kind::Folder, .. }), _) = probe_path(&target, &mut to, true)?
        && !options.no_target_directory
        && let Some(name) = source.name()
    {
        target = target.join(name);
    }
    check(source, &target, &found, options)?;

    let total = (found.kind == Kind::File).then_some(found.size);
    let copier = Copier::new(options, from, to, Rc::clone(&tasks), Progress::new(total, out));
    let (into, name) = folder_of(&copier, &target)?;
    copier.jobs.push(Job::Object { place: source.clone(), node, into, name, is_top: true });
    let signal = work(&copier)?;
    copier.progress.clear();
    end(&copier, signal)?;
    let elapsed = clock.now();
    let copied = Copied { seconds: elapsed.as_secs_f64(), ..copier.copied.take() };
    copied.untold().for_each(|text| out.complain(&CommandFailure::run(text)));
    copied.tell(elapsed, options.preserve, out)?;
    // Each was told when it failed.
    if copied.failed > 0 { Err(CommandFailure::Told) } else { Ok(()) }
}

/// Connects to a place's server; one that is connected to already is used again.
fn connect(place: &Place, tasks: &Rc<Tasks>, known: Option<(&Place, &End)>) -> Result<End, CommandFailure> {
    let Place::Remote(url) = place else { return Ok(End::Local) };
    if let Some((Place::Remote(other), End::Remote(session))) = known
        && other.server() == url.server()
    {
        return Ok(End::Remote(session.clone()));
    }
    Session::connect(url, !crate::options::get().no_reconnect, Rc::clone(tasks)).map(End::Remote)
}

/// What is at a place, if anything; whether a symbolic link of this machine is followed is said.
fn probe_path(
    place: &Place,
    end: &mut End,
    follow: bool,
) -> Result<(Option<Found>, Option<RemoteNode>), CommandFailure> {
    match (place, end) {
        (Place::Local(path), _) => {
            Ok((Found::local(path, follow).map_err(|error| local(path, &error))?, None))
        }
        (Place::Remote(url), End::Remote(session)) => match session.alone().find(&url.path) {
            Err(error) if error.is_absent() => Ok((None, None)),
            node => {
                let node = node.map_err(|error| error.at(url))?;
                Ok((Some(Found::of_attributes(&node.attributes)), Some(node)))
            }
        },
        (Place::Remote(_), End::Local) => unreachable!("a server's place has a connection"),
    }
}

/// Refuses what makes no sense.
fn check(source: &Place, target: &Place, found: &Found, options: CopyOptions) -> Result<(), CommandFailure> {
    match found.kind {
        Kind::Other(kind) => {
            let what = format_args!("is a {kind}, neither a file nor a folder nor a symbolic link");
            return Err(CommandFailure::run(format_args!("{source}: {what}")));
        }
        Kind::Folder if !options.recursive => {
            return Err(CommandFailure::run(format_args!("{source}: is a folder; -r copies it")));
        }
        Kind::Folder if lies_in(target, source) => {
            return Err(CommandFailure::run(format_args!("{target}: lies in {source}, the folder to copy")));
        }
        _ => {}
    }
    if source == target {
        return Err(CommandFailure::run(format_args!("{source}: source and target are the same")));
    }
    Ok(())
}

/// Whether a place is in a folder, or is the folder.
fn lies_in(place: &Place, folder: &Place) -> bool {
    match (place, folder) {
        (Place::Remote(place), Place::Remote(folder)) => {
            place.server() == folder.server() && place.path.starts_with(&folder.path)
        }
        (Place::Local(place), Place::Local(folder)) => {
            // The target itself need not be there.
            let real = |path: &Path| fs::canonicalize(path).ok();
            let parent =
                || real(place.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new(".")));
            let place = real(place).or_else(|| Some(parent()?.join(place.file_name()?)));
            place.zip(real(folder)).is_some_and(|(place, folder)| place.starts_with(folder))
        }
        _ => false,
    }
}

/// The folder that the copy goes into, and its name there.
fn folder_of(copier: &Copier, target: &Place) -> Result<(Rc<Folder>, OsString), CommandFailure> {
    let jobs = Rc::clone(&copier.jobs);
    match (target, &copier.target) {
        (Place::Remote(url), End::Remote(session)) => {
            let (name, handle) = session.alone().folder_of(url)?;
            Ok((Folder::top(Place::Remote(url.parent()), Some(handle), jobs), name.to_owned()))
        }
        (Place::Local(path), _) => {
            // A path that ends with .. or / has no name: it is joined to whole.
            let (parent, name) = match (path.parent(), path.file_name()) {
                (Some(parent), Some(name)) => (parent.to_owned(), name.to_owned()),
                _ => (path.clone(), ".".into()),
            };
            Ok((Folder::top(Place::Local(parent), None, jobs), name))
        }
        (Place::Remote(_), End::Local) => unreachable!("a server's place has a connection"),
    }
}

/// Runs the workers. Returns the signal that ended them early, if one did.
fn work(copier: &Copier) -> Result<Option<i32>, CommandFailure> {
    let (signal, second) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    for number in [SIGINT, SIGTERM] {
        // The second one ends it at once: registered before what arms it.
        flag::register_conditional_shutdown(number, 128 + number, Arc::clone(&second))
            .and_then(|_| flag::register(number, Arc::clone(&second)))
            .and_then(|_| flag::register_usize(number, Arc::clone(&signal), number as usize))
            .map_err(|error| CommandFailure::run(format_args!("signal {number}: {error}")))?;
    }
    let clock = Clock::start_system();
    let mut stopped_at = None;
    let workers = (0..copier.options.jobs).map(|_| Box::pin(copier.work()) as Task<'_>).collect();
    let sessions: Vec<Session> = match (copier.source.session(), copier.target.session()) {
        (Some(one), Some(two)) if one.is(two) => vec![one.clone()],
        (one, two) => one.into_iter().chain(two).cloned().collect(),
    };
    run(&copier.tasks, workers, &sessions, || {
        if signal.load(Ordering::Relaxed) != 0 && stopped_at.is_none() {
            stopped_at = Some(clock.now());
            copier.halt();
        }
        let is_lost = || sessions.iter().any(Session::is_interrupted);
        // Without a connection nothing can be removed.
        stopped_at.is_none_or(|at| !is_lost() && clock.now().saturating_sub(at) < CLEANUP_MAX)
    });
    Ok(Some(signal.load(Ordering::Relaxed) as i32).filter(|signal| *signal != 0))
}

/// Why the copy ended early, with what is left of incomplete files.
fn end(copier: &Copier, signal: Option<i32>) -> Result<(), CommandFailure> {
    let failure = copier.failure.take();
    if failure.is_none() && signal.is_none() {
        return Ok(());
    }
    let partial = copier.partial.take().into_iter().map(|place| (place, "may be incomplete"));
    let remains = remains(copier.remains.take().into_iter().chain(partial));
    let done = copier.copied.borrow().amount();
    Err(match (failure, signal) {
        (_, Some(signal)) => CommandFailure::Signal(signal, format!("interrupted after {done}{remains}")),
        (Some(failure), _) if remains.is_empty() => failure,
        (Some(failure), _) => CommandFailure::run(format_args!("{failure}{remains}")),
        (None, None) => unreachable!("there is a reason"),
    })
}

/// Reads until `buffer` is full or the source ends.
pub fn read_full(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match source.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
