//! How a Call that is shown where it arrived begins and ends, in either version.

use stag_fabric::Taken;
use stag_proto::responder::Responder;

use super::draft::Draft;
use super::pending::Begun;
use super::serving::Serving;
use super::spares::Reused;
use crate::service::call::Placed;
use crate::service::dispatch::{Origin, ReplyPolicy};
use crate::state::{EngineState, Link};

/// Where a Call arrives that [`Serving::may_take`] allows to be taken where it arrived.
#[inline(always)]
pub(crate) fn origin<'c>(responder: &Responder, state: &EngineState, link: Link<'c>) -> Origin<'c> {
    let slot = responder.next_slot();
    Origin { connection: link.id, slot, peer: link.peer, local: None, now: state.now }
}

/// Keeps the data of a Call whose handler ran where the Call arrived, and answers later.
#[inline(always)]
pub(crate) fn keep_data(
    begun: &mut Option<Begun>,
    state: &mut EngineState,
    items: &mut [Placed],
    held: Option<usize>,
) {
    if let Some(begun) = begun
        && begun.draft.is_none()
        && let Some(held) = held
    {
        let mut pull = state.pulls.take();
        pull.items.extend(items.iter_mut().map(std::mem::take));
        pull.held = held;
        begun.pull = Some(pull);
    }
}

/// Leaves a Call to the general way, which takes it in next. Its handler has answered.
#[cold]
pub(crate) fn leave(serving: &mut Serving, xid: u32, terms: ReplyPolicy, draft: Box<Draft>) -> Taken {
    // The duplicate request cache has its Reply already.
    let terms = ReplyPolicy { kept: None, ..terms };
    let slot = serving.responder.next_slot();
    serving.begun = Some(Begun { xid, slot, terms, draft: Some(draft), pull: None });
    Taken::No
}

/// Ends a Call that is answered in place, and forgets its results. Returns the octets of its Reply's Payload stream.
#[inline(always)]
pub(crate) fn end_in_place(serving: &mut Serving, state: &mut EngineState, mut draft: Box<Draft>) -> usize {
    let len = draft.payload_len;
    if draft.is_service {
        serving.note_service(state.now);
    }
    draft.forget_results();
    state.put_draft_in_place(draft);
    count_in_place(state);
    len
}

/// The same, if its handler answers later.
#[cold]
pub(crate) fn leave_unanswered(
    serving: &mut Serving,
    state: &mut EngineState,
    xid: u32,
    terms: ReplyPolicy,
    mut draft: Box<Draft>,
) -> Taken {
    draft.clear();
    state.put_draft_in_place(draft);
    state.transit.expect(&mut serving.share, terms.pages as usize);
    let slot = serving.responder.next_slot();
    serving.begun = Some(Begun { xid, slot, terms, draft: None, pull: None });
    Taken::No
}

/// Counts a Call that is answered in place.
#[inline(always)]
pub(crate) fn count_in_place(state: &mut EngineState) {
    state.statistics.calls_received += 1;
    state.statistics.messages_short += 1;
    state.statistics.replies_sent += 1;
}
