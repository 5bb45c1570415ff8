//! A connection over the fabric that the URL names: chosen once, when the connection is made.

use std::time::Duration;

use stag::fabric::{Iwarp, IwarpConfig, Shm, ShmConfig, Verbs, VerbsConfig};
use stag::memory::Buf;
use stag::nfs::client::{AnyOperation, FinishedCall, Operation};
use stag::rpc::Chunks;
use stag::runtime::Poller;

use super::RemoteError;
use super::link::{Link, SET_UP_TIMEOUT};
use crate::counters::Counters;
use crate::options;
use crate::timings::Timings;
use crate::url::{FabricName, Url};

/// A [`Link`] over one of the fabrics.
#[allow(clippy::large_enum_variant, reason = "there is one for each server, and it does not move")]
pub(super) enum AnyLink {
    /// To a process of this machine.
    Shm(Link<Shm>),
    /// To another machine, or this one, over TCP.
    Iwarp(Link<Iwarp>),
    /// Through an RDMA device.
    Verbs(Link<Verbs>),
}

/// Calls the same function of whichever link it is.
macro_rules! on {
    ($any:expr, $link:ident => $call:expr) => {
        match $any {
            AnyLink::Shm($link) => $call,
            AnyLink::Iwarp($link) => $call,
            AnyLink::Verbs($link) => $call,
        }
    };
}

impl AnyLink {
    /// Connects.
    pub(super) fn connect(url: &Url, reconnects: bool) -> Result<AnyLink, RemoteError> {
        let options = options::get();
        match url.fabric {
            FabricName::Shm => {
                let config = ShmConfig {
                    admit: options.shm_allow,
                    // The server chose its pages.
                    foreign_hugepages: true,
                    queue_pairs: 2,
                    completions: 4096,
                    may_sleep: true,
                    ..ShmConfig::default()
                };
                Link::connect(url, reconnects, || Shm::open(config)).map(AnyLink::Shm)
            }
            FabricName::Iwarp => {
                let config = IwarpConfig {
                    queue_pairs: 2,
                    completions: 4096,
                    may_sleep: true,
                    handshakes: 1,
                    crc: options.crc,
                    congestion_control: options.congestion_control,
                    connect_timeout: SET_UP_TIMEOUT,
                    ..IwarpConfig::default()
                };
                Link::connect(url, reconnects, || Iwarp::open(config)).map(AnyLink::Iwarp)
            }
            FabricName::Verbs => {
                let config = VerbsConfig {
                    device: options.device,
                    exposure: options.exposure,
                    queue_pairs: 2,
                    completions: 4096,
                    may_sleep: true,
                    setup_timeout: SET_UP_TIMEOUT,
                    ..VerbsConfig::default()
                };
                Link::connect(url, reconnects, || Verbs::open(config)).map(AnyLink::Verbs)
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

    pub(super) fn inline_write_len_max(&self, file_len: usize) -> usize {
        on!(self, link => link.inline_write_len_max(file_len))
    }

    pub(super) fn buffer(&self, len: usize) -> Option<Buf> {
        on!(self, link => link.buffer(len))
    }

    pub(super) fn try_begin<O: Operation>(
        &mut self,
        operation: &O,
        chunks: &mut Chunks,
        user: u64,
    ) -> Result<bool, RemoteError> {
        let operation = AnyOperation::new(operation);
        on!(self, link => link.try_begin(&operation, chunks, user))
    }

    pub(super) fn take_finished(&mut self) -> Option<(u64, Result<FinishedCall, RemoteError>)> {
        on!(self, link => link.take_finished())
    }

    pub(super) fn pass(&mut self) -> usize {
        on!(self, link => link.pass())
    }

    pub(super) fn poller(&mut self) -> &mut dyn Poller {
        on!(self, link => link.poller())
    }

    pub(super) fn is_interrupted(&self) -> bool {
        on!(self, link => link.is_interrupted())
    }

    pub(super) fn is_useless(&self) -> bool {
        on!(self, link => link.is_useless())
    }

    pub(super) fn call<O: Operation>(&mut self, operation: &O) -> Result<FinishedCall, RemoteError> {
        let operation = AnyOperation::new(operation);
        on!(self, link => link.call(&operation))
    }

    pub(super) fn time(&self, finished: &FinishedCall) -> Duration {
        on!(self, link => link.time(finished))
    }
}
