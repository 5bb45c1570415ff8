//! Calls that wait for a store, and the service of each.

use std::time::Duration;

use stag_memory::Shared;
use stag_rpc::{Outcome, Reply, Token};
use stag_wire::nfs3::{LinkReply, RemoveReply, RenameReply, SetattrReply};
use stag_wire::nfsacl::SetaclReply;

use super::ExportTable;
use super::nfs::{Answer, Created};
use super::transfer::{self, Transfer};
use super::words::failure;
use stag_vfs::{FsError, Store, Ticket};

/// A service that leaves Calls for later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Nfs,
    Nfsacl,
}

/// Calls that stores are at: a list for each store, in the places that their tickets say.
#[derive(Default)]
pub(super) struct Waiting {
    lists: Vec<Vec<Option<PendingCall>>>,
    /// The one of them that its store told of.
    ready: Option<(usize, Ticket)>,
}

/// One of them.
struct PendingCall {
    token: Token,
    program: Program,
    pending: Pending,
}

/// What is left to do.
pub(super) enum Pending {
    /// READ, WRITE and COMMIT: the store has the result.
    Transfer(Transfer),
    /// All is done, and these are the results; but they may not be known before they are on stable storage.
    Changed(Changed),
}

/// Results of a procedure on names or attributes.
pub(super) enum Changed {
    Setattr(SetattrReply),
    Created(Created),
    Remove(RemoveReply),
    Rename(RenameReply),
    Link(LinkReply),
    Setacl(SetaclReply),
}

impl Changed {
    /// Sends the results, or that they are not to be relied on.
    fn send(self, committed: Result<(), FsError>, reply: &mut Reply<'_>) {
        /// Of results: those of a failure, with the attributes of the success.
        macro_rules! unless_failed {
            ($results:expr, $ok:pat => $attributes:expr) => {
                match (committed, $results) {
                    (Err(error), Ok($ok)) => Err(failure(error, $attributes)),
                    (_, results) => results,
                }
                .send(reply)
            };
        }
        match self {
            Changed::Setattr(results) => unless_failed!(results, ok => ok.object),
            Changed::Created(results) => unless_failed!(results, named => named.directory()),
            Changed::Remove(results) => unless_failed!(results, ok => ok.directory),
            Changed::Rename(results) => unless_failed!(results, ok => ok),
            Changed::Link(results) => unless_failed!(results, ok => ok),
            Changed::Setacl(results) => unless_failed!(results, ok => ok.attributes),
        }
    }
}

impl Waiting {
    /// Keeps a Call until the store number `share` is done with it.
    pub(super) fn add(
        &mut self,
        share: usize,
        ticket: Ticket,
        program: Program,
        token: Token,
        pending: Pending,
    ) {
        if self.lists.len() <= share {
            self.lists.resize_with(share + 1, Vec::new);
        }
        let places = &mut self.lists[share];
        let place = ticket.0 as usize;
        if places.len() <= place {
            places.resize_with(place + 1, || None);
        }
        debug_assert!(places[place].is_none(), "a ticket is of one Call");
        places[place] = Some(PendingCall { token, program, pending });
    }

    fn at(&self, (share, ticket): (usize, Ticket)) -> Option<&PendingCall> {
        self.lists.get(share)?.get(ticket.0 as usize)?.as_ref()
    }

    /// Takes out the Call that a store told of.
    fn take_ready(&mut self, token: Token) -> Option<(usize, Ticket, Pending)> {
        let (share, ticket) = self.ready.take()?;
        let waiter = self.lists[share].get_mut(ticket.0 as usize)?.take()?;
        debug_assert_eq!(waiter.token, token, "the engine asks for what it was told of");
        Some((share, ticket, waiter.pending))
    }
}

impl<S: Store + ?Sized> ExportTable<S> {
    /// The next Call of a service that its store is done with. One of the other service is kept until that asks.
    pub(super) fn poll_later(&mut self, program: Program, now: Duration) -> Option<Token> {
        if self.waiting.ready.is_none() {
            let stores = self.shares.iter_mut().enumerate();
            self.waiting.ready = stores
                .filter_map(|(share, (_, volume))| Some((share, volume.store_mut().poll_later(now)?)))
                .next();
        }
        let Some(waiter) = self.waiting.at(self.waiting.ready?) else {
            debug_assert!(false, "a ticket of no Call");
            self.waiting.ready = None;
            return None;
        };
        (waiter.program == program).then_some(waiter.token)
    }

    /// Answers the Call that [`ExportTable::poll_later`] told of.
    pub(super) fn finish(&mut self, token: Token, reply: &mut Reply<'_>, pieces: &mut Vec<Shared>) {
        let Some((share, ticket, pending)) = self.waiting.take_ready(token) else {
            return reply.system_error();
        };
        match pending {
            Pending::Transfer(pending) => {
                transfer::finish(self, ticket, &pending, reply, pieces);
                Self::refuse_for_memory(reply);
            }
            Pending::Changed(results) => {
                let committed = self.shares[share].1.store_mut().finish(ticket, pieces);
                results.send(committed.map(|_| ()), reply);
            }
        }
    }

    /// The Call is abandoned: what a READ has read goes back to its pool.
    pub(super) fn abandon(&mut self, token: Token, pieces: &mut Vec<Shared>) {
        let Some((share, ticket, _)) = self.waiting.take_ready(token) else { return };
        let _ = self.shares[share].1.store_mut().finish(ticket, pieces);
        pieces.clear();
    }

    /// Answers a procedure that changed something: now, or when that is on stable storage.
    pub(super) fn answer(
        &mut self,
        results: Changed,
        program: Program,
        token: Token,
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let Some((share, ticket)) = self.uncommitted.take() else {
            results.send(Ok(()), reply);
            return Outcome::Done;
        };
        self.waiting.add(share, ticket, program, token, Pending::Changed(results));
        Outcome::Later(token)
    }
}
