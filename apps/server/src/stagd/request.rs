//! Requests to the reactors of this server, from other threads, and where the answers go.

use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use stag_nfs::export::Export;
use stag_rpc::Recording;
use stag_runtime::{ReactorId, Receiver, Sender, mailbox};
use stag_stores::directory::WriteVerifier;

use super::exports::ExportSpec;
use super::holdings::Holdings;
use super::snapshot::Snapshot;
use super::weights::ClientWeight;
use crate::admin::PATIENCE;
use crate::failure::CommandFailure;

/// Requests for counters that wait at most: more say nothing more.
pub(super) const REQUESTS_MAX: usize = 4;

/// A request to a reactor.
#[derive(Clone, Debug)]
pub(super) enum Request {
    /// All reactors are made: the one that listens says so.
    Announce,
    /// What it counts, to be sent there.
    Counters(SnapshotSender),
    /// The end of all connections of this client. How many there were is sent there.
    Evict(String, EvictedSender),
    /// Who holds which opens and locks, to be sent there.
    Holdings(HoldingsSender),
    /// What is recorded there, to be sent there.
    Record(RecordingSender),
    /// The end of this client of NFS version 4. Whether it was known there is sent there: 1 or 0.
    EvictClient(u64, EvictedSender),
    /// A change of what is served. What became of it is sent there.
    Change(LiveChange, ChangedSender),
}

/// What a reactor answers with: itself, and what it counts.
pub(super) type SnapshotSender = SyncSender<(ReactorId, Snapshot)>;

/// Where a reactor says how many connections it ended.
pub(super) type EvictedSender = SyncSender<usize>;

/// Where a reactor says who holds what there.
pub(super) type HoldingsSender = SyncSender<Holdings>;

/// Where a reactor sends a copy of what it recorded; `None`: it records nothing.
pub(super) type RecordingSender = SyncSender<Option<Recording>>;

/// A change that a reactor makes.
#[derive(Clone, Debug)]
pub(super) enum LiveChange {
    /// This directory is an export, too. All reactors have the same verifier of it.
    Add(Box<ExportSpec>, WriteVerifier),
    /// The export of this path has these rules.
    Rules(Export),
    /// The export of this path is no longer served.
    Remove(String),
    /// From which time on Calls are logged as slow.
    Slow(Option<Duration>),
    /// Weights of clients that connect from now on.
    Weights(Vec<ClientWeight>),
    /// No more connections are taken on. Existing ones go on.
    RefuseNewcomers,
}

/// What became of a change at a reactor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Changed {
    /// It is made.
    Made,
    /// It is made, but locks on the removed export stay.
    LocksStay,
    /// It cannot be made: why.
    Refused(String),
}

/// Where a reactor says what became of a change.
pub(super) type ChangedSender = SyncSender<Changed>;

/// Both ends of each reactor's mailbox.
pub(super) type Mailboxes = (Vec<Sender<Request>>, Vec<Receiver<Request>>);

/// A mailbox for each reactor, with the first request in it.
pub(super) fn mailboxes(reactors: usize) -> Result<Mailboxes, CommandFailure> {
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    for _ in 0..reactors {
        let (sender, receiver) = mailbox(REQUESTS_MAX)
            .map_err(|error| CommandFailure::run(format_args!("a mailbox of a reactor: {error}")))?;
        // Read in its first pass, which begins when all are made.
        let _ = sender.send(Request::Announce);
        senders.push(sender);
        receivers.push(receiver);
    }
    Ok((senders, receivers))
}

/// Asks reactors for what they count. `None`: one of them did not answer in time. It waits for a system call, or the server ends.
pub(super) fn snapshots(reactors: &[Sender<Request>]) -> Option<Vec<Snapshot>> {
    let (sender, receiver) = sync_channel(reactors.len());
    for reactor in reactors {
        reactor.send(Request::Counters(sender.clone())).ok()?;
    }
    drop(sender);
    let mut found: Vec<Option<Snapshot>> = reactors.iter().map(|_| None).collect();
    for _ in reactors {
        let (reactor, snapshot) = receiver.recv_timeout(PATIENCE).ok()?;
        found[reactor.index()] = Some(snapshot);
    }
    found.into_iter().collect()
}
