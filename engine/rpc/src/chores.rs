//! A pass's work beside messages: waits for memory or room, deadlines, connections that come and go. It runs only when some
//! is due.

use std::time::Duration;

use stag_fabric::Provider;

use crate::ConnectionId;
use crate::client::CloseReason;
use crate::client::calling::Liveness;
use crate::client::clients::current;
use crate::connection::Connections;
use crate::engine::find;
use crate::server::pulling::{PRESSED, Pressure, WANTED_BACK, worse};
use crate::server::serving::exposing::{revoke_overdue, revoke_silent};
use crate::service::Services;
use crate::state::{Core, Pass};

/// How often Calls' deadlines are looked at: the precision of a Call's time-out.
pub(crate) const SCAN_INTERVAL: Duration = Duration::from_millis(10);

/// Resumes waiting work of the connections. Returns how much of it made progress.
#[inline(never)]
pub(crate) fn flush<P: Provider, S: Services>(
    pass: &mut Pass<'_, Core<P>, S>,
    connections: &mut Connections,
) -> usize {
    let mut count = 0;
    let mut touched = pass.core.ready.take_touched(connections);
    // Another one first in each pass, so that each connection in turn is the first to get free memory.
    let first = pass.core.pass as usize % touched.len().max(1);
    let (rest, first) = touched.split_at(first);
    for &index in first.iter().chain(rest) {
        if let Some(Some(found)) = connections.get_mut(index as usize) {
            count += found.flush(pass);
        }
    }
    touched.retain(|&index| {
        let Some(Some(found)) = connections.get_mut(index as usize) else { return false };
        found.listed.is_touched = found.has_waiting();
        found.listed.is_touched
    });
    debug_assert!(pass.core.ready.touched.is_empty(), "a flush touches no other connection");
    pass.core.ready.touched = touched;
    count
}

/// Ends what took too long: Calls past their deadlines, clients that stall, connections that are not set up in time.
#[cold]
pub(crate) fn scan<P: Provider>(core: &mut Core<P>, connections: &mut Connections) {
    let mut pressure = core.streams_pressure;
    let mut at = 0;
    while let Some(&index) = core.ready.awake.get(at) {
        let Some(Some(found)) = connections.get_mut(index as usize) else {
            debug_assert!(false, "a connection that ended is in no list");
            core.ready.awake.swap_remove(at);
            continue;
        };
        let id = found.id;
        found.opened = found.opened.min(core.now);
        if let Some(calling) = found.calling.as_mut() {
            if calling.expire(core, id) == Liveness::Gone {
                found.close(core, CloseReason::Silent);
            } else if found.established && calling.is_unanswered(core.now) {
                found.close(core, CloseReason::Unanswered);
            } else if found.established && calling.keep_alive(core, id) == Liveness::Gone {
                found.close(core, CloseReason::Silent);
            }
        }
        if let Some(serving) = found.serving.as_mut() {
            revoke_overdue(serving, core, id);
        }
        if found.serving.as_mut().is_some_and(|serving| serving.observe_progress(core)) {
            found.close(core, CloseReason::Stuck);
        }
        if let Some(serving) = found.serving.as_ref() {
            pressure = worse(pressure, serving.pressure(core));
        }
        let limit = found.opened.saturating_add(core.config.set_up_timeout);
        if !found.established && core.now >= limit {
            core.provider.disconnect(id);
        }
        if found.has_waiting() {
            core.ready.touch(found);
        }
        // Last: what ended just now was looked at.
        if found.has_timer() {
            at += 1;
        } else {
            found.listed.is_awake = false;
            core.ready.awake.swap_remove(at);
        }
    }
    if let Some(pressure) = pressure.filter(|pressure| pressure.time >= WANTED_BACK) {
        relieve(core, connections, pressure);
    }
    if core.state.credits.take_starved(core.state.now) {
        relieve_starved(core, connections);
    }
}

/// Ends the idle connection that holds the most credits beyond its share, for a busy one that has less than its own. A silent client
/// cannot be told of a lower grant.
#[cold]
fn relieve_starved<P: Provider>(core: &mut Core<P>, connections: &mut Connections) {
    let state = &core.state;
    let excess = connections.iter().flatten().filter_map(|found| {
        let serving = found.serving.as_ref().filter(|_| !found.is_closing())?;
        let usage = serving.usage(found.opened, found.established);
        let excess = state.credits.excess(serving.account?, serving.held);
        usage.has_to_yield(state.now).then_some((excess, found.id.index as usize))
    });
    match excess.max() {
        Some((1.., index)) => {
            // It is one of those just looked at.
            let Some(found) = &mut connections[index] else { return };
            found.make_room(core, "it is idle, and holds credits that busy clients want");
        }
        _ => core.state.credits.postpone_relief(core.state.now),
    }
}

/// Takes memory back from connections that do nothing with it, as others wait for it. Ends the connection that holds most of what
/// cannot be taken back, one in each scan.
#[cold]
fn relieve<P: Provider>(core: &mut Core<P>, connections: &mut Connections, pressure: Pressure) {
    let mut idlest = (0, 0);
    // A connection that holds memory has a Call in process.
    for at in 0..core.ready.awake.len() {
        let index = core.ready.awake[at] as usize;
        let Some(Some(found)) = connections.get_mut(index) else { continue };
        let id = found.id;
        let Some(serving) = found.serving.as_mut() else { continue };
        if !serving.is_of(pressure.owner) {
            continue;
        }
        serving.vacate(core);
        revoke_silent(serving, core, id);
        let idle = serving.idle_pages(core);
        if idle > idlest.0 {
            idlest = (idle, index);
        }
        if found.has_waiting() {
            core.ready.touch(found);
        }
    }
    if let (true, (1.., index)) = (pressure.time >= PRESSED, idlest)
        && let Some(found) = &mut connections[index]
    {
        found.close(core, CloseReason::Idle);
    }
}

/// Ends the connections on which a defect of this engine showed.
#[cold]
pub(crate) fn end_faulty<P: Provider>(
    core: &mut Core<P>,
    connections: &mut Connections,
    moved: &[(ConnectionId, ConnectionId)],
) {
    while let Some((name, reason)) = core.faults.pop() {
        let id = current(moved, name);
        // None: it ended in this pass.
        if let Some(found) = find(connections, id) {
            found.close(core, reason);
        }
    }
}
