//! Both ends, and what is called between them.

use std::time::Duration;

use anyhow::{Context, Result};
use stag_fabric::Provider;
use stag_nfs::client::{FinishedCall, Operation, Target};
use stag_rpc::{
    Chunks, CompletedCall, ConnectionId, Credentials, Engine, Memory, ReplyMode, Request, Services,
};
use stag_runtime::{Poller, ReactorId};

/// What is called: who answers it, how a Call begins and how it ends.
///
/// It is a type parameter, so that a NULL Call executes nothing that only the others need.
pub(crate) trait Kind {
    type Services: Services;

    /// What the reactor at `place` serves.
    fn services(&self, memory: &Memory, place: Place) -> Result<Self::Services>;

    /// Prepares the Calls, when the connection is there.
    fn prepare<P: Provider, S: Services>(&mut self, ends: &mut Ends<P, S>) -> Result<()> {
        let _ = ends;
        Ok(())
    }

    fn begin<P: Provider>(
        &mut self,
        client: &mut Engine<P, ()>,
        connection: ConnectionId,
        user: u64,
    ) -> Result<()>;

    fn end(&mut self, done: CompletedCall) -> Result<()> {
        done.result?;
        Ok(())
    }
}

/// Which of the server's reactors it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The only one.
    Alone,
    /// Where Calls come in that another executes.
    Entry,
    /// Where they are executed.
    Home,
}

impl Place {
    /// Where Calls are executed, in a group of two.
    pub(crate) fn home() -> ReactorId {
        ReactorId::new(1).unwrap_or_else(|| unreachable!("a group may have two"))
    }
}

/// Both ends and the time, which goes by in even steps once they are connected: the same is executed in each run.
pub(crate) struct Ends<P: Provider, S> {
    pub(crate) client: Engine<P, ()>,
    pub(crate) server: Engine<P, S>,
    /// Where Calls are executed that the server carries.
    pub(crate) home: Option<Engine<P, S>>,
    pub(crate) connection: ConnectionId,
    pub(crate) now: Duration,
}

impl<P: Provider, S: Services> Ends<P, S> {
    /// Makes one Call and waits for its end.
    pub(crate) fn ask<O: Operation>(
        &mut self,
        credentials: Credentials<'_>,
        operation: &O,
        mut chunks: Chunks,
    ) -> Result<FinishedCall> {
        target(self.connection, credentials).begin(&mut self.client, operation, &mut chunks, 0)?;
        loop {
            self.pass();
            if let Some(done) = self.client.completed() {
                return Ok(FinishedCall::new(done));
            }
        }
    }

    /// Lets the server call the client, which serves nothing and says so, on the connection.
    pub(crate) fn call_back(&mut self) -> Result<()> {
        let gauge = self.server.credit_gauges().next();
        let connection = gauge.context("a connection at the server")?.connection;
        let null = Request {
            program: 1,
            version: 1,
            procedure: 0,
            credentials: Credentials::None,
            results_len_max: 0,
            timeout: Duration::from_secs(1),
            user: 0,
            reply_mode: ReplyMode::Chunk,
            retransmit: false,
        };
        self.server.call_back(connection, &null, |_| Ok(()))?;
        while self.server.completed().is_none() {
            self.pass();
        }
        Ok(())
    }

    /// A pass of each end that begins no Call.
    pub(crate) fn pass(&mut self) {
        self.now += Duration::from_micros(1);
        self.client.poll(self.now);
        self.serve();
    }

    /// A pass of the server, or of its reactors: first where Calls come in, then where they are executed, then where Replies leave.
    pub(crate) fn serve(&mut self) {
        self.server.poll(self.now);
        if let Some(home) = &mut self.home {
            home.poll(self.now);
            self.server.poll(self.now);
        }
    }
}

pub(crate) fn target(connection: ConnectionId, credentials: Credentials<'_>) -> Target<'_> {
    Target { connection, credentials, timeout: Duration::from_secs(1) }
}
