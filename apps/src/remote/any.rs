//! A connection over the fabric that the URL names: chosen once, when it is made.

use std::time::Duration;

use stag::fabric::{Shm, ShmConfig};
use stag::memory::Buf;
use stag::nfs::client::{Finished, Operation};
use stag::rpc::Chunks;

use super::RemoteError;
use super::link::Link;
use crate::counters::Counters;
use crate::timings::Timings;
use crate::url::{Fabric, Url};

/// A [`Link`] over one of the fabrics.
pub(super) enum AnyLink {
    /// To a process of this machine.
    Shm(Link<Shm>),
}

/// Calls the same function of whichever link it is.
macro_rules! on {
    ($any:expr, $link:ident => $call:expr) => {
        match $any {
            AnyLink::Shm($link) => $call,
        }
    };
}

impl AnyLink {
    /// Connects.
    pub(super) fn connect(url: &Url) -> Result<AnyLink, RemoteError> {
        match url.fabric {
            Fabric::Shm => {
                let config = ShmConfig { queue_pairs: 2, completions: 4096, ..ShmConfig::default() };
                Link::connect(url, || Shm::open(config)).map(AnyLink::Shm)
            }
            Fabric::Iwarp | Fabric::Verbs => {
                let name = url.fabric.name();
                Err(RemoteError::Broken(format!("{name} is not in this version yet")))
            }
        }
    }

    pub(super) fn timings(&self) -> &Timings {
        on!(self, link => link.timings())
    }

    pub(super) fn counters(&self) -> Counters {
        on!(self, link => link.counters())
    }

    pub(super) fn credits_granted(&self) -> u32 {
        on!(self, link => link.credits_granted())
    }

    pub(super) fn inline_threshold(&self) -> u32 {
        on!(self, link => link.inline_threshold())
    }

    pub(super) fn buffer(&self, len: usize) -> Option<Buf> {
        on!(self, link => link.buffer(len))
    }

    pub(super) fn begin<O: Operation>(
        &mut self,
        operation: &O,
        chunks: &mut Chunks,
        user: u64,
    ) -> Result<bool, RemoteError> {
        on!(self, link => link.begin(operation, chunks, user))
    }

    pub(super) fn finished(&mut self) -> Result<Finished, RemoteError> {
        on!(self, link => link.finished())
    }

    pub(super) fn call<O: Operation>(&mut self, operation: &O) -> Result<Finished, RemoteError> {
        on!(self, link => link.call(operation))
    }

    pub(super) fn time(&self, finished: &Finished) -> Duration {
        on!(self, link => link.time(finished))
    }
}
