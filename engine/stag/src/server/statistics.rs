//! How other threads read what the cores of a server count.
//!
//! ```text
//! StatisticsHandle::read ── a question ──▶ mailbox of each core ──▶ the core looks there between two passes
//!          ▲                                                            │
//!          └──────────── a copy of what it counted ◀────────────────────┘
//! ```
//!
//! So cores count in plain numbers, without a lock and without an atomic instruction.

use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use stag_rpc::{ProcedureStatistics, Statistics, sum_procedures};
use stag_runtime::{Clock, CoreId, ReactorStatistics, Receiver, Sender, StatisticsReader, mailbox};

/// How long cores may take to answer. One that polls answers within microseconds, one that sleeps is woken.
const PATIENCE: Duration = Duration::from_secs(5);

/// Questions that wait for a core at most: those of as many threads.
const QUESTIONS_MAX: usize = 64;

/// What a server counted since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerStatistics {
    /// The sum over the engines of all cores and fabrics.
    pub engines: Statistics,
    /// Each procedure that was called, over all cores and fabrics; those with the most Calls first. Empty, unless the services are
    /// [`Observed`](stag_rpc::Observed).
    pub procedures: Vec<ProcedureStatistics>,
    /// Each core, in the order of [`Server::cores`](crate::Server::cores).
    pub cores: Vec<CoreStatistics>,
}

/// What one core of a server counted since its start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CoreStatistics {
    /// The core that its thread is pinned to, if it is.
    pub core: Option<CoreId>,
    /// The sum over its engines, one for each fabric.
    pub engines: Statistics,
    /// Connections there are, of RDMA and of TCP, also those that are being set up or ended.
    pub connections: usize,
    /// What it did with its time.
    pub time: ReactorStatistics,
}

/// What a core tells.
#[derive(Clone, Debug, Default)]
pub(super) struct CoreCounted {
    pub(super) engines: Statistics,
    pub(super) connections: usize,
    pub(super) procedures: Vec<ProcedureStatistics>,
}

/// A question: where the core with this place sends what it counted.
type Question = SyncSender<(usize, CoreCounted)>;

/// Reads what a server counts. It belongs to any thread; clones read the same server.
#[derive(Clone)]
pub struct StatisticsHandle {
    cores: Arc<[AskedCore]>,
}

/// A core, as other threads ask it.
struct AskedCore {
    core: Option<CoreId>,
    questions: Sender<Question>,
    time: StatisticsReader,
    end: Arc<OnceLock<CoreCounted>>,
}

/// Where a core finds what it is asked.
pub(super) struct Desk {
    /// The place of the core.
    at: usize,
    questions: Receiver<Question>,
    /// What it counted until its end.
    end: Arc<OnceLock<CoreCounted>>,
}

/// The desks of a server's cores. Each core takes its own.
pub(super) struct Desks(Vec<Mutex<Option<Desk>>>);

/// Makes a desk for each core.
pub(super) fn desks(
    cores: &[Option<CoreId>],
    times: Vec<StatisticsReader>,
) -> io::Result<(StatisticsHandle, Desks)> {
    let mut asked = Vec::with_capacity(cores.len());
    let mut desks = Vec::with_capacity(cores.len());
    for (at, (core, time)) in cores.iter().zip(times).enumerate() {
        let (sender, questions) = mailbox(QUESTIONS_MAX)?;
        let end = Arc::new(OnceLock::new());
        asked.push(AskedCore { core: *core, questions: sender, time, end: end.clone() });
        desks.push(Mutex::new(Some(Desk { at, questions, end })));
    }
    Ok((StatisticsHandle { cores: asked.into() }, Desks(desks)))
}

impl Desks {
    /// Takes the desk of the core with this place.
    ///
    /// # Panics
    ///
    /// If it was taken.
    pub(super) fn take(&self, at: usize) -> Desk {
        let desk = self.0[at].lock().unwrap_or_else(PoisonError::into_inner).take();
        desk.unwrap_or_else(|| unreachable!("each core is made once"))
    }
}

impl Desk {
    /// Whether no question waits.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.questions.is_empty()
    }

    /// All threads that ask get `counted`.
    pub(super) fn answer(&mut self, counted: &CoreCounted) {
        while let Some(question) = self.questions.receive() {
            // The thread may have given up.
            let _ = question.try_send((self.at, counted.clone()));
        }
    }

    /// The core has ended.
    pub(super) fn end(&self, counted: CoreCounted) {
        // It ends once.
        let _ = self.end.set(counted);
    }

    /// Where questions come in.
    pub(super) fn questions(&mut self) -> &mut Receiver<Question> {
        &mut self.questions
    }

    /// Becomes readable when somebody asks.
    pub(super) fn descriptor(&self) -> RawFd {
        self.questions.descriptor()
    }
}

impl StatisticsHandle {
    /// What the server has counted so far, or until its end. Each core answers between two passes: after microseconds, unless a
    /// handler keeps it.
    ///
    /// `None`: a core did not answer within 5 seconds, or ended by a panic.
    #[must_use]
    pub fn read(&self) -> Option<ServerStatistics> {
        let (question, answers) = sync_channel(self.cores.len());
        for core in &*self.cores {
            // It has ended, or too many ask it: then its answer is missing below.
            let _ = core.questions.send(question.clone());
        }
        drop(question);
        let mut counted: Vec<Option<CoreCounted>> = vec![None; self.cores.len()];
        let clock = Clock::start();
        // Ends when each core has answered or dropped the question.
        while let Ok((at, found)) = answers.recv_timeout(PATIENCE.saturating_sub(clock.now())) {
            counted[at] = Some(found);
        }

        let mut sum = ServerStatistics::default();
        let mut procedures = Vec::new();
        for (core, found) in self.cores.iter().zip(counted) {
            let found = found.or_else(|| core.end.get().cloned())?;
            sum.engines += &found.engines;
            procedures.extend(found.procedures);
            sum.cores.push(CoreStatistics {
                core: core.core,
                engines: found.engines,
                connections: found.connections,
                time: core.time.read(),
            });
        }
        sum.procedures = sum_procedures(&procedures);
        Some(sum)
    }
}

impl fmt::Debug for StatisticsHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatisticsHandle").field("cores", &self.cores.len()).finish()
    }
}
