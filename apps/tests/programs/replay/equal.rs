//! When two servers' Replies to one Call are equivalent.
//!
//! The status is the same, and so is all that a client was promised. Not compared, because each server has its own: handles
//! (they are mapped), numbers of objects and file systems, times that no client set, cookies and verifiers, space used
//! and free, sizes and link counts of directories, whether long names are cut (Linux says so, and refuses them too), preferred and largest transfers, attributes *before* an operation; and
//! attributes of a failed operation, which a server may leave out.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;

use stag_dump::CalledProcedure;
use stag_wire::nfs3::*;
use stag_wire::nfsacl::{self, GetaclReply, SetaclReply};
use stag_wire::rpc::ReplyHeader;
use stag_wire::xdr::{Decode, Item, Reader, Reduced};

/// The other server's handle of each captured one.
pub(crate) type Handles = HashMap<Vec<u8>, Vec<u8>>;

/// A Reply: its Payload stream, and the octets of its Write chunks.
pub(crate) struct Answer<'a> {
    pub(crate) payload: &'a [u8],
    pub(crate) written: &'a [Vec<u8>],
}

fn object(attributes: Attributes) -> String {
    let Attributes { file_type, mode, uid, gid, rdev, .. } = attributes;
    let (nlink, size) = match file_type {
        FileType::Directory => (0, 0),
        _ => (attributes.nlink, attributes.size),
    };
    format!("{file_type:?} {mode:o} {nlink} {uid}:{gid} {size} {rdev:?}")
}

fn after(attributes: PostOpAttributes) -> Option<String> {
    attributes.map(object)
}

/// What is compared of one Reply, and the handles in it in the order of the wire.
struct Essence {
    text: String,
    handles: Vec<(String, Vec<u8>)>,
}

fn essence(text: impl Debug) -> Essence {
    Essence { text: format!("{text:?}"), handles: Vec::new() }
}

/// A failure says its status; what else it says is optional.
fn failure<T>(failure: &Failure<T>) -> Essence {
    essence(failure.status)
}

fn decode<'a, T: Decode<'a>>(reader: &mut Reader<'a>) -> T {
    reader.value().expect("results of the procedure")
}

fn handle(name: &str, handle: Option<Handle<'_>>) -> Vec<(String, Vec<u8>)> {
    handle.into_iter().map(|handle| (name.to_owned(), handle.0.to_vec())).collect()
}

/// The octets of an item, inline or written.
fn octets<'a>(item: &Item<'a>, written: &'a [Vec<u8>]) -> &'a [u8] {
    match item {
        Item::Inline(octets) => octets,
        Item::Reduced { index, .. } => &written[*index as usize],
    }
}

fn nfs3(procedure: Procedure, mut reader: Reader<'_>, written: &[Vec<u8>]) -> Essence {
    let reader = &mut reader;
    match procedure {
        Procedure::Null => essence("NULL"),
        Procedure::Getattr => match decode::<GetattrReply>(reader) {
            Ok(ok) => essence(object(ok.attributes)),
            Err(failed) => failure(&failed),
        },
        Procedure::Setattr => match decode::<SetattrReply>(reader) {
            Ok(ok) => essence(after(ok.object.after)),
            Err(failed) => failure(&failed),
        },
        Procedure::Lookup => match decode::<LookupReply<'_>>(reader) {
            Ok(ok) => Essence {
                handles: handle("", Some(ok.object)),
                ..essence((after(ok.attributes), after(ok.directory)))
            },
            Err(failed) => failure(&failed),
        },
        Procedure::Access => match decode::<AccessReply>(reader) {
            Ok(ok) => essence((ok.access, after(ok.attributes))),
            Err(failed) => failure(&failed),
        },
        Procedure::Readlink => match decode::<ReadlinkReply<'_>>(reader) {
            Ok(ok) => essence((after(ok.attributes), octets(&ok.path.0, written))),
            Err(failed) => failure(&failed),
        },
        Procedure::Read => match decode::<ReadReply<'_>>(reader) {
            Ok(ok) => essence((after(ok.attributes), ok.count, ok.eof, octets(&ok.data.0, written))),
            Err(failed) => failure(&failed),
        },
        Procedure::Write => match decode::<WriteReply>(reader) {
            Ok(ok) => essence((after(ok.file.after), ok.count, ok.committed)),
            Err(failed) => failure(&failed),
        },
        Procedure::Create | Procedure::Mkdir | Procedure::Symlink | Procedure::Mknod => {
            match decode::<CreateReply<'_>>(reader) {
                Ok(ok) => Essence {
                    handles: handle("", ok.object),
                    ..essence((after(ok.attributes), after(ok.directory.after)))
                },
                Err(failed) => failure(&failed),
            }
        }
        Procedure::Remove | Procedure::Rmdir => match decode::<RemoveReply>(reader) {
            Ok(ok) => essence(after(ok.directory.after)),
            Err(failed) => failure(&failed),
        },
        Procedure::Rename => match decode::<RenameReply>(reader) {
            Ok(ok) => essence((after(ok.from.after), after(ok.to.after))),
            Err(failed) => failure(&failed),
        },
        Procedure::Link => match decode::<LinkReply>(reader) {
            Ok(ok) => essence((after(ok.attributes), after(ok.directory.after))),
            Err(failed) => failure(&failed),
        },
        Procedure::Readdir => match decode::<ReaddirReply<'_>>(reader) {
            Ok(ok) => {
                let mut names: Vec<Vec<u8>> =
                    ok.entries.into_iter().map(|entry| entry.name.0.to_vec()).collect();
                names.sort();
                essence((after(ok.attributes), names, ok.eof))
            }
            Err(failed) => failure(&failed),
        },
        Procedure::Readdirplus => match decode::<ReaddirplusReply<'_>>(reader) {
            Ok(ok) => listing(&ok),
            Err(failed) => failure(&failed),
        },
        Procedure::Fsstat => match decode::<FsstatReply>(reader) {
            // Linux leaves the attributes out.
            Ok(ok) => essence(ok.invariant_seconds),
            Err(failed) => failure(&failed),
        },
        Procedure::Fsinfo => match decode::<FsinfoReply>(reader) {
            Ok(ok) => essence(ok.properties),
            Err(failed) => failure(&failed),
        },
        Procedure::Pathconf => match decode::<PathconfReply>(reader) {
            Ok(ok) => essence((ok.name_max, ok.case_insensitive, ok.case_preserving)),
            Err(failed) => failure(&failed),
        },
        Procedure::Commit => match decode::<CommitReply>(reader) {
            Ok(ok) => essence(after(ok.file.after)),
            Err(failed) => failure(&failed),
        },
    }
}

/// The same entries, in any order.
fn listing(ok: &ListOk<'_, EntryPlus<'_>>) -> Essence {
    let mut handles = Vec::new();
    let mut entries = BTreeMap::new();
    for entry in ok.entries {
        let name = String::from_utf8_lossy(entry.name.0).into_owned();
        // What is above the export is not the client's.
        let attributes = if name == ".." { None } else { after(entry.attributes) };
        if name != ".." {
            handles.extend(handle(&name, entry.handle));
        }
        entries.insert(name, attributes);
    }
    handles.sort();
    Essence { text: format!("{:?} {entries:?} {}", after(ok.attributes), ok.eof), handles }
}

fn acl(procedure: u32, mut reader: Reader<'_>) -> Essence {
    let reader = &mut reader;
    match procedure {
        0 => essence("NULL"),
        1 => match decode::<GetaclReply<'_>>(reader) {
            Ok(ok) => essence(ok).without_attributes(),
            Err(failed) => failure(&failed),
        },
        _ => match decode::<SetaclReply>(reader) {
            Ok(ok) => essence(after(ok.attributes)),
            Err(failed) => failure(&failed),
        },
    }
}

impl Essence {
    /// Leaves out the attributes that a derived text starts with: they are compared elsewhere.
    fn without_attributes(mut self) -> Essence {
        if let Some(at) = self.text.find("mask") {
            self.text.drain(..at);
        }
        self
    }
}

fn read(target: CalledProcedure, answer: &Answer<'_>) -> Essence {
    let reduced: Vec<Reduced> = answer
        .written
        .iter()
        .enumerate()
        .map(|(index, octets)| Reduced::write_chunk(index as u32, octets.len() as u32))
        .collect();
    let mut reader = Reader::with_reduced(answer.payload, &reduced);
    let header = ReplyHeader::parse(&mut reader).expect("a Reply");
    if !header.is_success() {
        return essence(header.body);
    }
    match target.program {
        PROGRAM => nfs3(Procedure::from_number(target.procedure).expect("NFSv3"), reader, answer.written),
        nfsacl::PROGRAM => acl(target.procedure, reader),
        other => panic!("program {other}"),
    }
}

/// Compares two answers to a Call of `target`, and learns which handles mean the same object. `Err` shows both.
pub(crate) fn compare(
    target: CalledProcedure,
    captured: &Answer<'_>,
    ours: &Answer<'_>,
    handles: &mut Handles,
) -> Result<(), String> {
    let (expected, found) = (read(target, captured), read(target, ours));
    for ((name, theirs), (our_name, our)) in expected.handles.iter().zip(&found.handles) {
        if name == our_name {
            handles.insert(theirs.clone(), our.clone());
        }
    }
    let names = |essence: &Essence| essence.handles.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    if expected.text != found.text || names(&expected) != names(&found) {
        return Err(format!("{target}\n  Linux: {:.2000}\n  stagd: {:.2000}", expected.text, found.text));
    }
    Ok(())
}
