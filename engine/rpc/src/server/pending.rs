//! The stages of a Call at the server, and the event that each waits for.
//!
//! ```text
//!  Free ── it is here ─▶ Running ── it is answered, refused or dropped ─────────────────────────────▶ Free
//!                         ├──── its handler ran where it was shown ─▶ Begun ──── it is in a Receive ─▶ Running
//!                         ├──── it has Read chunks ────────▶ Pulling: Reads ⇄ Memory ⇄ Room ── data ─▶ Running
//!                         ├──── it is answered later ──────▶ Later ─────────────────── its answer ──▶ Running
//!                         ├──── the same, it was carried ──▶ Carried ───────────────── its answer ──▶ Running
//!                         ├──── it repeats one in process ─▶ Repeated ──────── the answer to that ──▶ Running
//!                         └──── no memory to send ─────────▶ Unsent ─────────────────────── memory ──▶ Running
//! ```
//!
//! | stage | waits for |
//! |---|---|
//! | `Running` | nothing: it takes its steps ([`crate::service::steps`]), and [`Served`] says how they end |
//! | `Begun` | its message, which is put into a Receive, and comes next |
//! | `Pulling`, `Reads` | the RDMA Reads that are under way |
//! | `Pulling`, `Memory` | payload memory to read into, or for its Reply |
//! | `Pulling`, `Room` | room in the send queue, or a message buffer for its Reply |
//! | `Later` | its answer |
//! | `Carried` | its answer, while its Receive is posted already |
//! | `Repeated` | the answer to the Call that it repeats |
//! | `Unsent` | memory, or Receives of the peer, for the Reply that is made |
//!
//! From each stage the end of the connection leads to `Free`. `stages.txt` has every possible change; a debug build panics at any
//! other.

use stag_memory::Buf;
use stag_proto::responder::ResponderCallId;

use crate::server::draft::Draft;
use crate::server::pulling::Pull;
use crate::service::dispatch::ReplyPolicy;
use crate::stages::{Change, may_change};

/// A Call in a slot.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) id: ResponderCallId,
    pub(crate) xid: u32,
    stage: Stage,
}

/// What a Call waits for, and what it holds meanwhile.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Its data.
    Pulling { message: Buf, pull: Box<Pull>, need: PullNeed },
    /// Its answer, on these terms. What it pulled is kept until then.
    Later { message: Buf, pull: Option<Box<Pull>>, terms: ReplyPolicy },
    /// The same, for a Call that was carried from where it arrived: its Receive is posted still.
    Carried(CarriedCall),
    /// The answer to the Call that it repeats.
    Repeated { message: Buf },
    /// Memory for its Reply, which is made.
    Unsent { message: Buf },
}

/// What a Call that is being pulled waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PullNeed {
    /// The Reads that are under way.
    Reads,
    /// Memory to read into.
    Memory,
    /// Room in the send queue, or a message buffer.
    Room,
}

/// A Call that was carried from where it arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CarriedCall {
    pub(crate) terms: ReplyPolicy,
    /// It has one chunk of one segment, else none.
    pub(crate) has_chunk: bool,
    /// Pages of its data, which went with it.
    pub(crate) held: u32,
}

/// A Call whose handler ran where it was shown, and that goes on when its message is in a Receive.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) xid: u32,
    /// The slot that its token names.
    pub(crate) slot: u32,
    pub(crate) terms: ReplyPolicy,
    /// What the handler filled in; `None`: it answers later.
    pub(crate) draft: Option<Box<Draft>>,
    /// Its data, if the handler answers later.
    pub(crate) pull: Option<Box<Pull>>,
}

/// How the steps of a Call end.
#[derive(Debug)]
#[must_use]
pub(crate) enum Served {
    /// It is answered, refused or dropped; or its Reply is [unsent](Stage::Unsent).
    Over,
    /// It is answered [later](Stage::Later), on these terms.
    Later(ReplyPolicy),
    /// It [repeats](Stage::Repeated) one in process: its data is not needed.
    Repeats,
    /// Its client may not take the memory for its Reply now. The pages needed: it waits for them as for those of a
    /// [pull](Stage::Pulling), and is executed again.
    Lacks(u32),
    /// Its data, or its Payload stream, has to be [pulled](Stage::Pulling) first.
    Pulls,
    /// It is for another way, and nothing happened.
    Left,
}

/// A stage without what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StageKind {
    Free,
    Running,
    Begun,
    Pulling(PullNeed),
    Later,
    Carried,
    Repeated,
    Unsent,
}

/// Every change of stage there may be, and why.
const CHANGES: [Change<StageKind>; 22] = {
    use PullNeed::{Memory, Reads, Room};
    use StageKind::{Begun, Carried, Free, Later, Pulling, Repeated, Running, Unsent};
    [
        (Free, Running, "it is here"),
        (Running, Free, "it is answered, refused or dropped"),
        (
            Running,
            Begun,
            "its handler ran where it was shown, and answers later, or with more than there is room for",
        ),
        (
            Running,
            Pulling(Reads),
            "it has Read chunks, or its Reply needs more memory than its client may have now",
        ),
        (Running, Later, "its service, or another reactor, answers it later"),
        (Running, Carried, "another reactor answers it later, and it went there from where it arrived"),
        (Running, Repeated, "it repeats a Call that another reactor has in process"),
        (Running, Unsent, "its Reply is made, and takes more memory than there is"),
        (Begun, Running, "its message is in a Receive"),
        (Pulling(Reads), Pulling(Memory), "there is no memory to read into, or it was taken back"),
        (Pulling(Reads), Pulling(Room), "the send queue is full, or there is no message buffer"),
        (Pulling(Memory), Pulling(Reads), "there is memory, and Reads are posted"),
        (Pulling(Memory), Pulling(Room), "there is memory, and the send queue is full"),
        (Pulling(Room), Pulling(Reads), "there is room, and Reads are posted"),
        (Pulling(Room), Pulling(Memory), "there is room, and no memory; or it was taken back"),
        (Pulling(Reads), Running, "its data is here, or it is refused"),
        (Pulling(Memory), Running, "there is memory, and its data is here at once; or it is refused"),
        (
            Pulling(Room),
            Running,
            "there is room, or a message buffer, and its data is here; or it is refused",
        ),
        (Later, Running, "it is answered, or dropped"),
        (Carried, Running, "it is answered, or dropped"),
        (Repeated, Running, "the Call that it repeats is answered, or dropped"),
        (Unsent, Running, "there is memory for its Reply"),
    ]
};

impl Stage {
    fn kind(&self) -> StageKind {
        match self {
            Stage::Pulling { need, .. } => StageKind::Pulling(*need),
            Stage::Later { .. } => StageKind::Later,
            Stage::Carried(_) => StageKind::Carried,
            Stage::Repeated { .. } => StageKind::Repeated,
            Stage::Unsent { .. } => StageKind::Unsent,
        }
    }
}

impl Pending {
    /// A Call that comes to its slot.
    #[inline]
    pub(crate) fn new(id: ResponderCallId, xid: u32, stage: Stage) -> Pending {
        debug_assert!(
            may_change(&CHANGES, StageKind::Running, stage.kind()),
            "a Call does not begin with {stage:?}"
        );
        Pending { id, xid, stage }
    }

    /// What it waits for.
    #[inline]
    pub(crate) fn stage(&self) -> &Stage {
        &self.stage
    }

    /// What it held, as it leaves its slot.
    #[inline]
    pub(crate) fn into_stage(self) -> Stage {
        debug_assert!(
            may_change(&CHANGES, self.stage.kind(), StageKind::Running),
            "no Call ends as {:?}",
            self.stage
        );
        self.stage
    }

    /// Whether it waits for an answer that a service, or another reactor, gives later.
    #[inline]
    pub(crate) fn is_answered_later(&self) -> bool {
        match self.stage {
            Stage::Later { .. } | Stage::Carried(_) | Stage::Repeated { .. } => true,
            Stage::Pulling { .. } | Stage::Unsent { .. } => false,
        }
    }

    /// What it pulls, if it waits for that.
    pub(crate) fn pull(&self) -> Option<&Pull> {
        match &self.stage {
            Stage::Pulling { pull, .. } => Some(pull),
            _ => None,
        }
    }

    /// Its message and what it pulls, if it waits for that.
    pub(crate) fn pull_mut(&mut self) -> Option<(&Buf, &mut Pull)> {
        match &mut self.stage {
            Stage::Pulling { message, pull, .. } => Some((message, pull)),
            _ => None,
        }
    }

    /// It is pulled, and waits for this now.
    ///
    /// # Panics
    ///
    /// In a debug build, if it is not pulled.
    pub(crate) fn set_need(&mut self, next: PullNeed) {
        let from = self.stage.kind();
        let to = StageKind::Pulling(next);
        debug_assert!(from == to || may_change(&CHANGES, from, to), "a Call goes from {from:?} to {to:?}");
        if let Stage::Pulling { need, .. } = &mut self.stage {
            *need = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::check_drawn;

    /// `stages.txt` is what a reader sees of [`CHANGES`].
    #[test]
    fn the_stages_are_as_drawn() {
        check_drawn(&CHANGES, include_str!("stages.txt"));
    }

    #[test]
    fn each_stage_is_reached_and_left() {
        for (from, to, _) in &CHANGES {
            assert!(CHANGES.iter().any(|change| change.0 == *to), "{to:?} is not left");
            assert!(CHANGES.iter().any(|change| change.1 == *from), "{from:?} is not reached");
        }
        assert!(!may_change(&CHANGES, StageKind::Later, StageKind::Carried));
        assert!(!may_change(&CHANGES, StageKind::Repeated, StageKind::Pulling(PullNeed::Reads)));
    }
}
