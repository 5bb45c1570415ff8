//! READ and WRITE by state ids and by chunks, COMMIT; space, holes and advice.

use stag_memory::Shared;
use stag_rpc::{Chunks, Few};
use stag_wire::nfs4::extended::{ContentKind, IoAdviseArguments, SeekArguments, SpaceArguments};
use stag_wire::nfs4::files::CommitArguments4;
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::{Bitmap, StateId, Status4};

use stag_wire::xdr::{Reader, Reduced};

use super::Lab;
use super::client::{Answer, Compound, RESULTS_MAX};
use super::files::{NO_ATTRIBUTES, ROOT, create, lookup, put, symlink};
use super::state::{BOTH, READ, WRITE, close, read, write};

fn lab() -> Lab {
    Lab::new(&["/data,root_squash=no"])
}

/// Whether a READ gave these octets; what differs is told in short.
fn check_read(found: Result<(Vec<u8>, bool), Status4>, expected: &[u8], at_end: bool) {
    let (octets, eof) = found.unwrap();
    let differs = octets.iter().zip(expected).position(|(one, other)| one != other);
    assert_eq!((octets.len(), differs, eof), (expected.len(), None, at_end));
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 3) as u8 ^ (at >> 9) as u8).collect()
}

#[test]
fn what_is_written_is_read_inline_and_by_chunk() {
    let mut lab = lab();
    let file = lab.make_file(b"file");
    let state = lab.open_at(&file, BOTH);
    let data = pattern(70_001);
    assert_eq!(lab.write_by_chunk(&file, state, 0, &data), Ok(70_001));
    assert_eq!(lab.status(&[put(&file), write(state, 5, b"inline")]), Status4::Ok);
    let mut expected = data;
    expected[5..11].copy_from_slice(b"inline");
    let whole = lab.octets(&file, read(state, 0, 80_000), Some(80_000));
    check_read(whole, &expected, true);
    check_read(lab.octets(&file, read(state, 3, 900), None), &expected[3..903], false);
    assert_eq!(lab.octets(&file, read(state, 70_001, 10), None), Ok((vec![], true)));
    assert_eq!(lab.octets(&file, read(state, u64::MAX, 10), None), Ok((vec![], true)));
}

/// Statuses of a COMPOUND of a SEQUENCE, a PUTFH and these READs of 8192 octets, each with a Write chunk; and what is in the first
/// `filled` of these.
fn reads(lab: &mut Lab, file: &[u8], reads: &[(StateId, u64)], filled: u32) -> (Vec<Status4>, Vec<Vec<u8>>) {
    let mut chunks = Chunks::default();
    (0..reads.len() as u8).for_each(|index| chunks.write.push((index, lab.buffer(8192))));
    let mut operations = vec![lab.sequence(0), put(file)];
    operations.extend(reads.iter().map(|(state, offset)| read(*state, *offset, 8192)));
    let compound = Compound { minor: 2, tag: b"", operations: &operations, results_max: RESULTS_MAX };
    lab.pair.begin(&compound, chunks, 7);
    let completed = lab.pair.until(|pair| pair.client.completed());
    let results = completed.result.unwrap();
    let reduced: Vec<_> = (0..filled).map(|index| Reduced::write_chunk(index, 8192)).collect();
    let mut reader = Reader::with_reduced(results.bytes(), &reduced);
    let answer: Answer<'_> = reader.value().unwrap();
    let statuses = answer.outcomes[2..].iter().map(Outcome4::status).collect();
    let data = completed.written.iter().take(filled as usize).map(|(_, buf)| buf[..8192].to_vec()).collect();
    (statuses, data)
}

/// 8267-X-1, 8267-X-2: each READ has the Write chunk of its place, and one that fails leaves its own unused.
#[test]
fn several_reads_of_a_compound_have_their_chunks() {
    let mut lab = lab();
    let file = lab.make_file(b"file");
    let state = lab.open_at(&file, BOTH);
    let data = pattern(20_000);
    lab.write_by_chunk(&file, state, 0, &data).unwrap();
    let (statuses, found) = reads(&mut lab, &file, &[(state, 0), (state, 8192)], 2);
    assert_eq!(statuses, [Status4::Ok, Status4::Ok]);
    assert!(found[0] == data[..8192] && found[1] == data[8192..16_384]);
    let bad = StateId { seqid: 1, other: [9; 12] };
    let (statuses, found) = reads(&mut lab, &file, &[(state, 0), (bad, 0)], 1);
    assert_eq!(statuses, [Status4::Ok, Status4::BadStateid]);
    assert!(found[0] == data[..8192]);
    assert_eq!(reads(&mut lab, &file, &[(bad, 0)], 0).0, [Status4::BadStateid]);
}

/// Two WRITEs of one COMPOUND, each with a Read chunk.
#[test]
fn several_writes_of_a_compound_have_their_chunks() {
    use stag_wire::nfs4::files::{WriteArguments4, WriteHead};
    use stag_wire::nfs4::{Data, Stable};
    use stag_wire::xdr::Item;
    let mut lab = lab();
    let file = lab.make_file(b"file");
    let state = lab.open_at(&file, BOTH);
    let data = pattern(10_000);
    let piece = |lab: &Lab, octets: &[u8]| -> Shared {
        let mut buf = lab.buffer(octets.len());
        buf.copy_from_slice(octets);
        buf.share()
    };
    let mut list = Few::one((0, piece(&lab, &data[..5000])));
    list.push((1, piece(&lab, &data[5000..])));
    let part = |index: u32| {
        let head = WriteHead { stateid: state, offset: u64::from(index) * 5000, stable: Stable::Unstable };
        Argument4::Write(WriteArguments4 { head, data: Data(Item::Reduced { index, len: 5000 }) })
    };
    let chunks = Chunks { read: list, write: Few::new() };
    let finished = lab.finished(&[put(&file), part(0), part(1)], chunks, RESULTS_MAX);
    assert_eq!(finished.reply::<Compound<'_>>().unwrap().status, Status4::Ok);
    check_read(lab.octets(&file, read(state, 0, 16_384), Some(16_384)), &data, true);
}

/// 8881-8.2.3, 8881-8.2.4: special state ids, and those that are no good.
#[test]
fn state_ids_are_judged() {
    let mut lab = lab();
    let file = lab.make_file(b"file");
    let another = lab.make_file(b"another");
    let state = lab.open_at(&file, READ);
    let newer = StateId { seqid: 2, ..state };
    let newest = StateId { seqid: 0, ..state };
    let forged = StateId { seqid: 1, other: [9; 12] };
    lab.statuses(
        &file,
        &[
            (read(state, 0, 1), Status4::Ok),
            (read(newest, 0, 1), Status4::Ok),
            (read(newer, 0, 1), Status4::BadStateid),
            (read(forged, 0, 1), Status4::BadStateid),
            (read(StateId::ANONYMOUS, 0, 1), Status4::Ok),
            (read(StateId::READ_BYPASS, 0, 1), Status4::Ok),
            (read(StateId::CURRENT, 0, 1), Status4::BadStateid),
            (read(StateId::INVALID, 0, 1), Status4::BadStateid),
            (write(state, 0, b"x"), Status4::OpenMode),
            (write(StateId::ANONYMOUS, 0, b"x"), Status4::Ok),
            (write(StateId::READ_BYPASS, 0, b"x"), Status4::Ok),
        ],
    );
    lab.statuses(&another, &[(read(state, 0, 1), Status4::BadStateid)]);
    // Who writes a part of a page reads it first.
    let written = lab.open_at(&another, WRITE);
    lab.statuses(&another, &[(read(written, 0, 1), Status4::Ok), (write(written, 0, b"x"), Status4::Ok)]);
    assert_eq!(lab.status(&[put(&file), close(state)]), Status4::Ok);
    lab.statuses(&file, &[(read(state, 0, 1), Status4::BadStateid)]);
}

#[test]
fn only_files_have_data() {
    let mut lab = lab();
    let root = lab.root();
    let link = lab.handle(&[put(&root), create(symlink(b"file"), b"link", NO_ATTRIBUTES)]).unwrap();
    let [read, write] = [read(StateId::ANONYMOUS, 0, 10), write(StateId::ANONYMOUS, 0, b"x")];
    let commit = Argument4::Commit(CommitArguments4 { offset: 0, count: 0 });
    lab.statuses(&root, &[(read, Status4::IsDir), (write, Status4::IsDir), (commit, Status4::IsDir)]);
    lab.statuses(&link, &[(read, Status4::Symlink), (write, Status4::Symlink), (commit, Status4::Symlink)]);
    for operation in [read, write, commit] {
        assert_eq!(lab.status(&[ROOT, operation]), Status4::IsDir);
        assert_eq!(lab.status(&[operation]), Status4::NoFilehandle);
    }
}

#[test]
fn a_commit_tells_the_verifier_of_the_writes() {
    let mut lab = lab();
    let file = lab.make_file(b"file");
    let commit = Argument4::Commit(CommitArguments4 { offset: 0, count: 0 });
    lab.compound(&[put(&file), write(StateId::ANONYMOUS, 0, b"data"), commit], |status, outcomes| {
        let [_, Outcome4::Write(Ok(written)), Outcome4::Commit(Ok(verifier))] = outcomes else {
            panic!("{status:?}")
        };
        assert_eq!((written.count, written.verifier), (4, *verifier));
    });
}

impl Lab {
    fn seek(
        &mut self,
        file: &[u8],
        state: StateId,
        offset: u64,
        what: ContentKind,
    ) -> Result<(bool, u64), Status4> {
        let seek = Argument4::Seek(SeekArguments { stateid: state, offset, what });
        self.compound(&[put(file), seek], |status, outcomes| match outcomes.last() {
            Some(Outcome4::Seek(Ok(ok))) => Ok((ok.eof, ok.offset)),
            _ => Err(status),
        })
    }
}

fn space(stateid: StateId, offset: u64, length: u64) -> SpaceArguments {
    SpaceArguments { stateid, offset, length }
}

fn allocate(state: StateId, offset: u64, len: u64) -> Argument4<'static> {
    Argument4::Allocate(space(state, offset, len))
}

fn deallocate(state: StateId, offset: u64, len: u64) -> Argument4<'static> {
    Argument4::Deallocate(space(state, offset, len))
}

/// RFC 7862 section 15.11.3: SEEK. Behind the end of a file is a hole; behind that, nothing.
#[test]
fn data_and_holes_are_found() {
    let mut lab = lab();
    let file = lab.make_file(b"file");
    let state = lab.open_at(&file, BOTH);
    let root = lab.root();
    let (hole, end) = (1 << 20, (2 << 20) + 10);
    assert_eq!(lab.write_by_chunk(&file, state, 0, &pattern(70_000)), Ok(70_000));
    assert_eq!(lab.status(&[put(&file), write(state, 2 << 20, b"0123456789")]), Status4::Ok);
    assert_eq!(lab.seek(&file, state, 3, ContentKind::Data), Ok((false, 3)));
    let (at_end, found) = lab.seek(&file, state, 3, ContentKind::Hole).unwrap();
    assert!(!at_end && (70_000..hole).contains(&found), "{found}");
    assert_eq!(lab.seek(&file, state, hole, ContentKind::Hole), Ok((false, hole)));
    assert_eq!(lab.seek(&file, state, hole, ContentKind::Data), Ok((false, 2 << 20)));
    assert_eq!(lab.seek(&file, state, end - 1, ContentKind::Hole), Ok((true, end)));
    assert_eq!(lab.seek(&file, state, end, ContentKind::Data), Err(Status4::NxIo));
    assert_eq!(lab.seek(&file, state, end, ContentKind::Hole), Err(Status4::NxIo));
    assert_eq!(lab.seek(&root, StateId::ANONYMOUS, 0, ContentKind::Hole), Err(Status4::WrongType));
    // The rest of it is a hole: there is no data, which is no error.
    assert_eq!(lab.status(&[put(&file), deallocate(state, hole, 2 << 20)]), Status4::Ok);
    assert_eq!(lab.seek(&file, state, hole, ContentKind::Data), Ok((true, end)));
}

/// RFC 7862 sections 15.1.3 and 15.4.3: space that is reserved makes a file as long, and space that is given up reads as zeros.
#[test]
fn space_is_reserved_and_given_up() {
    let mut lab = lab();
    let file = lab.make_file(b"file");
    let state = lab.open_at(&file, BOTH);
    assert_eq!(lab.status(&[put(&file), allocate(state, 0, 1)]), Status4::Ok);
    assert_eq!(lab.octets(&file, read(state, 0, 100), None), Ok((vec![0], true)));
    let mut expected = pattern(30_000);
    assert_eq!(lab.write_by_chunk(&file, state, 0, &expected), Ok(30_000));
    assert_eq!(lab.status(&[put(&file), allocate(state, 10_000, 30_000)]), Status4::Ok);
    expected.resize(40_000, 0);
    check_read(lab.octets(&file, read(state, 0, 50_000), Some(50_000)), &expected, true);
    assert_eq!(lab.status(&[put(&file), deallocate(state, 5_000, 20_000)]), Status4::Ok);
    expected[5_000..25_000].fill(0);
    check_read(lab.octets(&file, read(state, 0, 50_000), Some(50_000)), &expected, true);
    // Behind the end there is nothing to give up.
    assert_eq!(lab.status(&[put(&file), deallocate(state, 30_000, u64::MAX)]), Status4::Ok);
    expected[30_000..].fill(0);
    check_read(lab.octets(&file, read(state, 0, 50_000), Some(50_000)), &expected, true);
    // By the special state ids as well, if nothing denies it.
    for state in [StateId::ANONYMOUS, StateId::READ_BYPASS] {
        assert_eq!(lab.status(&[put(&file), allocate(state, 0, 1)]), Status4::Ok);
    }
}

/// RFC 7862 sections 15.1 and 15.4: what is refused, with its status.
#[test]
fn space_that_cannot_be_had_is_refused() {
    let mut lab = lab();
    let file = lab.make_file(b"file");
    let state = lab.open_at(&file, BOTH);
    let much = 1 << 61;
    let refused = [
        (allocate(state, 0, 0), Status4::Inval),
        (deallocate(state, 0, 0), Status4::Inval),
        (allocate(state, u64::MAX, 2), Status4::FBig),
        (allocate(state, 1 << 63, 1), Status4::FBig),
        (allocate(state, 0, much), if super::IS_DIRECTORY { Status4::FBig } else { Status4::NoSpc }),
        (deallocate(state, u64::MAX, 2), Status4::Ok),
    ];
    for (operation, status) in refused {
        assert_eq!(lab.status(&[put(&file), operation]), status, "{operation:?}");
    }
    let file = lab.make_file(b"other");
    let reader = lab.open_at(&file, READ);
    assert_eq!(lab.status(&[put(&file), allocate(reader, 0, 1)]), Status4::OpenMode);
    assert_eq!(lab.status(&[put(&file), deallocate(reader, 0, 1)]), Status4::OpenMode);
    let root = lab.root();
    let link = lab.handle(&[put(&root), create(symlink(b"file"), b"link", NO_ATTRIBUTES)]).unwrap();
    lab.statuses(&link, &[(allocate(StateId::ANONYMOUS, 0, 1), Status4::Symlink)]);
    lab.statuses(&root, &[(deallocate(StateId::ANONYMOUS, 0, 1), Status4::IsDir)]);
    assert_eq!(lab.status(&[ROOT, allocate(StateId::ANONYMOUS, 0, 1)]), Status4::WrongType);
}

#[test]
fn a_read_only_export_gives_no_space() {
    let mut lab = Lab::new(&["/data,root_squash=no", "/fixed,ro"]);
    let fixed = [ROOT, lookup(b"fixed"), allocate(StateId::ANONYMOUS, 0, 1)];
    assert_eq!(lab.status(&fixed), Status4::RoFs);
}

/// RFC 7862 section 15.5: no advice is followed.
#[test]
fn advice_is_taken_and_not_followed() {
    let mut lab = lab();
    let file = lab.make_file(b"file");
    let state = lab.open_at(&file, BOTH);
    let advice =
        IoAdviseArguments { stateid: state, offset: 0, count: 0, hints: Bitmap::from_words([2, 0, 0]) };
    lab.compound(&[put(&file), Argument4::IoAdvise(advice)], |status, outcomes| {
        let Some(Outcome4::IoAdvise(Ok(hints))) = outcomes.last() else { panic!("{status:?}") };
        assert_eq!(*hints, Bitmap::EMPTY);
    });
}

/// 8166-4.3.3-b: a Reply chunk comes back unused, of length 0, if the results fit inline. The client checks the chunk that the Reply returns.
#[test]
fn a_reply_chunk_that_is_not_needed_is_not_used() {
    let mut lab = lab();
    let root = lab.root();
    for (tag_len, long) in [(0, 0), (400, 0), (4 * 1024, 1)] {
        let tag = vec![b't'; tag_len];
        let operations = [lab.sequence(0), put(&root)];
        let compound = Compound { minor: 2, tag: &tag, operations: &operations, results_max: RESULTS_MAX };
        let before = lab.pair.client.statistics().reply_chunks;
        let finished = lab.pair.call(&compound, Chunks::default());
        let answer = finished.reply::<Compound<'_>>().unwrap();
        assert_eq!((answer.status, answer.tag), (Status4::Ok, &tag[..]));
        assert_eq!(lab.pair.client.statistics().reply_chunks - before, long, "{tag_len}");
    }
}
