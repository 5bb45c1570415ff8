//! The runtime: one reactor per pinned core, and what a reactor needs to run.
//!
//! A [`Reactor`] calls one [`Poller`] again and again on one core, and sleeps only when its mode allows it
//! and the poller agrees. A poller owns all that it touches: its queues, its [`Timers`], the [`Receiver`]s of
//! its mailboxes. Other cores reach it by message ([`mailbox()`]) and ask it to stop through a [`StopFlag`].
//! This crate knows no fabric and no RPC.
//!
//! | file | subject |
//! |---|---|
//! | `reactor` | the loop: poll, account, sleep, stop |
//! | `poller` | what the loop calls |
//! | `group`, `phases` | several reactors: threads and cores, start of all or none, stop in phases |
//! | `member`, `reactor_id` | what a reactor knows of its group, and its place there |
//! | `clock` | the only place that reads a clock |
//! | `timers`, `mailbox`, `stop` | the parts of a poller |
//! | `lane`, `line`, `bell` | the steady traffic between reactors: rings, records in them, the wake-up |
//! | `mesh` | the lanes from each reactor of a group to each other one |
//! | `head_counts` | how many of each kind there are at all reactors together |
//! | `cores`, `affinity`, `topology` | sets of cores, pinning, the shape of the machine |
//! | `statistics` | busy, idle and asleep time, counted by the reactor and read from outside |
//! | `environment` | conditions of this machine that spoil a measurement, and how to repair them |
#![warn(missing_docs)]

pub mod affinity;
mod bell;
pub mod clock;
mod cores;
pub mod environment;
mod event;
mod group;
mod handshake;
mod head_counts;
mod lane;
mod mailbox;
mod member;
mod mesh;
mod phases;
mod poller;
mod reactor;
mod reactor_id;
pub mod statistics;
mod stop;
mod sync;
mod timers;
pub mod topology;

pub use affinity::AffinityError;
pub use bell::Bell;
pub use clock::{Clock, ManualClock, TimeSource, WallClock};
pub use cores::{CORES_MAX, CoreId, CoreSet, CoreSetError};
pub use environment::Finding;
pub use group::{GroupConfig, GroupConfigError, GroupError, ReactorGroup};
pub use head_counts::HeadCounts;
pub use lane::{LaneReader, LaneRecord, LaneStatistics, LaneWriter, VacantRecord, lane};
pub use mailbox::{Receiver, SendError, Sender, mailbox};
pub use member::GroupMember;
pub use mesh::{LaneMesh, Lanes};
pub use poller::Poller;
pub use reactor::{PollMode, Reactor, ReactorConfig, Stopped, sleep};
pub use reactor_id::{ReactorId, ReactorSet};
pub use statistics::{ReactorStatistics, StatisticsReader};
pub use stop::StopFlag;
pub use timers::{TimerId, Timers};
pub use topology::Topology;
