//! A group of reactors: one for each of several cores, started and stopped together.
//!
//! Each reactor has a thread, a core, and a poller that was made on that thread and never leaves it. Reactors talk to each
//! other through lanes ([`LaneMesh`](crate::LaneMesh)); a [`Bell`](crate::Bell) wakes each. All of them run or none does, and they stop in
//! phases ([`Poller`]): no reactor leaves while another waits for its answer or holds its memory.

use std::error::Error;
use std::fmt;
use std::io;
use std::panic;
use std::process;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::affinity::AffinityError;
use crate::clock::Clock;
use crate::cores::CoreId;
use crate::member::GroupMember;
use crate::poller::Poller;
use crate::reactor::{PollMode, Reactor, ReactorConfig, Stopped};
use crate::reactor_id::ReactorId;
use crate::statistics::StatisticsReader;
use crate::stop::StopFlag;

/// How a group is to run.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// One reactor for each entry, in this order, pinned to its core; `None` leaves its thread to the scheduler.
    pub cores: Vec<Option<CoreId>>,
    /// What each does when idle.
    pub mode: PollMode,
    /// How long a graceful stop may take, for all of them together.
    pub drain_max: Duration,
}

impl Default for GroupConfig {
    /// One reactor, which is not pinned; otherwise as [`ReactorConfig`].
    fn default() -> GroupConfig {
        let ReactorConfig { core, mode, drain_max } = ReactorConfig::default();
        GroupConfig { cores: vec![core], mode, drain_max }
    }
}

/// Why a group cannot run on these cores.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupConfigError {
    /// No core, so no reactor.
    #[error("cores: the list is empty; name one at least")]
    Empty,
    /// More reactors than a group can have.
    #[error("cores: the list has {found} (limit {}); name fewer", ReactorId::COUNT_MAX)]
    TooMany {
        /// Cores in the list.
        found: usize,
    },
    /// Two reactors would share a core, and starve each other.
    #[error("cores: core {core} is in the list twice; name each once")]
    Twice {
        /// The core.
        core: CoreId,
    },
    /// A core is not there, or not for this process.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// The process has no descriptor left for the bell of a reactor.
    #[error(
        "reactors: no descriptor for the wake-up of each: {0}; raise the limit of open files (ulimit -n)"
    )]
    Bell(#[from] io::Error),
}

/// Why a group did not run. Nothing was polled, and what was made was dropped.
///
/// It is an [`Error`] for every cause that has a text, such as `Box<dyn Error + Send + Sync>`. The text of [`GroupError::Make`] ends with
/// its cause's, so it has no [`Error::source`].
#[derive(Debug)]
pub enum GroupError<E> {
    /// A thread was not pinned to its core.
    Affinity {
        /// Whose thread it was.
        reactor: ReactorId,
        /// Why.
        source: AffinityError,
    },
    /// The system has no thread left.
    Thread {
        /// The reactor of the thread.
        reactor: ReactorId,
        /// The system's answer.
        source: io::Error,
    },
    /// A poller was not made.
    Make {
        /// The reactor of the poller.
        reactor: ReactorId,
        /// What `make` returned.
        source: E,
    },
}

impl<E: fmt::Display> fmt::Display for GroupError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupError::Affinity { reactor, source } => write!(f, "reactor {reactor}: {source}"),
            GroupError::Thread { reactor, source } => {
                write!(f, "reactor {reactor}: no thread to run it: {source}")
            }
            GroupError::Make { reactor, source } => write!(f, "reactor {reactor}: {source}"),
        }
    }
}

// Not derived: that would want an `Error` of `E`, which a boxed error is not.
impl<E: fmt::Debug + fmt::Display> Error for GroupError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            GroupError::Affinity { source, .. } => Some(source),
            GroupError::Thread { source, .. } => Some(source),
            GroupError::Make { .. } => None,
        }
    }
}

/// Several reactors that run together. One alone is a [`Reactor`] and costs nothing more.
#[derive(Debug)]
pub struct ReactorGroup {
    reactors: Vec<(Reactor, GroupMember)>,
}

impl ReactorGroup {
    /// A group on `clock`. Checks that the cores can be had; nothing runs and no thread is pinned yet.
    pub fn new(config: &GroupConfig, clock: Clock) -> Result<ReactorGroup, GroupConfigError> {
        let GroupConfig { cores, mode, drain_max } = config;
        if cores.is_empty() {
            return Err(GroupConfigError::Empty);
        }
        if cores.len() > ReactorId::COUNT_MAX {
            return Err(GroupConfigError::TooMany { found: cores.len() });
        }
        for (at, core) in cores.iter().enumerate() {
            if let Some(core) = core.filter(|_| cores[..at].contains(core)) {
                return Err(GroupConfigError::Twice { core });
            }
        }
        let reactors: Vec<_> = cores
            .iter()
            .map(|core| {
                Reactor::new(ReactorConfig { core: *core, mode: *mode, drain_max: *drain_max }, clock)
            })
            .collect::<Result<_, _>>()?;
        let may_sleep = *mode != PollMode::Busy;
        let statistics = reactors.iter().map(Reactor::statistics).collect();
        let members = GroupMember::all(cores, clock, may_sleep, statistics)?;
        Ok(ReactorGroup { reactors: reactors.into_iter().zip(members).collect() })
    }

    /// Reads the statistics of all reactors, in order, from other threads.
    #[must_use]
    pub fn statistics(&self) -> Vec<StatisticsReader> {
        self.reactors.iter().map(|(reactor, _)| reactor.statistics()).collect()
    }

    /// Pins each thread, makes each poller on its thread, polls until `stop` is requested, stops in phases, ends each poller.
    ///
    /// Reactor 0 is the calling thread. `make` and `end` run on each reactor's own thread, so a poller need not be `Send`.
    /// Nothing is polled before all are made; if one is not, all that were made are dropped, and the first error comes back. Results are
    /// in the order of the reactors. With two reactors or more, a panic on any of their threads ends the process after its message: the
    /// others would wait for its answers for ever.
    pub fn run<P: Poller, R: Send, E: Send>(
        self,
        stop: &StopFlag,
        make: impl Fn(GroupMember) -> Result<P, E> + Sync,
        end: impl Fn(P, &Stopped) -> R + Sync,
    ) -> Result<Vec<(Stopped, R)>, GroupError<E>> {
        let count = self.reactors.len();
        let start = Start::new(count);
        let one = |(mut reactor, member): (Reactor, GroupMember)| {
            let _guard = AbortOnPanic { is_armed: count > 1 };
            let id = member.id();
            if let Err(source) = reactor.pin() {
                start.fail(GroupError::Affinity { reactor: id, source });
                return None;
            }
            let mut poller = match make(member.clone()) {
                Ok(poller) => poller,
                Err(source) => {
                    start.fail(GroupError::Make { reactor: id, source });
                    return None;
                }
            };
            if !start.wait_for_all() {
                return None;
            }
            let stopped = reactor.serve(&mut poller, stop, (count > 1).then_some(&member));
            let result = end(poller, &stopped);
            Some((stopped, result))
        };

        let one = &one;
        let mut reactors = self.reactors.into_iter();
        let first = reactors.next();
        let mut ended = Vec::with_capacity(count);
        thread::scope(|scope| {
            let mut threads = Vec::with_capacity(count - 1);
            for pair in reactors {
                let id = pair.1.id();
                let named = thread::Builder::new().name(format!("reactor-{id}"));
                match named.spawn_scoped(scope, move || one(pair)) {
                    Ok(thread) => threads.push(thread),
                    Err(source) => {
                        start.fail(GroupError::Thread { reactor: id, source });
                        break;
                    }
                }
            }
            // After the others began, so that none of them inherits our pin.
            ended.push(first.and_then(one));
            ended.extend(threads.into_iter().map(|thread| match thread.join() {
                Ok(result) => result,
                // Not reached: a panic ends the process where it happens.
                Err(message) => panic::resume_unwind(message),
            }));
        });
        match start.into_error() {
            Some(error) => Err(error),
            // Without an error all were started, and each returned what it had.
            None => Ok(ended.into_iter().flatten().collect()),
        }
    }
}

/// The start of all or none.
struct Start<E> {
    state: Mutex<StartState<E>>,
    changed: Condvar,
}

struct StartState<E> {
    /// Reactors that are not ready yet.
    missing: usize,
    /// The first failure; if there is one, no reactor starts.
    error: Option<GroupError<E>>,
}

impl<E> Start<E> {
    fn new(count: usize) -> Start<E> {
        Start { state: Mutex::new(StartState { missing: count, error: None }), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, StartState<E>> {
        // A panic ends the process, and nothing below leaves the state half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One reactor is not to be had, so the group is not.
    fn fail(&self, error: GroupError<E>) {
        self.lock().error.get_or_insert(error);
        self.changed.notify_all();
    }

    /// The calling reactor is ready. `false`: another one is not, and never will be.
    fn wait_for_all(&self) -> bool {
        let mut state = self.lock();
        state.missing -= 1;
        self.changed.notify_all();
        while state.missing > 0 && state.error.is_none() {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.error.is_none()
    }

    fn into_error(self) -> Option<GroupError<E>> {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).error
    }
}

/// Ends the process when the thread unwinds: the panic's message is printed by then.
struct AbortOnPanic {
    is_armed: bool,
}

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if self.is_armed && thread::panicking() {
            process::abort();
        }
    }
}

// Not under loom: its atomics work only inside a model.
#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn cores_that_make_no_group_are_named() {
        let core = crate::affinity::allowed().iter().next();
        let text = |cores: Vec<Option<CoreId>>| {
            let config = GroupConfig { cores, mode: PollMode::Busy, drain_max: Duration::ZERO };
            ReactorGroup::new(&config, Clock::start()).unwrap_err().to_string()
        };
        assert!(text(vec![]).contains("empty"));
        let many = text(vec![None; 65]);
        assert!(many.contains("65") && many.contains("limit 64"), "{many}");
        let twice = text(vec![core, None, core]);
        assert!(twice.contains("twice") && twice.contains(&core.unwrap().to_string()), "{twice}");
        assert!(text(vec![core, Some(CoreId(5000))]).contains("core 5000"));
    }
}
