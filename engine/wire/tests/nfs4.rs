//! NFS version 4: the tables against the RFCs' own tables, limits, and what holds for all octets.

use proptest::collection::vec;
use proptest::prelude::*;
use stag_wire::nfs4::attributes::{
    ATTRIBUTES_LEN_CAP, Attribute, AttributeAccess, AttributeError, AttributeList, AttributeValue, Time4,
};
use stag_wire::nfs4::compound::{
    CompoundCall, CompoundReply, OperationError, OperationsWriter, Tag, WritePlace, locate_write,
};
use stag_wire::nfs4::files::{CreateType, ReadArguments4, ReadOk4, WriteArguments4, WriteHead};
use stag_wire::nfs4::lock::{LockDenied, LockKind};
use stag_wire::nfs4::open::StateOwner;
use stag_wire::nfs4::operation::{
    Argument4, CbArgument, CbOperation, CbOutcome, Operation4, OperationItem, Outcome4, Requirement,
};
use stag_wire::nfs4::session::SequenceArguments;
use stag_wire::nfs4::value::{BITMAP_WORDS_MAX, Refusal};
use stag_wire::nfs4::{
    Bitmap, Data, FileType4, List, Opaque, Path, SessionId, Stable, StateId, Status4, Verifier4,
};
use stag_wire::xdr::{Decode, Encode, Item, Reader, Reduced, Writer, XdrError};

fn encoded(value: &impl Encode) -> Vec<u8> {
    let mut buf = vec![0xff; 1 << 16];
    let mut writer = Writer::new(&mut buf);
    writer.value(value).unwrap();
    writer.written().to_vec()
}

/// 8178-8.4-a, 8881-17-a, 8881-16.2.3-d: what each minor version knows (RFC 8881 section 17, RFC 7862 section 13).
#[test]
fn notsupp_and_op_illegal_are_told_apart_in_each_minor_version() {
    for number in (0..200).chain([10_043, 10_044, 10_045, u32::MAX]) {
        let answers = [0, 1, 2, 3].map(|minor| Operation4::lookup(number, minor).err());
        let (illegal, forbidden) = (Some(Status4::OpIllegal), Some(Status4::NotSupp));
        let expected = match number {
            // Of 4.0 only.
            20 | 30 | 35 | 36 | 39 => [None, forbidden, forbidden, illegal],
            3..=39 => [None, None, None, illegal],
            // GETDEVICELIST, which 4.2 takes back.
            48 => [illegal, None, forbidden, illegal],
            40..=58 => [illegal, None, None, illegal],
            59..=75 => [illegal, illegal, None, illegal],
            _ => [illegal; 4],
        };
        assert_eq!(answers, expected, "{number}");
    }
    // GET_DIR_DELEGATION, which Linux sends from 6.19 on: known, so who does not execute it answers NFS4ERR_NOTSUPP.
    assert_eq!(Operation4::lookup(46, 1), Ok(Operation4::GetDirDelegation));
    assert_eq!(Operation4::GetDirDelegation.requirement(2), Requirement::Optional);
}

#[test]
fn required_and_optional_operations_are_those_of_the_rfcs() {
    let named = |minor, requirement| -> Vec<&str> {
        let all = Operation4::ALL.iter().filter(|operation| operation.requirement(minor) == requirement);
        all.map(|operation| operation.name()).collect()
    };
    let optional_in_4_1 = [
        "DELEGPURGE",
        "DELEGRETURN",
        "LINK",
        "OPENATTR",
        "READLINK",
        "GET_DIR_DELEGATION",
        "GETDEVICEINFO",
        "GETDEVICELIST",
        "LAYOUTCOMMIT",
        "LAYOUTGET",
        "LAYOUTRETURN",
        "WANT_DELEGATION",
    ];
    assert_eq!(named(1, Requirement::Optional), optional_in_4_1);
    assert_eq!(named(1, Requirement::Recommended), ["SECINFO_NO_NAME"]);
    assert_eq!(named(2, Requirement::Recommended), ["SECINFO_NO_NAME"]);
    assert_eq!(named(1, Requirement::Required).len(), 38);
    assert_eq!(named(2, Requirement::Required), named(1, Requirement::Required));
    assert_eq!(named(2, Requirement::Optional).len(), 11 + 17);
    let forbidden = ["OPEN_CONFIRM", "RENEW", "SETCLIENTID", "SETCLIENTID_CONFIRM", "RELEASE_LOCKOWNER"];
    assert_eq!(named(1, Requirement::Forbidden), forbidden);
    assert_eq!(named(0, Requirement::Forbidden), [""; 0]);
}

#[test]
fn callbacks_are_known_since_their_minor_version() {
    for number in (0..20).chain([10_044]) {
        let known = [0, 1, 2].map(|minor| CbOperation::lookup(number, minor).is_ok());
        let expected = match number {
            3 | 4 => [true; 3],
            5..=14 => [false, true, true],
            15 => [false, false, true],
            _ => [false; 3],
        };
        assert_eq!(known, expected, "{number}");
    }
}

/// 8881-5.5-a (RFC 8881 section 5.6 and 5.7, RFC 7862 section 12.2, RFC 8275, RFC 8276).
#[test]
fn attributes_are_settable_and_known_as_the_rfcs_say() {
    let numbers = |belongs: &dyn Fn(Attribute) -> bool| -> Vec<u32> {
        Attribute::ALL.iter().filter(|attribute| belongs(**attribute)).map(|found| found.number()).collect()
    };
    assert_eq!(numbers(&|_| true), (0..=82).collect::<Vec<_>>());
    let both = [4, 12, 14, 25, 32, 33, 36, 37, 46, 49, 50, 58, 59, 73, 80];
    assert_eq!(numbers(&|attribute| attribute.access() == AttributeAccess::GetSet), both);
    assert_eq!(
        numbers(&|attribute| attribute.access() == AttributeAccess::Set),
        [48, 54, 63, 70, 72, 74, 81]
    );
    assert_eq!(numbers(&|attribute| attribute.since() == 1), (56..=76).collect::<Vec<_>>());
    assert_eq!(numbers(&|attribute| attribute.since() == 2), (77..=82).collect::<Vec<_>>());
    assert_eq!(Attribute::known_in(0).iter().collect::<Vec<_>>(), (0..=55).collect::<Vec<_>>());
    assert_eq!(Attribute::known_in(2).iter().count(), 83);
    assert!(!Attribute::TimeModifySet.is_readable() && Attribute::TimeModifySet.is_settable());
}

#[test]
fn statuses_have_the_numbers_of_the_rfcs() {
    assert_eq!(Status4::ALL.len(), 113);
    assert!(Status4::ALL.is_sorted_by_key(|status| status.number()));
    assert_eq!(Status4::from_number(10_073), None, "never assigned");
    assert_eq!(Status4::from_number(19), None, "NODEV is of version 3");
    assert_eq!((Status4::Xattr2Big.number(), Status4::NoXattr.number()), (10_096, 10_095));
}

/// 8881-18.7.3-b
#[test]
fn bitmaps_keep_unknown_words_and_end_at_their_limit() {
    // Bit 1000, as a test of other servers asks for.
    let mut octets = encoded(&32_u32);
    octets.extend([0; 31 * 4]);
    octets.extend((1_u32 << (1000 % 32)).to_be_bytes());
    let bitmap: Bitmap<'_> = Reader::new(&octets).value().unwrap();
    assert_eq!(bitmap.iter().collect::<Vec<_>>(), [1000]);
    assert!(bitmap.contains(1000) && !bitmap.contains(999) && !bitmap.is_empty());
    assert!(!bitmap.is_within(&Attribute::known_in(2)) && bitmap.is_within(&bitmap));
    assert_eq!(encoded(&bitmap), octets);
    assert!(bitmap.intersection(&Attribute::known_in(2)).is_empty());
    let words = |count: u32| [count.to_be_bytes().to_vec(), vec![0; count as usize * 4]].concat();
    assert!(Reader::new(&words(BITMAP_WORDS_MAX)).value::<Bitmap<'_>>().is_ok());
    let long = words(BITMAP_WORDS_MAX + 1);
    let error = Reader::new(&long).value::<Bitmap<'_>>();
    assert_eq!(error, Err(XdrError::TooLong { limit: BITMAP_WORDS_MAX, found: BITMAP_WORDS_MAX + 1 }));
    // Words of zeros at the end are kept as they came, and not sent by us.
    assert_eq!(encoded(&Reader::new(&words(5)).value::<Bitmap<'_>>().unwrap()), words(5));
    assert_eq!(encoded(&Bitmap::from_words([0, 1, 0])), [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1]);
}

/// 8881-18.30.3-a
#[test]
fn an_unknown_attribute_is_told_from_a_malformed_one() {
    let list =
        |mask: [u32; 3], values: &'static [u8]| AttributeList { mask: Bitmap::from_words(mask), values };
    let last = |list: AttributeList<'static>| list.values().last().unwrap();
    let size = list([1 << 4, 0, 0], &[0, 0, 0, 0, 0, 0, 0, 9]);
    assert_eq!(last(size), Ok((Attribute::Size, AttributeValue::U64(9))));
    let cut = last(list([1 << 4, 0, 0], &[0; 4])).unwrap_err();
    assert_eq!(cut, AttributeError::Malformed(XdrError::Truncated));
    let more = last(list([1 << 4, 0, 0], &[0; 12])).unwrap_err();
    assert_eq!((more, more.status()), (AttributeError::Malformed(XdrError::TrailingOctets), Status4::BadXdr));
    let unknown = last(list([1 << 4, 0, 1 << (95 - 64)], &[0; 12])).unwrap_err();
    assert_eq!((unknown, unknown.status()), (AttributeError::Unknown(95), Status4::AttrNotSupp));
    // An error ends the values.
    assert_eq!(list([1 << 4 | 1 << 20, 0, 0], &[0; 4]).values().count(), 1);
    assert_eq!(list([0; 3], &[]).values().count(), 0);
    let long = [0, ATTRIBUTES_LEN_CAP + 1].map(u32::to_be_bytes);
    let error = Reader::new(long.as_flattened()).value::<AttributeList<'_>>().err();
    assert_eq!(error, Some(XdrError::TooLong { limit: ATTRIBUTES_LEN_CAP, found: ATTRIBUTES_LEN_CAP + 1 }));
}

#[test]
fn attributes_are_written_in_the_order_of_their_numbers() {
    let mask = Attribute::set_of(|attribute| {
        matches!(attribute, Attribute::Mode | Attribute::Type | Attribute::Owner | Attribute::TimeModify)
    });
    let mut buf = [0xff; 128];
    let mut writer = Writer::new(&mut buf);
    let time = Time4 { seconds: -1, nanoseconds: 5 };
    AttributeList::encode_with(&mut writer, &mask, |attribute| match attribute {
        Attribute::Type => AttributeValue::FileType(FileType4::Directory),
        Attribute::Mode => AttributeValue::U32(0o755),
        Attribute::Owner => AttributeValue::Text(Opaque(b"1000")),
        _ => AttributeValue::Time(time),
    })
    .unwrap();
    let list: AttributeList<'_> = Reader::new(writer.written()).value().unwrap();
    let names: Vec<_> = list.values().map(|value| value.unwrap().0.name()).collect();
    assert_eq!(names, ["type", "mode", "owner", "time_modify"]);
    assert_eq!(
        format!("{list:?}"),
        "{type: Directory, mode: 493, owner: \"1000\", time_modify: Time4 { seconds: -1, nanoseconds: 5 }}"
    );
}

const SEQUENCE: SequenceArguments = SequenceArguments {
    session: SessionId { 0: [7; 16] },
    sequence_id: 5,
    slot: 2,
    highest_slot: 3,
    keep_reply: true,
};

/// A COMPOUND of SEQUENCE, PUTFH and what follows.
fn compound(more: &[Argument4<'_>]) -> Vec<u8> {
    let mut buf = vec![0xff; 4096];
    let mut writer = Writer::new(&mut buf);
    let mut operations = OperationsWriter::begin_call(&mut writer, &Tag::default(), 1).unwrap();
    operations.push(&Argument4::Sequence(SEQUENCE)).unwrap();
    operations.push(&Argument4::Putfh(Opaque(&[9; 20]))).unwrap();
    more.iter().for_each(|item| operations.push(item).unwrap());
    operations.finish();
    writer.written().to_vec()
}

const HEAD: WriteHead = WriteHead { stateid: StateId::ANONYMOUS, offset: 4096, stable: Stable::FileSync };

/// 8267-6.4.1-a: the Position of a WRITE's data is known before the data is there.
#[test]
fn the_data_of_a_write_is_located() {
    let data = [1; 1000];
    let write = Argument4::Write(WriteArguments4 { head: HEAD, data: Data(Item::Inline(&data)) });
    let message = compound(&[write, Argument4::Getfh(())]);
    let at = message.windows(1000).position(|window| window == data).unwrap();
    // Behind an RPC header of 44 octets.
    let locate = |octets| locate_write(Reader::with_reduced_at(octets, 44, &[]));
    let expected = Some(WritePlace { position: 44 + at as u64, len: 1000 });
    assert_eq!(locate(&message), expected);
    assert_eq!(locate(&message[..at]), expected, "the octets before the data are enough");
    for len in 0..at {
        assert_eq!(locate(&message[..len]), None);
    }
    assert_eq!(locate(&compound(&[Argument4::Getfh(())])), None, "there is no WRITE");
    // The same by chunk: what is at the Position decodes as the reduced item.
    let reduced = WriteArguments4 { head: HEAD, data: Data(Item::Reduced { index: 3, len: 1000 }) };
    let message = compound(&[Argument4::Write(reduced), Argument4::Getfh(())]);
    let chunk = [Reduced::read_chunk(3, 44 + at as u32, 1000)];
    let mut call = CompoundCall::parse(Reader::with_reduced_at(&message, 44, &chunk)).unwrap();
    let items: Vec<_> = std::iter::from_fn(|| call.operations.next_item()).map(Result::unwrap).collect();
    assert_eq!(items[2], Argument4::Write(reduced));
    call.operations.finish().unwrap();
}

/// 8267-2-a: nothing but WRITE's data and CREATE's link text is eligible; a chunk anywhere else is refused.
#[test]
fn eligible_items_are_those_that_the_table_marks() {
    let eligible: Vec<_> = Operation4::ALL.iter().filter(|found| found.has_eligible_argument()).collect();
    assert_eq!(eligible, [&Operation4::Create, &Operation4::Write]);
    let eligible: Vec<_> = Operation4::ALL.iter().filter(|found| found.has_eligible_result()).collect();
    assert_eq!(eligible, [&Operation4::Read, &Operation4::Readlink]);
    let link = CreateType::Symlink(Path(Item::Reduced { index: 0, len: 5 }));
    let octets = encoded(&link);
    let chunk = [Reduced::read_chunk(0, 8, 5)];
    assert_eq!(Reader::with_reduced(&octets, &chunk).value(), Ok(link));
    let name = encoded(&Argument4::Lookup(Opaque(b"name")));
    let chunk = [Reduced::read_chunk(0, 8, 4)];
    let mut reader = Reader::with_reduced(&name, &chunk);
    reader.u32().unwrap();
    assert_eq!(Argument4::decode_numbered(15, &mut reader), Some(Err(XdrError::IneligibleChunk)));
    // Several READs of one COMPOUND take the Write chunks in order; a failed one takes none (8267-6.4.1-c).
    let read = |index, len| Ok(ReadOk4 { eof: false, data: Data(Item::Reduced { index, len }) });
    let mut buf = [0; 256];
    let mut writer = Writer::new(&mut buf);
    let mut results = OperationsWriter::begin_reply(&mut writer, &Opaque(b"tag")).unwrap();
    let items = [Outcome4::Read(read(0, 10)), Outcome4::Read(read(1, 20)), Outcome4::Read(Err(Status4::Io))];
    items.iter().for_each(|item| results.push_result(item).unwrap());
    results.finish();
    let chunks = [Reduced::write_chunk(0, 10), Reduced::write_chunk(1, 20), Reduced::write_chunk(2, 0)];
    let mut reply = CompoundReply::parse(Reader::with_reduced(writer.written(), &chunks)).unwrap();
    assert_eq!((reply.status, reply.tag.0), (Status4::Io, &b"tag"[..]));
    let again: Vec<_> = std::iter::from_fn(|| reply.operations.next_item()).map(Result::unwrap).collect();
    assert_eq!(again, items);
    reply.operations.finish().unwrap();
}

/// 7530-15.2.4-a
#[test]
fn operations_before_an_unknown_or_malformed_one_are_read() {
    let mut message = compound(&[Argument4::Getfh(())]);
    let at = message.len() - 4;
    message[at..].copy_from_slice(&76_u32.to_be_bytes());
    let mut call = CompoundCall::parse(Reader::new(&message)).unwrap();
    assert_eq!((call.minor_version, call.operations.left()), (1, 3));
    assert_eq!(call.operations.next_item(), Some(Ok(Argument4::Sequence(SEQUENCE))));
    assert!(matches!(call.operations.next_item(), Some(Ok(Argument4::Putfh(_)))));
    assert_eq!(call.operations.next_item(), Some(Err(OperationError::Unknown(76))));
    // A count that the octets cannot hold is refused at once.
    message[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(CompoundCall::parse(Reader::new(&message)).err(), Some(XdrError::Truncated));
}

#[test]
fn what_does_not_fit_leaves_a_reply_as_it_was() {
    let mut buf = [0xff; 12 + 8 + 8];
    let mut writer = Writer::new(&mut buf);
    let mut results = OperationsWriter::begin_reply(&mut writer, &Tag::default()).unwrap();
    results.push_result(&Outcome4::Putfh(Ok(()))).unwrap();
    assert!(results.push_result(&Outcome4::Getfh(Ok(Opaque(&[0; 20])))).is_err());
    results.push_result(&Outcome4::Getfh(Err(Status4::RepTooBig))).unwrap();
    assert_eq!((results.count(), results.remaining()), (2, 0));
    results.finish();
    let mut reply = CompoundReply::parse(Reader::new(writer.written())).unwrap();
    assert_eq!((reply.status, reply.operations.left()), (Status4::RepTooBig, 2));
    assert_eq!(reply.operations.next_item(), Some(Ok(Outcome4::Putfh(Ok(())))));
}

#[test]
fn some_failures_have_fields() {
    let owner = StateOwner { clientid: 1, owner: Opaque(b"me") };
    let denied = LockDenied { offset: 0, length: u64::MAX, kind: LockKind::Write, owner };
    let outcome = Outcome4::Lock(Err(Refusal::Detailed(denied)));
    assert_eq!(outcome.status(), Status4::Denied);
    let octets = encoded(&outcome);
    assert_eq!(octets[4..8], Status4::Denied.number().to_be_bytes());
    let mut reader = Reader::new(&octets[4..]);
    assert_eq!(Outcome4::decode_numbered(12, &mut reader), Some(Ok(outcome)));
    assert_eq!(reader.finish(), Ok(()));
    let plain = Outcome4::Lock(Err(Refusal::Plain(Status4::Grace)));
    assert_eq!((plain.status(), encoded(&plain).len()), (Status4::Grace, 8));
}

#[test]
fn lists_of_values_are_those_that_are_received() {
    let values = [StateId::CURRENT, StateId { seqid: 3, other: [1; 12] }];
    let list: List<'_, StateId, 4> = List::new(&values);
    let octets = encoded(&list);
    let received: List<'_, StateId, 4> = Reader::new(&octets).value().unwrap();
    assert_eq!((received, received.len()), (list, 2));
    assert_eq!(received.iter().collect::<Vec<_>>(), values);
    assert_eq!(format!("{received:?}"), "[current, 3:010101010101010101010101]");
    assert_eq!(
        Reader::new(&octets).value::<List<'_, StateId, 1>>().err(),
        Some(XdrError::TooLong { limit: 1, found: 2 })
    );
    assert_eq!(Reader::new(&octets[..20]).value::<List<'_, StateId, 4>>().err(), Some(XdrError::Truncated));
}

/// Reads one item with its number, writes it again, and compares.
fn same<'a, I: OperationItem<'a> + std::fmt::Debug>(octets: &'a [u8]) -> String {
    let mut reader = Reader::new(octets);
    let number = reader.u32().unwrap();
    let item =
        I::decode_numbered(number, &mut reader).unwrap().unwrap_or_else(|error| panic!("{number}: {error}"));
    let shown = format!("{item:?}");
    assert_eq!(reader.finish(), Ok(()), "{shown}");
    assert_eq!(encoded(&item), octets, "{shown}");
    for len in 4..octets.len() {
        assert!(
            I::decode_numbered(number, &mut Reader::new(&octets[4..len])).unwrap().is_err(),
            "{shown} cut"
        );
    }
    shown
}

/// Values that a reader of the RFCs' .x files made (vectors/nfs4.py): every operation and every attribute, several times.
#[test]
fn what_the_x_files_say_decodes_and_encodes_to_the_same_octets() {
    let (mut kinds, mut attributes) = (std::collections::BTreeMap::<&str, usize>::new(), 0);
    for line in include_str!("vectors/nfs4.txt").lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let digits = words.last().unwrap().trim_start_matches('-');
        let octets: Vec<u8> = (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap())
            .collect();
        *kinds.entry(words[0]).or_default() += 1;
        match words[0] {
            "argument" => drop(same::<Argument4<'_>>(&octets)),
            "result" => drop(same::<Outcome4<'_>>(&octets)),
            "cb-argument" => drop(same::<CbArgument<'_>>(&octets)),
            "cb-result" => drop(same::<CbOutcome<'_>>(&octets)),
            _ => {
                let attribute = Attribute::from_number(words[1].parse().unwrap()).unwrap();
                let mut reader = Reader::new(&octets);
                let value = AttributeValue::decode(attribute.attribute_type(), &mut reader).unwrap();
                assert_eq!(reader.finish(), Ok(()), "{attribute:?} {value:?}");
                assert_eq!(encoded(&value), octets, "{attribute:?} {value:?}");
                attributes = attributes.max(attribute.number());
            }
        }
    }
    assert_eq!((kinds.len(), attributes), (5, 82));
    assert!(kinds["argument"] > 2 * 70 && kinds["result"] > 2 * 70, "{kinds:?}");
}

/// Decodes one item of a type from octets, encodes it again, and decodes that: the same value of the same length.
fn again<'a, I: OperationItem<'a> + PartialEq + std::fmt::Debug>(
    number: u32,
    octets: &'a [u8],
) -> Option<Vec<u8>> {
    let mut reader = Reader::new(octets);
    let item = I::decode_numbered(number, &mut reader)?.ok()?;
    let len = reader.position();
    let _ = format!("{item:?}");
    let written = encoded(&item);
    assert_eq!(written.len(), 4 + len, "{item:?}");
    for room in [0, 4, len / 2, len + 3] {
        let mut small = vec![0; room.min(len + 3)];
        assert!(Writer::new(&mut small).value(&item).is_err());
    }
    Some(written[4..].to_vec())
}

fn check_all(octets: &[u8]) {
    let numbers = Operation4::ALL.iter().map(|found| found.number());
    for number in numbers {
        if let Some(written) = again::<Argument4<'_>>(number, octets) {
            assert_eq!(again::<Argument4<'_>>(number, &written), Some(written.clone()));
        }
        if let Some(written) = again::<Outcome4<'_>>(number, octets) {
            assert_eq!(again::<Outcome4<'_>>(number, &written), Some(written.clone()));
        }
    }
    for number in CbOperation::ALL.iter().map(|found| found.number()) {
        if let Some(written) = again::<CbArgument<'_>>(number, octets) {
            assert_eq!(again::<CbArgument<'_>>(number, &written), Some(written.clone()));
        }
        if let Some(written) = again::<CbOutcome<'_>>(number, octets) {
            assert_eq!(again::<CbOutcome<'_>>(number, &written), Some(written.clone()));
        }
    }
}

/// Mostly small words, so that counts and discriminants are often right.
fn likely_octets() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![8 => 0..3_u32, 1 => 0..64_u32, 1 => any::<u32>()];
    vec(word, 0..60).prop_map(|words| words.into_iter().flat_map(u32::to_be_bytes).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 400 }))]

    #[test]
    fn whatever_decodes_encodes_to_the_same(octets in prop_oneof![3 => likely_octets(), 1 => vec(any::<u8>(), 0..200)]) {
        check_all(&octets);
    }

    #[test]
    fn attributes_of_any_octets_end(mask in any::<[u32; 3]>(), octets in likely_octets()) {
        let list = AttributeList { mask: Bitmap::from_words(mask), values: &octets };
        prop_assert!(list.values().count() <= 96);
        let values: Result<Vec<_>, _> = list.values().collect();
        if let Ok(values) = values {
            let mut buf = vec![0; octets.len() + 64];
            let mut writer = Writer::new(&mut buf);
            let mut left = values.iter();
            AttributeList::encode_with(&mut writer, &list.mask, |_| left.next().unwrap().1).unwrap();
            let again: AttributeList<'_> = Reader::new(writer.written()).value().unwrap();
            prop_assert!(again.values().eq(list.values()));
        }
    }

    #[test]
    fn read_and_sequence_are_their_fields_in_order(offset: u64, count: u32, seqid: u32, other: [u8; 12]) {
        let value = ReadArguments4 { stateid: StateId { seqid, other }, offset, count };
        let octets = [&seqid.to_be_bytes()[..], &other, &offset.to_be_bytes(), &count.to_be_bytes()].concat();
        prop_assert_eq!(encoded(&value), octets.clone());
        prop_assert_eq!(ReadArguments4::decode(&mut Reader::new(&octets)), Ok(value));
        let sequence = SequenceArguments { sequence_id: seqid, slot: count, ..SEQUENCE };
        prop_assert_eq!(Reader::new(&encoded(&sequence)).value(), Ok(sequence));
        prop_assert_eq!(encoded(&Verifier4::default()).len(), 8);
    }
}
