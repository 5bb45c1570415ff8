//! Replays captured clients of version 4: each COMPOUND, and each operation must have the status that it had.
//!
//! Compared too are the data of READs, the text of links, the names in a directory that is listed at once, what ACCESS allows, and kind,
//! mode, owners, links and length of what is no directory. Changed are the names that a server gives: handles, client ids, sessions,
//! state ids, sequence ids of clients, and cookies of listings.
//!
//! The captured server gave delegations, which `stagd` need not give: their state ids become the anonymous one, and they are not
//! returned. Operations that a server may leave out ([`OPTIONAL`]) may answer NFS4ERR_NOTSUPP. Then files can differ, and statuses alone are
//! compared.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use stag_runtime::{CoreId, affinity};
use stag_wire::nfs4::attributes::{Attribute, AttributeList, AttributeValue};
use stag_wire::nfs4::compound::{CompoundCall, CompoundReply, OperationsWriter};
use stag_wire::nfs4::open::{Delegation, OpenClaim};
use stag_wire::nfs4::operation::{Argument4, Operation4, Outcome4};
use stag_wire::nfs4::{self, FileType4, Opaque, SessionId, Status4, Verifier4};
use stag_wire::rpc::{CallHeader, ReplyHeader};
use stag_wire::rpcrdma::Header;
use stag_wire::xdr::{Item, Reader, Reduced, Writer};

use super::equal::{Answer, Handles};
use super::script::{Exchange, Script};
use super::{Replay, captures, many, plain_set_up, start_with};
use crate::common::Folder;

/// Operations that a server may leave out, and the captured one has.
const OPTIONAL: [Operation4; 6] = [
    Operation4::Copy,
    Operation4::Clone,
    Operation4::Getxattr,
    Operation4::Setxattr,
    Operation4::Listxattrs,
    Operation4::Removexattr,
];

/// Where the captured server's files or its order were other ones: it executed a FREE_STATEID before the CLOSE that was sent first, and a
/// program of its own appended to the file whose delegation it recalled. From there on statuses alone are compared.
const KNOWN: [(&str, u64); 2] = [("siw-6.1-v4.1-lock", 89), ("siw-6.1-v4.1-recall", 77)];

/// What `stagd` calls what the captured server called otherwise.
#[derive(Default)]
struct Names {
    handles: Handles,
    sessions: HashMap<SessionId, SessionId>,
    /// Client ids, and state ids without their seqids: octets that occur as nothing else but in sessions, which begin like them.
    octets: Vec<(Vec<u8>, Vec<u8>)>,
    /// State ids of delegations that `stagd` did not give, without their seqids.
    delegations: Vec<[u8; 12]>,
    /// Sequence ids of EXCHANGE_ID's results, by the captured client id.
    sequence_ids: HashMap<u64, (u32, u32)>,
    /// Where `stagd`'s listings of directories go on.
    listings: HashMap<Vec<u8>, (u64, Verifier4)>,
}

/// A COMPOUND's results.
struct Results<'a> {
    status: Status4,
    outcomes: Vec<Outcome4<'a>>,
    written: &'a [Vec<u8>],
}

impl<'a> Results<'a> {
    fn read(answer: &Answer<'a>, reduced: &'a [Reduced]) -> Results<'a> {
        let mut reader = Reader::with_reduced(answer.payload, reduced);
        assert!(ReplyHeader::parse(&mut reader).expect("a Reply").is_success());
        let CompoundReply { status, mut operations, .. } = CompoundReply::parse(reader).expect("a COMPOUND");
        let mut outcomes = Vec::new();
        while let Some(outcome) = operations.next_item() {
            outcomes.push(outcome.expect("results of an operation"));
        }
        Results { status, outcomes, written: answer.written }
    }
}

/// What went by Write chunks.
fn reduced(written: &[Vec<u8>]) -> Vec<Reduced> {
    let chunks = written.iter().enumerate();
    chunks.map(|(index, octets)| Reduced::write_chunk(index as u32, octets.len() as u32)).collect()
}

impl Names {
    fn insert(&mut self, theirs: &[u8], ours: &[u8]) {
        assert_eq!(theirs.len(), ours.len());
        self.octets.retain(|(known, _)| known != theirs);
        self.octets.push((theirs.to_vec(), ours.to_vec()));
    }

    /// A captured operation, as it is sent to `stagd`; `None`: it is left out. `at`: the captured current handle.
    fn translate<'a>(&'a self, captured: Argument4<'a>, at: &[u8]) -> Result<Option<Argument4<'a>>, String> {
        Ok(Some(match captured {
            Argument4::Putfh(handle) => {
                Argument4::Putfh(Opaque(self.handles.get(handle.0).ok_or("a handle that was not given")?))
            }
            Argument4::Sequence(mut arguments) => {
                arguments.session = self.session(arguments.session)?;
                Argument4::Sequence(arguments)
            }
            Argument4::DestroySession(session) => Argument4::DestroySession(self.session(session)?),
            Argument4::BindConnToSession(mut arguments) => {
                arguments.session = self.session(arguments.session)?;
                Argument4::BindConnToSession(arguments)
            }
            Argument4::CreateSession(mut arguments) => {
                if let Some((theirs, ours)) = self.sequence_ids.get(&arguments.clientid) {
                    arguments.sequence_id = arguments.sequence_id - theirs + ours;
                }
                Argument4::CreateSession(arguments)
            }
            Argument4::Readdir(mut arguments) if arguments.cookie != 0 => {
                (arguments.cookie, arguments.verifier) = *self.listings.get(at).ok_or("no listing")?;
                Argument4::Readdir(arguments)
            }
            Argument4::Delegreturn(state) if self.delegations.contains(&state.other) => return Ok(None),
            Argument4::Open(mut arguments) => {
                arguments.claim = match arguments.claim {
                    OpenClaim::DelegateCurrent(by) if self.delegations.contains(&by.stateid.other) => {
                        OpenClaim::Null(by.name)
                    }
                    OpenClaim::DelegateCurrentHandle(state) if self.delegations.contains(&state.other) => {
                        OpenClaim::Handle
                    }
                    claim => claim,
                };
                Argument4::Open(arguments)
            }
            other => other,
        }))
    }

    fn session(&self, theirs: SessionId) -> Result<SessionId, String> {
        self.sessions.get(&theirs).copied().ok_or("a session that was not made".to_owned())
    }

    /// Replaces names of fixed length.
    fn replace(&self, octets: &mut [u8]) {
        let mut at = 0;
        while at < octets.len() {
            if self.delegations.iter().any(|theirs| octets[at..].starts_with(theirs)) {
                // With its seqid: the anonymous state id.
                octets[at - 4..at + 12].fill(0);
                at += 12;
                continue;
            }
            // The captured server's state ids begin with the client id.
            let known = self.octets.iter().filter(|(theirs, _)| octets[at..].starts_with(theirs));
            let found = known.max_by_key(|(theirs, _)| theirs.len());
            at += match found {
                Some((theirs, ours)) => {
                    octets[at..at + ours.len()].copy_from_slice(ours);
                    theirs.len()
                }
                None => 4,
            };
        }
    }
}

/// What is compared of results beside their status.
fn essence(outcome: &Outcome4<'_>, written: &[Vec<u8>]) -> String {
    let octets = |item: &Item<'_>| match item {
        Item::Inline(octets) => octets.to_vec(),
        Item::Reduced { index, len } => written[*index as usize][..*len as usize].to_vec(),
    };
    match outcome {
        Outcome4::Read(Ok(ok)) => format!("{} {:?}", ok.eof, octets(&ok.data.0)),
        Outcome4::Readlink(Ok(text)) => octets(&text.0).escape_ascii().to_string(),
        // Without the bits of extended attributes.
        Outcome4::Access(Ok(ok)) => format!("{:x}", ok.access & 0x3f),
        Outcome4::Getattr(Ok(list)) => attributes(list),
        Outcome4::Write(Ok(ok)) => ok.count.to_string(),
        _ => String::new(),
    }
}

/// Attributes that servers have in common, of an object that is no directory.
fn attributes(list: &AttributeList<'_>) -> String {
    const COMMON: [Attribute; 6] = [
        Attribute::Type,
        Attribute::Size,
        Attribute::Mode,
        Attribute::NumLinks,
        Attribute::Owner,
        Attribute::OwnerGroup,
    ];
    let all: Vec<_> = list.values().map(|value| value.expect("an attribute")).collect();
    let kind = all.iter().find(|(attribute, _)| *attribute == Attribute::Type);
    match kind {
        Some((_, AttributeValue::FileType(FileType4::Directory))) => return "a directory".to_owned(),
        // Its length may be a directory's.
        None => return String::new(),
        Some(_) => {}
    }
    let common = all.iter().filter(|(attribute, _)| COMMON.contains(attribute));
    common.map(|(attribute, value)| format!("{attribute:?} {value:?}, ")).collect()
}

/// A captured client of version 4.
struct Client {
    replay: Replay,
    names: Names,
    /// An operation was not supported: files may differ from now on.
    may_differ: bool,
}

impl Client {
    /// Sends a captured COMPOUND, and compares its results. Returns whether all operations were supported.
    fn replay(&mut self, exchange: &Exchange) -> Result<bool, String> {
        let (header, _) = Header::parse(&exchange.call).unwrap();
        let old = exchange.call_payload();
        if exchange.target.procedure == 0 {
            let (payload, _) = self.replay.send(exchange, &header, old);
            assert!(ReplyHeader::parse(&mut Reader::new(&payload)).unwrap().is_success());
            return Ok(true);
        }
        let placed = header.read_list().filter(|entry| entry.position != 0);
        let mut lens: Vec<(u32, u32)> = Vec::new();
        for entry in placed {
            match lens.iter_mut().find(|(position, _)| *position == entry.position) {
                Some((_, len)) => *len += entry.segment.length,
                None => lens.push((entry.position, entry.segment.length)),
            }
        }
        let indexed = lens.iter().enumerate();
        let chunks: Vec<_> = indexed
            .map(|(index, (position, len))| Reduced::read_chunk(index as u32, *position, *len))
            .collect();
        let mut reader = Reader::with_reduced(old, &chunks);
        CallHeader::parse(&mut reader).unwrap();
        let head = reader.position();
        let CompoundCall { tag, minor_version, mut operations } = CompoundCall::parse(reader).unwrap();
        let mut captured = Vec::new();
        while let Some(operation) = operations.next_item() {
            captured.push(operation.expect("an operation"));
        }
        let their_chunks = reduced(&exchange.written);
        let theirs = Answer { payload: &exchange.reply, written: &exchange.written };
        let theirs = Results::read(&theirs, &their_chunks);
        // The captured server had just started: what it refused then the client asks for again.
        let is_refused = |place: usize| {
            theirs.outcomes.get(place).is_some_and(|outcome| outcome.status() == Status4::Grace)
        };
        let mut new = vec![0; old.len() + 4096];
        new[..head].copy_from_slice(&old[..head]);
        let mut writer = Writer::new(&mut new[head..]);
        let mut again = OperationsWriter::begin_call(&mut writer, &tag, minor_version).unwrap();
        let (mut at, mut sent) = (Vec::new(), Vec::new());
        for (place, operation) in captured.iter().enumerate() {
            if let Argument4::Putfh(handle) = operation {
                at = handle.0.to_vec();
            }
            if is_refused(place) {
                break;
            }
            if let Some(ours) = self.names.translate(*operation, &at)? {
                again.push(&ours).unwrap();
                sent.push(place);
            }
        }
        again.finish();
        let len = head + writer.position();
        new.truncate(len);
        self.names.replace(&mut new[head..]);
        let (payload, written) = self.replay.send(exchange, &header, &new);
        let our_chunks = reduced(&written);
        let ours = Answer { payload: &payload, written: &written };
        let ours = Results::read(&ours, &our_chunks);
        let expected = sent.iter().filter_map(|place| theirs.outcomes.get(*place));
        let expected: Vec<_> = expected.copied().collect();
        self.compare((&captured, &at), (&expected, theirs.written), &ours)
    }

    fn compare(
        &mut self,
        (captured, at): (&[Argument4<'_>], &[u8]),
        (expected, written): (&[Outcome4<'_>], &[Vec<u8>]),
        ours: &Results<'_>,
    ) -> Result<bool, String> {
        let told =
            |found: &str| format!("{captured:.1500?}\n  Linux: {expected:.1500?}\n  stagd: {found:.1500}");
        for (index, theirs) in expected.iter().enumerate() {
            let Some(our) = ours.outcomes.get(index).filter(|our| our.operation() == theirs.operation())
            else {
                return Err(told(&format!("{:?}", ours.outcomes)));
            };
            if our.status() == Status4::NotSupp && OPTIONAL.contains(&our.operation()) {
                self.may_differ = true;
                return Ok(false);
            }
            let (expected, found) = (essence(theirs, written), essence(our, ours.written));
            if our.status() != theirs.status() || (expected != found && !self.may_differ) {
                let found = format!("{:?}; {expected:.200} became {found:.200}", ours.outcomes);
                return Err(told(&found));
            }
            self.learn(at, theirs, our)?;
        }
        let last = expected.last().map(Outcome4::status);
        if last == Some(ours.status) { Ok(true) } else { Err(told(&format!("{:?}", ours.status))) }
    }

    /// Learns which names mean the same; `at` is the captured current handle.
    fn learn(&mut self, at: &[u8], theirs: &Outcome4<'_>, ours: &Outcome4<'_>) -> Result<(), String> {
        let names = &mut self.names;
        match (theirs, ours) {
            (Outcome4::ExchangeId(Ok(theirs)), Outcome4::ExchangeId(Ok(ours))) => {
                names.insert(&theirs.clientid.to_be_bytes(), &ours.clientid.to_be_bytes());
                names.sequence_ids.insert(theirs.clientid, (theirs.sequence_id, ours.sequence_id));
            }
            (Outcome4::CreateSession(Ok(theirs)), Outcome4::CreateSession(Ok(ours))) => {
                names.sessions.insert(theirs.session, ours.session);
            }
            (Outcome4::Open(Ok(theirs)), Outcome4::Open(Ok(ours))) => {
                names.insert(&theirs.stateid.other, &ours.stateid.other);
                let given = |delegation: &Delegation<'_>| match delegation {
                    Delegation::Read(read) => Some(read.stateid),
                    Delegation::Write(write) => Some(write.stateid),
                    Delegation::None | Delegation::NoneWhy(_) => None,
                };
                match (given(&theirs.delegation), given(&ours.delegation)) {
                    (Some(theirs), Some(ours)) => names.insert(&theirs.other, &ours.other),
                    (Some(theirs), None) => names.delegations.push(theirs.other),
                    (None, _) => {}
                }
            }
            (Outcome4::Lock(Ok(theirs)), Outcome4::Lock(Ok(ours))) => {
                names.insert(&theirs.other, &ours.other);
            }
            (Outcome4::Getfh(Ok(theirs)), Outcome4::Getfh(Ok(ours))) => {
                names.handles.insert(theirs.0.to_vec(), ours.0.to_vec());
            }
            (Outcome4::Readdir(Ok(theirs)), Outcome4::Readdir(Ok(ours))) => {
                let listed = |ok: &nfs4::directory::ReaddirOk4<'_>| -> HashMap<Vec<u8>, Option<Vec<u8>>> {
                    let entries = ok.entries.into_iter();
                    entries.map(|entry| (entry.name.0.to_vec(), handle(&entry.attributes))).collect()
                };
                let (their_names, our_names) = (listed(theirs), listed(ours));
                for (name, their) in &their_names {
                    if let (Some(their), Some(Some(our))) = (their, our_names.get(name)) {
                        names.handles.insert(their.clone(), our.clone());
                    }
                }
                let is_first = !names.listings.contains_key(at);
                if is_first && theirs.eof && ours.eof {
                    let all = |names: &HashMap<Vec<u8>, _>| names.keys().cloned().collect::<BTreeSet<_>>();
                    if all(&their_names) != all(&our_names) {
                        return Err("the names of a directory differ".to_owned());
                    }
                }
                if let Some(last) = ours.entries.into_iter().last() {
                    names.listings.insert(at.to_vec(), (last.cookie, ours.verifier));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

/// The handle among attributes.
fn handle(list: &AttributeList<'_>) -> Option<Vec<u8>> {
    list.values().find_map(|value| match value.expect("an attribute") {
        (Attribute::FileHandle, AttributeValue::Handle(handle)) => Some(handle.0.to_vec()),
        _ => None,
    })
}

#[test]
fn captured_clients_of_version_4_get_equivalent_replies() {
    replay_all(&affinity::allowed().iter().take(1).collect::<Vec<_>>());
}

#[test]
fn captured_clients_of_version_4_get_equivalent_replies_of_another_core() {
    let cores: Vec<CoreId> = affinity::allowed().iter().take(2).collect();
    if cores.len() < 2 {
        stag_testing::skipped("this process may use one core only");
        return;
    }
    replay_all(&cores);
}

/// Replays every captured client of versions 4.1 and 4.2 over siw to a server on these cores. The captured server exported its root.
fn replay_all(cores: &[CoreId]) {
    let claims = Folder::new("replay4-claims");
    let names = many(&captures().join("siw-6.1-v3-readdir.pcap"));
    let entries = std::fs::read_dir(captures()).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        let is_served = ["-v4.1-", "-v4.2-"].iter().any(|version| name.contains(version));
        // The scene "wire" has other files.
        name.starts_with("siw") && is_served && !name.contains("-wire") && name.ends_with(".pcap")
    });
    paths.sort();
    assert_eq!(paths.len(), 16, "captures of NFSv4.1 and 4.2 over siw");
    let mut differences = Vec::new();
    for path in paths {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let script = Script::read(&path);
        let (server, address) = start_with(cores, &claims, "/");
        let mut planter = Replay::new(&address, &plain_set_up());
        let root = planter.plant("/", &names);
        let delegated = planter.create(&root, "deleg", 0o644, false);
        planter.write(&delegated, b"one\n");
        let replay = Replay::new(&address, &script.set_up);
        let mut client = Client { replay, names: Names::default(), may_differ: false };
        let (mut equal, mut unsupported, mut connection) = (0, 0, 1);
        for exchange in &script.exchanges {
            if exchange.target.program != nfs4::PROGRAM {
                continue;
            }
            if exchange.connection != connection {
                connection = exchange.connection;
                client.replay = Replay::new(&address, &script.set_up);
            }
            match client.replay(exchange) {
                Ok(true) => equal += 1,
                Ok(false) => unsupported += 1,
                Err(_) if KNOWN.contains(&(&name, exchange.frame)) => client.may_differ = true,
                Err(difference) => {
                    differences.push(format!("{name}, frame {}: {difference}", exchange.frame));
                    break;
                }
            }
        }
        println!("{name}: {equal} Replies equivalent, {unsupported} with an operation that is not supported");
        drop(client);
        let (stopped, status) = server.stop();
        assert!(status.success(), "{stopped}");
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
