//! Metrics for Prometheus, over HTTP, on a thread of their own.
//!
//! Labels are bounded: the procedures and operations that are served, the cores, the exports, and the [`CLIENTS_MAX`] clients with the most
//! Calls.

use std::cmp::Reverse;
use std::fmt;
use std::io::Cursor;
use std::net::TcpListener;
use std::thread;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tiny_http::{Header, Method, Request, Response, Server};

use super::asking::Reactors;
use crate::admin::{ClientState, ExportState, LimitedState, OperationState, ProcedureState, ServerState};
use crate::failure::CommandFailure;

/// Clients with figures of their own. Those of all others are summed up as `other`.
const CLIENTS_MAX: usize = 50;

/// What `Content-Type` says of the text.
const TEXT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves metrics at an address from now on.
pub(super) fn serve(address: &str, reactors: Reactors) -> Result<(), CommandFailure> {
    let fail = |problem: &dyn fmt::Display| {
        CommandFailure::run(format_args!("--metrics {address}: {problem}; write HOST:PORT, with a free port"))
    };
    let listener = TcpListener::bind(address).map_err(|error| fail(&error))?;
    let server = Server::from_listener(listener, None).map_err(|error| fail(&error))?;
    let thread = thread::Builder::new().name("metrics".to_owned());
    let thread = thread.spawn(move || {
        for request in server.incoming_requests() {
            let response = respond(&request, &reactors);
            // The client may be gone.
            let _ = request.respond(response);
        }
    });
    thread.map(drop).map_err(|error| fail(&error))
}

fn respond(request: &Request, reactors: &Reactors) -> Response<Cursor<Vec<u8>>> {
    let plain = |status: u16, text: &str| Response::from_string(format!("{text}\n")).with_status_code(status);
    match (request.method(), request.url().split('?').next()) {
        (Method::Get | Method::Head, Some("/metrics")) => match reactors.state() {
            Some(state) => {
                let response = Response::from_string(exposition(state));
                match Header::from_bytes("Content-Type", TEXT) {
                    Ok(header) => response.with_header(header),
                    Err(()) => response,
                }
            }
            None => plain(503, "a core did not answer in time"),
        },
        (Method::Get | Method::Head, _) => plain(404, "the metrics are at /metrics"),
        _ => plain(405, "GET /metrics"),
    }
}

/// The text of all metrics.
fn exposition(state: ServerState) -> String {
    let mut registry = Registry::with_prefix("stag");
    registry.register_collector(Box::new(Exposition(state)));
    let mut text = String::new();
    // Writing to a text does not fail.
    let _ = encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Exposition(ServerState);

/// Figures of one kind: for each its labels and its value.
type Figures<L> = Vec<(L, f64)>;

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Exposition(state) = self;
        let build = [("version", state.version.as_str())];
        gauge(&mut encoder, "build", "The build of this server; always 1", vec![(build, 1.0)])?;
        let single = |value: f64| vec![([("", ""); 0], value)];
        gauge(&mut encoder, "uptime_seconds", "Time since the server started", single(state.uptime_seconds))?;

        let labels = |it: &ProcedureState| {
            [
                ("program", it.program.to_string()),
                ("version", it.version.to_string()),
                ("procedure", it.name.clone()),
            ]
        };
        let procedures = &state.procedures;
        let calls = procedures.iter().map(|it| (labels(it), it.calls as f64)).collect();
        counter(&mut encoder, "calls", "Calls that a service executed, and NULL", calls)?;
        let failures = procedures.iter().flat_map(|it| {
            let [program, version, procedure] = labels(it);
            let failures = it.failures.iter();
            failures.map(move |(status, calls)| {
                let labels =
                    [program.clone(), version.clone(), procedure.clone(), ("status", status.clone())];
                (labels, *calls as f64)
            })
        });
        counter(&mut encoder, "call_errors", "Replies with an error, by its status", failures.collect())?;
        let figures = procedures.iter().map(|it| (labels(it), (&it.executed, it.executed_seconds)));
        const EXECUTED: &str =
            "Time that a service took for a Call until it answered or let it wait, of one Call of 64";
        histogram(&mut encoder, "call_execute_seconds", EXECUTED, figures)?;
        let figures = procedures.iter().map(|it| (labels(it), (&it.waited, it.late_seconds)));
        const WAITED: &str = "Time from a Call to its answer, of Calls that waited for a disk or a lock";
        histogram(&mut encoder, "call_wait_seconds", WAITED, figures)?;
        self.operations(&mut encoder)?;

        let counters = &state.counters;
        for (name, help, value) in [
            ("replies", "Replies sent", counters.replies_sent),
            ("rdma_read_bytes", "Octets placed by RDMA Read", counters.read_bytes),
            ("rdma_write_bytes", "Octets placed by RDMA Write", counters.write_bytes),
            ("tcp_received_bytes", "Octets received over TCP", counters.stream_bytes_received),
            ("tcp_sent_bytes", "Octets sent over TCP", counters.stream_bytes_sent),
            ("copied_bytes", "Octets of payload that a core copied", counters.copied_bytes),
            ("rdma_errors", "RDMA_ERROR messages sent", counters.errors_sent),
            ("rdma_connections_opened", "RDMA connections accepted", counters.connections_opened),
            ("rdma_connections_refused", "RDMA connections refused", counters.connections_refused),
            (
                "rdma_connections_evicted",
                "RDMA connections ended to make room for others",
                counters.connections_evicted,
            ),
            ("tcp_connections_opened", "TCP connections accepted", counters.streams_opened),
            ("tcp_connections_refused", "TCP connections refused", counters.streams_refused),
            (
                "tcp_connections_evicted",
                "TCP connections ended to make room for others",
                counters.streams_evicted,
            ),
            ("violations", "Connections ended because the peer broke the rules", counters.violations),
            (
                "peers_stuck",
                "Connections ended because the client did not take its Replies",
                counters.peers_stuck,
            ),
            (
                "duplicates_answered",
                "Repeated Calls answered with the kept Reply",
                counters.duplicates_answered,
            ),
            (
                "duplicates_dropped",
                "Repeated Calls dropped while they were executed",
                counters.duplicates_dropped,
            ),
            ("calls_carried", "Calls carried to another core", counters.calls_carried),
        ] {
            counter(&mut encoder, name, help, single(value as f64))?;
        }

        let core = |core: usize| [("core", core.to_string())];
        let cores = &state.cores;
        let times = cores.iter().flat_map(|it| {
            let time =
                |what: &str, value: f64| ([("core", it.core.to_string()), ("state", what.to_owned())], value);
            [time("busy", it.busy_seconds), time("idle", it.idle_seconds), time("asleep", it.asleep_seconds)]
        });
        counter(&mut encoder, "core_seconds", "What a core did with its time", times.collect())?;
        let calls = cores.iter().map(|it| (core(it.core), it.calls as f64)).collect();
        counter(&mut encoder, "core_calls", "Calls that came in at a core and were answered", calls)?;
        let connections = cores.iter().flat_map(|it| {
            let of = |what: &str, count: usize| {
                ([("core", it.core.to_string()), ("transport", what.to_owned())], count as f64)
            };
            [of("rdma", it.connections), of("tcp", it.streams)]
        });
        gauge(&mut encoder, "connections", "Connections now", connections.collect())?;

        let pool = |core: usize, pool: &str| [("core", core.to_string()), ("pool", pool.to_owned())];
        let pools = &state.pools;
        let total =
            pools.iter().map(|it| (pool(it.core, &it.pool), (it.units * it.unit_bytes) as f64)).collect();
        gauge(&mut encoder, "memory_bytes", "Memory of a pool", total)?;
        let free = pools
            .iter()
            .map(|it| (pool(it.core, &it.pool), (it.units_free * it.unit_bytes) as f64))
            .collect();
        gauge(&mut encoder, "memory_free_bytes", "Memory of a pool that is free", free)?;
        let parts = state.memory.iter().map(|(part, bytes)| ([("part", part.clone())], *bytes as f64));
        const PARTS: &str = "What --memory is for, by the lines of the price list";
        gauge(&mut encoder, "memory_part_bytes", PARTS, parts.collect())?;
        gauge(
            &mut encoder,
            "receives_held",
            "Receives that RDMA connections hold",
            single(state.receives_held.into()),
        )?;
        gauge(
            &mut encoder,
            "receives_max",
            "Receives that RDMA connections may hold",
            single(state.receives_max.into()),
        )?;
        gauge(&mut encoder, "locks_held", "Locks that clients hold", single(state.locks_held.into()))?;
        gauge(
            &mut encoder,
            "locks_waiting",
            "Requests that wait for a lock",
            single(state.locks_waiting.into()),
        )?;

        let export = |path: &str| [("export", path.to_owned())];
        for (name, help, value) in [
            (
                "export_bytes",
                "Space of an export in memory",
                (|it| it.bytes_total) as fn(&ExportState) -> Option<u64>,
            ),
            ("export_free_bytes", "Free space of an export in memory", |it| it.bytes_free),
            ("export_files", "Objects that an export in memory has room for", |it| it.files_total),
            ("export_free_files", "Objects that an export in memory has room left for", |it| it.files_free),
        ] {
            let figures = state.exports.iter().filter_map(|it| Some((export(&it.path), value(it)? as f64)));
            gauge(&mut encoder, name, help, figures.collect())?;
        }

        self.limits(&mut encoder)?;
        self.traffic(&mut encoder)?;

        let (named, others) = state.clients.split_at(state.clients.len().min(CLIENTS_MAX));
        let client = |name: &str| [("client", name.to_owned())];
        let mut calls: Figures<_> = named.iter().map(|it| (client(&it.client), it.calls as f64)).collect();
        let mut credits: Figures<_> =
            named.iter().map(|it| (client(&it.client), it.granted.into())).collect();
        if !others.is_empty() {
            calls.push((client("other"), others.iter().map(|it| it.calls as f64).sum()));
            credits.push((client("other"), others.iter().map(|it| f64::from(it.granted)).sum()));
        }
        // A gauge: it shrinks when a client's connections end.
        gauge(&mut encoder, "client_calls", "Calls on the connections that a client has now", calls)?;
        gauge(&mut encoder, "client_credits", "Credits granted to a client", credits)?;
        gauge(&mut encoder, "clients", "Clients that are connected", single(state.clients.len() as f64))
    }
}

impl Exposition {
    /// The operations of NFS version 4, which COMPOUND is made of.
    fn operations(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let operations = &self.0.operations;
        let figures = |value: fn(&OperationState) -> u64| {
            operations.iter().map(|it| ([("operation", it.name.clone())], value(it) as f64)).collect()
        };
        counter(encoder, "operations", "Operations of NFSv4 that were executed", figures(|it| it.calls))?;
        let failures = operations.iter().flat_map(|it| {
            let failures = it.failures.iter();
            failures.map(|(status, calls)| {
                ([("operation", it.name.clone()), ("status", status.clone())], *calls as f64)
            })
        });
        const FAILED: &str = "Operations of NFSv4 that failed, by their status";
        counter(encoder, "operation_errors", FAILED, failures.collect())?;
        counter(
            encoder,
            "operation_waits",
            "Times that an operation of NFSv4 waited for a disk or a limit",
            figures(|it| it.waits),
        )
    }

    /// Octets that were read and written. Clients that are not named have no figure, as the sum of them would fall when one is: it is
    /// what the exports have beyond the named ones.
    fn traffic(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let ServerState { exports, clients, .. } = &self.0;
        for (name, help, value) in [
            (
                "export_read_bytes",
                "Octets of an export's files that READ gave",
                (|it| it.read_bytes) as fn(&ExportState) -> u64,
            ),
            ("export_written_bytes", "Octets of an export's files that WRITE took", |it| it.written_bytes),
        ] {
            let figures = exports.iter().map(|it| ([("export", it.path.clone())], value(it) as f64));
            counter(encoder, name, help, figures.collect())?;
        }
        let mut named: Vec<&ClientState> = clients.iter().collect();
        named.sort_by_key(|it| Reverse(it.read_bytes + it.written_bytes));
        named.truncate(CLIENTS_MAX);
        for (name, help, value) in [
            (
                "client_read_bytes",
                "Octets that READ gave to a client that is connected, of those that moved the most",
                (|it| it.read_bytes) as fn(&ClientState) -> u64,
            ),
            ("client_written_bytes", "Octets that WRITE took from such a client", |it| it.written_bytes),
        ] {
            let figures = named.iter().map(|it| ([("client", it.client.clone())], value(it) as f64));
            counter(encoder, name, help, figures.collect())?;
        }
        Ok(())
    }

    /// The limits of exports, and what waited for them.
    fn limits(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let exports = &self.0.exports;
        let limits = exports.iter().flat_map(|it| {
            let limit = |of: &str, rate: Option<u64>| {
                Some(([("export", it.path.clone()), ("of", of.to_owned())], rate? as f64))
            };
            [limit("all", it.rate), limit("each", it.client_rate)].into_iter().flatten()
        });
        gauge(
            encoder,
            "export_limit_bytes_per_second",
            "Limits of READ and WRITE, of all clients together and of each",
            limits.collect(),
        )?;
        let limited = exports.iter().filter_map(|it| Some(([("export", it.path.clone())], it.limited?)));
        let limited: Vec<_> = limited.collect();
        let figures = |value: fn(&LimitedState) -> f64| {
            limited.iter().map(|(labels, it)| (labels.clone(), value(it))).collect()
        };
        counter(
            encoder,
            "export_limited_calls",
            "READs and WRITEs that waited for a limit of their export",
            figures(|it| it.calls as f64),
        )?;
        counter(
            encoder,
            "export_limited_bytes",
            "Octets that waited for a limit",
            figures(|it| it.bytes as f64),
        )?;
        counter(encoder, "export_limited_seconds", "Time that they waited", figures(|it| it.seconds))?;
        gauge(
            encoder,
            "export_limited_waiting",
            "READs and WRITEs that wait for a limit now",
            figures(|it| it.waiting as f64),
        )
    }
}

fn counter<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    figures: Figures<L>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in figures {
        ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

fn gauge<L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    figures: Figures<L>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in figures {
        ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Times in ranges, with their sum: a histogram for each that has any.
fn histogram<'p, L: EncodeLabelSet>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    figures: impl Iterator<Item = (L, (&'p Vec<(Option<f64>, u64)>, f64))>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for (labels, (ranges, seconds)) in figures {
        let count = ranges.iter().map(|(_, count)| count).sum();
        if count == 0 {
            continue;
        }
        let ranges = ranges.iter().map(|&(bound, count)| (bound.unwrap_or(f64::INFINITY), count));
        let ranges: Vec<_> = ranges.collect();
        let mut metric = family.encode_family(&labels)?;
        metric.encode_histogram::<NoLabelSet>(seconds, count, &ranges, None)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::{CoreState, PoolState};

    fn state(clients: u32) -> ServerState {
        let client = |number: u32| ClientState {
            client: format!("10.0.{}.{}", number / 256, number % 256),
            connections: 1,
            streams: 0,
            calls: 10,
            read_bytes: u64::from(number),
            written_bytes: 7,
            granted: 4,
            used: 1,
            waiting: 0,
        };
        ServerState {
            version: "0.1.0".to_owned(),
            uptime_seconds: 12.5,
            counters: Default::default(),
            cores: vec![CoreState {
                core: 3,
                busy_seconds: 1.5,
                idle_seconds: 2.0,
                asleep_seconds: 9.0,
                calls: 70,
                calls_carried: 0,
                connections: 1,
                streams: 2,
            }],
            procedures: vec![ProcedureState {
                program: 100_003,
                version: 3,
                name: "READ".to_owned(),
                calls: 70,
                late: 3,
                late_seconds: 0.75,
                waited: vec![(Some(0.5), 2), (None, 1)],
                executed: vec![(Some(0.25), 4), (None, 0)],
                executed_seconds: 0.5,
                failures: vec![("NFS3ERR_STALE".to_owned(), 6)],
            }],
            operations: vec![OperationState {
                name: "OPEN".to_owned(),
                calls: 40,
                errors: 2,
                failures: vec![("NFS4ERR_NOENT".to_owned(), 2)],
                waits: 5,
            }],
            clients: (0..clients).map(client).collect(),
            exports: vec![ExportState {
                path: "/data".to_owned(),
                spec: "mem:/data".to_owned(),
                bytes_total: Some(1 << 20),
                bytes_free: Some(4096),
                files_total: None,
                files_free: None,
                read_bytes: 30,
                written_bytes: 4,
                rate: Some(500 << 20),
                client_rate: None,
                limited: Some(LimitedState { calls: 9, bytes: 9 << 20, seconds: 1.5, waiting: 2 }),
            }],
            pools: vec![PoolState {
                core: 3,
                pool: "payload".to_owned(),
                unit_bytes: 4096,
                units: 10,
                units_free: 4,
            }],
            memory: vec![("lanes between cores".to_owned(), 512)],
            receives_held: 5,
            receives_max: 64,
            locks_held: 1,
            locks_waiting: 0,
        }
    }

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let text = exposition(state(1));
        for line in [
            "# TYPE stag_calls counter",
            "stag_calls_total{program=\"100003\",version=\"3\",procedure=\"READ\"} 70.0",
            "stag_call_wait_seconds_sum{program=\"100003\",version=\"3\",procedure=\"READ\"} 0.75",
            "stag_call_wait_seconds_bucket{le=\"0.5\",program=\"100003\",version=\"3\",procedure=\"READ\"} 2",
            "stag_call_wait_seconds_bucket{le=\"+Inf\",program=\"100003\",version=\"3\",procedure=\"READ\"} 3",
            "stag_operations_total{operation=\"OPEN\"} 40.0",
            "stag_operation_errors_total{operation=\"OPEN\",status=\"NFS4ERR_NOENT\"} 2.0",
            "stag_call_errors_total{program=\"100003\",version=\"3\",procedure=\"READ\",status=\"NFS3ERR_STALE\"} 6.0",
            "stag_call_execute_seconds_sum{program=\"100003\",version=\"3\",procedure=\"READ\"} 0.5",
            "stag_call_execute_seconds_count{program=\"100003\",version=\"3\",procedure=\"READ\"} 4",
            "stag_memory_part_bytes{part=\"lanes between cores\"} 512.0",
            "stag_operation_waits_total{operation=\"OPEN\"} 5.0",
            "stag_core_seconds_total{core=\"3\",state=\"busy\"} 1.5",
            "stag_memory_free_bytes{core=\"3\",pool=\"payload\"} 16384.0",
            "stag_export_free_bytes{export=\"/data\"} 4096.0",
            "stag_export_limit_bytes_per_second{export=\"/data\",of=\"all\"} 524288000.0",
            "stag_export_limited_calls_total{export=\"/data\"} 9.0",
            "stag_export_limited_seconds_total{export=\"/data\"} 1.5",
            "stag_export_limited_waiting{export=\"/data\"} 2.0",
            "stag_client_calls{client=\"10.0.0.0\"} 10.0",
            "# TYPE stag_export_read_bytes counter",
            "stag_export_read_bytes_total{export=\"/data\"} 30.0",
            "stag_export_written_bytes_total{export=\"/data\"} 4.0",
            "stag_client_read_bytes_total{client=\"10.0.0.0\"} 0.0",
            "stag_client_written_bytes_total{client=\"10.0.0.0\"} 7.0",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("stag_export_files{"), "an unknown figure is left out");
    }

    #[test]
    fn many_clients_do_not_make_many_lines() {
        let text = exposition(state(1000));
        let lines = text.lines().filter(|line| line.starts_with("stag_client_calls{")).count();
        assert_eq!(lines, CLIENTS_MAX + 1);
        assert!(text.contains("stag_client_calls{client=\"other\"} 9500.0"), "{text}");
        assert!(text.contains("stag_clients 1000.0"), "{text}");
        let bytes = |client: u32| format!("stag_client_read_bytes_total{{client=\"10.0.3.{client}\"}} ");
        assert_eq!(text.matches("stag_client_read_bytes_total{").count(), CLIENTS_MAX);
        assert!(text.contains(&bytes(999 - 3 * 256)), "the client that moved most: {text}");
    }
}
