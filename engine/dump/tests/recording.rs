//! Recordings that are written, and read again.

use std::collections::BTreeMap;
use std::time::Duration;

use stag_dump::capture::CaptureReader;
use stag_dump::recording::{RecordedConnection, RecordedMessage, RecordingWriter};
use stag_dump::{Analyzer, ConnectionEnd, EventKind, Options, Totals};
use stag_wire::cm_private_data::{InlineSize, PrivateData};
use stag_wire::rpcrdma::MessageKind;

mod support;
use support::talk::{Chunks, HANDLE, call, message, plain, reply, segment, words};

const CLIENT: ConnectionEnd = ConnectionEnd::Client;
const SERVER: ConnectionEnd = ConnectionEnd::Server;

/// Octets that are kept of each message.
const KEPT: usize = 256;

fn private_data() -> [u8; 8] {
    let size = InlineSize::round_down(4096);
    PrivateData { remote_invalidation: true, send_size: size, receive_size: size }.to_wire()
}

/// Writes what the sides sent one another, and the handles that were invalidated.
fn written(ends: [&str; 2], messages: &[(ConnectionEnd, Vec<u8>, Option<u32>)]) -> Vec<u8> {
    let mut writer = RecordingWriter::new(Vec::new(), "a test").unwrap();
    let told = private_data();
    let connection = RecordedConnection {
        client: ends[0].parse().unwrap(),
        server: ends[1].parse().unwrap(),
        client_private_data: &told,
        server_private_data: &told,
        comment: "over shm",
    };
    let time = |number: u64| Duration::new(1_800_000_000, 1000 * number as u32 + 1);
    let connection = writer.connection(time(0), &connection).unwrap();
    for (number, (from, octets, invalidated)) in (1..).zip(messages) {
        let message = RecordedMessage {
            time: time(number),
            from: *from,
            octets: &octets[..octets.len().min(KEPT)],
            len: octets.len() as u32,
            invalidated: *invalidated,
        };
        writer.message(connection, &message).unwrap();
    }
    writer.finish().unwrap()
}

/// A line for each message: who, what, how much is missing, which Call it answers.
fn read(file: &[u8]) -> (Vec<String>, Totals) {
    let mut capture = CaptureReader::new(file).unwrap();
    let mut analyzer = Analyzer::new(Options::default());
    let mut lines = Vec::new();
    let mut sink = |event: &stag_dump::CapturedEvent<'_>| match &event.kind {
        EventKind::Opened(ends) => {
            lines.push(format!("{} {} {}", ends.client, ends.server, ends.midway));
        }
        EventKind::Message(message) => {
            assert!(message.violations.is_empty(), "{:?}", message.violations);
            let arrow = if message.from == CLIENT { '>' } else { '<' };
            let rpc = message.rpc.map_or_else(String::new, |rpc| format!("{rpc:?}"));
            let target = message.rpc.and_then(stag_dump::Rpc::target);
            let target = target.map_or(rpc, |target| target.to_string());
            let to = message.answered.map(|answered| answered.frame);
            lines.push(format!("{arrow} {target} -{} {to:?} {:x?}", message.missing, message.invalidated));
        }
        EventKind::Violation(_, broken) => panic!("{broken:?}"),
        _ => {}
    };
    while let Some(frame) = capture.next_frame().unwrap() {
        analyzer.frame(&frame, &mut sink);
    }
    let totals = analyzer.finish(&mut sink);
    assert_eq!((totals.crc_good, totals.crc_bad), (totals.segments, 0));
    (lines, totals)
}

fn attributes() -> Vec<u8> {
    words(&[0, 1, 0o644, 1, 0, 0, 0, 5, 0, 5, 0, 0, 0, 1, 0, 2, 1, 1, 1, 1, 1, 1])
}

/// A recording begins in the midst of a connection: with a Reply whose Call is not there. RDMA Writes are not there either.
#[test]
fn what_is_written_is_read_again_and_nobody_is_accused() {
    let offered = [segment(0x77, 8192, 0x1000)];
    let writes = [&offered[..]];
    let chunks = Chunks { writes: &writes, ..Chunks::default() };
    // It comes back unused.
    let returned = [segment(0x77, 0, 0x1000)];
    let unused = [&returned[..]];
    let unused = Chunks { writes: &unused, ..Chunks::default() };
    let read_call = call(3, 6, &[&HANDLE[..], &words(&[0, 0, 8192])].concat());
    let lookup = call(4, 3, &[&HANDLE[..], &words(&[240]), &[b'a'; 240]].concat());
    let messages = [
        (SERVER, plain(1, 32, &reply(1, &words(&[0]))), None),
        (CLIENT, plain(2, 32, &call(2, 1, &HANDLE)), None),
        (SERVER, plain(2, 32, &reply(2, &attributes())), None),
        (CLIENT, message(MessageKind::Msg, 3, &chunks, &read_call), None),
        (CLIENT, plain(4, 32, &lookup), None),
        (SERVER, plain(4, 32, &reply(4, &words(&[2, 0]))), None),
        (SERVER, message(MessageKind::Msg, 3, &unused, &reply(3, &words(&[5, 0]))), Some(0x77)),
        (CLIENT, plain(5, 32, &call(5, 16, &[&HANDLE[..], &words(&[0, 0, 0, 0, 4096])].concat())), None),
        (SERVER, plain(5, 32, &[reply(5, &words(&[0, 0, 0, 0])), vec![0; 3000]].concat()), None),
        (CLIENT, plain(6, 32, &call(6, 1, &HANDLE)), None),
    ];
    for ends in [["10.0.0.1:700", "10.0.0.2:20049"], ["[fe80::1]:700", "[fe80::2]:20049"], ["127.0.0.1:0"; 2]]
    {
        let file = written(ends, &messages);
        let (lines, totals) = read(&file);
        let [client, server] = ends;
        assert_eq!(
            lines,
            [
                &format!("{client} {server} false"),
                "< Reply(None, Success) -0 None None",
                "> NFS v3 GETATTR -0 None None",
                "< NFS v3 GETATTR -0 Some(4) None",
                "> NFS v3 READ -0 None None",
                "> NFS v3 LOOKUP -64 None None",
                "< NFS v3 LOOKUP -0 Some(7) None",
                "< NFS v3 READ -0 Some(6) Some(77)",
                "> NFS v3 READDIR -0 None None",
                "< NFS v3 READDIR -2812 Some(10) None",
                "> NFS v3 GETATTR -0 None None",
            ]
        );
        assert_eq!((totals.messages, totals.paired, totals.unanswered), (10, 4, 1));
        assert_eq!((totals.gaps, totals.violation_count()), (1, 0));
    }
}

/// What one capture has of one connection.
struct Heard {
    ends: Option<[std::net::SocketAddr; 2]>,
    private_data: [Vec<u8>; 2],
    /// By frame.
    messages: Vec<(u64, ConnectionEnd, Vec<u8>, Option<u32>)>,
}

/// The messages of other tests' captures, of every version of every protocol, as a recorder keeps them: whatever is cut, and without
/// any RDMA Read and Write.
#[test]
fn any_conversation_can_be_recorded_and_breaks_no_rule() {
    let own = ["version2", "reliable-reply"]
        .map(|name| (name.to_owned(), support::folder().join("../own").join(name).with_extension("pcap")));
    for (name, path) in support::captures().into_iter().chain(own) {
        let mut heard: BTreeMap<u64, Heard> = BTreeMap::new();
        support::run(&path, &mut |event| {
            let heard = heard.entry(event.connection).or_insert_with(|| Heard {
                ends: None,
                private_data: [Vec::new(), Vec::new()],
                messages: Vec::new(),
            });
            match &event.kind {
                EventKind::Opened(ends) => heard.ends = Some([ends.client, ends.server]),
                EventKind::Setup(from, setup) => {
                    heard.private_data[usize::from(*from == SERVER)] = setup.private_data.to_vec();
                }
                EventKind::Message(message) => heard.messages.push((
                    event.frame,
                    message.from,
                    message.octets.to_vec(),
                    message.invalidated,
                )),
                _ => {}
            }
        });
        let mut writer = RecordingWriter::new(Vec::new(), &name).unwrap();
        let mut count = 0;
        for heard in heard.values_mut() {
            let Some([client, server]) = heard.ends else { continue };
            let [client_private_data, server_private_data] = &heard.private_data;
            let connection =
                RecordedConnection { client, server, client_private_data, server_private_data, comment: "" };
            let connection = writer.connection(Duration::ZERO, &connection).unwrap();
            // A Call that was read late was reported late.
            heard.messages.sort_by_key(|(frame, ..)| *frame);
            // The first ones are not there any more.
            let skipped = heard.messages.len() / 4;
            for (frame, from, octets, invalidated) in &heard.messages[skipped..] {
                count += 1;
                let message = RecordedMessage {
                    time: Duration::from_micros(*frame),
                    from: *from,
                    octets: &octets[..octets.len().min(KEPT)],
                    len: octets.len() as u32,
                    invalidated: *invalidated,
                };
                writer.message(connection, &message).unwrap();
            }
        }
        let (lines, totals) = read(&writer.finish().unwrap());
        assert_eq!(totals.violation_count(), 0, "{name}: {:?}", totals.violations);
        // The rest are parts of groups, or have long chunk lists.
        assert!(totals.messages * 10 >= count * 9, "{name}: {} of {count}: {lines:#?}", totals.messages);
    }
}

/// A header that does not fit what is kept says nothing of the message but that there was one.
#[test]
fn a_message_whose_header_is_cut_is_told_of_and_not_read() {
    let offered: Vec<_> = (0..16).map(|number| segment(number, 8192, 0)).collect();
    let writes = [&offered[..]];
    let chunks = Chunks { writes: &writes, ..Chunks::default() };
    let long =
        message(MessageKind::Msg, 3, &chunks, &call(3, 6, &[&HANDLE[..], &words(&[0, 0, 8192])].concat()));
    assert!(long.len() > KEPT);
    let file = written(["10.0.0.1:700", "10.0.0.2:20049"], &[(CLIENT, long, None)]);
    let (lines, totals) = read(&file);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert_eq!((totals.messages, totals.violation_count()), (0, 0));
}

/// Comments of any length and content leave the file whole.
#[test]
fn comments_are_bounded() {
    for comment in ["", "a", "ab", "abc", "\u{10ffff}\0", &"\u{fc}".repeat(40_000)] {
        let mut writer = RecordingWriter::new(Vec::new(), comment).unwrap();
        let connection = RecordedConnection {
            client: "10.0.0.1:1".parse().unwrap(),
            server: "[::1]:2".parse().unwrap(),
            client_private_data: &[7; 500],
            server_private_data: &[7; 500],
            comment,
        };
        writer.connection(Duration::ZERO, &connection).unwrap();
        let file = writer.finish().unwrap();
        assert!(file.len() < 10_000);
        let (lines, totals) = read(&file);
        assert_eq!((lines, totals.frames), (vec!["[::ffff:10.0.0.1]:1 [::1]:2 false".to_owned()], 2));
    }
}
