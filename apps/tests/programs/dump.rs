//! `stag dump`: its lines, its objects, its complaints.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const STAG: &str = env!("CARGO_BIN_EXE_stag");

fn capture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../engine/dump/tests/captures").join(name)
}

fn dump(arguments: &[&str], file: &PathBuf) -> Output {
    Command::new(STAG).arg("dump").args(arguments).arg(file).output().unwrap()
}

fn text(octets: &[u8]) -> &str {
    std::str::from_utf8(octets).unwrap()
}

fn objects(output: &Output) -> Vec<Value> {
    assert!(output.status.success());
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Conversations of our own programs, recorded by `engine/dump/tests/own/record.sh`: every line that is said of them.
#[test]
fn version_2_and_reliable_reply_are_decoded_as_they_were_spoken() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../engine/dump/tests/own");
    for (name, parts) in [
        (
            "version2",
            &[
                "CALL INITXCH receive size 9216",
                "WRITE XMTREQ 1 of 1, 120 octets | item of 5000 at 120: TBSN #0 #1",
                "WRITE XMTREQ 1 of 3",
                "XMTCONT number 2",
                "READ XMTREQ 1 of 1",
                "XMTRESP 1 of 3",
                "no violations",
            ][..],
        ),
        (
            "reliable-reply",
            &[
                "pulls Replies yes",
                "exposes Replies yes",
                "NOMSG xid",
                "DONE  xid",
                "1 Reads of 1620",
                "no violations",
            ],
        ),
    ] {
        let output = dump(&[], &folder.join(format!("{name}.pcap")));
        let found = text(&output.stdout);
        assert!(output.status.success(), "{name}: {found}");
        for part in parts {
            assert!(found.contains(part), "{name}: no {part:?} in:\n{found}");
        }
        let kept = fs::read_to_string(folder.join(format!("{name}.txt"))).unwrap();
        assert_eq!(found, kept, "{name}");
    }
}

/// NFS version 4: a line or an object for each operation.
#[test]
fn each_operation_of_a_compound_is_shown() {
    let capture = capture("siw-6.1-v4.1-recall.pcap");
    let output = dump(&[], &capture);
    let found = text(&output.stdout);
    assert!(output.status.success(), "{found}");
    for part in [
        "Call NFS v4 COMPOUND 4.1",
        ". SEQUENCE session: ",
        ". GETATTR request: {type, change, size, fsid, ",
        ". OPEN NFS4_OK stateid: 1:",
        ". CB_RECALL stateid: ",
        ". CB_SEQUENCE NFS4_OK session: ",
        "no violations",
    ] {
        assert!(found.contains(part), "no {part:?} in:\n{found}");
    }
    let objects = objects(&dump(&["--json"], &capture));
    let is_recall = |message: &&Value| message["rpc"]["operations"][1]["name"] == "CB_RECALL";
    let mut recalls = objects.iter().filter(is_recall);
    let (call, reply) = (recalls.next().unwrap(), recalls.next().unwrap());
    assert_eq!((&call["rpc"]["minor_version"], &call["direction"]), (&1.into(), &"to_client".into()));
    assert_eq!(reply["call_frame"], call["frame"]);
    let operation = &reply["rpc"]["operations"][1];
    assert_eq!((&operation["number"], &operation["status"]), (&4.into(), &"NFS4_OK".into()));
    assert!(call["rpc"]["operations"][1]["text"].as_str().unwrap().contains("will_truncate: false"));
    // Version 3 has none.
    let objects = self::objects(&dump(&["--json"], &self::capture("siw-6.1-v3-setup.pcap")));
    assert!(objects.iter().all(|message| message["rpc"].get("operations").is_none()));
}

#[test]
fn an_object_for_each_message_and_a_last_one_with_totals() {
    let objects = objects(&dump(&["--json"], &capture("siw-6.1-v3-write.pcap")));
    let (last, messages) = objects.split_last().unwrap();
    assert_eq!(messages.len(), 54);
    let totals = &last["totals"];
    assert_eq!(
        (&totals["messages"], &totals["calls"], &totals["paired"]),
        (&54.into(), &27.into(), &27.into())
    );
    assert_eq!(totals["violations"], 0);
    let setup = &totals["connection_list"][0]["setup"][0];
    assert_eq!((&setup["name"], &setup["options"]["ird"]), (&"MPA Request".into(), &"128".into()));
    assert_eq!((&setup["private_data"], &setup["send_size"]), (&"f6ab0e1801010303".into(), &4096.into()));
    for message in messages {
        for key in [
            "frame",
            "time",
            "connection",
            "direction",
            "xid",
            "vers",
            "credits",
            "proc",
            "read_list",
            "write_list",
            "reply_chunk",
            "rpc",
        ] {
            assert!(message.get(key).is_some(), "{key}: {message}");
        }
    }
    // The WRITE of 5000 octets by Read chunk, and its Reply.
    let write = messages.iter().find(|message| message["read_list"][0]["length"] == 5000).unwrap();
    assert_eq!(
        (&write["proc"], &write["vers"], &write["direction"]),
        (&"RDMA_MSG".into(), &1.into(), &"to_server".into())
    );
    assert_eq!(write["read_list"][0]["position"], 112);
    assert!(write["read_list"][0]["handle"].is_u64() && write["read_list"][0]["offset"].is_u64());
    let rpc = &write["rpc"];
    assert_eq!(
        (&rpc["type"], &rpc["program"], &rpc["version"], &rpc["procedure"]),
        (&"call".into(), &100_003.into(), &3.into(), &7.into())
    );
    let reply = messages.iter().find(|message| message["call_frame"] == write["frame"]).unwrap();
    assert_eq!((&reply["xid"], &reply["rpc"]["status"]), (&write["xid"], &"NFS3_OK".into()));
    let transfer = &reply["transfers"][0];
    assert_eq!(
        (&transfer["chunk"], &transfer["operations"], &transfer["octets"]),
        (&"read".into(), &1.into(), &5000.into())
    );
}

#[test]
fn a_line_for_each_message() {
    let output = dump(&[], &capture("siw-6.1-v3-readdir.pcap"));
    assert!(output.status.success());
    let lines: Vec<&str> = text(&output.stdout).lines().collect();
    assert_eq!(lines.iter().filter(|line| line.contains(" xid ")).count(), 738);
    assert!(lines.iter().any(|line| line.contains("> MPA Request: revision 2, markers no, crc no, ird 128")));
    assert!(lines.iter().any(|line| line.contains("Reply NFS v3 READDIRPLUS NFS3_OK | Reply chunk:")));
    assert_eq!(lines.last(), Some(&"no violations"));
}

#[test]
fn standard_input_and_only_totals() {
    let file = File::open(capture("rxe-6.1-v3-wire.pcap")).unwrap();
    let output = Command::new(STAG).args(["dump", "-q", "-"]).stdin(file).output().unwrap();
    assert!(output.status.success());
    assert!(text(&output.stdout).contains("76 messages: 38 Calls, 38 Replies"));
}

#[test]
fn a_broken_rule_is_named_and_ends_it_with_status_1() {
    // One octet of one FPDU is changed: its CRC is wrong.
    let mut octets = fs::read(capture("siw-crc-6.1-v3-read.pcap")).unwrap();
    let at = octets.len() / 2;
    octets[at] ^= 0x40;
    let path = std::env::temp_dir().join(format!("stag-dump-{}.pcap", std::process::id()));
    fs::write(&path, octets).unwrap();
    let output = dump(&[], &path);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("! < 5044-4.4-a: CRC "), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("1 violation: 5044-4.4-a 1"));
    assert!(text(&output.stderr).ends_with(": 1 violation\n"), "{}", text(&output.stderr));
    assert_eq!(dump(&["--json"], &path).status.code(), Some(1));
    assert_eq!(dump(&["--quiet-violations"], &path).status.code(), Some(0));
    fs::remove_file(&path).unwrap();
}

/// Without one frame: the gap is said where it is, and is no broken rule.
#[test]
fn a_gap_is_told_where_it_is() {
    let whole = fs::read(capture("siw-6.1-v3-read.pcap")).unwrap();
    // The records of a pcap file: each says its length, in the order of this machine.
    let (mut shortened, mut at, mut number) = (whole[..24].to_vec(), 24, 0);
    while at < whole.len() {
        let len = 16 + u32::from_le_bytes(whole[at + 8..at + 12].try_into().unwrap()) as usize;
        number += 1;
        if number != 8 {
            shortened.extend(&whole[at..at + len]);
        }
        at += len;
    }
    let path = std::env::temp_dir().join(format!("stag-dump-gap-{}.pcap", std::process::id()));
    fs::write(&path, shortened).unwrap();
    let output = dump(&[], &path);
    let told = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{told}");
    assert_eq!(told.lines().filter(|line| line.contains("gap: before this frame ")).count(), 1, "{told}");
    assert!(told.contains(" 25 paired, 0 Calls without a Reply"), "{told}");
    let totals = &objects(&dump(&["--json", "-q"], &path))[0]["totals"];
    assert_eq!(
        (&totals["gaps"], &totals["paired"], &totals["unanswered"]),
        (&1.into(), &25.into(), &0.into())
    );
    fs::remove_file(&path).unwrap();
}

#[test]
fn what_is_no_whole_capture_is_said_with_status_2() {
    let whole = fs::read(capture("siw-6.1-v3-setup.pcap")).unwrap();
    let path = std::env::temp_dir().join(format!("stag-dump-bad-{}.pcap", std::process::id()));
    for (octets, part) in [
        (&[][..], "the file is empty"),
        (b"GIF89a", "it starts with 47 49 46 38: neither pcap nor pcapng"),
        (&whole[..20], "the file ends before its first frame does"),
        (&whole[..1000], "the file is cut short: it ends behind frame"),
    ] {
        fs::write(&path, octets).unwrap();
        let output = dump(&[], &path);
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        assert!(complaint.lines().count() == 1 && complaint.contains(part), "{complaint}");
    }
    fs::remove_file(&path).unwrap();
    let output = dump(&[], &path);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("No such file"));
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let mut child = Command::new(STAG)
        .args(["dump", "--json"])
        .arg(capture("siw-6.1-v3-readdir.pcap"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}

/// A capture of this link type with these frames.
fn pcap(name: &str, link: u32, frames: &[Vec<u8>]) -> PathBuf {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let mut file = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_536, link]);
    for frame in frames {
        file.extend(words(&[1, 0, frame.len() as u32, frame.len() as u32]));
        file.extend(frame);
    }
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, file).unwrap();
    path
}

/// A NULL Call of NFS in a frame of Ethernet: over TCP to this port, or over UDP.
fn null_call(is_tcp: bool, port: u16) -> Vec<u8> {
    let call = [5_u32, 0, 2, 100_003, 3, 0, 0, 0, 0, 0].map(u32::to_be_bytes).concat();
    let mark = (0x8000_0000 | call.len() as u32).to_be_bytes();
    let ports = [700_u16.to_be_bytes(), port.to_be_bytes()].concat();
    let transport = match is_tcp {
        true => [&ports[..], &[0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0, 0, 0, 0], &mark, &call].concat(),
        false => [&ports[..], &(8 + call.len() as u16).to_be_bytes(), &[0, 0], &call].concat(),
    };
    let len = (20 + transport.len() as u16).to_be_bytes();
    let protocol = if is_tcp { 6 } else { 17 };
    let ip = [&[0x45, 0][..], &len, &[0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]].concat();
    [&[0; 12][..], &[8, 0], &ip, &transport].concat()
}

#[test]
fn a_capture_without_rdma_is_not_without_violations() {
    let tcp = pcap("no-rdma-tcp.pcap", 1, &vec![null_call(true, 2049); 3]);
    let udp = pcap("no-rdma-udp.pcap", 1, &[null_call(false, 111)]);
    let radio = pcap("no-rdma-radio.pcap", 105, &vec![vec![0; 60]; 2]);
    let unknown = pcap("no-rdma-unknown.pcap", 1234, &[vec![0; 60]]);
    let empty = pcap("no-rdma-empty.pcap", 1, &[]);
    for (file, found) in [
        (&tcp, "in 3 frames, but 3 RPC Calls over TCP to port 2049; "),
        (&udp, "in 1 frame, but 1 RPC Call over UDP to port 111; "),
        (&radio, "in 2 frames, but 2 frames of link type IEEE802_11, which is not read; "),
        (&unknown, "in 1 frame, but 1 frame of link type 1234, which is not read; "),
        (&empty, "in 0 frames; "),
    ] {
        for arguments in [&[][..], &["--quiet"], &["--quiet-violations"], &["--json"]] {
            let output = dump(arguments, file);
            let complaint = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{complaint}");
            let expected = format!("nothing to check: no RPC-over-RDMA {found}mount with the option rdma");
            assert!(complaint.contains(&expected), "{complaint}");
            assert!(!text(&output.stdout).contains("no violations"));
        }
    }
}
