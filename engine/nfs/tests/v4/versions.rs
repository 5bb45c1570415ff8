//! A server that is told which versions to serve.

use std::cell::RefCell;
use std::rc::Rc;

use stag_nfs::client::Operation;
use stag_nfs::server::{Config4, ExportTable, SharedSessions, services_with_locks};
use stag_rpc::{CallError, Chunks};
use stag_wire::nfs3::{GetattrArguments, Handle};
use stag_wire::nfs4::Status4;
use stag_wire::nfs4::operation::Argument4;

use super::client::{Compound, RESULTS_MAX};
use super::pair::{Pair, time_of_day};

/// A server of version 3, or not, and of these minor versions of version 4.
fn pair(has_version_3: bool, minor_versions: [bool; 2]) -> Pair {
    let mut pair = Pair::new(&["/data"]);
    let (locking, pool) = (pair.locking.clone(), pair.server.pools().payload.clone());
    let nothing = ExportTable::new(Vec::new(), pool).unwrap();
    let exports = pair.server.services_mut().0.exports().replace(nothing);
    let config = Config4 { minor_versions, ..Config4::new(1) };
    *pair.server.services_mut() = services_with_locks(
        exports.serving_version_3(has_version_3),
        time_of_day(),
        locking,
        Rc::new(RefCell::new(Vec::new())),
        (config, SharedSessions::default()),
    );
    pair
}

/// Why a Call has no results.
fn error<O: Operation>(pair: &mut Pair, operation: &O) -> Option<CallError> {
    pair.call(operation, Chunks::default()).completed().result.as_ref().err().copied()
}

/// 8881-16.2.3-e: a minor version that is not served is told so, by a server of the other one.
#[test]
fn minor_versions_may_be_limited() {
    for (minor_versions, expected) in [
        ([true, false], [Status4::Ok, Status4::MinorVersMismatch]),
        ([false, true], [Status4::MinorVersMismatch, Status4::Ok]),
    ] {
        let mut pair = pair(true, minor_versions);
        assert_eq!([1, 2].map(|minor| pair.status(minor, &[])), expected, "{minor_versions:?}");
        for minor in [0, 3] {
            assert_eq!(pair.status(minor, &[]), Status4::MinorVersMismatch);
        }
    }
}

/// 5531-a: the versions of the program that are served are told.
#[test]
fn whole_versions_may_be_left_out() {
    for (has_version_3, minor_versions) in [(false, [true; 2]), (true, [false; 2])] {
        let mut pair = pair(has_version_3, minor_versions);
        let root = pair.root.clone();
        let three = error(&mut pair, &GetattrArguments { object: Handle(&root) });
        let operations = [Argument4::Putrootfh(())];
        let compound = Compound { minor: 1, tag: b"", operations: &operations, results_max: RESULTS_MAX };
        let four = error(&mut pair, &compound);
        let served = if has_version_3 { 3 } else { 4 };
        let expected = Some(CallError::ProgramMismatch { low: served, high: served });
        assert_eq!([three, four], if has_version_3 { [None, expected] } else { [expected, None] });
    }
}
