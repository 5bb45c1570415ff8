//! A pass's work beside messages: waits for memory or room, deadlines, connections that come and go. It runs only when some
//! is due.

use std::time::Duration;

use stag_fabric::Provider;

use crate::client::CloseReason;
use crate::client::calling::Liveness;
use crate::engine::{Engine, find};
use crate::server::pulling::{PRESSED, Pressure, WANTED_BACK, worse};
use crate::server::serving::exposing::{revoke_overdue, revoke_silent};
use crate::service::Services;
use crate::state::Pass;

/// How often Calls' deadlines are looked at: the precision of a Call's time-out.
const SCAN_INTERVAL: Duration = Duration::from_millis(10);

impl<P: Provider, S: Services> Engine<P, S> {
    /// Forgets the connections that are gone, then decides on those that ask to be let in.
    #[inline(never)]
    pub(crate) fn admit_and_dismiss(&mut self) {
        while let Some((id, reason)) = self.disconnects.pop() {
            self.handle_disconnected(id, reason);
        }
        // After those that are gone: their places and their memory are free now.
        if !self.requests.is_empty() {
            self.admit_requests();
        }
    }

    /// Goes on with what waits on the connections, and says how much of it went on.
    #[inline(never)]
    pub(crate) fn flush(&mut self) -> usize {
        let Engine { core, services, connections, .. } = self;
        let pass = &mut Pass { core, services };
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

    /// Looks at deadlines of Calls, at clients that do not go on, and at connections that are being set up for too long.
    #[cold]
    pub(crate) fn scan(&mut self) {
        self.next_scan = self.core.now + SCAN_INTERVAL;
        let mut pressure = self.core.streams_pressure;
        let mut at = 0;
        while let Some(&index) = self.core.ready.awake.get(at) {
            let Some(Some(found)) = self.connections.get_mut(index as usize) else {
                debug_assert!(false, "a connection that ended is in no list");
                self.core.ready.awake.swap_remove(at);
                continue;
            };
            let id = found.id;
            found.opened = found.opened.min(self.core.now);
            if let Some(calling) = found.calling.as_mut() {
                if calling.expire(&mut self.core, id) == Liveness::Gone {
                    found.close(&mut self.core, CloseReason::Silent);
                } else if found.established && calling.is_unanswered(self.core.now) {
                    found.close(&mut self.core, CloseReason::Unanswered);
                } else if found.established && calling.keep_alive(&mut self.core, id) == Liveness::Gone {
                    found.close(&mut self.core, CloseReason::Silent);
                }
            }
            if let Some(serving) = found.serving.as_mut() {
                revoke_overdue(serving, &mut self.core, id);
            }
            if found.serving.as_mut().is_some_and(|serving| serving.observe_progress(&self.core)) {
                found.close(&mut self.core, CloseReason::Stuck);
            }
            if let Some(serving) = found.serving.as_ref() {
                pressure = worse(pressure, serving.pressure(&self.core));
            }
            let limit = found.opened.saturating_add(self.core.config.set_up_timeout);
            if !found.established && self.core.now >= limit {
                self.core.provider.disconnect(id);
            }
            if found.has_waiting() {
                self.core.ready.touch(found);
            }
            // Last: what ended just now was looked at.
            if found.has_timer() {
                at += 1;
            } else {
                found.listed.is_awake = false;
                self.core.ready.awake.swap_remove(at);
            }
        }
        if let Some(pressure) = pressure.filter(|pressure| pressure.time >= WANTED_BACK) {
            self.relieve(pressure);
        }
        if self.core.state.credits.take_starved(self.core.state.now) {
            self.relieve_starved();
        }
        self.restore();
    }

    /// A busy connection has less than its part of the credits: ends the idle one that holds most beyond its own. A silent client
    /// cannot be told of a lower grant.
    #[cold]
    fn relieve_starved(&mut self) {
        let state = &self.core.state;
        let excess = self.connections.iter().flatten().filter_map(|found| {
            let serving = found.serving.as_ref().filter(|_| !found.is_closing())?;
            let usage = serving.usage(found.opened, found.established);
            let excess = state.credits.excess(serving.account?, serving.held);
            usage.has_to_yield(state.now).then_some((excess, found.id.index as usize))
        });
        match excess.max() {
            Some((1.., index)) => {
                // It is one of those just looked at.
                let Some(found) = &mut self.connections[index] else { return };
                found.make_room(&mut self.core, "it is idle, and holds credits that busy clients want");
            }
            _ => self.core.state.credits.postpone_relief(self.core.state.now),
        }
    }

    /// Others wait for memory: takes it back from those who do nothing with it, and ends the one that holds most of what
    /// cannot be taken back, one in each scan.
    #[cold]
    fn relieve(&mut self, pressure: Pressure) {
        let mut idlest = (0, 0);
        // A connection that holds memory has a Call in process.
        for at in 0..self.core.ready.awake.len() {
            let index = self.core.ready.awake[at] as usize;
            let Some(Some(found)) = self.connections.get_mut(index) else { continue };
            let id = found.id;
            let Some(serving) = found.serving.as_mut() else { continue };
            if !serving.is_of(pressure.owner) {
                continue;
            }
            serving.vacate(&mut self.core);
            revoke_silent(serving, &mut self.core, id);
            let idle = serving.idle_pages(&self.core);
            if idle > idlest.0 {
                idlest = (idle, index);
            }
            if found.has_waiting() {
                self.core.ready.touch(found);
            }
        }
        if let (true, (1.., index)) = (pressure.time >= PRESSED, idlest)
            && let Some(found) = &mut self.connections[index]
        {
            found.close(&mut self.core, CloseReason::Idle);
        }
    }

    /// Ends the connections on which a defect of this engine showed.
    #[cold]
    pub(crate) fn end_faulty(&mut self) {
        while let Some((name, reason)) = self.core.faults.pop() {
            let id = self.current(name);
            // None: it ended in this pass.
            if let Some(found) = find(&mut self.connections, id) {
                found.close(&mut self.core, reason);
            }
        }
    }
}
