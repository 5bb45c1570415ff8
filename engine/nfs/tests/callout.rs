//! Calls out, to an rpcbind and a lock manager that are threads of the test.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use stag_nfs::callout::{CallOut, CallOutConfig, CallOutError, OutCall, TcpCallOut, arguments};
use stag_rpc::StreamCallError;
use stag_runtime::Clock;
use stag_wire::nlm4::{self, Object, Results, Status};
use stag_wire::rpc::{Accepted, CallHeader, ReplyHeader, emit_success};
use stag_wire::rpcbind::{self, Mapping};
use stag_wire::xdr::{Reader, Writer};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Reads one record, in one fragment.
fn receive(stream: &mut impl Read) -> Vec<u8> {
    let mut mark = [0; 4];
    stream.read_exact(&mut mark).unwrap();
    let mut record = vec![0; (u32::from_be_bytes(mark) & 0x7fff_ffff) as usize];
    stream.read_exact(&mut record).unwrap();
    record
}

/// Serves `connections` connections, one Call each: `answer` sees header and arguments, and writes a Reply.
fn serve(
    connections: usize,
    answer: impl Fn(&CallHeader<'_>, &mut Reader<'_>, &mut Writer<'_>) + Send + 'static,
) -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind(SocketAddr::new(HERE, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = thread::spawn(move || {
        for _ in 0..connections {
            let (mut stream, _) = listener.accept().unwrap();
            let record = receive(&mut stream);
            let mut reader = Reader::new(&record);
            let header = CallHeader::parse(&mut reader).unwrap();
            let mut buf = [0; 256];
            let mut writer = Writer::new(&mut buf);
            answer(&header, &mut reader, &mut writer);
            // In two fragments, octet by octet: whatever a stream may do.
            let reply = writer.written();
            let (first, second) = reply.split_at(reply.len() / 2);
            let marks = [first.len() as u32, second.len() as u32 | 1 << 31];
            for (mark, fragment) in marks.iter().zip([first, second]) {
                for octet in mark.to_be_bytes().iter().chain(fragment) {
                    let _ = stream.write_all(&[*octet]);
                }
            }
        }
    });
    (port, thread)
}

/// An rpcbind that says `port` `times` times.
fn rpcbind(port: u32, times: usize) -> (u16, JoinHandle<()>) {
    serve(times, move |header, reader, writer| {
        assert_eq!((header.program, header.version, header.procedure), (rpcbind::PROGRAM, 2, 3));
        let mapping: Mapping = reader.value().unwrap();
        assert_eq!((mapping.program, mapping.version, mapping.protocol), (nlm4::PROGRAM, 4, 6));
        emit_success(writer, header.xid).unwrap();
        writer.u32(port).unwrap();
    })
}

fn granted() -> OutCall {
    let results = Results { cookie: Object(b"abcd"), status: Status::Granted };
    OutCall {
        from: None,
        to: HERE,
        program: nlm4::PROGRAM,
        version: nlm4::VERSION,
        procedure: nlm4::Procedure::Granted.number(),
        arguments: arguments(&results),
    }
}

/// Makes one Call, however long it takes.
fn call(out: &mut TcpCallOut, clock: &Clock, call: OutCall) -> Result<Vec<u8>, CallOutError> {
    let id = out.begin(call, clock.now()).unwrap();
    loop {
        if let Some((ended, result)) = out.poll(clock.now()) {
            assert_eq!(ended, id);
            return result;
        }
        thread::yield_now();
    }
}

fn callout(rpcbind_port: u16, timeout: Duration) -> TcpCallOut {
    TcpCallOut::new(CallOutConfig { calls_max: 2, timeout, rpcbind_port })
}

const LONG: Duration = Duration::from_secs(30);

#[test]
fn the_port_is_asked_for_once_and_again_when_it_is_dead() {
    let echo = |header: &CallHeader<'_>, reader: &mut Reader<'_>, writer: &mut Writer<'_>| {
        assert_eq!((header.program, header.version, header.procedure), (nlm4::PROGRAM, 4, 5));
        let results: Results<'_> = reader.value().unwrap();
        emit_success(writer, header.xid).unwrap();
        writer.value(&results).unwrap();
    };
    let (manager_port, manager) = serve(2, echo);
    // Two questions: the first, and the one after the manager is gone.
    let (port, binder) = rpcbind(manager_port.into(), 2);
    let clock = Clock::start();
    let mut out = callout(port, LONG);
    for _ in 0..2 {
        let results = call(&mut out, &clock, granted()).unwrap();
        let results: Results<'_> = Reader::new(&results).value().unwrap();
        assert_eq!(results, Results { cookie: Object(b"abcd"), status: Status::Granted });
    }
    manager.join().unwrap();
    assert!(matches!(
        call(&mut out, &clock, granted()),
        Err(CallOutError::Call(StreamCallError::Connection(_)))
    ));
    binder.join().unwrap();
    assert!(
        matches!(call(&mut out, &clock, granted()), Err(CallOutError::Call(StreamCallError::Connection(_)))),
        "no rpcbind"
    );
    assert_eq!(out.next_timeout(), None);
}

#[test]
fn what_a_client_says_instead_is_told() {
    let clock = Clock::start();
    for (port, expected) in [(0, CallOutError::NotRegistered), (70_000, StreamCallError::BadReply.into())] {
        let (port, binder) = rpcbind(port, 1);
        assert_eq!(call(&mut callout(port, LONG), &clock, granted()), Err(expected));
        binder.join().unwrap();
    }
    let (port, binder) = serve(1, |header, _, writer| {
        ReplyHeader::accepted(header.xid, Accepted::ProgUnavail).emit(writer).unwrap();
    });
    assert_eq!(
        call(&mut callout(port, LONG), &clock, granted()),
        Err(StreamCallError::NotExecuted(Accepted::ProgUnavail).into())
    );
    binder.join().unwrap();
    let (port, binder) = serve(1, |header, _, writer| emit_success(writer, header.xid + 1).unwrap());
    assert_eq!(call(&mut callout(port, LONG), &clock, granted()), Err(StreamCallError::BadReply.into()));
    binder.join().unwrap();
}

/// A client that never answers, or says that its answer is endless: given up, and only a bounded number at
/// once.
#[test]
fn what_hangs_is_given_up() {
    let listener = TcpListener::bind(SocketAddr::new(HERE, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut out = callout(port, Duration::from_secs(5));
    let mut now = Duration::from_secs(1);
    let first = out.begin(granted(), now).unwrap();
    let second = out.begin(granted(), now).unwrap();
    assert_eq!(out.begin(granted(), now), None, "two at once");
    let mut ended = |out: &mut TcpCallOut, until: Duration| {
        let mut ended = Vec::new();
        while now < until {
            now += Duration::from_millis(100);
            ended.extend(std::iter::from_fn(|| out.poll(now)));
        }
        ended
    };
    assert_eq!(ended(&mut out, Duration::from_secs(5)), []);
    out.cancel(second);
    assert_eq!(ended(&mut out, Duration::from_secs(7)), [(first, Err(StreamCallError::TimedOut.into()))]);
    assert_eq!(out.next_timeout(), None);
}

#[test]
fn an_endless_reply_ends_the_call() {
    let listener = TcpListener::bind(SocketAddr::new(HERE, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        receive(&mut stream);
        let _ = stream.write_all(&0x7fff_ffff_u32.to_be_bytes());
        let _ = stream.read(&mut [0; 1]);
    });
    let clock = Clock::start();
    assert_eq!(call(&mut callout(port, LONG), &clock, granted()), Err(StreamCallError::BadReply.into()));
    thread.join().unwrap();
}
