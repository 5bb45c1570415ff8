//! COMPOUNDs: each operation in a line, Calls and Replies compared, and each rule that they break by its number.

use stag_wire::nfs4::attributes::{AttributeList, AttributeSet};
use stag_wire::nfs4::callback::{CbRecallArguments, CbSequenceArguments, CbSequenceOk};
use stag_wire::nfs4::compound::{OperationsWriter, Tag};
use stag_wire::nfs4::files::{CreateType, GetattrArguments4};
use stag_wire::nfs4::operation::{Argument4, CbArgument, CbOutcome, Outcome4};
use stag_wire::nfs4::session::{SequenceArguments, SequenceOk};
use stag_wire::nfs4::{Bitmap, List, Opaque, SessionId, StateId, Status4};
use stag_wire::xdr::Writer;

mod support;
use stag_dump::{Analyzer, EventKind, Options};
use support::captures;
use support::remake::rules;
use support::talk::*;

const SEQUENCE: SequenceArguments = SequenceArguments {
    session: SessionId { 0: [7; 16] },
    sequence_id: 5,
    slot: 2,
    highest_slot: 3,
    keep_reply: false,
};

const SEQUENCE_OK: SequenceOk = SequenceOk {
    session: SessionId { 0: [7; 16] },
    sequence_id: 5,
    slot: 2,
    highest_slot: 3,
    target_highest_slot: 3,
    status_flags: 0,
};

const SIZE: [u32; 3] = [1 << 4, 0, 0];

fn arguments(minor_version: u32, items: &[Argument4<'_>]) -> Vec<u8> {
    let mut buf = vec![0; 4096];
    let mut writer = Writer::new(&mut buf);
    let mut operations = OperationsWriter::begin_call(&mut writer, &Tag::default(), minor_version).unwrap();
    items.iter().for_each(|item| operations.push(item).unwrap());
    operations.finish();
    writer.written().to_vec()
}

fn results(items: &[Outcome4<'_>]) -> Vec<u8> {
    let mut buf = vec![0; 4096];
    let mut writer = Writer::new(&mut buf);
    let mut operations = OperationsWriter::begin_reply(&mut writer, &Tag::default()).unwrap();
    items.iter().for_each(|item| operations.push_result(item).unwrap());
    operations.finish();
    writer.written().to_vec()
}

/// A Call of COMPOUND, or of another program's procedure 1.
fn call4(xid: u32, program: u32, version: u32, arguments: &[u8]) -> Vec<u8> {
    [&words(&[xid, 0, 2, program, version, 1, 0, 0, 0, 0])[..], arguments].concat()
}

/// What is said of a Call, and of its Reply if there is one: a line for each operation, and the rules that are broken.
fn told(arguments: &[u8], results: Option<&[u8]>) -> (Vec<String>, Vec<(&'static str, u64)>) {
    let mut talk = Talk::new().greet();
    talk.send(CLIENT, &plain(2, 32, &call4(2, 100_003, 4, arguments)));
    if let Some(results) = results {
        talk.send(SERVER, &plain(2, 32, &reply(2, results)));
    }
    said(&talk)
}

fn said(talk: &Talk) -> (Vec<String>, Vec<(&'static str, u64)>) {
    let mut analyzer = Analyzer::new(Options::default());
    let mut lines = Vec::new();
    let mut sink = |event: &stag_dump::CapturedEvent<'_>| {
        if let EventKind::Message(message) = &event.kind
            && let Some(compound) = message.compound
        {
            lines.extend(compound.operations.iter().map(ToString::to_string));
            lines.extend((compound.unlisted > 0).then(|| format!("{} unlisted", compound.unlisted)));
        }
    };
    for (index, frame) in talk.frames.iter().enumerate() {
        let (number, time) = (index as u64 + 1, frame.time);
        let link = support::remake::link::ETHERNET;
        analyzer.frame(
            &stag_dump::capture::CapturedFrame { number, time, link, octets: &frame.octets, missing: 0 },
            &mut sink,
        );
    }
    let totals = analyzer.finish(&mut sink);
    let broken = rules(&totals);
    (lines, broken)
}

fn broken(arguments: &[u8], results: &[u8]) -> Vec<(&'static str, u64)> {
    told(arguments, Some(results)).1
}

const GETATTR: Argument4<'_> =
    Argument4::Getattr(GetattrArguments4 { request: AttributeSet(Bitmap::from_words(SIZE)) });

fn getattr_ok(mask: [u32; 3], values: &[u8]) -> Outcome4<'_> {
    Outcome4::Getattr(Ok(AttributeList { mask: Bitmap::from_words(mask), values }))
}

#[test]
fn each_operation_has_a_line() {
    let sent = arguments(1, &[Argument4::Sequence(SEQUENCE), Argument4::Lookup(Opaque(b"name")), GETATTR]);
    let results = results(&[Outcome4::Sequence(Ok(SEQUENCE_OK)), Outcome4::Lookup(Err(Status4::NoEnt))]);
    let (lines, broken) = told(&sent, Some(&results));
    let session = "07".repeat(16);
    assert_eq!(
        lines,
        [
            format!(
                "SEQUENCE session: {session}, sequence_id: 5, slot: 2, highest_slot: 3, keep_reply: false"
            ),
            "LOOKUP \"name\"".into(),
            "GETATTR request: {size}".into(),
            format!(
                "SEQUENCE NFS4_OK session: {session}, sequence_id: 5, slot: 2, highest_slot: 3, \
                 target_highest_slot: 3, status_flags: 0"
            ),
            "LOOKUP NFS4ERR_NOENT".into(),
        ]
    );
    assert_eq!(broken, []);
}

#[test]
fn an_operation_without_a_name_is_told_by_its_number() {
    let mut sent = arguments(2, &[Argument4::Sequence(SEQUENCE), Argument4::Getfh(()), Argument4::Getfh(())]);
    let at = sent.len() - 8;
    sent[at..at + 4].copy_from_slice(&76_u32.to_be_bytes());
    let illegal = results(&[Outcome4::Sequence(Ok(SEQUENCE_OK)), Outcome4::Illegal(Err(Status4::OpIllegal))]);
    let (lines, broken) = told(&sent, Some(&illegal));
    assert!(lines[1].starts_with("operation 76 is not known"), "{lines:?}");
    assert_eq!((&lines[2][..], &lines[4][..]), ("1 unlisted", "ILLEGAL NFS4ERR_OP_ILLEGAL"));
    assert_eq!(broken, []);
}

/// 8881-16.2.3-a, 8881-16.2.3-b, 8881-16.2.3-c, 8881-16.2.3-e: how results answer their operations.
#[test]
fn results_that_do_not_answer_their_operations() {
    let sequence = Outcome4::Sequence(Ok(SEQUENCE_OK));
    let sent = arguments(1, &[Argument4::Sequence(SEQUENCE), Argument4::Putrootfh(()), GETATTR]);
    let size = [0; 8];
    let right = [sequence, Outcome4::Putrootfh(Ok(())), getattr_ok(SIZE, &size)];
    assert_eq!(broken(&sent, &results(&right)), []);
    assert_eq!(broken(&sent, &results(&right[..2])), [("8881-16.2.3-a", 1)]);
    let after = [sequence, Outcome4::Putrootfh(Err(Status4::Io)), getattr_ok(SIZE, &size)];
    assert_eq!(broken(&sent, &results(&after)), [("8881-16.2.3-a", 1)]);
    let mut other = results(&right);
    other[..4].copy_from_slice(&Status4::Io.number().to_be_bytes());
    assert_eq!(broken(&sent, &other), [("8881-16.2.3-b", 1)]);
    let order = [sequence, getattr_ok(SIZE, &size), Outcome4::Putrootfh(Ok(()))];
    assert_eq!(broken(&sent, &results(&order)), [("8881-16.2.3-c", 2)]);
    let more = [&right[..], &[Outcome4::Savefh(Ok(()))]].concat();
    assert_eq!(broken(&sent, &results(&more)), [("8881-16.2.3-c", 1)]);
    let mut mismatch = results(&[sequence]);
    mismatch[..4].copy_from_slice(&Status4::MinorVersMismatch.number().to_be_bytes());
    assert_eq!(broken(&sent, &mismatch), [("8881-16.2.3-b", 1), ("8881-16.2.3-e", 1)]);
}

/// 8178-8.4-a, 8881-16.2.3-d: an operation that the minor version has is not ILLEGAL.
#[test]
fn an_operation_that_is_answered_as_illegal_though_it_is_known() {
    let directory = stag_wire::nfs4::open::GetDirDelegationArguments {
        signal_available: false,
        notifications: Bitmap::EMPTY,
        child_delay: Default::default(),
        directory_delay: Default::default(),
        child_attributes: Bitmap::EMPTY,
        directory_attributes: Bitmap::EMPTY,
    };
    let sent =
        |minor| arguments(minor, &[Argument4::Sequence(SEQUENCE), Argument4::GetDirDelegation(directory)]);
    let illegal = results(&[Outcome4::Sequence(Ok(SEQUENCE_OK)), Outcome4::Illegal(Err(Status4::OpIllegal))]);
    assert_eq!(broken(&sent(1), &illegal), [("8178-8.4-a", 1)]);
    let declined =
        results(&[Outcome4::Sequence(Ok(SEQUENCE_OK)), Outcome4::GetDirDelegation(Err(Status4::NotSupp))]);
    assert_eq!(broken(&sent(1), &declined), []);
    // 4.0 does not have it.
    let sent = arguments(0, &[Argument4::GetDirDelegation(directory)]);
    assert_eq!(broken(&sent, &results(&[Outcome4::Illegal(Err(Status4::OpIllegal))])), []);
}

/// 8881-18.46.3-a, 8881-15.1.3.5-a, 8881-15.1.3.3-a: where SEQUENCE stands.
#[test]
fn a_sequence_that_is_missing_or_late() {
    let rules = |minor, items: &[Argument4<'_>]| told(&arguments(minor, items), None).1;
    assert_eq!(rules(0, &[Argument4::Putrootfh(()), GETATTR]), []);
    assert_eq!(rules(1, &[Argument4::Putrootfh(()), GETATTR]), [("8881-15.1.3.5-a", 1)]);
    assert_eq!(rules(1, &[Argument4::DestroySession(SEQUENCE.session)]), []);
    let destroy = Argument4::DestroyClientid(1);
    assert_eq!(rules(2, &[destroy, Argument4::Putrootfh(())]), [("8881-15.1.3.3-a", 1)]);
    let twice = [Argument4::Sequence(SEQUENCE), Argument4::Sequence(SEQUENCE)];
    assert_eq!(rules(1, &twice), [("8881-18.46.3-a", 1)]);
    assert_eq!(rules(1, &[]), []);
}

/// 8881-18.46.3-b, 8881-18.7.3-a: results that are another request's, or more than was asked for.
#[test]
fn results_that_were_not_asked_for() {
    let sent = arguments(1, &[Argument4::Sequence(SEQUENCE), GETATTR]);
    let size = [0; 8];
    let other = Outcome4::Sequence(Ok(SequenceOk { slot: 1, ..SEQUENCE_OK }));
    assert_eq!(broken(&sent, &results(&[other, getattr_ok(SIZE, &size)])), [("8881-18.46.3-b", 1)]);
    let sequence = Outcome4::Sequence(Ok(SEQUENCE_OK));
    let more = [0; 16];
    let both = getattr_ok([1 << 4 | 1 << 3, 0, 0], &more);
    assert_eq!(broken(&sent, &results(&[sequence, both])), [("8881-18.7.3-a", 1)]);
    // Attributes that end early, and some that are not known.
    assert_eq!(broken(&sent, &results(&[sequence, getattr_ok(SIZE, &[0; 4])])), [("XDR-f", 1)]);
    let unknown = told(&arguments(1, &[Argument4::Sequence(SEQUENCE)]), None);
    assert_eq!(unknown.1, []);
}

/// 8166-6.1-c, XDR-f: what is malformed.
#[test]
fn operations_that_are_malformed() {
    let sent = arguments(1, &[Argument4::Sequence(SEQUENCE), Argument4::Lookup(Opaque(b"name"))]);
    let (lines, broken) = told(&sent[..sent.len() - 4], None);
    assert_eq!(lines[1], "operation 15 malformed: the XDR stream ends inside an item");
    assert_eq!(broken, [("XDR-f", 1)]);
    let create = stag_wire::nfs4::files::CreateArguments4 {
        kind: CreateType::Fifo,
        name: Opaque(b"pipe"),
        attributes: AttributeList::default(),
    };
    let (lines, broken) = told(&[&arguments(0, &[Argument4::Create(create)])[..], &[0; 4]].concat(), None);
    assert_eq!(lines, ["CREATE kind: Fifo, name: \"pipe\", attributes: {}"]);
    assert_eq!(broken, [("XDR-f", 1)], "octets behind the last operation");
}

/// 8167-2.4-a: callbacks come the other way on the same connection.
#[test]
fn callbacks_are_paired_too() {
    let sequence = CbSequenceArguments { sequence: SEQUENCE, referring: List::new(&[]) };
    let recall =
        CbRecallArguments { stateid: StateId::CURRENT, will_truncate: false, handle: Opaque(&[1; 8]) };
    let mut buf = [0; 512];
    let mut writer = Writer::new(&mut buf);
    let mut operations = OperationsWriter::begin_callback(&mut writer, &Tag::default(), 1, 0).unwrap();
    operations.push(&CbArgument::Sequence(sequence)).unwrap();
    operations.push(&CbArgument::Recall(recall)).unwrap();
    operations.finish();
    let sent = writer.written().to_vec();
    let answer = |slot| {
        let ok = CbSequenceOk {
            session: SEQUENCE.session,
            sequence_id: 5,
            slot,
            highest_slot: 3,
            target_highest_slot: 3,
        };
        let mut buf = [0; 512];
        let mut writer = Writer::new(&mut buf);
        let mut operations = OperationsWriter::begin_reply(&mut writer, &Tag::default()).unwrap();
        operations.push_callback_result(&CbOutcome::Sequence(Ok(ok))).unwrap();
        operations.push_callback_result(&CbOutcome::Recall(Err(Status4::BadStateid))).unwrap();
        operations.finish();
        writer.written().to_vec()
    };
    for (slot, rules) in [(2, &[][..]), (0, &[("8881-18.46.3-b", 1)][..])] {
        let mut talk = Talk::new().greet();
        talk.send(SERVER, &plain(9, 32, &call4(9, 0x4000_0000, 1, &sent)));
        talk.send(CLIENT, &plain(9, 32, &reply(9, &answer(slot))));
        let (lines, broken) = said(&talk);
        assert_eq!(lines[1], "CB_RECALL stateid: current, will_truncate: false, handle: 0101010101010101");
        assert_eq!(lines[3], "CB_RECALL NFS4ERR_BAD_STATEID");
        assert_eq!(broken, rules);
    }
}

#[test]
fn long_compounds_are_read_whole_and_listed_in_part() {
    let many = vec![Argument4::Savefh(()); 100];
    let (lines, broken) = told(&arguments(0, &many), Some(&results(&vec![Outcome4::Savefh(Ok(())); 100])));
    assert_eq!((lines.len(), &lines[64][..], &lines[129][..]), (130, "36 unlisted", "36 unlisted"));
    assert_eq!(broken, []);
    // A name of 4,096 octets fits its line.
    let name = [b'n'; 4096];
    let (lines, _) = told(&arguments(0, &[Argument4::Lookup(Opaque(&name[..3000]))]), None);
    assert!(lines[0].len() < 200, "{}", lines[0]);
}

/// Every operation of Linux's has a line, and none is cut.
#[test]
fn operations_of_captures_are_told_whole() {
    for (name, path) in captures().into_iter().filter(|(name, _)| name.contains("-v4.")) {
        let mut operations = 0;
        support::run(&path, &mut |event| {
            let EventKind::Message(message) = &event.kind else { return };
            let Some(compound) = message.compound else { return };
            assert_eq!(compound.unlisted, 0);
            let is_call = compound.minor_version.is_some();
            for operation in &compound.operations {
                operations += 1;
                assert!(operation.name.is_some(), "{name}: {operation}");
                assert_eq!(operation.status.is_none(), is_call, "{name}: {operation}");
                // Of a directory only some entries are shown.
                let is_cut = operation.to_string().ends_with("...");
                assert!(!is_cut || operation.name == Some("READDIR"), "{name}: {operation}");
            }
        });
        assert!(operations > 40, "{name}: {operations}");
    }
}
