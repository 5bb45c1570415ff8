//! NLM version 4 and NSM version 1: messages worked out by hand, and everything read and written again.

use proptest::collection::vec;
use proptest::prelude::*;
use stag_wire::nlm4::{self, *};
use stag_wire::nsm;
use stag_wire::xdr::{Decode, Encode, Reader, Writer, XdrError};

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn written(value: &impl Encode) -> Vec<u8> {
    let mut buf = vec![0xff; 8192];
    let mut writer = Writer::new(&mut buf);
    writer.value(value).unwrap();
    writer.written().to_vec()
}

/// As a Linux client sends it: a cookie of four octets, a handle, an owner `PID@NAME`.
#[test]
fn a_lock_call_octet_by_octet() {
    let wire = [
        &words(&[4, 0x0000_002a])[..], // cookie
        &words(&[1, 1]),               // block, exclusive
        &words(&[5]),
        b"alice\0\0\0",                         // caller_name
        &words(&[8, 0x0102_0304, 0x0506_0708]), // fh
        &words(&[7]),
        b"9@alice\0",             // oh
        &words(&[9]),             // svid
        &words(&[0, 4096, 0, 0]), // l_offset, l_len: to the end
        &words(&[0, 17]),         // reclaim, state
    ]
    .concat();
    let arguments = LockArguments {
        cookie: Object(&[0, 0, 0, 42]),
        block: true,
        exclusive: true,
        lock: Lock {
            caller: Name(b"alice"),
            file: Object(&[1, 2, 3, 4, 5, 6, 7, 8]),
            owner: Object(b"9@alice"),
            svid: 9,
            offset: 4096,
            len: 0,
        },
        reclaim: false,
        state: 17,
    };
    let mut reader = Reader::new(&wire);
    assert_eq!(reader.value(), Ok(arguments));
    assert_eq!(reader.finish(), Ok(()));
    let mut buf = vec![0; wire.len()];
    Writer::new(&mut buf).value(&arguments).unwrap();
    assert_eq!(buf, wire);
}

#[test]
fn a_denied_test_names_the_holder() {
    let wire = [&words(&[0, 1, 1, 9, 3])[..], b"own\0", &words(&[0, 1, 0, 2])].concat();
    let holder = Holder { exclusive: true, svid: 9, owner: Object(b"own"), offset: 1, len: 2 };
    let results = TestResults { cookie: Object(&[]), outcome: Tested::Denied(holder) };
    assert_eq!(Reader::new(&wire).value(), Ok(results));
    let mut buf = vec![0; wire.len()];
    Writer::new(&mut buf).value(&results).unwrap();
    assert_eq!(buf, wire);
    let granted = words(&[0, 0]);
    let results = TestResults { cookie: Object(&[]), outcome: Tested::Other(Status::Granted) };
    assert_eq!(Reader::new(&granted).value(), Ok(results));
    assert_eq!(Reader::new(&words(&[0, 10])).value::<TestResults<'_>>(), Err(XdrError::BadDiscriminant(10)));
}

/// XDR-f: a netobj of 4 GiB is refused before anything is done with it.
#[test]
fn objects_and_names_are_capped() {
    for found in [OBJECT_LEN_MAX + 1, u32::MAX] {
        let limit = OBJECT_LEN_MAX;
        let error = XdrError::TooLong { limit, found };
        assert_eq!(Reader::new(&words(&[found])).value::<LockArguments<'_>>(), Err(error));
        assert_eq!(Reader::new(&words(&[found])).value::<FreeAllArguments<'_>>(), Err(error));
        assert_eq!(Reader::new(&words(&[found])).value::<nsm::MonArguments<'_>>(), Err(error));
    }
}

#[test]
fn procedures_have_their_numbers() {
    assert_eq!(nlm4::Procedure::ALL.len(), 20);
    for unused in [16, 17, 18, 19, 24] {
        assert_eq!(nlm4::Procedure::from_number(unused), None);
    }
    let last = nlm4::Procedure::ALL.last().unwrap();
    assert_eq!(last.number() as usize + 1, nlm4::Procedure::COUNT);
    assert_eq!(nsm::Procedure::ALL.len(), nsm::Procedure::COUNT);
}

#[test]
fn a_notification_octet_by_octet() {
    let wire = [&words(&[5])[..], b"alice\0\0\0", &words(&[19])].concat();
    let arguments = nsm::NotifyArguments { name: nsm::Name(b"alice"), state: 19 };
    assert_eq!(Reader::new(&wire).value(), Ok(arguments));
    assert_eq!(written(&nsm::State { state: 19 }), words(&[19]));
    assert_eq!(written(&nsm::StatResults { outcome: nsm::Outcome::Fail, state: 3 }), words(&[1, 3]));
    let mut buf = vec![0; wire.len()];
    Writer::new(&mut buf).value(&arguments).unwrap();
    assert_eq!(buf, wire);
}

/// Mostly small words, so that random octets get far.
fn likely_octets() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![6 => 0..3_u32, 1 => 0..64_u32, 1 => any::<u32>()];
    vec(word, 0..40).prop_map(|words| words.into_iter().flat_map(u32::to_be_bytes).collect())
}

/// What is read from any octets is written again in as many. (That it reads as the same, the fuzz targets check.)
fn again<'a, T: Decode<'a> + Encode>(octets: &'a [u8]) {
    let mut reader = Reader::new(octets);
    let Ok(value) = reader.value::<T>() else { return };
    let mut buf = vec![0xff; reader.position()];
    let mut writer = Writer::new(&mut buf);
    writer.value(&value).unwrap();
    assert_eq!(writer.position(), reader.position());
}

proptest! {
    #[test]
    fn what_is_read_is_written_again(octets in likely_octets()) {
        again::<TestArguments<'_>>(&octets);
        again::<LockArguments<'_>>(&octets);
        again::<CancelArguments<'_>>(&octets);
        again::<UnlockArguments<'_>>(&octets);
        again::<Results<'_>>(&octets);
        again::<TestResults<'_>>(&octets);
        again::<ShareArguments<'_>>(&octets);
        again::<ShareResults<'_>>(&octets);
        again::<FreeAllArguments<'_>>(&octets);
        again::<nsm::StatArguments<'_>>(&octets);
        again::<nsm::StatResults>(&octets);
        again::<nsm::MonArguments<'_>>(&octets);
        again::<nsm::NotifyArguments<'_>>(&octets);
    }
}
