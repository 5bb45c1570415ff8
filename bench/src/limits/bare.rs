//! The limits of the fabric alone on the two cores: the reference of verbs' figures. The same provider on the same device,
//! without RPC: Sends that come back, and RDMA Writes or Reads as long as the load's.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;
use stag_fabric::QueuePairId;

use crate::bare::{BareEnd, BareShape, Windows};
use crate::opened::Opened;
use crate::pin::pin;
use crate::scenario::{MeasuredOperation, Scenario};
use crate::spread::Spread;

/// Octets of each message, as many as a NULL Call has, about.
const MESSAGE_LEN: usize = 64;

/// Messages and transfers under way at most: more tell nothing new about a device.
const DEPTH_MAX: usize = 256;

/// Octets that are moved at once at most.
const MEMORY_MAX: usize = 64 << 20;

/// How each figure is taken: the first windows are for the connection to find its pace.
const WINDOWS: Windows = Windows { count: 3, each: Duration::from_millis(50) };

/// The limits of a fabric between one pair of cores.
#[derive(Clone, Debug, Serialize)]
pub struct BareLimits {
    /// Round trip of a Send of 64 octets and the Send that answers it, one at a time, in nanoseconds.
    pub round_trip_ns: Spread,
    /// The same, `echo_depth` at a time, a second.
    pub echoes_per_second: Spread,
    /// The depth of the figure above.
    pub echo_depth: usize,
    /// Of READ and WRITE.
    pub transfer: Option<Transfer>,
}

/// What moves the data of a READ or WRITE: RDMA Writes or Reads, by the server's core.
#[derive(Clone, Debug, Serialize)]
pub struct Transfer {
    /// RDMA Writes, as for READ; otherwise RDMA Reads.
    pub is_write: bool,
    /// Octets of each.
    pub len: usize,
    /// How many are under way at once.
    pub depth: usize,
    /// Octets a second.
    pub bytes_per_second: Spread,
}

impl BareLimits {
    /// Those of all rounds.
    pub(crate) fn gather(rounds: &[BareLimits]) -> Option<BareLimits> {
        let first = rounds.first()?;
        let of = |value: &dyn Fn(&BareLimits) -> f64| Spread::of(rounds.iter().map(value).collect());
        let moved = |limits: &BareLimits| {
            limits.transfer.as_ref().map_or(0.0, |transfer| transfer.bytes_per_second.median)
        };
        Some(BareLimits {
            round_trip_ns: of(&|limits| limits.round_trip_ns.median),
            echoes_per_second: of(&|limits| limits.echoes_per_second.median),
            echo_depth: first.echo_depth,
            transfer: first
                .transfer
                .clone()
                .map(|transfer| Transfer { bytes_per_second: of(&moved), ..transfer }),
        })
    }
}

/// Measures the limits of `scenario`'s fabric between `cores` (client, server), both ends on this machine.
///
/// # Errors
///
/// When the fabric cannot be opened, or fails.
pub fn measure<P: Opened>(cores: [usize; 2], scenario: &Scenario, round: usize) -> Result<BareLimits> {
    let depth = (scenario.depth * scenario.connections).clamp(1, DEPTH_MAX);
    let shape = |depth, transfer_len, transfers| BareShape {
        depth,
        transfer_len,
        transfers,
        yields: scenario.may_sleep,
    };
    let messages = shape(depth as u32, MESSAGE_LEN, 1);
    let (trip, rate) = between::<P, _>(scenario, round, cores, messages, |side, pair| {
        let trip = best(side.echo(pair, 1, MESSAGE_LEN, WINDOWS)?);
        Ok((1e9 / trip, best(side.echo(pair, depth as u32, MESSAGE_LEN, WINDOWS)?)))
    })?;
    let is_write = match scenario.operation {
        MeasuredOperation::Read => Some(true),
        MeasuredOperation::Write => Some(false),
        _ => None,
    };
    let transfer = is_write.map(|is_write| {
        let len = scenario.size.max(1);
        let depth = depth.min(MEMORY_MAX / len).max(1);
        // The end that begins them is the server's.
        let rate =
            between::<P, _>(scenario, round, [cores[1], cores[0]], shape(1, len, depth), |side, pair| {
                side.copies(pair, is_write, len, depth, WINDOWS).map(best)
            })?;
        let bytes_per_second = Spread::of(vec![rate * len as f64]);
        Ok::<_, anyhow::Error>(Transfer { is_write, len, depth, bytes_per_second })
    });
    Ok(BareLimits {
        round_trip_ns: Spread::of(vec![trip]),
        echoes_per_second: Spread::of(vec![rate]),
        echo_depth: depth,
        transfer: transfer.transpose()?,
    })
}

/// What nothing disturbed.
fn best(rates: Vec<f64>) -> f64 {
    rates.into_iter().fold(0.0, f64::max)
}

/// Connects an end on the first core to one that serves on the second, and measures there.
fn between<P: Opened, T: Send>(
    scenario: &Scenario,
    round: usize,
    [here, there]: [usize; 2],
    shape: BareShape,
    measure: impl FnOnce(&mut BareEnd<P>, QueuePairId) -> Result<T> + Send,
) -> Result<T> {
    let (is_over, (ready, started)) = (&AtomicBool::new(false), mpsc::channel());
    thread::scope(|scope| {
        let server = scope.spawn(move || {
            pin(there);
            let mut side = BareEnd::new(P::open(scenario)?, shape)?;
            let asked = P::own_address(round);
            let listener = side.provider.listen(&asked)?;
            ready.send(side.provider.listens_at(listener, asked)?)?;
            // Relaxed: nothing is read because of it.
            side.serve(|| is_over.load(Ordering::Relaxed))
        });
        let client = scope.spawn(move || {
            pin(here);
            // The end that serves did not come up, and will say why.
            let Ok(address) = started.recv() else { return Ok::<_, anyhow::Error>(None) };
            let mut side = BareEnd::new(P::open(scenario)?, shape)?;
            let pair = side.connect(&address)?;
            let measured = measure(&mut side, pair)?;
            side.disconnect(pair)?;
            Ok(Some(measured))
        });
        let measured = client.join();
        is_over.store(true, Ordering::Relaxed);
        let served = server.join().map_err(|_| anyhow!("the end that serves panicked"))?;
        let measured: Result<Option<T>> = measured.map_err(|_| anyhow!("the end that measures panicked"))?;
        // If both failed, one did because of the other, and it is not known which: both are told.
        let measured = match (measured, &served) {
            (Err(error), Err(other)) => bail!("{error:#}; at the other end: {other:#}"),
            (measured, _) => measured?,
        };
        served?;
        measured.context("the end that serves did not come up")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::MeasuredFabric;
    use stag_fabric::{Iwarp, Shm, Verbs};

    /// Beside other tests: neither end keeps a core for itself.
    fn scenario(operation: MeasuredOperation, fabric: MeasuredFabric) -> Scenario {
        Scenario { operation, fabric, size: 10_000, depth: 4, may_sleep: true, ..Scenario::default() }
    }

    fn check<P: Opened>(fabric: MeasuredFabric) {
        for (operation, is_write) in [
            (MeasuredOperation::Null, None),
            (MeasuredOperation::Read, Some(true)),
            (MeasuredOperation::Write, Some(false)),
        ] {
            let found =
                measure::<P>([0, 1], &scenario(operation, fabric), 77).expect("this fabric works anywhere");
            assert!(found.round_trip_ns.median > 0.0 && found.echoes_per_second.median > 0.0, "{found:?}");
            assert_eq!(found.echo_depth, 4);
            assert_eq!(found.transfer.as_ref().map(|transfer| transfer.is_write), is_write);
            if let Some(transfer) = found.transfer {
                assert_eq!((transfer.len, transfer.depth), (10_000, 4));
                assert!(transfer.bytes_per_second.median > 0.0, "{transfer:?}");
            }
        }
    }

    #[test]
    fn messages_and_transfers_are_measured_without_rpc() {
        check::<Shm>(MeasuredFabric::Shm);
        check::<Iwarp>(MeasuredFabric::Iwarp);
    }

    /// Neither end waits for a peer that does not start, or that leaves.
    #[test]
    fn an_end_that_fails_is_an_error() {
        let missing = Scenario {
            device: Some("no-such-device".into()),
            ..scenario(MeasuredOperation::Null, MeasuredFabric::Verbs)
        };
        assert!(measure::<Verbs>([0, 1], &missing, 78).is_err());
        let shape = BareShape { depth: 1, transfer_len: 64, transfers: 1, yields: true };
        let scenario = scenario(MeasuredOperation::Null, MeasuredFabric::Shm);
        let failed = between::<Shm, ()>(&scenario, 79, [0, 1], shape, |_, _| bail!("measured nothing"));
        assert_eq!(failed.expect_err("it failed").to_string(), "measured nothing");
    }
}
