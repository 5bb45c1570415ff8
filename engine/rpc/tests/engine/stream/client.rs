//! [`StreamClient`]: what it can do when its connection ends.

use std::thread;
use std::time::Duration;

use stag_rpc::{CallSource, StreamCall, StreamCallError, StreamClient, StreamLimits};
use stag_runtime::Clock;
use stag_wire::rpc::OpaqueAuth;
use stag_wire::xdr::{Encode, Overflow, Writer};

use super::peer::Server;
use crate::support::program::{NEVER, ONCE, PROGRAM, VERSION};

const LIMITS: StreamLimits = StreamLimits { calls_max: 2, call_len_max: 200, reply_len_max: 200 };
const LONG: Duration = Duration::from_secs(1000);

/// Arguments of ONCE: how long its answer takes.
struct Delay(u64);

impl Encode for Delay {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.u64(self.0)?;
        writer.u32(0)
    }
}

fn once(delay: &Delay) -> StreamCall<'_> {
    let credential = OpaqueAuth::NONE;
    StreamCall { program: PROGRAM, version: VERSION, procedure: ONCE, credential, arguments: delay }
}

fn connect(server: &mut Server) -> StreamClient {
    let before = server.statistics().streams_opened;
    let client = StreamClient::connect(server.address, CallSource::Any, LIMITS).expect("it begins");
    server.until(|server| server.statistics().streams_opened > before);
    assert_eq!(client.is_connected(), Ok(true));
    client
}

/// The end of the next Call.
fn end(server: &mut Server, client: &mut StreamClient) -> (u32, Result<Vec<u8>, StreamCallError>) {
    let mut end = None;
    server.until(|server| {
        end = client.poll(server.now);
        end.is_some()
    });
    end.expect("just seen")
}

#[test]
fn a_call_that_was_not_answered_is_sent_again_and_executed_once() {
    let mut server = Server::new();
    let mut client = connect(&mut server);
    let xid = client.begin(&once(&Delay(NEVER)), LONG).expect("it is the first");
    server.until(|server| {
        assert_eq!(client.poll(server.now), None);
        server.node.engine.services_mut().0.kept() == 1
    });
    // The connection is lost while the service has the Call.
    drop(client);

    let mut client = connect(&mut server);
    let received = server.statistics().calls_received;
    client.begin_with_xid(xid, &once(&Delay(NEVER)), LONG).expect("it is the first here");
    server.until(|server| {
        assert_eq!(client.poll(server.now), None);
        server.statistics().calls_received > received
    });
    server.node.engine.services_mut().0.release();
    let counted = 1_u32.to_be_bytes().to_vec();
    assert_eq!(end(&mut server, &mut client), (xid, Ok(counted.clone())));

    // The answer is known by now.
    client.begin_with_xid(xid, &once(&Delay(NEVER)), LONG).expect("it is the only one");
    assert_eq!(end(&mut server, &mut client), (xid, Ok(counted)));
    assert!(server.statistics().duplicates_answered > 0);
    let program = &server.node.engine.services_mut().0;
    assert_eq!((program.counted, program.finished), (1, 1), "it was executed once");
    drop(client);
    server.close();
}

#[test]
fn a_client_without_calls_knows_that_the_server_ended_the_connection() {
    let mut server = Server::new();
    let mut client = connect(&mut server);
    assert!(!client.has_ended());
    client.begin(&once(&Delay(0)), LONG).expect("it is the first");
    let (_, results) = end(&mut server, &mut client);
    assert_eq!(results, Ok(1_u32.to_be_bytes().to_vec()));
    assert!(!client.has_ended(), "it can be used again");

    let now = server.now;
    server.close();
    let patience = stag_testing::patience(Duration::from_secs(60));
    let clock = Clock::start();
    while !client.has_ended() {
        assert!(clock.now() < patience, "the end is not seen");
        thread::yield_now();
    }
    // Who does not ask is told by the next Call.
    client.begin(&once(&Delay(0)), LONG).expect("nothing has failed yet");
    let failed = client.poll(now).map(|(_, end)| end);
    assert!(matches!(failed, Some(Err(StreamCallError::Connection(_)))), "{failed:?}");
}
