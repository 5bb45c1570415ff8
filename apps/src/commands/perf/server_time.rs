//! The processor time of a `stagd` that runs, as its control socket tells it.

use std::path::PathBuf;
use std::time::Duration;

use stag_bench::Spread;
use stag_bench::rounds::CpuFigures;
use stag_server::failure::CommandFailure;

use crate::commands::admin;

/// What all cores of a server have done since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerTime {
    cpu: Duration,
    busy: Duration,
    calls: u64,
}

impl ServerTime {
    /// Asks the server at `socket`.
    pub(super) fn ask(socket: &PathBuf) -> Result<ServerTime, CommandFailure> {
        let mut sum = ServerTime::default();
        for core in admin::state(Some(socket))?.cores {
            let busy = Duration::try_from_secs_f64(core.busy_seconds).unwrap_or_default();
            let idle = Duration::try_from_secs_f64(core.idle_seconds).unwrap_or_default();
            sum.busy += busy;
            sum.cpu += busy + idle;
            sum.calls += core.calls;
        }
        Ok(sum)
    }

    /// Adds what the server did since `before`: one figure of all rounds, with set-up, warm-up and other clients' Calls.
    pub(super) fn add_since(self, before: ServerTime, cpu: &mut CpuFigures) {
        let calls = self.calls.saturating_sub(before.calls);
        if calls == 0 {
            return;
        }
        let per_call = |now: Duration, then: Duration| {
            Some(Spread::of(vec![now.saturating_sub(then).as_nanos() as f64 / calls as f64]))
        };
        cpu.server_ns_per_call = per_call(self.cpu, before.cpu);
        cpu.server_busy_ns_per_call = per_call(self.busy, before.busy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_time_is_divided_by_its_calls() {
        let none = Spread::default();
        let mut cpu = CpuFigures {
            client_ns_per_call: none,
            client_busy_ns_per_call: none,
            server_ns_per_call: None,
            server_busy_ns_per_call: None,
        };
        let time = |cpu: u64, busy: u64, calls| ServerTime {
            cpu: Duration::from_micros(cpu),
            busy: Duration::from_micros(busy),
            calls,
        };
        time(900, 700, 5).add_since(time(900, 700, 5), &mut cpu);
        assert_eq!(cpu.server_ns_per_call, None, "without Calls there is no figure");
        time(1900, 900, 105).add_since(time(900, 700, 5), &mut cpu);
        let found = [cpu.server_ns_per_call, cpu.server_busy_ns_per_call].map(|found| found.unwrap().median);
        assert_eq!(found, [10_000.0, 2_000.0]);
    }
}
