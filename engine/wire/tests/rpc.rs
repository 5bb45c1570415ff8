//! ONC RPC headers, rule by rule.

use stag_wire::rpc::{
    Accepted, AuthStat, AuthSys, CallHeader, Denied, Gids, NullCall, OpaqueAuth, ReplyBody, ReplyHeader,
    RpcError, emit_success, flavor, take_success,
};
use stag_wire::xdr::{Encode, Overflow, Reader, Writer, XdrError};

mod support;
use support::vector;

fn emit(header: impl FnOnce(&mut Writer<'_>) -> Result<(), Overflow>) -> Vec<u8> {
    let mut buf = [0xff; 1024];
    let mut writer = Writer::new(&mut buf);
    header(&mut writer).unwrap();
    writer.written().to_vec()
}

fn null_call() -> CallHeader<'static> {
    CallHeader {
        xid: 0x1122_3344,
        program: 100_003,
        version: 3,
        procedure: 0,
        credential: OpaqueAuth::NONE,
        verifier: OpaqueAuth::NONE,
    }
}

fn parse_call(wire: &[u8]) -> Result<CallHeader<'_>, RpcError> {
    CallHeader::parse(&mut Reader::new(wire))
}

fn parse_reply(wire: &[u8]) -> Result<ReplyHeader<'_>, RpcError> {
    ReplyHeader::parse(&mut Reader::new(wire))
}

#[test]
fn the_null_call_reads_and_writes() {
    // Behind its record mark of TCP, which has no place on RDMA (8166-3.2-b).
    let wire = &vector!("tcp-null-call")[4..];
    let call = null_call();
    assert_eq!(parse_call(wire), Ok(call));
    assert_eq!(emit(|writer| call.emit(writer)), wire);
    let CallHeader { xid, program, version, procedure, .. } = call;
    assert_eq!(emit(|writer| CallHeader::emit_anonymous(writer, xid, program, version, procedure)), wire);
    assert_eq!(call.emitted_len(), wire.len());
}

#[test]
fn a_null_call_is_one_by_all_its_words() {
    let wire = emit(|w| null_call().emit(w));
    let CallHeader { xid, program, version, .. } = null_call();
    assert_eq!(NullCall::parse(&wire), Some(NullCall { xid, program, version }));
    for len in 0..wire.len() {
        assert_eq!(NullCall::parse(&wire[..len]), None, "{len} octets of it");
    }
    assert_eq!(NullCall::parse(&[&wire[..], &[0; 4]].concat()), None, "it has arguments");
    for bit in 0..8 * wire.len() {
        let mut other = wire.clone();
        other[bit / 8] ^= 1 << (bit % 8);
        let found = NullCall::parse(&other);
        match parse_call(&other) {
            Ok(
                header @ CallHeader {
                    procedure: 0,
                    credential: OpaqueAuth::NONE,
                    verifier: OpaqueAuth::NONE,
                    ..
                },
            ) => {
                let CallHeader { xid, program, version, .. } = header;
                assert_eq!(found, Some(NullCall { xid, program, version }), "bit {bit}");
            }
            _ => assert_eq!(found, None, "bit {bit}"),
        }
    }
}

#[test]
fn a_call_leaves_the_reader_at_its_arguments() {
    let mut wire = vector!("tcp-null-call");
    wire.extend([0, 0, 0, 7]);
    let mut reader = Reader::new(&wire[4..]);
    CallHeader::parse(&mut reader).unwrap();
    assert_eq!(reader.position(), 40);
    assert_eq!(reader.u32(), Ok(7));
}

#[test]
fn what_has_no_xid_and_call_type_is_dropped_5531_d() {
    let wire = &vector!("tcp-null-call")[4..];
    for len in 0..8 {
        assert_eq!(parse_call(&wire[..len]), Err(RpcError::Drop));
    }
    for msg_type in [1, 2, u32::MAX] {
        let mut wire = wire.to_vec();
        wire[4..8].copy_from_slice(&u32::to_be_bytes(msg_type));
        assert_eq!(parse_call(&wire), Err(RpcError::Drop));
    }
    assert_eq!(ReplyHeader::refusal(RpcError::Drop), None);
}

#[test]
fn a_call_cut_short_is_garbage_and_answered() {
    let wire = &vector!("tcp-null-call")[4..];
    for len in 8..wire.len() {
        let error = RpcError::Garbage { xid: 0x1122_3344, cause: XdrError::Truncated };
        assert_eq!(parse_call(&wire[..len]), Err(error));
        let answer = ReplyHeader::accepted(0x1122_3344, Accepted::GarbageArgs);
        assert_eq!(ReplyHeader::refusal(error), Some(answer));
    }
}

#[test]
fn another_rpc_version_is_denied_first_5531_a() {
    let mut wire = vector!("tcp-null-call")[4..].to_vec();
    wire[11] = 3;
    // Whatever else is wrong with it, or missing.
    wire[28..32].copy_from_slice(&[0xff; 4]);
    for len in 12..wire.len() {
        let error = parse_call(&wire[..len]).unwrap_err();
        assert_eq!(error, RpcError::Denied { xid: 0x1122_3344, reason: Denied::RPC_MISMATCH });
        let answer = ReplyHeader::refusal(error).unwrap();
        let expected = [0x11, 0x22, 0x33, 0x44, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 2];
        assert_eq!(emit(|writer| answer.emit(writer)), expected);
    }
}

#[test]
fn a_credential_or_verifier_above_400_octets_is_denied() {
    for (length_at, why) in [(28, AuthStat::BADCRED), (36, AuthStat::BADVERF)] {
        let mut wire = vector!("tcp-null-call")[4..].to_vec();
        wire[length_at..length_at + 4].copy_from_slice(&u32::to_be_bytes(401));
        wire.extend([0; 404]);
        let denied = RpcError::Denied { xid: 0x1122_3344, reason: Denied::AuthError(why) };
        assert_eq!(parse_call(&wire), Err(denied));
        wire[length_at..length_at + 4].copy_from_slice(&u32::to_be_bytes(400));
        assert!(parse_call(&wire).is_ok());
    }
    let long = OpaqueAuth { flavor: 9, body: &[0; 401] };
    let mut buf = [0; 1024];
    let call = CallHeader { credential: long, ..null_call() };
    assert_eq!(call.emit(&mut Writer::new(&mut buf)), Err(Overflow));
    let reply = ReplyBody::Accepted { verifier: long, outcome: Accepted::Success };
    assert_eq!(ReplyHeader { xid: 0, body: reply }.emit(&mut Writer::new(&mut buf)), Err(Overflow));
}

#[test]
fn auth_sys_reads_and_writes() {
    let wire = vector!("auth-sys");
    let credential: OpaqueAuth<'_> = Reader::new(&wire).value().unwrap();
    assert_eq!(credential.flavor, flavor::AUTH_SYS);
    let auth = AuthSys::parse(credential.body).unwrap();
    let gids = Gids::new(&[10, 27]).unwrap();
    let expected = AuthSys { stamp: 0, machine_name: b"host", uid: 1000, gid: 1000, gids };
    assert_eq!(auth, expected);
    assert_eq!(auth.gids.iter().collect::<Vec<_>>(), [10, 27]);

    // From what was read, and from the caller's own numbers.
    assert_eq!(emit(|writer| auth.encode(writer)), wire[8..]);
    assert_eq!(emit(|writer| expected.encode(writer)), wire[8..]);
    assert_eq!(emit(|writer| credential.encode(writer)), wire);
}

#[test]
fn auth_sys_keeps_its_limits() {
    let mut buf = [0; AuthSys::BODY_LEN_MAX];
    let gids = Gids::new(&[7; 16]).unwrap();
    let largest = AuthSys { stamp: 1, machine_name: &[b'm'; 255], uid: 2, gid: 3, gids };
    let mut writer = Writer::new(&mut buf);
    largest.encode(&mut writer).unwrap();
    assert_eq!(writer.remaining(), 0, "BODY_LEN_MAX is exact");
    assert_eq!(AuthSys::parse(&buf), Ok(largest));

    assert_eq!(Gids::new(&[7; 17]), None);
    let long_name = AuthSys { machine_name: &[b'm'; 256], ..largest };
    assert_eq!(long_name.encode(&mut Writer::new(&mut [0; 1024])), Err(Overflow));

    let body = &vector!("auth-sys")[8..];
    let too_many = XdrError::TooLong { limit: 16, found: 17 };
    let mut wire = body.to_vec();
    wire[23] = 17;
    wire.extend([0; 64]);
    assert_eq!(AuthSys::parse(&wire), Err(too_many));
    assert_eq!(AuthSys::parse(&[body, &[0; 4]].concat()), Err(XdrError::TrailingOctets));
    for len in 0..body.len() {
        assert_eq!(AuthSys::parse(&body[..len]), Err(XdrError::Truncated));
    }
}

#[test]
fn replies_of_the_examples_read_and_write() {
    let denied = Denied::AuthError(AuthStat::RPCSEC_GSS_CREDPROBLEM);
    let success = vector!("null-reply")[28..].to_vec();
    for (wire, reply) in [
        (success, ReplyHeader::accepted(0x1122_3344, Accepted::Success)),
        (vector!("denied"), ReplyHeader::denied(0x1122_3344, denied)),
        (
            vector!("prog-mismatch"),
            ReplyHeader::accepted(0x1122_3344, Accepted::ProgMismatch { low: 3, high: 4 }),
        ),
    ] {
        assert_eq!(parse_reply(&wire), Ok(reply));
        assert_eq!(emit(|writer| reply.emit(writer)), wire);
        assert_eq!(reply.emitted_len(), wire.len());
        for len in 0..wire.len() {
            let expected = match len {
                0..8 => RpcError::Drop,
                _ => RpcError::Garbage { xid: 0x1122_3344, cause: XdrError::Truncated },
            };
            assert_eq!(parse_reply(&wire[..len]), Err(expected));
        }
    }
}

#[test]
fn the_quick_success_is_the_same_as_the_general_one() {
    let reply = ReplyHeader::accepted(77, Accepted::Success);
    let wire = emit(|writer| emit_success(writer, 77));
    assert_eq!(wire, emit(|writer| reply.emit(writer)));

    let results = [&wire[..], b"here"].concat();
    let mut reader = Reader::new(&results);
    assert!(take_success(&mut reader, 77));
    assert_eq!(reader.rest(), b"here");
    // Any other word, or too few of them: nothing is read.
    for at in 0..wire.len() {
        let mut other = wire.clone();
        other[at] ^= 1;
        let mut reader = Reader::new(&other);
        assert!(!take_success(&mut reader, 77) && reader.position() == 0, "octet {at} differs");
        assert!(!take_success(&mut Reader::new(&wire[..at]), 77), "{at} octets");
    }
}

#[test]
fn every_outcome_goes_there_and_back() {
    let verifier = OpaqueAuth { flavor: flavor::RPCSEC_GSS, body: b"mic" };
    let outcomes = [
        Accepted::Success,
        Accepted::ProgUnavail,
        Accepted::ProgMismatch { low: 2, high: 4 },
        Accepted::ProcUnavail,
        Accepted::GarbageArgs,
        Accepted::SystemErr,
    ];
    let accepted = outcomes.map(|outcome| ReplyBody::Accepted { verifier, outcome });
    let denied = [Denied::RPC_MISMATCH, Denied::AuthError(AuthStat::TOOWEAK)].map(ReplyBody::Denied);
    for (value, body) in accepted.into_iter().chain(denied).enumerate() {
        let reply = ReplyHeader { xid: 5, body };
        let wire = emit(|writer| reply.emit(writer));
        assert_eq!(parse_reply(&wire), Ok(reply));
        assert_eq!(reply.emitted_len(), wire.len());
        assert_eq!(reply.is_success(), value == 0);
        if value < 6 {
            assert_eq!(wire[24..28], (value as u32).to_be_bytes(), "accept_stat");
        }
    }
}

#[test]
fn a_reply_with_values_that_do_not_exist_is_garbage() {
    let wire = vector!("null-reply")[28..].to_vec();
    for (at, found) in [(11, 2), (23, 6)] {
        let mut wire = wire.clone();
        wire[at] = found;
        let cause = XdrError::BadDiscriminant(u32::from(found));
        assert_eq!(parse_reply(&wire), Err(RpcError::Garbage { xid: 0x1122_3344, cause }));
    }
    let mut wire = vector!("denied");
    wire[15] = 2;
    let cause = XdrError::BadDiscriminant(2);
    assert_eq!(parse_reply(&wire), Err(RpcError::Garbage { xid: 0x1122_3344, cause }));
}
