//! Each check catches a peer that breaks its rule: a server of ours behind a proxy that breaks one.

use std::fs;

use stag_conform::check::{Check, CheckNeeds};

use super::proxy::{Flaw, Proxy};
use super::runs::{WITH_ALL, results};
use crate::common::{Folder, Server, stag, unique};

/// A server with a proxy before it, and the proxy's URL.
fn flawed(server: &Server, flaw: Flaw) -> (Proxy, String) {
    let name = unique("flawed");
    let proxy = Proxy::start(&name, server.url.strip_prefix("shm://").unwrap(), flaw);
    (proxy, format!("shm://{name}"))
}

#[test]
fn a_proxy_that_breaks_nothing_passes() {
    let server = Server::start(&WITH_ALL);
    let (_proxy, url) = flawed(&server, Flaw::Right);
    let found = results(&[&url, "--dangerous", "--export", "/data"]);
    // The proxy does not hand on memory that an operation names.
    let named = ["placed-write-explicit", "directed-explicit", "directed-choice", "directed-by-size"];
    let is_seen = |name: &str| !named.contains(&name);
    let broken: Vec<_> =
        found.iter().filter(|(name, (result, _))| result != "pass" && is_seen(name)).collect();
    assert!(broken.is_empty() && found.len() > 190, "{broken:#?}");
}

/// Each flaw fails these checks, and is known by them.
fn catches(flaws: &[(Flaw, &[&str])]) {
    let server = Server::start(&WITH_ALL);
    for (flaw, checks) in flaws {
        for check in *checks {
            let (_proxy, url) = flawed(&server, *flaw);
            let mut arguments = vec![url.as_str(), "--dangerous", "--wait", "1", "--only", check];
            // Some flaws leave no other Call working, so files are made only for those who need them.
            let needs_files = |found: &&Check| found.name == *check && found.needs == CheckNeeds::Files;
            if stag_conform::requester::checks().any(|found| needs_files(&found)) {
                arguments.extend(["--export", "/data"]);
            }
            let found = results(&arguments);
            let (result, came) = found.get(*check).cloned().unwrap_or_default();
            assert_eq!(result, "fail", "{flaw:?}: {check}: {came}");
        }
    }
}

#[test]
fn broken_headers_are_caught() {
    catches(&[
        (Flaw::AnyVersion, &["version-2", "version-max"]),
        (Flaw::ErrVersOwnVersion, &["version-0", "version-2"]),
        (Flaw::ErrVersRange, &["version-0"]),
        (Flaw::DoneAnswered, &["done"]),
        (Flaw::ErrorAnswered, &["error-chunk", "error-unreadable"]),
        (Flaw::ShortAnswered, &["short-27"]),
        (Flaw::MsgpDropped, &["msgp"]),
        (Flaw::AnyProcedure, &["proc-5", "proc-max"]),
        (Flaw::ErrChunkEnds, &["proc-5", "nomsg-empty", "read-list-cut"]),
        (Flaw::ListWordAny, &["list-word-2"]),
        (Flaw::PositionIgnored, &["position-odd"]),
    ]);
}

#[test]
fn broken_replies_are_caught() {
    catches(&[
        (Flaw::GrantZero, &["credits-0", "credits-max", "burst"]),
        (Flaw::ReplyReadList, &["null"]),
        (Flaw::FifthLost, &["burst"]),
        (Flaw::WriteListLost, &["write-unused", "read-reduced"]),
        (Flaw::WriteLengthsKept, &["write-unused", "read-odd"]),
        (Flaw::EmptyChunkLost, &["write-empty", "read-empty-chunk"]),
        (Flaw::OffsetChanged, &["write-unused", "read-reduced"]),
        (Flaw::ReplyChunkLost, &["reply-chunk"]),
        (Flaw::InvalidateUnasked, &["no-invalidation"]),
    ]);
}

#[test]
fn broken_placement_is_caught() {
    catches(&[
        (Flaw::ReadOrder, &["long-call-3-segments", "write-segments"]),
        (Flaw::PaddingWritten, &["read-odd", "readlink-reduced"]),
        (Flaw::WriteOrder, &["read-segments", "long-reply-segments"]),
        (Flaw::AlsoInline, &["read-reduced"]),
        (Flaw::PaddingRefused, &["write-padded"]),
        (Flaw::ThresholdIgnored, &["threshold-1024", "threshold-absent"]),
        (Flaw::DiesOfHandle, &["long-call-unknown-handle", "write-unknown-handle"]),
    ]);
}

#[test]
fn broken_private_data_is_caught() {
    catches(&[
        (Flaw::PrivateAtZero, &["threshold-later"]),
        (Flaw::PrivateAnyVersion, &["threshold-unknown-version"]),
        (Flaw::PrivateFlags, &["private-of-peer"]),
        (Flaw::PrivateRequired, &["private-absent"]),
    ]);
}

#[test]
fn broken_exposed_replies_are_caught() {
    catches(&[
        (Flaw::ExposedPosition, &["expose"]),
        (Flaw::ExposedCut, &["expose", "expose-reply-chunk-short"]),
        (Flaw::ReplyChunkForgotten, &["expose-reply-chunk-short"]),
        (Flaw::WriteListForgotten, &["expose-write-list"]),
        (Flaw::ExposureKept, &["done-ends-exposure", "expose-again"]),
        (Flaw::DoneAnswered, &["done-unknown", "done-twice"]),
        (Flaw::ExposesUnasked, &["exposing-block-unasked", "expose-not-agreed"]),
        (Flaw::FewerAnnounced, &["expose-limit"]),
        (Flaw::BlockFirst, &["exposing-block"]),
        (Flaw::BlockVersionIgnored, &["expose-other-version"]),
        (Flaw::ExposedWritable, &["expose-read-only"]),
        (Flaw::LongCallRefused, &["expose-long-call"]),
    ]);
}

#[test]
fn broken_version_2_is_caught() {
    catches(&[
        (Flaw::ReplyDirection, &["second-probe", "second-credits"]),
        (Flaw::ReplyVersion, &["second-probe"]),
        (Flaw::SecondAnnouncedToAll, &["second-announced"]),
        (Flaw::OptionErrorCode, &["second-option-unknown"]),
        (Flaw::OptionErrorLost, &["second-option-unknown"]),
        (Flaw::ErrVersOwnVersion, &["second-version-3"]),
        (Flaw::ErrorAnswered, &["second-error"]),
        (Flaw::DirectionIgnored, &["second-direction-7"]),
        (Flaw::CharacteristicsSum, &["characteristics-of-peer"]),
        (Flaw::CharacteristicsSet, &["characteristics-of-peer"]),
        (Flaw::CharacteristicsRefused, &["characteristics-unknown"]),
        (Flaw::WriteLengthsKept, &["second-chunks-unused"]),
        (Flaw::GrantZero, &["second-credits"]),
    ]);
}

#[test]
fn broken_groups_are_caught() {
    catches(&[
        (Flaw::GroupErrorLost, &["group-number", "group-none"]),
        (Flaw::GroupErrorDirection, &["group-number"]),
        (Flaw::GroupErrorNumbers, &["group-number", "group-too-long"]),
        (Flaw::GroupErrorTwice, &["group-xid"]),
        (Flaw::ContinuationLost, &["group-of-three"]),
        (Flaw::ItemsLost, &["directed-nothing", "directed-targets"]),
        (Flaw::TargetsShifted, &["directed-targets"]),
        (Flaw::Displaced, &["directed-targets", "directed-continued"]),
        (Flaw::PaddingFilled, &["directed-targets", "directed-continued"]),
        (Flaw::TransmissionNumber, &["directed-continued"]),
        (Flaw::TargetData, &["placed-write", "placed-write-offset"]),
    ]);
}

/// A flaw that leaves no NULL answered is said before anything is checked.
#[test]
fn a_peer_that_answers_no_null_is_said_to_be_none() {
    let server = Server::with_data();
    let (_proxy, url) = flawed(&server, Flaw::ReplyXid);
    let output = stag(&["conform", &url, "--wait", "1"]);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(
        complaint.contains("NULL on a new connection") && complaint.contains("another xid"),
        "{complaint}"
    );
}

/// A deviation that is known does not fail the run, and the line says why it is known.
#[test]
fn a_known_deviation_is_no_failure() {
    let server = Server::with_data();
    let (_proxy, url) = flawed(&server, Flaw::DoneAnswered);
    let folder = Folder::new("conform");
    let list = folder.join("list");
    fs::write(&list, "done: 8166-4.6.2-a: its age\n").unwrap();
    let output =
        stag(&["conform", &url, "--only", "done", "--only", "proc-5", "--expect", list.to_str().unwrap()]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("known: 8166-4.6.2-a: its age"), "{said}");
    assert!(said.contains("1 passed, 1 failed, 0 not applicable; of the failures 1 are known"), "{said}");
}
