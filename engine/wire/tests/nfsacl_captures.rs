//! NFSACL as a Linux client and server speak it: captured RPC messages decode, and encode to the same octets.

use stag_wire::nfs3::Handle;
use stag_wire::nfsacl::{
    ENTRIES_MAX, Entry, GetaclArguments, GetaclReply, PROGRAM, Procedure, SetaclArguments, SetaclReply,
    encode_acl, kind, mask,
};
use stag_wire::rpc::{Accepted, CallHeader, ReplyBody, ReplyHeader};
use stag_wire::xdr::{Decode, Encode, Reader, Writer, XdrError};

/// A file of `tests/captures/nfsacl`: `procedure N`, then `call` and `reply`, each with its octets.
struct Exchange {
    name: &'static str,
    call: Vec<u8>,
    reply: Vec<u8>,
}

fn exchange(name: &'static str, text: &str) -> Exchange {
    let (_, halves) = text.split_once("\ncall\n").unwrap();
    let (call, reply) = halves.split_once("\nreply\n").unwrap();
    let octets = |half: &str| {
        let digits: Vec<u8> = half.bytes().filter(u8::is_ascii_hexdigit).collect();
        let octet = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(octet).collect()
    };
    Exchange { name, call: octets(call), reply: octets(reply) }
}

macro_rules! captures {
    ($($name:literal)*) => {
        vec![$(exchange($name, include_str!(concat!("captures/nfsacl/", $name, ".hex")))),*]
    };
}

fn captures() -> Vec<Exchange> {
    captures!("null" "getacl" "getacl-default" "getacl-named" "getacl-entry" "getacl-rxe" "setacl" "setacl-long")
}

fn capture(name: &str) -> Exchange {
    captures().into_iter().find(|exchange| exchange.name == name).unwrap()
}

/// Reads what is left of a message, writes it, and compares.
fn same_again<'a, T: Decode<'a> + Encode>(mut reader: Reader<'a>) -> T {
    let body = reader.rest();
    let value: T = reader.value().unwrap();
    assert_eq!(reader.finish(), Ok(()));
    let mut buf = vec![0xaa; body.len()];
    let mut writer = Writer::new(&mut buf);
    writer.value(&value).unwrap();
    assert_eq!(writer.written(), body);
    if let Some(room) = body.len().checked_sub(1) {
        assert!(Writer::new(&mut buf[..room]).value(&value).is_err());
    }
    for len in 0..body.len() {
        assert!(T::decode(&mut Reader::new(&body[..len])).is_err());
    }
    value
}

fn call_body(octets: &[u8]) -> (Procedure, Reader<'_>) {
    let mut reader = Reader::new(octets);
    let header = CallHeader::parse(&mut reader).unwrap();
    assert_eq!((header.program, header.version), (PROGRAM, 3));
    (Procedure::from_number(header.procedure).unwrap(), reader)
}

fn reply_body(octets: &[u8]) -> (Accepted, Reader<'_>) {
    let mut reader = Reader::new(octets);
    match ReplyHeader::parse(&mut reader).unwrap().body {
        ReplyBody::Accepted { outcome, .. } => (outcome, reader),
        ReplyBody::Denied(reason) => panic!("{reason:?}"),
    }
}

/// 8267-5.2-a, 8267-P-1: nothing is reduced, whatever the lists are long.
#[test]
fn linux_messages_encode_to_the_same_octets() {
    for Exchange { name, call, reply } in captures() {
        let (procedure, arguments) = call_body(&call);
        let (outcome, results) = reply_body(&reply);
        // Linux's server takes no more entries than fit its one page; ours does.
        assert_eq!(outcome == Accepted::Success, name != "setacl-long", "{name}");
        match procedure {
            Procedure::Null => {
                same_again::<()>(arguments);
                same_again::<()>(results);
            }
            Procedure::Getacl => {
                same_again::<GetaclArguments<'_>>(arguments);
                same_again::<GetaclReply<'_>>(results).unwrap();
            }
            Procedure::Setacl => {
                same_again::<SetaclArguments<'_>>(arguments);
                if outcome == Accepted::Success {
                    same_again::<SetaclReply>(results).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_list_without_names_has_four_entries() {
    let reply = capture("getacl").reply;
    let lists = same_again::<GetaclReply<'_>>(reply_body(&reply).1).unwrap();
    assert_eq!(
        (lists.mask, lists.access.count, lists.default.count),
        (mask::ACCESS | mask::ACCESS_COUNT, 4, 0)
    );
    let entries: Vec<_> = lists.access.entries.iter().collect();
    let entry = |kind, permissions| Entry { kind, id: 0, permissions };
    assert_eq!(
        entries,
        [entry(kind::OWNER, 6), entry(kind::OWNING_GROUP, 4), entry(kind::MASK, 4), entry(kind::OTHER, 4)]
    );
    assert_eq!(lists.attributes.unwrap().mode, 0o644);

    // The same, as a server writes it.
    let mut buf = [0; 56];
    let mut writer = Writer::new(&mut buf);
    encode_acl(&mut writer, entries.iter().copied(), false).unwrap();
    let mut expected = [0; 56];
    Writer::new(&mut expected).value(&lists.access).unwrap();
    assert_eq!(writer.written(), expected);
    // Only counted: the number, and an empty array.
    let mut writer = Writer::new(&mut buf);
    encode_acl(&mut writer, entries.iter().copied(), true).unwrap();
    assert_eq!(writer.written(), [0, 0, 0, 4, 0, 0, 0, 0]);
}

#[test]
fn a_long_list_is_one_long_call() {
    let call = capture("setacl-long").call;
    let arguments = same_again::<SetaclArguments<'_>>(call_body(&call).1);
    assert_eq!((arguments.mask, arguments.access.count), (mask::ACCESS, 425));
    let users = arguments.access.entries.iter().filter(|entry| entry.kind == kind::USER);
    assert_eq!(users.count(), 421);
    assert_eq!(arguments.default.entries.iter().len(), 0);
}

/// XDR-f: the count of a list is not believed.
#[test]
fn lists_are_capped() {
    let mut buf = [0; 64];
    let mut writer = Writer::new(&mut buf);
    writer.value(&Handle(&[])).unwrap();
    for word in [mask::ALL, u32::MAX, u32::MAX] {
        writer.u32(word).unwrap();
    }
    let error = XdrError::TooLong { limit: ENTRIES_MAX, found: u32::MAX };
    assert_eq!(Reader::new(writer.written()).value::<SetaclArguments<'_>>(), Err(error));
}
