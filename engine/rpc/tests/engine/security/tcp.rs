//! The same over TCP: Calls that a test seals by hand, and Replies that it opens.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use stag_fabric::sim::Odds;
use stag_rpc::{CallSealer, CallToSeal, OpenedResults, ProtocolChoice, ReplyOpener, SealedHeader};
use stag_wire::record::{MARK_LEN, Mark};
use stag_wire::rpc::{Accepted, AuthStat, CallHeader, Denied, ReplyBody, ReplyHeader};
use stag_wire::xdr::Reader;

use super::keyed::{Mode, Sealer};
use super::site::{Site, Way};
use super::{MODES, words_of};
use crate::support::program::{BIG, ECHO, GET_ONE, LATER, ONCE, PROGRAM, PUT_ONE, VERSION, pattern, sum};
use crate::support::{PASSES_MAX, opaque};

/// Runs a test at a server of one reactor and at one of two, with the sessions 1, 2 and 3.
fn each_server(test: impl Fn(&mut Site, &mut Peer)) {
    for reactors in [1, 2] {
        let mut site = Site::new(Way { in_place: Odds::NEVER, reactors, protocol: ProtocolChoice::One });
        site.make_sessions(3);
        let mut peer = Peer::connect(&mut site);
        test(&mut site, &mut peer);
        drop(peer);
        for _ in 0..PASSES_MAX {
            if site.servers[0].engine.stream_count() == 0 {
                break;
            }
            site.tick();
        }
        site.close();
    }
}

/// The other end of a connection.
struct Peer {
    stream: TcpStream,
    received: Vec<u8>,
}

/// A Call that was sent.
struct Sent {
    xid: u32,
    opener: Box<dyn ReplyOpener>,
}

/// How a Call ended.
type Answer = Result<Vec<u8>, Denied>;

impl Peer {
    fn connect(site: &mut Site) -> Peer {
        let address = site.servers[0].engine.listen_tcp("127.0.0.1:0").expect("a port");
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_nonblocking(true).expect("a socket");
        Peer { stream, received: Vec::new() }
    }

    fn send(&mut self, site: &mut Site, sealer: &Sealer, xid: u32, procedure: u32, arguments: &[u8]) -> Sent {
        let mut arguments = arguments.to_vec();
        let call = CallToSeal::new(xid, PROGRAM, VERSION, procedure);
        let SealedHeader { credential, verifier, opener } = sealer.seal(call, &mut arguments);
        let (credential, verifier) = (credential.as_opaque(), verifier.as_opaque());
        let header = CallHeader { xid, program: PROGRAM, version: VERSION, procedure, credential, verifier };
        let mut octets = vec![0; header.emitted_len()];
        header.emit(&mut stag_wire::xdr::Writer::new(&mut octets)).expect("room enough");
        octets.extend(arguments);
        let record = [&Mark::whole(octets.len() as u32).to_bytes()[..], &octets].concat();
        let mut rest = &record[..];
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            site.tick();
        }
        Sent { xid, opener }
    }

    fn record(&mut self) -> Option<Vec<u8>> {
        let mut space = [0; 1 << 16];
        match self.stream.read(&mut space) {
            Ok(0) => panic!("the connection ended"),
            Ok(len) => self.received.extend(&space[..len]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        let mark = Mark::from_bytes(*self.received.first_chunk()?);
        let end = MARK_LEN + mark.len as usize;
        let record = self.received.get(MARK_LEN..end)?.to_vec();
        self.received.drain(..end);
        Some(record)
    }

    /// The answer to a Call, opened.
    fn answer(&mut self, site: &mut Site, mut sent: Sent) -> Answer {
        for _ in 0..PASSES_MAX {
            site.tick();
            let Some(record) = self.record() else { continue };
            let mut reader = Reader::new(&record);
            let header = ReplyHeader::parse(&mut reader).expect("a Reply");
            assert_eq!(header.xid, sent.xid);
            return match header.body {
                ReplyBody::Denied(denied) => Err(denied),
                ReplyBody::Accepted { verifier, outcome } => {
                    let opened = sent.opener.open(outcome, verifier, reader.rest()).expect("a good seal");
                    assert_eq!(outcome, Accepted::Success);
                    Ok(match opened {
                        OpenedResults::AsTheyCame => reader.rest().to_vec(),
                        OpenedResults::Plain(plain) => plain,
                    })
                }
            };
        }
        panic!("no answer in {PASSES_MAX} passes");
    }

    fn call(
        &mut self,
        site: &mut Site,
        sealer: &Sealer,
        xid: u32,
        procedure: u32,
        arguments: &[u8],
    ) -> Answer {
        let sent = self.send(site, sealer, xid, procedure, arguments);
        self.answer(site, sent)
    }
}

#[test]
fn sealed_calls_over_tcp() {
    each_server(|site, peer| {
        for mode in MODES {
            let sealer = Sealer::new(mode, 1);
            for len in [0, 10, 400, 3000, 20_000] {
                let text = pattern(5, len);
                assert_eq!(peer.call(site, &sealer, 1, ECHO, &opaque(&text)), Ok(opaque(&text)));
                let big = peer.call(site, &sealer, 1, BIG, &words_of(&[7, len as u32]));
                assert_eq!(big, Ok(opaque(&pattern(7, len))), "{mode:?} {len}");
            }
            let later = [&100_u64.to_be_bytes()[..], &opaque(b"late")].concat();
            assert_eq!(peer.call(site, &sealer, 1, LATER, &later), Ok(opaque(b"late")));
        }
        assert_eq!(site.keyed().opened, 33);
    });
}

/// Large arguments are received where they belong if the header alone is signed, and stay in one piece if they are protected.
#[test]
fn large_data_over_tcp() {
    each_server(|site, peer| {
        let data = pattern(9, 200_000);
        let put = [&1_u32.to_be_bytes()[..], &opaque(&data)].concat();
        for (mode, placed) in MODES.into_iter().zip([1, 1, 1]) {
            let sealer = Sealer::new(mode, 1);
            let answer = peer.call(site, &sealer, 1, PUT_ONE, &put);
            assert_eq!(answer, Ok(words_of(&[0, sum(&data)])), "{mode:?}");
            assert_eq!(site.servers[0].engine.statistics().stream_items, placed, "{mode:?}");
            let answer = peer.call(site, &sealer, 1, GET_ONE, &words_of(&[3, 1, 150_000]));
            assert_eq!(answer, Ok(opaque(&pattern(3, 150_000))), "{mode:?}");
        }
    });
}

/// 5531-e with RFC 2203 section 5.3.3.1: a retransmission has another sequence number, and so another seal. It is not executed again,
/// and its Reply has the seal of the second message.
#[test]
fn a_retransmission_gets_the_first_results_under_its_own_seal() {
    each_server(|site, peer| {
        for (number, mode) in (1_u32..).zip(MODES) {
            let sealer = Sealer::new(mode, 1);
            let first = peer.call(site, &sealer, 10 + number, ONCE, &words_of(&[0, 0]));
            assert_eq!(first, Ok(words_of(&[number])));
            let again = peer.call(site, &sealer, 10 + number, ONCE, &words_of(&[0, 0]));
            assert_eq!(again, Ok(words_of(&[number])), "{mode:?}");
            // Over another connection, while the first is executed.
            let mut other = Peer::connect(site);
            let later = [&20_000_u64.to_be_bytes()[..], &words_of(&[0])].concat();
            let sent = peer.send(site, &sealer, 20 + number, ONCE, &later);
            let repeated = other.send(site, &sealer, 20 + number, ONCE, &later);
            let answer = peer.answer(site, sent);
            assert_eq!(other.answer(site, repeated), answer, "{mode:?}");
            assert!(answer.is_ok());
            // It counts one more.
            site.program().counted -= 1;
        }
    });
}

#[test]
fn a_wrong_hash_over_tcp() {
    each_server(|site, peer| {
        for mode in MODES {
            let refused = Err(Denied::AuthError(AuthStat::BADVERF));
            let wrong = Sealer { key: 1, ..Sealer::new(mode, 1) };
            assert_eq!(peer.call(site, &wrong, 1, ECHO, &opaque(b"text")), refused);
        }
        let session = Sealer::new(Mode::Hello, 5);
        assert_eq!(peer.call(site, &session, 1, 0, &[]), Ok(words_of(&[4])));
        assert_eq!(site.program().executed, 0);
    });
}
