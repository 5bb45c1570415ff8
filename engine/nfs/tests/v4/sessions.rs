//! Clients, sessions and slots, and where operations may stand.

use stag_nfs::client::Operation;
use stag_wire::nfs4::compound::OperationsWriter;
use stag_wire::nfs4::open::{DelegationClaim, GetDirDelegationArguments, WantDelegationArguments};
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::pnfs::{
    GetdeviceinfoArguments, GetdevicelistArguments, LayoutIoMode, LayoutReturn, LayoutcommitArguments,
    LayoutgetArguments, LayoutreturnArguments, TypedBody,
};
use stag_wire::nfs4::session::{
    BindConnArguments, ChannelAttributes, DirectionFromClient, DirectionFromServer, ProtectedOperations,
    SequenceArguments, SetSsvArguments, SsvWishes, StateProtection, exchange_flag,
};
use stag_wire::nfs4::value::{FixedOpaque, List};
use stag_wire::nfs4::{Bitmap, Opaque, StateId, Status4, Time4, Verifier4};
use stag_wire::xdr::{Encode, Overflow, Writer};

use super::client::{Answer, Client, Compound, FORE, create_session, exchange_id};
use super::pair::{Pair, credential};

const ROOT: Argument4<'static> = Argument4::Putrootfh(());
const GETFH: Argument4<'static> = Argument4::Getfh(());

/// 8881-16.2.3: before anything else.
#[test]
fn other_minor_versions_are_refused() {
    let mut pair = Pair::new(&["/data"]);
    for minor in [0, 3, u32::MAX] {
        pair.compound(minor, &[ROOT], |answer| {
            assert_eq!((answer.status, answer.outcomes.len()), (Status4::MinorVersMismatch, 0));
        });
    }
}

#[test]
fn a_compound_without_operations_succeeds_and_a_tag_comes_back() {
    let mut pair = Pair::new(&["/data"]);
    let compound = Compound { minor: 1, tag: b"hello", operations: &[], results_max: 100 };
    pair.ask(compound, |answer| {
        assert_eq!((answer.status, answer.tag, answer.outcomes.len()), (Status4::Ok, &b"hello"[..], 0));
    });
}

/// 8881-18.36.3, 18.46.3: the limits are no higher than either end's.
#[test]
fn a_session_has_the_limits_of_both_ends() {
    let client = Client::new(&["/data"]);
    let fore = client.session.fore;
    assert_eq!((fore.request_max, fore.response_max), (FORE.request_max, FORE.response_max));
    assert_eq!((fore.operations_max, fore.requests_max, fore.header_pad), (8, 64, 0));
    assert!(fore.response_cached_max < FORE.response_cached_max);
    assert_eq!(client.session.flags, 0, "no channel for callbacks, no step up, nothing survives a restart");
}

/// 8881-18.46.3: all slots may be used, and should: their number does not change.
#[test]
fn a_client_is_told_to_use_all_of_its_slots() {
    for (asked, expected) in [(1, 0), (10, 9), (1000, 63)] {
        let fore = ChannelAttributes { requests_max: asked, ..FORE };
        let mut client = Client::of(Pair::new(&["/data"]), b"client", fore);
        let sequence = client.sequence(0);
        client.pair.compound(2, &[sequence, ROOT], |answer| {
            let Some(Outcome4::Sequence(Ok(ok))) = answer.outcomes.first() else { panic!("{answer:?}") };
            assert_eq!((ok.highest_slot, ok.target_highest_slot), (expected, expected));
        });
    }
}

/// 8881-2.10.6.4 and the descriptions of these operations.
#[test]
fn operations_stand_where_they_may() {
    let mut client = Client::new(&["/data"]);
    let sequence = client.sequence(0);
    let bind = Argument4::BindConnToSession(BindConnArguments {
        session: client.session_id(),
        direction: DirectionFromClient::ForeOrBoth,
        use_rdma: true,
    });
    for (operations, expected) in [
        (&[ROOT][..], Status4::OpNotInSession),
        (&[Argument4::Renew(1)], Status4::OpNotInSession),
        (&[Argument4::Illegal(())], Status4::OpIllegal),
        (&[exchange_id(b"other", 1), ROOT], Status4::NotOnlyOp),
        (&[create_session(1, 1, FORE), ROOT], Status4::NotOnlyOp),
        (&[Argument4::DestroySession(client.session_id()), ROOT], Status4::NotOnlyOp),
        (&[Argument4::DestroyClientid(1), ROOT], Status4::NotOnlyOp),
        (&[bind, ROOT], Status4::NotOnlyOp),
        (&[sequence, sequence], Status4::SequencePos),
    ] {
        assert_eq!(client.pair.status(2, operations), expected, "{operations:?}");
    }
    assert_eq!(client.status(&[bind]), Status4::NotOnlyOp);
    assert_eq!(client.status(&[ROOT; 7]), Status4::Ok);
    let sequence = client.sequence(1);
    let eight = [[sequence].as_slice(), &[ROOT; 8]].concat();
    assert_eq!(client.pair.status(2, &eight), Status4::TooManyOps);
}

/// RFC 8881 section 17, RFC 7862 section 13: what a version forbids is NOTSUPP, what it does not have is OP_ILLEGAL.
#[test]
fn operations_of_other_versions() {
    let mut client = Client::new(&["/data"]);
    for minor in [1, 2] {
        client.minor = minor;
        let removexattr = if minor == 1 { Status4::OpIllegal } else { Status4::NotSupp };
        for (operation, expected) in [
            (Argument4::Renew(1), Status4::NotSupp),
            (Argument4::Delegpurge(1), Status4::NotSupp),
            (Argument4::Removexattr(Opaque(b"x")), removexattr),
            (Argument4::Illegal(()), Status4::OpIllegal),
        ] {
            assert_eq!(client.status(&[ROOT, operation]), expected, "{operation:?} of 4.{minor}");
        }
    }
}

/// A COMPOUND that ends with an operation of this number, without arguments.
struct Numbered<'a> {
    minor: u32,
    before: &'a [Argument4<'a>],
    number: u32,
}

impl Encode for Numbered<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        let mut operations = OperationsWriter::begin_call(writer, &Opaque(b""), self.minor)?;
        self.before.iter().try_for_each(|operation| operations.push(operation))?;
        operations.push(&self.number)?;
        operations.finish();
        Ok(())
    }
}

impl Operation for Numbered<'_> {
    const PROGRAM: u32 = stag_wire::nfs4::PROGRAM;
    const VERSION: u32 = 4;
    type Reply<'r> = Answer<'r>;

    fn procedure(&self) -> u32 {
        1
    }

    fn results_len_max(&self, _: bool) -> u32 {
        400
    }
}

/// RFC 8881 section 15.1.3.4: numbers that no version has, those of later RFCs included.
#[test]
fn numbers_without_an_operation_are_illegal() {
    let mut client = Client::new(&["/data"]);
    for minor in [1, 2] {
        for number in [0, 2, 76, 77, 100, 10_043, 10_044, u32::MAX] {
            for before in [&[][..], &[ROOT]] {
                let all = [&[client.sequence(0)], before].concat();
                client.pair.ask(Numbered { minor, before: &all, number }, |answer| {
                    let last = answer.outcomes.last();
                    assert!(matches!(last, Some(Outcome4::Illegal(_))), "{number}: {last:?}");
                    assert_eq!((answer.status, answer.outcomes.len()), (Status4::OpIllegal, all.len() + 1));
                });
            }
        }
        let alone = Numbered { minor, before: &[], number: 76 };
        assert_eq!(client.pair.ask(alone, |answer| answer.status), Status4::OpIllegal);
    }
}

/// RFC 8881 section 17: delegations of directories and pNFS are optional, and not there. 8881-18.43.3: no file has a layout.
#[test]
fn what_is_optional_and_not_there_is_declined() {
    let mut client = Client::new(&["/data"]);
    let data = client.pair.root.clone();
    let put = Argument4::Putfh(Opaque(&data));
    let (stateid, body) = (StateId::ANONYMOUS, TypedBody { layout_type: 1, body: Opaque(b"") });
    let delegation = Argument4::GetDirDelegation(GetDirDelegationArguments {
        signal_available: false,
        notifications: Bitmap::EMPTY,
        child_delay: Time4::default(),
        directory_delay: Time4::default(),
        child_attributes: Bitmap::EMPTY,
        directory_attributes: Bitmap::EMPTY,
    });
    let get = Argument4::Layoutget(LayoutgetArguments {
        signal_available: false,
        layout_type: 1,
        io_mode: LayoutIoMode::Read,
        offset: 0,
        length: u64::MAX,
        minimum: 0,
        stateid,
        maxcount: 4096,
    });
    let commit = Argument4::Layoutcommit(LayoutcommitArguments {
        offset: 0,
        length: 1,
        is_reclaim: false,
        stateid,
        last_write: None,
        modified: None,
        update: body,
    });
    let give_back = Argument4::Layoutreturn(LayoutreturnArguments {
        is_reclaim: false,
        layout_type: 1,
        io_mode: LayoutIoMode::Any,
        what: LayoutReturn::All,
    });
    let device = Argument4::Getdeviceinfo(GetdeviceinfoArguments {
        device: FixedOpaque([0; 16]),
        layout_type: 1,
        maxcount: 4096,
        notifications: Bitmap::EMPTY,
    });
    let devices = Argument4::Getdevicelist(GetdevicelistArguments {
        layout_type: 1,
        maxdevices: 1,
        cookie: 0,
        verifier: Verifier4::default(),
    });
    let want =
        Argument4::WantDelegation(WantDelegationArguments { want: 0x100, claim: DelegationClaim::Handle });
    let set_ssv = Argument4::SetSsv(SetSsvArguments { ssv: Opaque(b"ssv"), digest: Opaque(b"") });
    for minor in [1, 2] {
        client.minor = minor;
        for (operation, expected) in [
            (delegation, Status4::NotSupp),
            (get, Status4::LayoutUnavailable),
            (commit, Status4::NotSupp),
            (give_back, Status4::NotSupp),
            (device, Status4::NotSupp),
            (devices, Status4::NotSupp),
            (want, Status4::NotSupp),
            (set_ssv, Status4::NotSupp),
        ] {
            assert_eq!(client.status(&[put, operation]), expected, "{operation:?} of 4.{minor}");
        }
    }
}

/// 8881-18.35.3: only SP4_NONE is there. Without RPCSEC_GSS there is no machine credential.
#[test]
fn other_protection_of_state_is_declined() {
    let mut pair = Pair::new(&["/data"]);
    let operations = ProtectedOperations { must_enforce: Bitmap::EMPTY, must_allow: Bitmap::EMPTY };
    let sha256 = [Opaque(&b"\x60\x86\x48\x01\x65\x03\x04\x02\x01"[..])];
    let aes256 = [Opaque(&b"\x60\x86\x48\x01\x65\x03\x04\x01\x2a"[..])];
    let ssv = |hashes, ciphers, window| {
        let (hashes, ciphers) = (List::new(hashes), List::new(ciphers));
        StateProtection::Ssv(SsvWishes { operations, hashes, ciphers, window, handle_count: 1 })
    };
    let Argument4::ExchangeId(mut exchange) = exchange_id(b"client", 1) else { unreachable!() };
    for (protection, expected) in [
        (StateProtection::MachineCredential(operations), Status4::Inval),
        (ssv(&[], &aes256, 1), Status4::Inval),
        (ssv(&sha256, &[], 1), Status4::Inval),
        (ssv(&sha256, &aes256, 0), Status4::Inval),
        (ssv(&sha256, &aes256, 1), Status4::EncrAlgUnsupp),
        (StateProtection::None, Status4::Ok),
    ] {
        exchange.protection = protection;
        for minor in [1, 2] {
            let found = pair.status(minor, &[Argument4::ExchangeId(exchange)]);
            assert_eq!(found, expected, "{protection:?} of 4.{minor}");
        }
    }
}

/// 8881-18.35.4, by the state machine; here that the service asks it.
#[test]
fn a_client_is_the_same_until_it_restarts() {
    let mut client = Client::new(&["/data"]);
    let mut exchange = |verifier| {
        client.pair.compound(1, &[exchange_id(b"client", verifier)], |answer| {
            let [Outcome4::ExchangeId(Ok(ok))] = answer.outcomes[..] else { panic!("{answer:?}") };
            (ok.clientid, ok.flags, ok.server_owner.major.0.to_vec(), ok.server_scope.0.to_vec())
        })
    };
    let (id, flags, owner, scope) = exchange(1);
    assert_eq!(flags, 0x8001_0000, "confirmed, without pNFS");
    let (restarted, flags, ..) = exchange(2);
    assert_ne!(restarted, id);
    assert_eq!(flags, 0x0001_0000);
    assert!(!owner.is_empty() && !scope.is_empty());
    let (asked_again, _, same_owner, same_scope) = exchange(2);
    assert_eq!((owner, scope), (same_owner, same_scope), "one server is one server");
    assert_eq!(id, client.clientid);
    let session = client.session_id();
    assert_eq!(client.status(&[ROOT]), Status4::Ok, "until it is confirmed");
    assert_ne!(asked_again, restarted, "what was not confirmed is replaced");
    let status = client.pair.status(1, &[create_session(asked_again, 1, FORE)]);
    assert_eq!(status, Status4::Ok);
    let sequence = client.sequence(0);
    assert_eq!(client.pair.status(1, &[sequence]), Status4::BadSession);
    assert_eq!(client.pair.status(1, &[Argument4::DestroySession(session)]), Status4::BadSession);
    assert_eq!(client.pair.status(1, &[Argument4::DestroyClientid(id)]), Status4::StaleClientid);
}

#[test]
fn flags_that_no_client_may_set_are_invalid() {
    let mut pair = Pair::new(&["/data"]);
    let Argument4::ExchangeId(mut exchange) = exchange_id(b"client", 1) else { unreachable!() };
    for (minor, flags, expected) in [
        (1, 0x8000_0000, Status4::Inval),
        (2, 0x8000_0000, Status4::Inval),
        // RFC 7862 section 14.1.1.
        (1, 4, Status4::Inval),
        (2, 4, Status4::Ok),
    ] {
        exchange.flags = flags;
        let found = pair.status(minor, &[Argument4::ExchangeId(exchange)]);
        assert_eq!(found, expected, "{flags:x} in 4.{minor}");
    }
    let Argument4::CreateSession(mut create) = create_session(1, 1, FORE) else { unreachable!() };
    create.flags = 8;
    assert_eq!(pair.status(1, &[Argument4::CreateSession(create)]), Status4::Inval);
    assert_eq!(pair.status(1, &[create_session(1, 1, FORE)]), Status4::StaleClientid);
}

/// 8881-18.35.5, cases 6 to 9: a client's record is changed only by who made it.
#[test]
fn an_update_of_a_client_says_why_it_is_refused() {
    let mut client = Client::new(&["/data"]);
    let own = client.pair.credential.clone();
    let mut update = |owner: &'static [u8], verifier, credential| {
        let Argument4::ExchangeId(mut exchange) = exchange_id(owner, verifier) else { unreachable!() };
        exchange.flags = exchange_flag::UPDATE_CONFIRMED;
        client.pair.credential = credential;
        client.pair.status(1, &[Argument4::ExchangeId(exchange)])
    };
    assert_eq!(update(b"client", 1, own.clone()), Status4::Ok);
    assert_eq!(update(b"nobody", 1, own.clone()), Status4::NoEnt);
    assert_eq!(update(b"client", 2, own), Status4::NotSame);
    assert_eq!(update(b"client", 1, Some(credential(77, 77, &[]))), Status4::Perm);
}

/// 8881-2.10.6.1: a retry gets the reply that was kept, and nothing is executed twice.
#[test]
fn a_retry_gets_the_kept_reply() {
    let mut client = Client::new(&["/data"]);
    client.keeps = true;
    let operations = [client.sequence(3), ROOT, GETFH];
    let first = client.pair.compound(2, &operations, |answer| format!("{answer:?}"));
    let second = client.pair.compound(2, &operations, |answer| format!("{answer:?}"));
    assert_eq!(first, second);
    assert!(first.contains("Getfh(Ok("));
    // Another request with the same sequence id.
    let other = [operations[0], ROOT];
    assert_eq!(client.pair.status(2, &other), Status4::SeqFalseRetry);
}

#[test]
fn a_retry_whose_reply_was_not_kept_hears_so() {
    let mut client = Client::new(&["/data"]);
    let operations = [client.sequence(3), ROOT, GETFH];
    assert_eq!(client.pair.status(2, &operations), Status4::Ok);
    client.pair.compound(2, &operations, |answer| {
        let [Outcome4::Sequence(Ok(_)), Outcome4::Putrootfh(Err(status))] = answer.outcomes[..] else {
            panic!("{answer:?}")
        };
        assert_eq!((status, answer.status), (Status4::RetryUncachedRep, Status4::RetryUncachedRep));
    });
    // Alone it says all that there is to say.
    let alone = [client.sequence(4)];
    assert_eq!([0; 2].map(|_| client.pair.status(2, &alone)), [Status4::Ok; 2]);
}

#[test]
fn slots_refuse_what_is_out_of_order() {
    let mut client = Client::new(&["/data"]);
    let session = client.session_id();
    let mut ask = |session, slot, sequence_id, highest_slot| {
        let sequence = SequenceArguments { session, sequence_id, slot, highest_slot, keep_reply: false };
        client.pair.status(1, &[Argument4::Sequence(sequence)])
    };
    assert_eq!(ask(FixedOpaque([9; 16]), 1, 1, 1), Status4::BadSession);
    assert_eq!(ask(session, 64, 1, 63), Status4::BadSlot);
    assert_eq!(ask(session, 1, 1, 64), Status4::BadHighSlot);
    assert_eq!(ask(session, 1, 2, 1), Status4::SeqMisordered);
    assert_eq!(ask(session, 1, 1, 1), Status4::Ok);
    assert_eq!(ask(session, 1, 3, 1), Status4::SeqMisordered);
    assert_eq!(ask(session, 1, 2, 1), Status4::Ok);
}

/// 8881-2.10.6.4: before anything has an effect.
#[test]
fn what_is_beyond_a_sessions_limits_is_refused() {
    let small = ChannelAttributes {
        request_max: 600,
        response_max: 600,
        response_cached_max: 200,
        operations_max: 30,
        ..FORE
    };
    let mut client = Client::of(Pair::new(&["/data"]), b"small", small);
    let name = [b'x'; 500];
    let sequence = client.sequence(5);
    let lookup = Argument4::Lookup(Opaque(&name));
    assert_eq!(client.pair.status(2, &[sequence, ROOT, lookup]), Status4::ReqTooBig);
    // Each GETFH takes 44 octets.
    let many = [[ROOT].as_slice(), &[GETFH; 14]].concat();
    assert_eq!(client.status(&many), Status4::RepTooBig);
    client.keeps = true;
    let several = [[ROOT].as_slice(), &[GETFH; 5]].concat();
    assert_eq!(client.status(&several), Status4::RepTooBigToCache);
    assert_eq!(client.status(&several[..2]), Status4::Ok);
}

#[test]
fn a_session_ends_once_and_then_its_client_may() {
    let mut client = Client::new(&["/data"]);
    let (session, clientid) = (client.session_id(), client.clientid);
    let (end, end_client) = (Argument4::DestroySession(session), Argument4::DestroyClientid(clientid));
    assert_eq!(client.pair.status(2, &[end_client]), Status4::ClientidBusy);
    assert_eq!(client.status(&[end_client]), Status4::ClientidBusy);
    assert_eq!(client.status(&[end, ROOT]), Status4::NotOnlyOp, "its own session is the last that it ends");
    assert_eq!(client.status(&[ROOT, end]), Status4::Ok);
    assert_eq!(client.pair.status(2, &[end]), Status4::BadSession);
    let sequence = client.sequence(0);
    assert_eq!(client.pair.status(2, &[sequence]), Status4::BadSession);
    assert_eq!(client.pair.status(2, &[end_client]), Status4::Ok);
    assert_eq!(client.pair.status(2, &[end_client]), Status4::StaleClientid);
}

#[test]
fn reclaiming_is_complete_once() {
    let mut client = Client::new(&["/data"]);
    assert_eq!(client.status(&[Argument4::ReclaimComplete(false)]), Status4::CompleteAlready);
    assert_eq!(client.status(&[Argument4::ReclaimComplete(true)]), Status4::NoFilehandle);
    assert_eq!(client.status(&[ROOT, Argument4::ReclaimComplete(true)]), Status4::Ok);
}

/// 8881-18.34.3: a connection is for requests of the client; there are no callbacks yet.
#[test]
fn a_connection_is_bound_for_requests() {
    let mut client = Client::new(&["/data"]);
    let session = client.session_id();
    let mut bind = |session, direction| {
        let arguments = BindConnArguments { session, direction, use_rdma: true };
        client.pair.compound(2, &[Argument4::BindConnToSession(arguments)], |answer| {
            let [Outcome4::BindConnToSession(result)] = answer.outcomes[..] else { panic!("{answer:?}") };
            result.map(|ok| (ok.session, ok.direction, ok.use_rdma))
        })
    };
    let fore = Ok((session, DirectionFromServer::Fore, false));
    assert_eq!(bind(session, DirectionFromClient::Fore), fore);
    assert_eq!(bind(session, DirectionFromClient::ForeOrBoth), fore);
    assert_eq!(bind(session, DirectionFromClient::Back), Err(Status4::Inval));
    assert_eq!(bind(FixedOpaque([1; 16]), DirectionFromClient::Fore), Err(Status4::BadSession));
}

/// 8881-2.10.6.1.2-a: a SEQUENCE whose own results are too long leaves its slot as it is.
#[test]
fn a_sequence_that_is_too_long_to_be_kept_changes_nothing() {
    let fore = ChannelAttributes { response_cached_max: 10, ..FORE };
    let mut client = Client::of(Pair::new(&["/data"]), b"client", fore);
    let session = client.session_id();
    let mut ask = |keep_reply| {
        let sequence = SequenceArguments { session, sequence_id: 1, slot: 3, highest_slot: 3, keep_reply };
        client.pair.status(1, &[Argument4::Sequence(sequence)])
    };
    assert_eq!(
        [ask(true), ask(true), ask(false)],
        [Status4::RepTooBigToCache, Status4::RepTooBigToCache, Status4::Ok]
    );
}
