//! Back channels: over which connection a session's client is called, and whether it answers (RFC 8881 section 2.10.3.1).
//!
//! ```text
//! Absent ─ bind ─▶ Unproven ─ CB_NULL is answered ─▶ Greeted ─ CB_SEQUENCE is answered ─▶ Proven
//!                     ▲ └──────────────────────────────┴── no answer, no connection ─────────┤
//!                     └──────────────── bind ──────────────────────────────────── Down ◀─────┘
//! ```
//!
//! A new connection is proven before anything relies on it: by CB_NULL, then by a CB_COMPOUND of CB_SEQUENCE alone. One Call at a
//! time is under way. It uses slot 0, whose sequence id goes on from one connection to the next: a CB_SEQUENCE without a reply is
//! asked again with the same one. Several connections may be bound. The newest is used, and the others when that is gone.
//!
//! `Down` and `Faulty` are for the client to repair: its requests are answered with flags that say so ([`BackPaths`]). A client
//! that never asked for callbacks is told nothing.

use std::sync::Arc;

use crate::stages::{Change, may_change};
use crate::sync::{AtomicU64, Ordering};

/// Names a connection: a number that the caller gives each one, the same at every reactor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackConnection(pub u64);

/// What a connection that is bound to a back channel is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackUse {
    /// Callbacks only.
    Back,
    /// The client's requests too.
    Both,
}

/// How a client is called: its program, and as whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallbackParameters {
    /// Program number (csa_cb_program).
    pub program: u32,
    /// The minor version of the client's requests, which its callbacks have too.
    pub minor_version: u32,
    /// The body of an AUTH_SYS credential; `None`: AUTH_NONE.
    pub user: Option<Arc<[u8]>>,
}

/// What a back channel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackStage {
    /// The client never bound a connection.
    Absent,
    /// It waits for the answer to CB_NULL.
    Unproven,
    /// It waits for the answer to CB_SEQUENCE.
    Greeted,
    /// The client can be called.
    Proven,
    /// It cannot: no bound connection is left that it answers on.
    Down,
    /// The two ends disagree about the slot: only another session helps.
    Faulty,
}

/// Every change of a back channel's stage.
pub(crate) const CHANGES: [Change<BackStage>; 11] = [
    (BackStage::Absent, BackStage::Unproven, "the first connection is bound"),
    (BackStage::Unproven, BackStage::Greeted, "CB_NULL is answered"),
    (BackStage::Greeted, BackStage::Proven, "CB_SEQUENCE is answered"),
    (BackStage::Greeted, BackStage::Faulty, "CB_SEQUENCE is refused for its session, slot or sequence id"),
    (BackStage::Unproven, BackStage::Unproven, "another connection, or another program, must be proven"),
    (BackStage::Greeted, BackStage::Unproven, "another connection, or another program, must be proven"),
    (BackStage::Proven, BackStage::Unproven, "another connection, or another program, must be proven"),
    (BackStage::Unproven, BackStage::Down, "no answer, or no connection is left"),
    (BackStage::Greeted, BackStage::Down, "no answer, or no connection is left"),
    (BackStage::Proven, BackStage::Down, "no connection is left"),
    (BackStage::Down, BackStage::Unproven, "another connection is bound"),
];

impl BackStage {
    /// Whether the client has to repair it.
    #[must_use]
    pub const fn is_broken(self) -> bool {
        matches!(self, BackStage::Down | BackStage::Faulty)
    }
}

/// What a client is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackProbe {
    /// CB_NULL.
    Null,
    /// CB_COMPOUND of CB_SEQUENCE alone, in slot 0 with this sequence id.
    Sequence(u32),
}

/// A Call to make to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackCall {
    /// On this connection.
    pub connection: BackConnection,
    /// How it is called.
    pub parameters: CallbackParameters,
    /// What it is asked.
    pub probe: BackProbe,
}

/// How such a Call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackAnswer {
    /// It is answered. Of CB_SEQUENCE, the client has used the sequence id.
    Answered,
    /// CB_SEQUENCE is answered with NFS4ERR_DELAY: the client has not used the sequence id. It can be called, and that is what
    /// was asked: Linux answers so while it is still busy with its new session.
    Delayed,
    /// There is no answer, or none that makes sense.
    Unanswered,
    /// CB_SEQUENCE is refused for its session, slot or sequence id.
    Misunderstood,
}

/// The Call that is under way.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    connection: BackConnection,
    probe: BackProbe,
    /// Its answer counts: nothing was bound, lost or changed since.
    is_current: bool,
}

/// Connections that are bound to one back channel at most; the oldest gives way to another.
pub const BACK_CONNECTIONS_MAX: usize = 4;

/// The back channel of one session.
#[derive(Debug)]
pub struct BackChannel {
    /// `None`: the client gave no credential that callbacks could have.
    parameters: Option<CallbackParameters>,
    stage: BackStage,
    /// The one in use last.
    connections: Vec<(BackConnection, BackUse)>,
    under_way: Option<UnderWay>,
    sequence_id: u32,
}

impl BackChannel {
    /// One without connections.
    #[must_use]
    pub const fn new(parameters: Option<CallbackParameters>) -> BackChannel {
        BackChannel {
            parameters,
            stage: BackStage::Absent,
            connections: Vec::new(),
            under_way: None,
            // As of any slot (8881-2.10.6.1).
            sequence_id: 1,
        }
    }

    /// Its stage.
    #[must_use]
    pub const fn stage(&self) -> BackStage {
        self.stage
    }

    /// How the client may be called. `None`: it did not say, and no connection can be bound.
    #[must_use]
    pub const fn parameters(&self) -> Option<&CallbackParameters> {
        self.parameters.as_ref()
    }

    /// What a connection is for, if it is bound.
    #[must_use]
    pub fn back_use(&self, connection: BackConnection) -> Option<BackUse> {
        self.connections.iter().find(|(bound, _)| *bound == connection).map(|(_, back_use)| *back_use)
    }

    fn enter(&mut self, stage: BackStage) {
        debug_assert!(
            may_change(&CHANGES, self.stage, stage),
            "a back channel goes from {:?} to {stage:?}",
            self.stage
        );
        self.stage = stage;
    }

    /// Begins the proof anew, as the connection or the program is another one.
    fn prove(&mut self) {
        if let Some(under_way) = &mut self.under_way {
            under_way.is_current = false;
        }
        match self.connections.last() {
            // Nothing but another session helps, or there was nothing.
            _ if matches!(self.stage, BackStage::Faulty | BackStage::Absent) => {}
            Some(_) => self.enter(BackStage::Unproven),
            None if self.stage == BackStage::Down => {}
            None => self.enter(BackStage::Down),
        }
    }

    /// Binds a connection: callbacks go over it from now on, once it is proven. Of one that is bound already, nothing changes
    /// (8881-18.34.3).
    pub fn bind(&mut self, connection: BackConnection, back_use: BackUse) {
        if self.back_use(connection).is_some() || self.parameters.is_none() {
            return;
        }
        if self.connections.len() == BACK_CONNECTIONS_MAX {
            self.connections.remove(0);
        }
        self.connections.push((connection, back_use));
        if self.stage == BackStage::Absent {
            self.enter(BackStage::Unproven);
            return;
        }
        self.prove();
    }

    /// BACKCHANNEL_CTL: the client is called otherwise from now on.
    pub fn set_parameters(&mut self, parameters: CallbackParameters) {
        if self.parameters.as_ref() != Some(&parameters) {
            self.parameters = Some(parameters);
            self.prove();
        }
    }

    /// A connection ended.
    pub fn connection_ended(&mut self, connection: BackConnection) {
        let used = self.connections.last().map(|(used, _)| *used);
        self.connections.retain(|(bound, _)| *bound != connection);
        if used == Some(connection) {
            self.prove();
        }
    }

    /// The next Call to make. `None`: none now.
    pub fn next_call(&mut self) -> Option<BackCall> {
        let probe = match self.stage {
            _ if self.under_way.is_some() => return None,
            BackStage::Unproven => BackProbe::Null,
            BackStage::Greeted => BackProbe::Sequence(self.sequence_id),
            BackStage::Absent | BackStage::Proven | BackStage::Down | BackStage::Faulty => return None,
        };
        let (connection, _) = *self.connections.last()?;
        let parameters = self.parameters.clone()?;
        self.under_way = Some(UnderWay { connection, probe, is_current: true });
        Some(BackCall { connection, parameters, probe })
    }

    /// The Call that was under way ended so.
    pub fn answered(&mut self, answer: BackAnswer) {
        let Some(UnderWay { connection, probe, is_current }) = self.under_way.take() else { return };
        let is_sequence = matches!(probe, BackProbe::Sequence(_));
        if is_sequence && answer == BackAnswer::Answered {
            self.sequence_id = self.sequence_id.wrapping_add(1);
        }
        if !is_current {
            return;
        }
        match answer {
            BackAnswer::Answered | BackAnswer::Delayed if is_sequence => self.enter(BackStage::Proven),
            BackAnswer::Answered | BackAnswer::Delayed => self.enter(BackStage::Greeted),
            BackAnswer::Misunderstood if is_sequence => self.enter(BackStage::Faulty),
            BackAnswer::Misunderstood | BackAnswer::Unanswered => self.connection_ended(connection),
        }
    }
}

/// The back channels of all sessions of a client, as its requests are told: how many it has asked for, and how many of these are
/// not broken. One word, for all reactors.
#[derive(Debug)]
pub struct BackPaths(AtomicU64);

/// One that was asked for, in the word; those that are not broken are counted below.
const WANTED: u64 = 1 << 32;

impl Default for BackPaths {
    fn default() -> BackPaths {
        BackPaths(AtomicU64::new(0))
    }
}

impl BackPaths {
    /// SEQ4_STATUS_CB_PATH_DOWN: the client asked for callbacks, and cannot be called over any session.
    #[inline]
    #[must_use]
    pub fn are_down(&self) -> bool {
        let word = self.0.load(Ordering::Acquire);
        word >= WANTED && word.is_multiple_of(WANTED)
    }

    /// One back channel went from one stage to another.
    pub(crate) fn note(&self, from: BackStage, to: BackStage) {
        let weight = |stage| match stage {
            BackStage::Absent => 0,
            BackStage::Down | BackStage::Faulty => WANTED,
            BackStage::Unproven | BackStage::Greeted | BackStage::Proven => WANTED + 1,
        };
        let change = weight(to).wrapping_sub(weight(from));
        if change != 0 {
            self.0.fetch_add(change, Ordering::AcqRel);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// 8881-18.46.3: the client's path is down only while no session of it can be called, whichever reactor says so of each.
    #[test]
    fn loom_back_channels_of_one_client_are_counted() {
        loom::model(|| {
            let paths = Arc::new(BackPaths::default());
            let other = Arc::clone(&paths);
            paths.note(BackStage::Absent, BackStage::Unproven);
            let second = thread::spawn(move || {
                other.note(BackStage::Absent, BackStage::Unproven);
                other.note(BackStage::Unproven, BackStage::Down);
                assert!(!other.are_down(), "the first may be called all the time");
            });
            paths.note(BackStage::Unproven, BackStage::Greeted);
            second.join().unwrap();
            assert!(!paths.are_down());
            paths.note(BackStage::Greeted, BackStage::Down);
            assert!(paths.are_down());
        });
    }
}
