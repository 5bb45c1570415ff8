//! Calls that are answered later: by their service, by another thread, or with the answer to the Call that they repeat.

use stag_fabric::Provider;

use crate::carried::{self, is_carried};
use crate::connection::Connections;
use crate::engine::find;
use crate::server::draft::Draft;
use crate::service::dispatch::ReplyPolicy;
use crate::service::reply::{Frame, Reply, Room};
use crate::service::steps::{self, Exit};
use crate::service::{Services, Token};
use crate::state::{Core, EngineState};
use crate::stream::{Streams, is_stream};

/// Late answers that one pass sends at most.
const LATE_BURST: usize = 64;

/// What answers that come late are sent with: the core of the engine, and all connections that their Calls may have come on.
pub(crate) struct Answerer<'a, P> {
    pub(crate) core: &'a mut Core<P>,
    pub(crate) connections: &'a mut Connections,
    pub(crate) streams: &'a mut Option<Box<Streams>>,
}

/// Sends the answers that services and other threads have ready, and the ones that retransmissions wait for.
#[inline(always)]
pub(crate) fn answer_late<P: Provider, S: Services>(
    mut answerer: Answerer<'_, P>,
    services: &mut S,
) -> usize {
    let mut count = 0;
    while count < LATE_BURST
        && !answerer.core.is_short()
        && let Some((service, token)) = services.poll_later(answerer.core.now)
    {
        count += 1;
        if !answerer.answer(token, |reply| services.finish(service, token, reply)) {
            services.abandoned(service, token);
        }
    }
    if answerer.core.deferrals.is_in_use() || answerer.core.duplicates.has_news() {
        count = answerer.answer_for_others(count);
    }
    count
}

impl<P: Provider> Answerer<'_, P> {
    /// Sends the answers of other threads, and the ones that retransmissions wait for, after `count` others. Returns the new count.
    // Not inline: it would slow down a pass that has none.
    #[inline(never)]
    fn answer_for_others(&mut self, mut count: usize) -> usize {
        while count < LATE_BURST
            && !self.core.is_short()
            && let Some((token, fill)) = self.core.deferrals.take()
        {
            count += 1;
            self.answer(token, fill);
        }
        while self.core.duplicates.has_news()
            && count < LATE_BURST
            && !self.core.is_short()
            && let EngineState { duplicates, statistics, .. } = &mut self.core.state
            && let Some((token, kept)) = duplicates.next_waiter(statistics)
        {
            count += 1;
            if let Some(kept) = kept {
                self.answer(token, |reply| reply.repeat(&kept));
            } else {
                self.drop_call(token);
            }
        }
        count
    }

    /// A Call that was left for later is not answered at all.
    #[cold]
    pub(crate) fn drop_call(&mut self, token: Token) {
        let Answerer { core, connections, streams } = self;
        drop(core.seals.take(&token));
        if is_carried(token.connection) {
            carried::drop_later(&mut core.state, token);
        } else if is_stream(token.connection) {
            if let Some(streams) = streams {
                streams.drop_later(core, token);
            }
        } else if let Some(found) = find(connections, token.connection) {
            core.ready.touch(found);
            if let Some(serving) = found.serving.as_mut() {
                serving.drop_later(core, token.connection, token);
            }
        }
    }

    /// Answers a Call that was left for later, or keeps the answer for a retransmission. `false`: it is not needed, and `fill`
    /// did not run.
    pub(crate) fn answer(&mut self, token: Token, fill: impl FnOnce(&mut Reply<'_>)) -> bool {
        // It is taken by the branch that runs it.
        let mut fill = Some(fill);
        self.answer_by(token, &mut |reply| {
            if let Some(fill) = fill.take() {
                fill(reply);
            }
        })
    }

    /// As [`Answerer::answer`], compiled once for each fabric and not for each kind of answer.
    fn answer_by(&mut self, token: Token, once: &mut dyn FnMut(&mut Reply<'_>)) -> bool {
        let Answerer { core, connections, streams } = self;
        let mut answered = false;
        if is_carried(token.connection) {
            answered = carried::finish(&mut core.state, token, &mut *once);
        } else if is_stream(token.connection) {
            if let Some(streams) = streams {
                answered = streams.finish(core, token, &mut *once);
            }
        } else if let Some(found) = find(connections, token.connection)
            && let Some(serving) = found.serving.as_mut()
        {
            let finished = serving.finish(core, token, &mut *once);
            core.ready.touch(found);
            match finished {
                Ok(found) => answered = found,
                Err(reason) => {
                    answered = true;
                    found.close(core, reason);
                }
            }
        }
        answered || finish_orphan(&mut core.state, token, once)
    }
}

/// A Call whose connection is gone is answered: its Reply is made if it must be kept. `false`: it is not needed.
#[cold]
fn finish_orphan(state: &mut EngineState, token: Token, once: &mut dyn FnMut(&mut Reply<'_>)) -> bool {
    let Some(entry) = state.duplicates.take_orphan(&token) else { return false };
    // It was executed: a retransmission gets that answer, whatever the handler made of it.
    let terms = ReplyPolicy { kept: Some(entry), ..ReplyPolicy::ENGINE };
    steps::answer(state, &mut Orphan { xid: token.xid, len: 0 }, terms, once)
}

/// A Call whose connection is gone. Its Reply goes to the duplicate request cache only.
struct Orphan {
    xid: u32,
    /// Octets of the buffer that its Reply is made in.
    len: usize,
}

impl Exit<EngineState> for Orphan {
    /// Whether there is a Reply.
    type Served = bool;

    fn open(&mut self, state: &mut EngineState) -> Result<Box<Draft>, bool> {
        let mut draft = state.draft();
        if !draft.take_send(&state.pools.messages) {
            state.put_draft(draft);
            return Err(false);
        }
        self.len = draft.send.as_ref().map_or(0, |send| send.len());
        Ok(draft)
    }

    fn frame(&mut self) -> Frame<'_> {
        Frame { xid: self.xid, room: Room::Stream, inline_len_max: self.len, space: None, holder: None }
    }

    fn send(&mut self, state: &mut EngineState, _: ReplyPolicy, draft: Box<Draft>) -> bool {
        state.put_draft(draft);
        true
    }

    fn keep(&mut self, state: &mut EngineState, _: ReplyPolicy, draft: Option<Box<Draft>>) -> bool {
        draft.into_iter().for_each(|draft| state.put_draft(draft));
        false
    }
}
