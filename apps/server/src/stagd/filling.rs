//! Memory that comes after the server is ready: what its reactors share in the background, and clients' places with use.

use std::fs;
use std::ops::Range;
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use super::exports::Medium;
use stag_memory::{Arena, Pool};
use stag_runtime::StopFlag;

use super::Settings;
use super::plan::{PAGE_LEN, Plan};
use crate::failure::CommandFailure;
use crate::url::FabricName;

/// Octets of each pool that are there before the server is ready.
const FIRST_LEN: usize = 16 << 20;

/// Octets that are brought at a time: the next look at whether the server stops is some milliseconds away.
const SLICE: usize = 2 << 20;

/// Whether the arena may grow: no device and no ring pins it, and a page that is not there yet is never refused when it is first
/// used. Where the system counts all memory that it promises (`vm.overcommit_memory` 2), such a use would end the process.
pub(super) fn may_grow(settings: &Settings) -> bool {
    let is_pinned = settings.fabric == Some(FabricName::Verbs)
        || settings.exports.iter().any(|(_, export)| export.medium == Medium::Directory);
    let overcommit = fs::read_to_string("/proc/sys/vm/overcommit_memory");
    !is_pinned && overcommit.is_ok_and(|mode| matches!(mode.trim(), "0" | "1"))
}

/// The thread that brings memory in the background.
pub(super) struct Filling {
    ranges: Sender<Range<usize>>,
    thread: JoinHandle<()>,
}

impl Filling {
    /// Starts the thread. It ends with `stop`, or when all is there that it was given.
    pub(super) fn start(arena: &Arena, stop: &StopFlag) -> Result<Filling, CommandFailure> {
        let (ranges, waiting) = mpsc::channel::<Range<usize>>();
        let (arena, stop) = (arena.clone(), stop.clone());
        let work = move || {
            for range in waiting {
                for start in range.clone().step_by(SLICE) {
                    if stop.is_requested() {
                        return;
                    }
                    if let Err(error) = arena.populate(start..range.end.min(start + SLICE)) {
                        tracing::warn!("memory: {error}; the rest comes as it is used");
                        return;
                    }
                }
            }
        };
        let thread = thread::Builder::new().name("memory".to_owned()).spawn(work);
        let thread =
            thread.map_err(|error| CommandFailure::run(format_args!("a thread for the memory: {error}")))?;
        Ok(Filling { ranges, thread })
    }

    /// Brings the first part of a reactor's pools, and lets the thread bring the rest of what its clients share. What each client's
    /// place may take beyond that comes as it is used.
    pub(super) fn fill(&self, plan: &Plan, messages: &Pool, payload: &Pool) -> Result<(), CommandFailure> {
        let targets = plan.engine.target_pages() * PAGE_LEN;
        for (pool, of_places) in [(messages, usize::MAX), (payload, targets)] {
            let (first, rest) = parts(&pool.range(), of_places);
            pool.arena()
                .populate(first)
                .map_err(|error| CommandFailure::run(format_args!("memory of {}: {error}", pool.name())))?;
            // The thread is gone only if it found no memory, and said so.
            let _ = self.ranges.send(rest);
        }
        Ok(())
    }

    /// Waits for the thread, which the stop of the server ends.
    pub(super) fn finish(self) {
        drop(self.ranges);
        if self.thread.join().is_err() {
            tracing::error!("the thread for the memory panicked; this is a defect");
        }
    }
}

/// What of a pool is brought before the server is ready, and what in the background, if `of_places` octets are clients' places.
fn parts(pool: &Range<usize>, of_places: usize) -> (Range<usize>, Range<usize>) {
    let first = pool.end.min(pool.start + FIRST_LEN);
    let shared = first.max(pool.end.saturating_sub(of_places));
    (pool.start..first, first..shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_part_comes_at_once_and_places_only_with_use() {
        let mib = |from: usize, to: usize| from << 20..to << 20;
        assert_eq!(parts(&mib(2, 100), 10 << 20), (mib(2, 18), mib(18, 90)));
        assert_eq!(parts(&mib(2, 100), usize::MAX), (mib(2, 18), mib(18, 18)));
        assert_eq!(parts(&mib(2, 20), 10 << 20), (mib(2, 18), mib(18, 18)));
        assert_eq!(parts(&mib(2, 5), 0), (mib(2, 5), mib(5, 5)));
    }
}
