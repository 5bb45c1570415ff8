//! The example `own_files`: a client mounts it, walks it and reads it, and can change nothing.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use stag::prelude::*;
use stag::wire::mount3::{self, PathArguments};
use stag::wire::nfs3::{
    self, AccessArguments, CreateArguments, CreateHow, DirectoryName, FsinfoArguments, GetattrArguments,
    Handle, LookupArguments, Name, ReadArguments, ReaddirplusArguments, SetAttributes, Status,
    WriteArguments, access,
};
use stag::wire::xdr::{Decode, Encode};

/// The example's program. `cargo test` builds the examples, `cargo test --test own_files` does not.
fn program() -> PathBuf {
    let own = std::env::current_exe().expect("a test has a path");
    let folder = own.parent().and_then(Path::parent).expect("it is in `deps`");
    let path = folder.join("examples/own_files");
    if !path.exists() {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--locked", "--package", "stag", "--example", "own_files"]);
        cargo.args(folder.ends_with("release").then_some("--release"));
        assert!(cargo.status().expect("Cargo runs").success());
    }
    path
}

/// A running server, which ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Errors: it may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The results of a Call, which `look` sees.
fn ask<T>(
    client: &Client,
    (program, version, procedure): (u32, u32, u32),
    arguments: &impl Encode,
    look: impl FnOnce(Reader<'_>) -> T,
) -> T {
    let request = client.request(program, version, procedure).results_max(8192);
    let answer = request.call(|writer| writer.value(arguments)).expect("an answer");
    look(answer.reader())
}

/// The same of NFS version 3.
fn nfs<T>(
    client: &Client,
    procedure: nfs3::Procedure,
    arguments: &impl Encode,
    look: impl FnOnce(Reader<'_>) -> T,
) -> T {
    ask(client, (nfs3::PROGRAM, nfs3::VERSION, procedure.number()), arguments, look)
}

fn decoded<'a, T: Decode<'a>>(mut reader: Reader<'a>) -> T {
    reader.value().expect("results of this procedure")
}

fn mount(client: &Client, path: &str) -> Result<Vec<u8>, mount3::Status> {
    let arguments = PathArguments { path: Name(path.as_bytes()) };
    let procedure = (mount3::PROGRAM, mount3::VERSION, mount3::Procedure::Mnt as u32);
    ask(client, procedure, &arguments, |reader| {
        let reply: mount3::MntReply<'_> = decoded(reader);
        reply.map(|ok| ok.handle.0.to_vec())
    })
}

fn lookup(client: &Client, directory: &[u8], name: &str) -> Result<Vec<u8>, Status> {
    let object = DirectoryName { directory: Handle(directory), name: Name(name.as_bytes()) };
    nfs(client, nfs3::Procedure::Lookup, &LookupArguments { what: object }, |reader| {
        let reply: nfs3::LookupReply<'_> = decoded(reader);
        reply.map(|ok| ok.object.0.to_vec()).map_err(|failure| failure.status)
    })
}

/// Octets of a file, and whether that was its end.
fn read(client: &Client, file: &[u8], offset: u64, count: u32) -> Result<(Vec<u8>, bool), Status> {
    let arguments = ReadArguments { file: Handle(file), offset, count };
    nfs(client, nfs3::Procedure::Read, &arguments, |reader| {
        let reply: nfs3::ReadReply<'_> = decoded(reader);
        match reply {
            Ok(ok) => match ok.data.0 {
                Item::Inline(octets) => Ok((octets.to_vec(), ok.eof)),
                Item::Reduced { .. } => panic!("no chunk was offered"),
            },
            Err(failure) => Err(failure.status),
        }
    })
}

/// The names of a folder, `count` octets at a time.
fn names(client: &Client, directory: &[u8], count: u32) -> Vec<String> {
    let (mut names, mut cookie, mut verifier) = (Vec::new(), 0, [0; 8]);
    loop {
        let directory = Handle(directory);
        let arguments =
            ReaddirplusArguments { directory, cookie, verifier, dircount: count, maxcount: count };
        let eof = nfs(client, nfs3::Procedure::Readdirplus, &arguments, |reader| {
            let reply: nfs3::ReaddirplusReply<'_> = decoded(reader);
            let ok = reply.expect("a listing");
            for entry in ok.entries {
                assert!(entry.attributes.is_some_and(|attributes| attributes.fileid == entry.fileid));
                names.push(String::from_utf8(entry.name.0.to_vec()).unwrap());
                cookie = entry.cookie;
            }
            verifier = ok.verifier;
            ok.eof
        });
        if eof {
            return names;
        }
    }
}

#[test]
fn a_client_mounts_walks_and_reads_the_tree() {
    let url = format!("shm://own-files-{}", std::process::id());
    let child = Command::new(program()).arg(&url).stdout(Stdio::piped()).spawn().expect("it runs");
    let mut running = Running(child);
    let mut ready = String::new();
    BufReader::new(running.0.stdout.take().expect("it is piped")).read_line(&mut ready).expect("a line");
    assert_eq!(ready.trim(), format!("ready: {url}"));
    let client = &Client::connect(&url).expect("a server");

    assert_eq!(mount(client, "/other"), Err(mount3::Status::NoEnt));
    let root = mount(client, "/files").unwrap();
    let info = FsinfoArguments { root: Handle(&root) };
    nfs(client, nfs3::Procedure::Fsinfo, &info, |reader| {
        let reply: nfs3::FsinfoReply = decoded(reader);
        assert!(reply.is_ok());
    });
    for count in [8192, 512] {
        assert_eq!(names(client, &root, count), [".", "..", "readme.txt", "notes"]);
    }
    let notes = lookup(client, &root, "notes").unwrap();
    assert_eq!(lookup(client, &notes, ".."), Ok(root.clone()));
    assert_eq!(lookup(client, &root, ".."), Ok(root.clone()), "nothing is above the root");
    assert_eq!(lookup(client, &root, "none"), Err(Status::NoEnt));
    let file = lookup(client, &notes, "today.txt").unwrap();
    assert_eq!(lookup(client, &file, "x"), Err(Status::NotDir));
    nfs(client, nfs3::Procedure::Getattr, &GetattrArguments { object: Handle(&file) }, |reader| {
        let reply: nfs3::GetattrReply = decoded(reader);
        let attributes = reply.unwrap().attributes;
        assert_eq!((attributes.size, attributes.mode), (18, 0o444));
    });
    assert_eq!(read(client, &file, 0, 4096), Ok((b"Nothing happened.\n".to_vec(), true)));
    assert_eq!(read(client, &file, 8, 8), Ok((b"happened".to_vec(), false)));
    assert_eq!(read(client, &file, u64::MAX, 8), Ok((Vec::new(), true)));
    assert!(read(client, &notes, 0, 1).is_err(), "a folder");

    let asked = AccessArguments { object: Handle(&file), access: access::READ | access::MODIFY };
    nfs(client, nfs3::Procedure::Access, &asked, |reader| {
        let reply: nfs3::AccessReply = decoded(reader);
        assert_eq!(reply.unwrap().access, access::READ);
    });
    let place = DirectoryName { directory: Handle(&root), name: Name(b"new") };
    let create = CreateArguments { place, how: CreateHow::Guarded(SetAttributes::default()) };
    nfs(client, nfs3::Procedure::Create, &create, |reader| {
        let reply: nfs3::CreateReply<'_> = decoded(reader);
        assert_eq!(reply.unwrap_err().status, Status::Acces);
    });
    let data = nfs3::Data(Item::Inline(b"x"));
    let stable = nfs3::Stable::FileSync;
    let write = WriteArguments { file: Handle(&file), offset: 0, count: 1, stable, data };
    nfs(client, nfs3::Procedure::Write, &write, |reader| {
        let reply: nfs3::WriteReply = decoded(reader);
        assert_eq!(reply.unwrap_err().status, Status::Acces);
    });
}
