//! Calls that no honest client makes: an answer to each, and the server goes on.

use std::time::Duration;

use stag_fabric::sim::{Random, sweep};
use stag_nfs::client::Null;
use stag_rpc::{CallError, Chunks, Credentials, ReplyMode, Request};
use stag_wire::nfs3::{self, Procedure, STRING_LEN_CAP};
use stag_wire::xdr::{Overflow, Writer};
use stag_wire::{mount3, nfs3::HANDLE_LEN_MAX, nfsacl, nlm4, nsm};

use super::pair::Pair;

/// Makes a Call with arguments of the test's own making.
pub(crate) fn raw(
    pair: &mut Pair,
    (program, version, procedure): (u32, u32, u32),
    mut chunks: Chunks,
    encode: impl Fn(&mut Writer<'_>) -> Result<(), Overflow>,
) -> Result<(), CallError> {
    let credential = pair.credential.clone().unwrap();
    let request = Request {
        program,
        version,
        procedure,
        credentials: Credentials::Sys(&credential),
        user: 7,
        timeout: Duration::from_secs(10),
        results_len_max: 2048,
        retransmit: true,
        reply_mode: ReplyMode::Auto,
    };
    let connection = pair.connection;
    pair.client.call(connection, &request, &mut chunks, encode).unwrap();
    pair.until(|pair| pair.client.completed()).result.map(drop)
}

/// Random words as arguments of every procedure: some begin with a good handle, and most words are small, so
/// that decoding gets far.
#[test]
fn random_arguments_get_an_answer() {
    sweep("random_arguments_get_an_answer", 0..12, |seed| {
        let mut random = Random::new(seed);
        let mut pair = Pair::new(&["/data,root_squash=no"]);
        let root = pair.root.clone();
        let file = pair.create(&root, b"f");
        let nfs = Procedure::ALL.iter().map(|procedure| (nfs3::PROGRAM, 3, procedure.number()));
        let mount = mount3::Procedure::ALL.iter().map(|procedure| (mount3::PROGRAM, 3, procedure.number()));
        let mut executed = 0;
        let acl = nfsacl::Procedure::ALL.iter().map(|procedure| (nfsacl::PROGRAM, 3, procedure.number()));
        let nlm = nlm4::Procedure::ALL.iter().map(|procedure| (nlm4::PROGRAM, 4, procedure.number()));
        let nsm = nsm::Procedure::ALL.iter().map(|procedure| (nsm::PROGRAM, 1, procedure.number()));
        let rpcbind = [2, 3, 4].into_iter().flat_map(|version| (0..5).map(move |n| (100_000, version, n)));
        let all = nfs.chain(mount).chain(acl).chain(nlm).chain(nsm).chain(rpcbind);
        for target in all.collect::<Vec<_>>() {
            for _ in 0..20 {
                let mut octets = Vec::new();
                for handle in [&root, &file] {
                    if random.below(3) > 0 {
                        octets.extend((handle.len() as u32).to_be_bytes());
                        octets.extend(handle);
                    }
                }
                for _ in 0..random.below(40) {
                    let word = match random.below(8) {
                        0 => random.next_u64() as u32,
                        1 => u32::MAX,
                        2 => 0x6162_6300,
                        _ => random.below(5) as u32,
                    };
                    octets.extend(word.to_be_bytes());
                }
                octets.truncate(octets.len() - random.below(octets.len() as u64 / 3 + 1) as usize);
                octets.resize(octets.len().next_multiple_of(4), 0);
                let ended = raw(&mut pair, target, Chunks::default(), |writer| writer.opaque_fixed(&octets));
                match ended {
                    Ok(()) => executed += 1,
                    // `Chunk`: results longer than this client left room for.
                    Err(CallError::GarbageArguments | CallError::Chunk) => {}
                    Err(error) => panic!("{target:?}: {error}"),
                }
            }
        }
        assert!(executed > 28, "only {executed} were understood");
        pair.ask(Null, |()| ());
    });
}

#[test]
fn what_is_too_long_is_garbage() {
    let mut pair = Pair::new(&["/data"]);
    let root = pair.root.clone();
    let getattr = (nfs3::PROGRAM, 3, Procedure::Getattr.number());
    let lookup = (nfs3::PROGRAM, 3, Procedure::Lookup.number());
    let garbage = Err(CallError::GarbageArguments);
    for len in [HANDLE_LEN_MAX + 1, u32::MAX, u32::MAX - 3] {
        assert_eq!(raw(&mut pair, getattr, Chunks::default(), |writer| writer.u32(len)), garbage);
    }
    for len in [STRING_LEN_CAP + 1, u32::MAX] {
        let ended = raw(&mut pair, lookup, Chunks::default(), |writer| {
            writer.opaque(&root)?;
            writer.u32(len)
        });
        assert_eq!(ended, garbage);
    }
    assert_eq!(raw(&mut pair, getattr, Chunks::default(), |_| Ok(())), garbage);
}

/// 8166-6.1-c, 8267-6.1-a: a Read chunk in the place of anything but the eligible item is refused, and the
/// connection lives on.
#[test]
fn a_chunk_for_an_ineligible_argument_is_refused() {
    let mut pair = Pair::new(&["/data"]);
    let root = pair.root.clone();
    for procedure in [Procedure::Lookup, Procedure::Remove, Procedure::Getattr] {
        let data = pair.client.pools().payload.take_len(8).unwrap();
        let target = (nfs3::PROGRAM, 3, procedure.number());
        let ended = raw(&mut pair, target, Chunks::read(data.share()), |writer| {
            if procedure != Procedure::Getattr {
                writer.opaque(&root)?;
            }
            writer.eligible_opaque_reduced(8).map(|_| ())
        });
        assert_eq!(ended, Err(CallError::Chunk), "{procedure:?}");
    }
    pair.ask(Null, |()| ());
}

#[test]
fn what_is_not_served_is_told() {
    let mut pair = Pair::new(&["/data"]);
    let mut ask = |program, version, procedure| {
        raw(&mut pair, (program, version, procedure), Chunks::default(), |_| Ok(()))
    };
    assert_eq!(ask(nfs3::PROGRAM, 3, 22), Err(CallError::ProcedureUnavailable));
    assert_eq!(ask(mount3::PROGRAM, 3, 6), Err(CallError::ProcedureUnavailable));
    assert_eq!(ask(nfs3::PROGRAM, 2, 1), Err(CallError::ProgramMismatch { low: 3, high: 4 }));
    assert_eq!(ask(nfs3::PROGRAM, 5, 1), Err(CallError::ProgramMismatch { low: 3, high: 4 }));
    assert_eq!(ask(mount3::PROGRAM, 1, 1), Err(CallError::ProgramMismatch { low: 3, high: 3 }));
    assert_eq!(ask(100_227, 3, 3), Err(CallError::ProcedureUnavailable));
    assert_eq!(ask(100_227, 2, 0), Err(CallError::ProgramMismatch { low: 3, high: 3 }));
    assert_eq!(ask(100_227, 3, 0), Ok(()));
    assert_eq!(ask(100_021, 4, 16), Err(CallError::ProcedureUnavailable));
    assert_eq!(ask(100_021, 3, 0), Err(CallError::ProgramMismatch { low: 4, high: 4 }));
    assert_eq!(ask(100_000, 3, 9), Err(CallError::ProcedureUnavailable));
    assert_eq!(ask(100_028, 1, 0), Err(CallError::ProgramUnavailable));
    assert_eq!(ask(nfs3::PROGRAM, 3, 0), Ok(()));
    assert_eq!(ask(mount3::PROGRAM, 3, 0), Ok(()));
}

/// A list that the client's limit allows but that its Reply chunk is too small for: refused, and no more.
#[test]
fn a_reply_chunk_too_small_for_its_list() {
    let mut pair = Pair::new(&["/data,root_squash=no"]);
    let root = pair.root.clone();
    for index in 0..200 {
        pair.create(&root, format!("a rather long name, number {index}").as_bytes());
    }
    let credential = pair.credential.clone().unwrap();
    for results_len_max in (3800..4300).step_by(4).chain([8000, 12_000]) {
        let request = Request {
            program: nfs3::PROGRAM,
            version: 3,
            procedure: Procedure::Readdir.number(),
            credentials: Credentials::Sys(&credential),
            user: 7,
            timeout: Duration::from_secs(10),
            results_len_max,
            retransmit: true,
            reply_mode: ReplyMode::Auto,
        };
        let arguments = nfs3::ReaddirArguments {
            directory: nfs3::Handle(&root),
            cookie: 0,
            verifier: [0; 8],
            count: 1 << 20,
        };
        let connection = pair.connection;
        let mut chunks = Chunks::default();
        pair.client.call(connection, &request, &mut chunks, |writer| writer.value(&arguments)).unwrap();
        let ended = pair.until(|pair| pair.client.completed()).result.map(drop);
        assert!(matches!(ended, Ok(()) | Err(CallError::Chunk)), "{results_len_max}: {ended:?}");
        if results_len_max >= 8000 {
            assert_eq!(ended, Ok(()));
        }
    }
    pair.ask(Null, |()| ());
}

/// A server remembers which handles it verified. What differs from one of those in any octet, or is of another export, or
/// names what is gone, is none of them.
#[test]
fn a_handle_that_was_good_vouches_for_no_other() {
    let mut pair = Pair::new(&["/data,root_squash=no", "/other,root_squash=no"]);
    let root = pair.root.clone();
    let other_root = pair.mnt(b"/other").unwrap();
    let getattr = |pair: &mut Pair, handle: &[u8]| {
        pair.ask(nfs3::GetattrArguments { object: nfs3::Handle(handle) }, |reply| {
            reply.map(|ok| ok.attributes.fsid).map_err(|failure| failure.status)
        })
    };
    let file = pair.create(&root, b"f");
    assert_eq!(getattr(&mut pair, &file), Ok(1));
    for index in 0..file.len() {
        let mut altered = file.clone();
        altered[index] ^= 1;
        assert_eq!(getattr(&mut pair, &altered), Err(nfs3::Status::Stale), "octet {index}");
        assert_eq!(getattr(&mut pair, &file), Ok(1), "octet {index}");
    }
    assert_eq!((getattr(&mut pair, &root), getattr(&mut pair, &other_root)), (Ok(1), Ok(2)));
    // The tag of one with the file system of the other, and the other way round.
    let mixed = [&other_root[..8], &root[8..]].concat();
    assert_eq!(getattr(&mut pair, &mixed), Err(nfs3::Status::Stale));
    let object = nfs3::DirectoryName { directory: nfs3::Handle(&root), name: nfs3::Name(b"f") };
    pair.ask(nfs3::RemoveArguments { object }, |reply| assert!(reply.is_ok()));
    assert_eq!(getattr(&mut pair, &file), Err(nfs3::Status::Stale));
}
