//! The exchange under arbitrary splits, and clients of servers that mean harm.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use proptest::prelude::{Just, Strategy, any, prop_assert_eq, prop_oneof, proptest};
use stag_wire::record::{FRAGMENTS_MAX, MARK_LEN, Mark};
use stag_wire::rpc::{Accepted, AuthStat, CallHeader, Denied, OpaqueAuth};
use stag_wire::xdr::Reader;

use super::exchange::Exchange;
use super::{BlockingClient, CallSource, StreamCall, StreamCallError, StreamClient, StreamLimits};

const LIMITS: StreamLimits = StreamLimits { calls_max: 3, call_len_max: 200, reply_len_max: 1000 };
const LONG: Duration = Duration::from_secs(30);
const LAST: u32 = 1 << 31;

fn call(arguments: &u32) -> StreamCall<'_> {
    StreamCall { program: 7, version: 1, procedure: 2, credential: OpaqueAuth::NONE, arguments }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// A successful Reply in one fragment.
fn success(xid: u32, result: u32) -> Vec<u8> {
    words(&[LAST | 28, xid, 1, 0, 0, 0, 0, result])
}

fn sec(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_call_is_one_record_and_its_xid_differs_from_the_last() {
    let mut exchange = Exchange::new(LIMITS, 10);
    assert_eq!(exchange.begin(&call(&5), LONG), Ok(11));
    assert_eq!(exchange.begin(&call(&6), LONG), Ok(12));
    let output = exchange.output().to_vec();
    let (mark, record) = output.split_first_chunk::<MARK_LEN>().unwrap();
    assert_eq!(Mark::from_bytes(*mark), Mark::whole(record.len() as u32 / 2 - 2));
    let mut reader = Reader::new(record);
    let header = CallHeader::parse(&mut reader).unwrap();
    assert_eq!((header.xid, header.program, header.version, header.procedure), (11, 7, 1, 2));
    assert_eq!(reader.u32(), Ok(5));
    exchange.sent(output.len() / 2);
    assert_eq!(exchange.output(), &output[output.len() / 2..]);
    assert_eq!(exchange.begin(&call(&7), LONG), Ok(13));
    assert_eq!(exchange.output()[..output.len() / 2], output[output.len() / 2..], "what was not sent stays");
}

#[test]
fn calls_and_replies_are_bounded_in_number_and_length() {
    let mut exchange = Exchange::new(LIMITS, 0);
    let long = StreamCall { credential: OpaqueAuth { flavor: 1, body: &[0; 200] }, ..call(&0) };
    assert_eq!(exchange.begin(&long, LONG), Err(StreamCallError::TooLong));
    assert_eq!(exchange.output(), []);
    for _ in 0..LIMITS.calls_max {
        exchange.begin(&call(&0), LONG).unwrap();
    }
    assert_eq!(exchange.begin(&call(&0), LONG), Err(StreamCallError::TooMany));
    exchange.receive(&success(2, 9));
    assert_eq!(exchange.begin(&call(&0), LONG), Err(StreamCallError::TooMany), "its results were not taken");
    assert_eq!(exchange.take_ended(), Some((2, Ok(words(&[9])))));
    exchange.begin(&call(&0), LONG).unwrap();
    exchange.receive(&words(&[LAST | 1001]));
    for _ in 0..LIMITS.calls_max {
        assert_eq!(exchange.take_ended().unwrap().1, Err(StreamCallError::BadReply));
    }
    assert_eq!(
        exchange.begin(&call(&0), LONG),
        Err(StreamCallError::BadReply),
        "the stream is of no more use"
    );
}

#[test]
fn the_first_deadline_that_passes_ends_all_calls() {
    let mut exchange = Exchange::new(LIMITS, 0);
    exchange.begin(&call(&0), sec(5)).unwrap();
    exchange.begin(&call(&0), sec(3)).unwrap();
    assert_eq!(exchange.next_deadline(), Some(sec(3)));
    // A Reply that trickles gets no more time.
    exchange.receive(&success(1, 0)[..30]);
    exchange.expire(sec(3) - Duration::from_nanos(1));
    assert_eq!(exchange.take_ended(), None);
    exchange.expire(sec(3));
    assert_eq!(exchange.take_ended(), Some((1, Err(StreamCallError::TimedOut))));
    assert_eq!(exchange.take_ended(), Some((2, Err(StreamCallError::TimedOut))));
    assert_eq!((exchange.next_deadline(), exchange.is_waiting()), (None, false));
    exchange.receive(&success(1, 0));
    assert_eq!(exchange.take_ended(), None, "a late Reply is not taken");
}

#[test]
fn a_reply_that_no_call_waits_for_ends_the_stream() {
    for xid in [0, 2, u32::MAX] {
        let mut exchange = Exchange::new(LIMITS, 0);
        exchange.begin(&call(&0), LONG).unwrap();
        exchange.receive(&success(xid, 0));
        assert_eq!(exchange.take_ended(), Some((1, Err(StreamCallError::BadReply))), "{xid}");
    }
    let mut exchange = Exchange::new(LIMITS, 0);
    exchange.begin(&call(&0), LONG).unwrap();
    exchange.receive(&[success(1, 4), success(1, 4)].concat());
    assert_eq!(exchange.take_ended(), Some((1, Ok(words(&[4])))), "the first of two was good");
    assert_eq!(exchange.begin(&call(&0), LONG), Err(StreamCallError::BadReply));
}

/// What a server sends: Replies to Calls 1 to 3 cut into fragments, other records, and octets without sense.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    let body = prop_oneof![
        4 => (1..5_u32, any::<u32>()).prop_map(|(xid, result)| success(xid, result)[MARK_LEN..].to_vec()),
        1 => Just(words(&[1, 1, 1, 1, 5])),
        1 => proptest::collection::vec(any::<u8>(), 0..40),
    ];
    let record = (body, 1..9_usize).prop_map(|(body, fragment_len)| {
        let mut octets = Vec::new();
        for fragment in body.chunks(fragment_len) {
            octets.extend(Mark { len: fragment.len() as u32, is_last: false }.to_bytes());
            octets.extend(fragment);
        }
        octets.extend(Mark::whole(0).to_bytes());
        octets
    });
    proptest::collection::vec(record, 0..6).prop_map(|records| records.concat())
}

proptest! {
    #[test]
    fn however_a_stream_is_cut_calls_end_the_same(octets in stream(), cuts in proptest::collection::vec(1..20_usize, 1..20)) {
        let ends = |pieces: &mut dyn Iterator<Item = &[u8]>| {
            let mut exchange = Exchange::new(LIMITS, 0);
            for _ in 0..LIMITS.calls_max {
                exchange.begin(&call(&0), sec(1)).unwrap();
            }
            pieces.for_each(|piece| exchange.receive(piece));
            exchange.expire(sec(1));
            let ends: Vec<_> = std::iter::from_fn(|| exchange.take_ended()).collect();
            assert_eq!(ends.len(), LIMITS.calls_max, "each Call ends once");
            ends
        };
        let whole = ends(&mut [&octets[..]].into_iter());
        let mut rest = &octets[..];
        let mut cuts = cuts.iter().cycle();
        let mut pieces = std::iter::from_fn(|| {
            let (piece, after) = rest.split_at(rest.len().min(*cuts.next()?));
            rest = after;
            (!piece.is_empty()).then_some(piece)
        });
        prop_assert_eq!(ends(&mut pieces), whole);
    }
}

/// A server of one connection: reads one Call, passes its xid and the connection on.
fn serve(answer: impl FnOnce([u8; 4], TcpStream) + Send + 'static) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let xid = read_call(&mut stream);
        answer(xid, stream);
    });
    (address, thread)
}

/// Reads a Call, and returns its xid.
fn read_call(stream: &mut impl Read) -> [u8; 4] {
    let mut mark = [0; MARK_LEN];
    stream.read_exact(&mut mark).unwrap();
    let mut call = vec![0; Mark::from_bytes(mark).len as usize];
    stream.read_exact(&mut call).unwrap();
    [call[0], call[1], call[2], call[3]]
}

fn blocking(address: SocketAddr, timeout: Duration) -> Result<BlockingClient, StreamCallError> {
    BlockingClient::connect(address, CallSource::ReservedPort, LIMITS, (LONG, timeout))
}

/// What a client gets from a server that writes these pieces behind the xid, each as a write of its own, and then waits for
/// the client's end.
fn answered(
    pieces: impl FnOnce([u8; 4]) -> Vec<Vec<u8>> + Send + 'static,
) -> Result<Vec<u8>, StreamCallError> {
    let (address, server) = serve(|xid, mut stream| {
        for piece in pieces(xid) {
            // It may be gone.
            let _ = stream.write_all(&piece);
        }
        let _ = stream.read(&mut [0]);
    });
    let result = blocking(address, LONG).unwrap().call(&call(&0));
    server.join().unwrap();
    result
}

#[test]
fn a_reply_in_fragments_is_put_together() {
    let result = answered(|xid| {
        let reply = [&xid[..], &words(&[1, 0, 0, 0, 0, 7, 8])].concat();
        let mut pieces = vec![words(&[9]), reply[..9].to_vec(), words(&[0])];
        pieces.extend([words(&[LAST | (reply.len() as u32 - 9)]), reply[9..].to_vec()]);
        pieces
    });
    assert_eq!(result, Ok(words(&[7, 8])));
}

#[test]
fn what_a_server_answers_instead_of_results_is_told() {
    use StreamCallError::{BadReply, Denied as CallDenied, NotExecuted};
    let cases = [
        (vec![1, 0, 0, 0, 1], NotExecuted(Accepted::ProgUnavail), "it does not serve this program"),
        (
            vec![1, 0, 0, 0, 2, 3, 4],
            NotExecuted(Accepted::ProgMismatch { low: 3, high: 4 }),
            "it does not serve this program",
        ),
        (vec![1, 0, 0, 0, 5], NotExecuted(Accepted::SystemErr), "it failed (SYSTEM_ERR)"),
        (
            vec![1, 1, 1, 5],
            CallDenied(Denied::AuthError(AuthStat::TOOWEAK)),
            "it refuses the credential (auth_stat 5)",
        ),
        (
            vec![1, 1, 0, 3, 4],
            CallDenied(Denied::RpcMismatch { low: 3, high: 4 }),
            "it speaks other versions of RPC (3 to 4)",
        ),
        (vec![0, 0, 0, 0, 0], BadReply, "its answer is malformed"),
    ];
    for (body, expected, text) in cases {
        let result = answered(move |xid| {
            let reply = [&xid[..], &words(&body)].concat();
            vec![words(&[LAST | reply.len() as u32]), reply]
        });
        assert_eq!((result, expected.to_string().as_str()), (Err(expected), text));
    }
}

#[test]
fn lengths_that_lie_and_fragments_without_end_are_malformed() {
    assert_eq!(answered(|_| vec![words(&[LAST | 0x7fff_ffff])]), Err(StreamCallError::BadReply));
    assert_eq!(answered(|_| vec![words(&[0; FRAGMENTS_MAX as usize + 1])]), Err(StreamCallError::BadReply));
    let one_by_one = |_| (0..=LIMITS.reply_len_max).map(|_| [&words(&[1])[..], &[0]].concat()).collect();
    assert_eq!(answered(one_by_one), Err(StreamCallError::BadReply));
    assert_eq!(
        answered(|xid| vec![words(&[LAST | 24, u32::from_be_bytes(xid) + 1, 1, 0, 0, 0, 0])]),
        Err(StreamCallError::BadReply)
    );
}

#[test]
fn a_server_that_ends_the_connection_or_is_not_there_is_told() {
    let (address, server) = serve(|_, mut stream| stream.write_all(&words(&[LAST | 100, 1])).unwrap());
    let ended = blocking(address, LONG).unwrap().call(&call(&0)).unwrap_err();
    assert_eq!(ended.to_string(), "it ended the connection");
    server.join().unwrap();
    // Its port is free now.
    assert_eq!(blocking(address, LONG).unwrap_err().to_string(), "no server listens there");
}

#[test]
fn a_silent_server_is_given_up() {
    let timeout = Duration::from_millis(50);
    let (address, server) = serve(|_, mut stream| {
        let _ = stream.read(&mut [0]);
    });
    let mut client = blocking(address, timeout).unwrap();
    assert_eq!(client.call(&call(&0)), Err(StreamCallError::TimedOut));
    assert_eq!(client.call(&call(&0)), Err(StreamCallError::TimedOut), "the connection is of no more use");
    drop(client);
    server.join().unwrap();
}

#[test]
fn one_connection_serves_call_after_call_also_after_a_refusal() {
    let folder = std::env::temp_dir().join(format!("stag-stream-client-{}", std::process::id()));
    let _ = std::fs::remove_file(&folder);
    let listener = UnixListener::bind(&folder).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let xids = [(); 3].map(|()| {
            let xid = read_call(&mut stream);
            let reply = [&xid[..], &words(&[1, 0, 0, 0, 3])].concat();
            stream.write_all(&[words(&[LAST | reply.len() as u32]), reply].concat()).unwrap();
            u32::from_be_bytes(xid)
        });
        assert_eq!([1, 2].map(|more| xids[0].wrapping_add(more)), xids[1..]);
    });
    let mut client = BlockingClient::connect_local(&folder, LIMITS, LONG).unwrap();
    for _ in 0..3 {
        assert_eq!(client.call(&call(&0)), Err(StreamCallError::NotExecuted(Accepted::ProcUnavail)));
    }
    assert!(!client.is_from_reserved_port());
    server.join().unwrap();
    std::fs::remove_file(&folder).unwrap();
}

#[test]
fn each_connection_begins_with_another_xid() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let xid = || {
        let source = CallSource::Address(Ipv4Addr::LOCALHOST.into());
        StreamClient::connect(address, source, LIMITS).unwrap().begin(&call(&0), LONG).unwrap()
    };
    assert_ne!(xid(), xid());
}

#[test]
fn a_client_that_does_not_block_waits_for_several_calls() {
    let (address, server) = serve(|xid, mut stream| {
        let first = u32::from_be_bytes(xid);
        let second = u32::from_be_bytes(read_call(&mut stream));
        stream.write_all(&[success(second, 2), success(first, 1)].concat()).unwrap();
    });
    let mut client = StreamClient::connect(address, CallSource::Any, LIMITS).unwrap();
    assert_eq!((client.next_timeout(), client.is_sending()), (None, false));
    let first = client.begin(&call(&1), sec(9)).unwrap();
    let second = client.begin(&call(&2), sec(8)).unwrap();
    assert_eq!((client.next_timeout(), client.is_sending()), (Some(sec(8)), true));
    let mut ends = Vec::new();
    while ends.len() < 2 {
        ends.extend(client.poll(Duration::ZERO));
        thread::yield_now();
    }
    assert_eq!(ends, [(second, Ok(words(&[2]))), (first, Ok(words(&[1])))]);
    server.join().unwrap();
}
