//! Servers that do not keep to the rules, against a client's engine.

use std::time::Duration;

use stag_fabric::Handle;
use stag_fabric::sim::{FaultPlan, World};
use stag_rpc::{Backoff, CallError, Chunks, ClientPolicy, CloseReason, ConnectionEvent, Request};

use crate::ends::Asking as Case;
use crate::raw::{octets, word};
use crate::support::program::ECHO;
use crate::support::{Ended, request, small};

impl Case {
    fn new() -> Case {
        Case::with(ClientPolicy::default())
    }

    fn with(policy: ClientPolicy) -> Case {
        Case::connected(World::new(1, FaultPlan::default()), small(), policy, Vec::new())
    }

    /// Sends a Call with a Write chunk and room for a long Reply, and returns what the peer received.
    #[track_caller]
    fn call(&mut self, results_len_max: u32) -> Vec<u8> {
        let mut buf = self.client.memory.pools.payload.take_len(4096).expect("memory");
        buf.set_len(4096);
        let timeout = Duration::from_millis(100);
        let request = Request { results_len_max, timeout, ..request(ECHO) };
        let encode = |writer: &mut stag_wire::xdr::Writer<'_>| writer.opaque(b"text");
        let mut chunks = Chunks::write(buf);
        self.client.engine.call(self.connection, &request, &mut chunks, encode).expect("a credit");
        self.run(|case| !case.raw.messages.is_empty());
        self.raw.messages.remove(0)
    }

    #[track_caller]
    fn ended(&mut self) -> Ended {
        self.run(|case| !case.client.done.is_empty());
        assert_eq!(self.client.done.len(), 1, "a Call ends once");
        let done = self.client.done.remove(0);
        assert_eq!(done.written.len(), 1, "its memory came back");
        Ended::of(done)
    }
}

/// The Write chunk of one segment in a Call's header: handle, length and offset words.
fn segment(call: &[u8]) -> [u32; 4] {
    assert_eq!([word(call, 4), word(call, 5), word(call, 6)], [0, 1, 1], "one Write chunk of one segment");
    [word(call, 7), word(call, 8), word(call, 9), word(call, 10)]
}

/// A Reply with the Call's Write chunk, `written` octets in it, and this RPC message.
fn reply(call: &[u8], grant: u32, written: u32, rpc: &[u32]) -> Vec<u8> {
    let [handle, _, high, low] = segment(call);
    let mut words = vec![word(call, 0), 1, grant, 0, 0, 1, 1, handle, written, high, low, 0, 0];
    words.extend(rpc);
    octets(&words)
}

/// An accepted, successful RPC Reply.
fn success(call: &[u8], results: &[u32]) -> Vec<u32> {
    let mut words = vec![word(call, 0), 1, 0, 0, 0, 0];
    words.extend(results);
    words
}

#[test]
fn replies_that_contradict_their_call_fail_it() {
    // 8166-X-11, 8166-4.5-d, 8166-4.5.1-b; the connection lives.
    let mut case = Case::new();
    type Answer = fn(&[u8]) -> Vec<u8>;
    let cases: [(&str, Answer, CallError); 9] = [
        ("more octets than offered", |c| reply(c, 1, 4097, &success(c, &[])), CallError::BadReply),
        (
            "another handle",
            |c| {
                let mut octets = reply(c, 1, 1, &success(c, &[]));
                octets[28] ^= 1;
                octets
            },
            CallError::BadReply,
        ),
        (
            "no Write list",
            |c| octets(&[&[word(c, 0), 1, 1, 0, 0, 0, 0][..], &success(c, &[])].concat()),
            CallError::BadReply,
        ),
        (
            "a Reply chunk that was not offered",
            |c| {
                let [handle, _, high, low] = segment(c);
                let head =
                    [word(c, 0), 1, 1, 0, 0, 1, 1, handle, 0, high, low, 0, 1, 1, handle, 0, high, low];
                octets(&[&head[..], &success(c, &[])].concat())
            },
            CallError::BadReply,
        ),
        ("no RPC status", |c| reply(c, 1, 0, &[word(c, 0), 1]), CallError::BadReply),
        ("an RPC status of 9", |c| reply(c, 1, 0, &[word(c, 0), 1, 9]), CallError::BadReply),
        ("a verifier of 4 GiB", |c| reply(c, 1, 0, &[word(c, 0), 1, 0, 0, u32::MAX]), CallError::BadReply),
        ("ERR_CHUNK", |c| octets(&[word(c, 0), 1, 1, 4, 2]), CallError::Chunk),
        (
            "ERR_VERS",
            |c| octets(&[word(c, 0), 1, 1, 4, 1, 2, 3]),
            CallError::TransportVersion { low: 2, high: 3 },
        ),
    ];
    for (what, answer, expected) in cases {
        let call = case.call(0);
        assert!(case.raw.send(&answer(&call), None));
        assert_eq!(case.ended().result, Err(expected), "{what}");
    }
    let call = case.call(0);
    assert!(case.raw.send(&reply(&call, 1, 0, &success(&call, &[])), None));
    assert_eq!(case.ended().result, Ok(vec![]));
    case.close();
}

#[test]
fn replies_to_no_call_are_discarded() {
    // 8166-4.5-c, 8166-4.5-e, 8166-X-10: unknown, duplicate and late xids, and what cannot be parsed.
    let mut case = Case::new();
    let call = case.call(0);
    let good = reply(&call, 4, 4, &success(&call, &[4]));
    let unknown = {
        let mut octets = good.clone();
        octets[0] ^= 0x40;
        octets[52] ^= 0x40;
        octets
    };
    let list = [word(&call, 0), 1, 1, 0, 1, 0, 1, 4, 0, 0, 0, 0, 0];
    let discarded: [&[u8]; 7] = [
        &[],
        &good[..20],
        &octets(&[word(&call, 0), 2, 1, 0, 0, 0, 0]),
        &octets(&[word(&call, 0), 2, 1, 4, 2]),
        &octets(&[word(&call, 0), 1, 1, 4, 9]),
        &octets(&[&list[..], &success(&call, &[])].concat()),
        &unknown,
    ];
    for octets in discarded {
        assert!(case.raw.send(octets, None));
    }
    case.run_for(Duration::from_millis(5));
    assert!(case.client.done.is_empty());
    assert!(case.raw.send(&good, None));
    assert_eq!(case.ended().result, Ok(vec![0, 0, 0, 4]));
    // The same again, while the next Call waits: it is not that one's.
    let next = case.call(0);
    assert!(case.raw.send(&good, None));
    // Nothing comes for it in time; then it comes late.
    assert_eq!(case.ended().result, Err(CallError::TimedOut));
    assert!(case.raw.send(&reply(&next, 4, 0, &success(&next, &[])), None));
    case.run_for(Duration::from_millis(5));
    assert_eq!(case.client.engine.credits_available(case.connection), 4, "the late Reply frees its credit");
    assert_eq!(case.client.engine.statistics().messages_discarded, 8);
    case.close();
}

#[test]
fn grants_are_kept_within_reason() {
    // 8166-3.3.1-c, 8166-X-7: 0 counts as 1; more than requested is of no use.
    let mut case = Case::new();
    for (grant, available) in [(0, 1), (5, 5), (u32::MAX, small().credits_max), (0, 1)] {
        let call = case.call(0);
        assert!(case.raw.send(&reply(&call, grant, 0, &success(&call, &[])), None));
        assert_eq!(case.ended().result, Ok(vec![]));
        assert_eq!(case.client.engine.credits_available(case.connection), available, "{grant}");
    }
    case.close();
}

#[test]
fn a_long_reply_that_is_no_reply_fails_its_call() {
    // 8166-4.2.1-a: the Reply chunk is said to hold octets that were never written.
    let mut case = Case::new();
    let call = case.call(9000);
    let chunk: Vec<u32> = (12..18).map(|at| word(&call, at)).collect();
    assert_eq!(chunk[..2], [1, 1], "a Reply chunk of one segment");
    let [handle, _, high, low] = segment(&call);
    let mut words = vec![word(&call, 0), 1, 1, 1, 0, 1, 1, handle, 0, high, low, 0];
    words.extend([1, 1, chunk[2], 400, chunk[4], chunk[5]]);
    assert!(case.raw.send(&octets(&words), None));
    assert_eq!(case.ended().result, Err(CallError::BadReply));
    case.close();
}

#[test]
fn invalidating_what_is_not_the_answered_calls_ends_the_connection() {
    // 8797-X-2, 8797-4.1-b: the handle of another Call that is outstanding. Both Calls end, with all memory.
    // The connection is not made anew, whatever the policy: the same would happen again.
    let reconnect = Some(Backoff::default());
    let mut case = Case::with(ClientPolicy { reconnect, ..ClientPolicy::default() });
    let first = case.call(0);
    assert!(case.raw.send(&reply(&first, 8, 0, &success(&first, &[])), None));
    case.ended();
    let (one, other) = (case.call(0), case.call(0));
    let handle = Handle(segment(&other)[0]);
    assert!(case.raw.send(&reply(&one, 8, 0, &success(&one, &[])), Some(handle)));
    case.run(|case| case.client.done.len() == 2 && case.client.engine.connection_count() == 0);
    for done in case.client.done.drain(..) {
        assert_eq!(done.result.map(|_| ()), Err(CallError::ConnectionLost));
        assert_eq!(done.written.len(), 1);
    }
    let closed = case.client.events.pop();
    assert!(
        matches!(closed, Some(ConnectionEvent::Closed { reason: CloseReason::Violation(_), .. })),
        "{closed:?}"
    );
    case.close();
}
