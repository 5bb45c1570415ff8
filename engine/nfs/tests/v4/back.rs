//! Back channels: CREATE_SESSION, BIND_CONN_TO_SESSION and BACKCHANNEL_CTL, the Calls that prove them, and what SEQUENCE tells.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use stag_rpc::ConnectionEvent;
use stag_runtime::Poller;
use stag_wire::nfs4::client_id::GssService;
use stag_wire::nfs4::compound::CompoundReply;
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::session::{
    BackchannelCtlArguments, BindConnArguments, CallbackGss, CallbackSecurity, CallbackUser,
    ChannelAttributes, CreateSessionArguments, DirectionFromClient, DirectionFromServer, SequenceArguments,
    sequence_status, session_flag,
};
use stag_wire::nfs4::value::{FixedOpaque, List};
use stag_wire::nfs4::{Opaque, PROGRAM, SessionId, Status4};
use stag_wire::record::Mark;
use stag_wire::rpc::{CallHeader, OpaqueAuth};
use stag_wire::xdr::{Decode, Encode, Reader, Writer};

use super::client::{Answer, BACK, Compound, FORE, exchange_id};
use super::pair::Pair;
use super::pair::callee::{CALLBACK_PROGRAM, Callee, CalleeAnswer, results, sequence_of};

const CB_PATH_DOWN: u32 = sequence_status::CB_PATH_DOWN;
const BOTH_DOWN: u32 = CB_PATH_DOWN | sequence_status::CB_PATH_DOWN_SESSION;
const NO_USER: &[CallbackSecurity<'_>] = &[CallbackSecurity::None];

/// A user for callbacks: of uid 77 on a machine with this name.
fn user(machine_name: &[u8]) -> CallbackSecurity<'_> {
    let (machine_name, gids) = (Opaque(machine_name), List::new(&[1, 2]));
    CallbackSecurity::User(CallbackUser { stamp: 5, machine_name, uid: 77, gid: 7, gids })
}

fn gss() -> CallbackSecurity<'static> {
    let handle = Opaque(b"handle");
    CallbackSecurity::Gss(CallbackGss { service: GssService::None, from_server: handle, from_client: handle })
}

/// A client that asks for callbacks.
struct Client {
    pair: Pair,
    minor: u32,
    clientid: u64,
    session: SessionId,
    /// CREATE_SESSION's flags.
    flags: u32,
    sequence_id: u32,
    sessions: u32,
}

impl Client {
    fn new() -> Client {
        Client::of(2, session_flag::CONN_BACK_CHANNEL, NO_USER, BACK)
    }

    fn of(minor: u32, flags: u32, securities: &[CallbackSecurity<'_>], back: ChannelAttributes) -> Client {
        let mut client = Client::without_session(minor);
        let created = client.create(flags, securities, back);
        (client.session, client.flags) = created.unwrap();
        client
    }

    fn without_session(minor: u32) -> Client {
        let mut pair = Pair::both_ways(&["/data"]);
        let clientid = pair.compound(minor, &[exchange_id(b"client", 1)], |answer| {
            let [Outcome4::ExchangeId(Ok(exchanged))] = answer.outcomes[..] else { panic!("{answer:?}") };
            exchanged.clientid
        });
        let session = FixedOpaque([0; 16]);
        Client { pair, minor, clientid, session, flags: 0, sequence_id: 0, sessions: 0 }
    }

    /// CREATE_SESSION: the session, and its flags.
    fn create(
        &mut self,
        flags: u32,
        securities: &[CallbackSecurity<'_>],
        back: ChannelAttributes,
    ) -> Result<(SessionId, u32), Status4> {
        let create = Argument4::CreateSession(CreateSessionArguments {
            clientid: self.clientid,
            sequence_id: self.sessions + 1,
            flags,
            fore: FORE,
            back,
            callback_program: CALLBACK_PROGRAM,
            callback_securities: List::new(securities),
        });
        let created = self.pair.compound(self.minor, &[create], |answer| match answer.outcomes[..] {
            [Outcome4::CreateSession(created)] => created,
            _ => panic!("{answer:?}"),
        });
        self.sessions += u32::from(created.is_ok());
        created.map(|ok| {
            assert_eq!(
                (ok.back.operations_max, ok.back.requests_max),
                (back.operations_max, back.requests_max)
            );
            (ok.session, ok.flags)
        })
    }

    fn callee(&mut self) -> &mut Callee {
        &mut self.pair.client.services_mut().as_mut().unwrap().0
    }

    /// Runs the COMPOUND of SEQUENCE and these, and returns its status and SEQUENCE's flags.
    fn ask(&mut self, operations: &[Argument4<'_>]) -> (Status4, u32) {
        self.sequence_id += 1;
        let sequence = SequenceArguments {
            session: self.session,
            sequence_id: self.sequence_id,
            slot: 0,
            highest_slot: 0,
            keep_reply: false,
        };
        let all = [&[Argument4::Sequence(sequence)], operations].concat();
        self.pair.compound(self.minor, &all, |answer| {
            let Some(Outcome4::Sequence(Ok(ok))) = answer.outcomes.first() else { panic!("{answer:?}") };
            (answer.status, ok.status_flags)
        })
    }

    /// What SEQUENCE says.
    fn told(&mut self) -> u32 {
        self.ask(&[]).1
    }

    /// Runs until SEQUENCE says this.
    #[track_caller]
    fn until_told(&mut self, flags: u32) {
        for _ in 0..100 {
            if self.told() == flags {
                return;
            }
            let later = self.pair.world.now() + Duration::from_millis(500);
            self.run_until(later);
        }
        panic!("SEQUENCE says {:x}", self.told());
    }

    fn run_until(&mut self, end: Duration) {
        while self.pair.world.now() < end {
            let now = self.pair.world.now();
            let count = self.pair.client.poll(now) + self.pair.poll_server(now);
            if count == 0 && !self.pair.world.advance_before(Some(end)) {
                return;
            }
        }
    }

    /// Waits for the next CB_SEQUENCE: its sequence id, minor version and user.
    #[track_caller]
    fn asked(&mut self) -> (u32, u32, Option<u32>) {
        let session = self.session;
        let (sequence, minor, user) = self.pair.until(|pair| {
            let Some((callee,)) = pair.client.services_mut() else { panic!("it is there") };
            callee.asked.pop()
        });
        assert_eq!((sequence.session, sequence.slot, sequence.highest_slot), (session, 0, 0));
        (sequence.sequence_id, minor, user)
    }

    fn bind(&mut self, direction: DirectionFromClient) -> Result<DirectionFromServer, Status4> {
        let arguments = BindConnArguments { session: self.session, direction, use_rdma: false };
        self.pair.compound(self.minor, &[Argument4::BindConnToSession(arguments)], |answer| {
            let [Outcome4::BindConnToSession(result)] = answer.outcomes[..] else { panic!("{answer:?}") };
            result.map(|ok| ok.direction)
        })
    }

    /// Connects again.
    fn reconnect(&mut self) {
        let pair = &mut self.pair;
        pair.client.disconnect(pair.connection);
        pair.until(|pair| match pair.client.connection_event() {
            Some(ConnectionEvent::Closed { .. }) => Some(()),
            _ => None,
        });
        pair.connection = pair.client.connect("here").unwrap();
        pair.until(|pair| match pair.client.connection_event() {
            Some(ConnectionEvent::Established { .. }) => Some(()),
            _ => None,
        });
    }
}

/// 8881-18.36.3-b: the flag comes back, and the client is called with its minor version, as the user that it gives.
#[test]
fn a_back_channel_is_proven_over_the_connection_of_create_session() {
    for (minor, securities, uid) in [
        (1, NO_USER, None),
        (2, &[gss(), user(b"host")][..], Some(77)),
        (2, &[CallbackSecurity::None, gss()], None),
    ] {
        let mut client = Client::of(minor, 3, securities, BACK);
        assert_eq!(client.flags, session_flag::CONN_BACK_CHANNEL);
        assert_eq!(client.asked(), (1, minor, uid));
        client.until_told(0);
        assert_eq!(client.callee().asked, [], "once");
    }
}

/// 8881-18.36.3-b
#[test]
fn a_session_that_asks_for_no_callbacks_has_none_and_is_told_nothing() {
    let mut client = Client::of(2, 0, NO_USER, BACK);
    assert_eq!((client.flags, client.told()), (0, 0));
    client.reconnect();
    assert_eq!(client.told(), 0);
    assert_eq!(client.callee().asked, []);
    // Until it binds a connection.
    assert_eq!(client.bind(DirectionFromClient::Back), Ok(DirectionFromServer::Back));
    assert_eq!(client.asked(), (1, 2, None));
}

/// 8881-18.36.3-c: there is no RPCSEC_GSS handle here; and what the client cannot take is not sent.
#[test]
fn what_callbacks_cannot_have_is_refused_or_not_used() {
    let mut client = Client::without_session(2);
    assert_eq!(client.create(2, &[gss()], BACK), Err(Status4::NoEnt));
    let (_, flags) = client.create(2, &[], BACK).unwrap();
    assert_eq!(flags, 0);
    let least = ChannelAttributes { request_max: 256, response_max: 256, ..BACK };
    let (session, flags) = client.create(2, &[user(&[b'x'; 255])], least).unwrap();
    assert_eq!(flags, 0);
    client.session = session;
    assert_eq!(client.bind(DirectionFromClient::ForeOrBoth), Ok(DirectionFromServer::Fore));
    assert_eq!(client.bind(DirectionFromClient::Back), Err(Status4::Inval));
    assert_eq!(client.told(), 0);
    let (session, flags) = client.create(2, NO_USER, least).unwrap();
    assert_eq!(flags, session_flag::CONN_BACK_CHANNEL);
    client.session = session;
    assert_eq!(client.asked(), (1, 2, None));
}

/// 8881-18.46.3-e, 8881-20.9.3-a
#[test]
fn a_client_that_does_not_answer_is_told_that_its_path_is_down() {
    let mut client = Client::without_session(2);
    // It takes no such Calls at first.
    *client.pair.client.services_mut() = None;
    (client.session, client.flags) = client.create(2, NO_USER, BACK).unwrap();
    assert_eq!(client.flags, session_flag::CONN_BACK_CHANNEL);
    client.until_told(BOTH_DOWN);
    *client.pair.client.services_mut() = Some((Callee { answer: CalleeAnswer::Never, ..Callee::new() },));
    assert_eq!(client.bind(DirectionFromClient::BackOrBoth), Ok(DirectionFromServer::Both));
    assert_eq!(client.told(), 0, "it may be called, as far as is known");
    assert_eq!(client.asked(), (1, 2, None));
    client.until_told(BOTH_DOWN);
    // Its answer makes no sense.
    client.callee().answer = CalleeAnswer::Nonsense;
    assert_eq!(client.bind(DirectionFromClient::ForeOrBoth), Ok(DirectionFromServer::Both));
    assert_eq!(client.asked(), (1, 2, None), "the sequence id was not used, as far as is known");
    client.until_told(BOTH_DOWN);
    // It was.
    client.callee().answer = CalleeAnswer::Status(Status4::RetryUncachedRep);
    assert_eq!(client.bind(DirectionFromClient::ForeOrBoth), Ok(DirectionFromServer::Both));
    assert_eq!(client.asked(), (1, 2, None));
    client.until_told(0);
    client.callee().answer = CalleeAnswer::Right;
    client.reconnect();
    client.until_told(BOTH_DOWN);
    assert_eq!(client.bind(DirectionFromClient::ForeOrBoth), Ok(DirectionFromServer::Both));
    assert_eq!(client.asked(), (2, 2, None));
    client.until_told(0);
}

/// 8881-18.46.3-f: the session can no longer be used for callbacks.
#[test]
fn a_client_that_has_lost_its_slot_is_told_to_make_another_session() {
    let faults = [
        CalleeAnswer::Status(Status4::SeqMisordered),
        CalleeAnswer::Status(Status4::BadSession),
        CalleeAnswer::OfAnotherSlot,
    ];
    for answer in faults {
        let mut client = Client::without_session(2);
        client.callee().answer = answer;
        (client.session, _) = client.create(2, NO_USER, BACK).unwrap();
        client.until_told(CB_PATH_DOWN | sequence_status::BACKCHANNEL_FAULT);
        client.callee().answer = CalleeAnswer::Right;
        let broken = client.session;
        (client.session, _) = client.create(2, NO_USER, BACK).unwrap();
        client.callee().asked.clear();
        (client.sequence_id, _) = (0, client.asked());
        client.until_told(0);
        assert_eq!(client.ask(&[Argument4::DestroySession(broken)]), (Status4::Ok, 0));
    }
}

/// 8881-18.46.3-e
#[test]
fn the_loss_of_the_connection_is_told_and_another_one_repairs_it() {
    let mut client = Client::new();
    assert_eq!(client.asked(), (1, 2, None));
    client.until_told(0);
    for sequence_id in 2..5 {
        client.reconnect();
        client.until_told(BOTH_DOWN);
        assert_eq!(client.bind(DirectionFromClient::ForeOrBoth), Ok(DirectionFromServer::Both));
        assert_eq!(client.asked(), (sequence_id, 2, None));
        client.until_told(0);
    }
}

/// 8881-18.34.3-a, 8881-18.34.3-b
#[test]
fn a_connection_is_bound_for_what_is_asked_and_changes_are_refused() {
    use DirectionFromClient::{Back, BackOrBoth, Fore, ForeOrBoth};
    let [fore, back, both] =
        [DirectionFromServer::Fore, DirectionFromServer::Back, DirectionFromServer::Both].map(Ok);
    let changed = Err(Status4::Inval);
    for (first, found, then) in [
        (Fore, fore, [(Fore, fore), (ForeOrBoth, both), (Fore, changed), (Back, changed)]),
        (ForeOrBoth, both, [(ForeOrBoth, both), (BackOrBoth, both), (Fore, changed), (Back, changed)]),
        (BackOrBoth, both, [(ForeOrBoth, both), (BackOrBoth, both), (Fore, changed), (Back, changed)]),
        (Back, back, [(Back, back), (BackOrBoth, back), (Fore, changed), (ForeOrBoth, changed)]),
    ] {
        let mut client = Client::of(1, 0, NO_USER, BACK);
        assert_eq!(client.bind(first), found, "{first:?}");
        for (direction, found) in then {
            assert_eq!(client.bind(direction), found, "{direction:?} after {first:?}");
        }
        assert_eq!(client.told(), 0);
    }
    let mut client = Client::new();
    client.session = FixedOpaque([1; 16]);
    assert_eq!(client.bind(Back), Err(Status4::BadSession));
}

/// 8881-18.33.3-a
#[test]
fn backchannel_ctl_replaces_the_program() {
    let mut client = Client::new();
    assert_eq!(client.asked(), (1, 2, None));
    client.until_told(0);
    let control = |callback_program, securities| {
        let callback_securities = List::new(securities);
        Argument4::BackchannelCtl(BackchannelCtlArguments { callback_program, callback_securities })
    };
    let (user, gss) = ([user(b"host")], [gss()]);
    assert_eq!(client.ask(&[control(CALLBACK_PROGRAM, &gss)]), (Status4::NoEnt, 0));
    // The same again is nothing new; another user is, and no users are those that there are.
    assert_eq!(client.ask(&[control(CALLBACK_PROGRAM, NO_USER)]), (Status4::Ok, 0));
    assert_eq!(client.ask(&[control(CALLBACK_PROGRAM, &user)]), (Status4::Ok, 0));
    assert_eq!(client.asked(), (2, 2, Some(77)));
    assert_eq!(client.ask(&[control(CALLBACK_PROGRAM, &[])]).0, Status4::Ok);
    // It has no such program.
    assert_eq!(client.ask(&[control(7, &[])]).0, Status4::Ok);
    client.until_told(BOTH_DOWN);
}

/// A client over TCP, octet by octet.
struct Stream {
    socket: TcpStream,
    received: Vec<u8>,
    xid: u32,
}

/// The RPC message of a Call to version 4.
fn message(xid: u32, operations: &[Argument4<'_>]) -> Vec<u8> {
    let mut octets = vec![0; 4096];
    let mut writer = Writer::new(&mut octets);
    let (credential, verifier) = (OpaqueAuth::NONE, OpaqueAuth::NONE);
    CallHeader { xid, program: PROGRAM, version: 4, procedure: 1, credential, verifier }
        .emit(&mut writer)
        .unwrap();
    Compound { minor: 1, tag: b"", operations, results_max: 0 }.encode(&mut writer).unwrap();
    let len = writer.position();
    octets.truncate(len);
    octets
}

impl Stream {
    fn connect(pair: &mut Pair) -> Stream {
        let address = pair.server.listen_tcp("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(address).unwrap();
        socket.set_nonblocking(true).unwrap();
        Stream { socket, received: Vec::new(), xid: 0 }
    }

    fn send(&mut self, message: &[u8]) {
        self.socket.write_all(&[&Mark::whole(message.len() as u32).to_bytes(), message].concat()).unwrap();
    }

    /// The next record.
    fn next(&mut self, pair: &mut Pair) -> Vec<u8> {
        for _ in 0..100_000 {
            let now = pair.world.now();
            pair.poll_server(now);
            // Sockets are looked at now and then.
            pair.world.advance_to(now + Duration::from_micros(50));
            let mut space = [0; 4096];
            match self.socket.read(&mut space) {
                Ok(0) => panic!("the connection ended"),
                Ok(len) => self.received.extend(&space[..len]),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            if let Some(mark) = self.received.first_chunk() {
                let end = 4 + Mark::from_bytes(*mark).len as usize;
                if self.received.len() >= end {
                    let rest = self.received.split_off(end);
                    return std::mem::replace(&mut self.received, rest).split_off(4);
                }
            }
        }
        panic!("no record came")
    }

    /// Makes a COMPOUND of minor version 1.
    fn ask<R>(
        &mut self,
        pair: &mut Pair,
        operations: &[Argument4<'_>],
        look: impl FnOnce(Answer<'_>) -> R,
    ) -> R {
        self.xid += 1;
        self.send(&message(self.xid, operations));
        let record = self.next(pair);
        assert_eq!(record[..24], [&self.xid.to_be_bytes()[..], &[0, 0, 0, 1], &[0; 16]].concat());
        let mut reader = Reader::new(&record[24..]);
        assert!(CompoundReply::parse(reader.clone()).is_ok());
        look(Answer::decode(&mut reader).unwrap())
    }

    /// Takes the server's next Call and answers it: the procedure, and the sequence id of CB_SEQUENCE.
    fn answer(&mut self, pair: &mut Pair) -> (u32, Option<u32>) {
        let record = self.next(pair);
        let mut reader = Reader::new(&record);
        let header = CallHeader::parse(&mut reader).unwrap();
        assert_eq!((header.program, header.version), (CALLBACK_PROGRAM, 1));
        let (sequence_id, results) = match header.procedure {
            0 => (None, Vec::new()),
            _ => {
                let (sequence, minor) = sequence_of(reader.clone());
                assert_eq!(minor, 1);
                (Some(sequence.sequence_id), results(CalleeAnswer::Right, &sequence).unwrap())
            }
        };
        let head = [header.xid, 1, 0, 0, 0, 0].map(u32::to_be_bytes).concat();
        self.send(&[head, results].concat());
        (header.procedure, sequence_id)
    }
}

/// The same over TCP: Calls of both ends in one stream. At a group of reactors CREATE_SESSION is executed at another one than the
/// connection's, which is where the Calls to the client begin.
#[test]
fn a_back_channel_over_tcp() {
    let mut pair = Pair::new(&["/data"]);
    let mut stream = Stream::connect(&mut pair);
    let clientid = stream.ask(&mut pair, &[exchange_id(b"tcp", 1)], |answer| {
        let [Outcome4::ExchangeId(Ok(ok))] = answer.outcomes[..] else { panic!("{answer:?}") };
        ok.clientid
    });
    let create = Argument4::CreateSession(CreateSessionArguments {
        clientid,
        sequence_id: 1,
        flags: 2,
        fore: FORE,
        back: BACK,
        callback_program: CALLBACK_PROGRAM,
        callback_securities: List::new(NO_USER),
    });
    let session = stream.ask(&mut pair, &[create], |answer| {
        let [Outcome4::CreateSession(Ok(ok))] = answer.outcomes[..] else { panic!("{answer:?}") };
        assert_eq!(ok.flags, session_flag::CONN_BACK_CHANNEL);
        ok.session
    });
    assert_eq!(stream.answer(&mut pair), (0, None));
    assert_eq!(stream.answer(&mut pair), (1, Some(1)));
    let mut sequence_id = 0;
    let mut told = |pair: &mut Pair, stream: &mut Stream| {
        sequence_id += 1;
        let sequence =
            SequenceArguments { session, sequence_id, slot: 0, highest_slot: 0, keep_reply: false };
        stream.ask(pair, &[Argument4::Sequence(sequence)], |answer| {
            let [Outcome4::Sequence(Ok(ok))] = answer.outcomes[..] else { panic!("{answer:?}") };
            ok.status_flags
        })
    };
    assert_eq!(told(&mut pair, &mut stream), 0);
    // The connection ends, and the next one says so and is bound.
    drop(stream);
    let mut stream = Stream::connect(&mut pair);
    let mut flags = 0;
    for _ in 0..1000 {
        flags = told(&mut pair, &mut stream);
        if flags != 0 {
            break;
        }
    }
    assert_eq!(flags, BOTH_DOWN);
    let direction = DirectionFromClient::ForeOrBoth;
    let bind = Argument4::BindConnToSession(BindConnArguments { session, direction, use_rdma: false });
    stream.ask(&mut pair, &[bind], |answer| {
        let [Outcome4::BindConnToSession(Ok(ok))] = answer.outcomes[..] else { panic!("{answer:?}") };
        assert_eq!(ok.direction, DirectionFromServer::Both);
    });
    assert_eq!(stream.answer(&mut pair), (0, None));
    assert_eq!(stream.answer(&mut pair), (1, Some(2)));
    assert_eq!(told(&mut pair, &mut stream), 0);
}
