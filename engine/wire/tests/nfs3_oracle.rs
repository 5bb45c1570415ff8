//! NFSv3 and MOUNT against another implementation, and against noise.
//!
//! Values made from random octets are encoded by us, decoded and encoded again by the crate `nfs3_types`,
//! and must be the same octets; we must decode them to the same value. Random octets must never panic.

use nfs3_types::mount as their_mount;
use nfs3_types::nfs3 as theirs;
use nfs3_types::xdr_codec::{List, Opaque, Pack, Unpack};
use proptest::prelude::*;
use stag_wire::mount3;
use stag_wire::nfs3::*;
use stag_wire::xdr::{Decode, Encode, Item, Reader, Writer};

/// Turns random octets into values; gives zeros when they run out.
struct Source<'a>(&'a [u8]);

impl<'a> Source<'a> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        for octet in &mut array {
            if let Some((&first, rest)) = self.0.split_first() {
                *octet = first;
                self.0 = rest;
            }
        }
        array
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    fn bool(&mut self) -> bool {
        self.array::<1>()[0] & 1 == 1
    }

    fn octets(&mut self, len_max: usize) -> &'a [u8] {
        let len = usize::from(self.array::<1>()[0]).min(len_max).min(self.0.len());
        let (octets, rest) = self.0.split_at(len);
        self.0 = rest;
        octets
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.u32() as usize % all.len()]
    }

    fn option<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.bool().then(|| make(self))
    }

    fn verifier(&mut self) -> Verifier {
        self.array()
    }

    fn handle(&mut self) -> Handle<'a> {
        Handle(self.octets(64))
    }

    fn name(&mut self) -> Name<'a> {
        Name(self.octets(255))
    }

    fn place(&mut self) -> DirectoryName<'a> {
        DirectoryName { directory: self.handle(), name: self.name() }
    }

    fn time(&mut self) -> Time {
        Time { seconds: self.u32(), nanoseconds: self.u32() }
    }

    fn device_number(&mut self) -> DeviceNumber {
        DeviceNumber { major: self.u32(), minor: self.u32() }
    }

    fn attributes(&mut self) -> Attributes {
        Attributes {
            file_type: self.one_of(FileType::ALL),
            mode: self.u32(),
            nlink: self.u32(),
            uid: self.u32(),
            gid: self.u32(),
            size: self.u64(),
            used: self.u64(),
            rdev: self.device_number(),
            fsid: self.u64(),
            fileid: self.u64(),
            atime: self.time(),
            mtime: self.time(),
            ctime: self.time(),
        }
    }

    fn post_op(&mut self) -> PostOpAttributes {
        self.option(Self::attributes)
    }

    fn wcc(&mut self) -> WccData {
        WccData { before: self.option(|s| s.attributes().wcc()), after: self.post_op() }
    }

    fn set_time(&mut self) -> SetTime {
        match self.u32() % 3 {
            0 => SetTime::Keep,
            1 => SetTime::ServerTime,
            _ => SetTime::ClientTime(self.time()),
        }
    }

    fn set_attributes(&mut self) -> SetAttributes {
        SetAttributes {
            mode: self.option(Self::u32),
            uid: self.option(Self::u32),
            gid: self.option(Self::u32),
            size: self.option(Self::u64),
            atime: self.set_time(),
            mtime: self.set_time(),
        }
    }

    fn how(&mut self) -> CreateHow {
        match self.u32() % 3 {
            0 => CreateHow::Unchecked(self.set_attributes()),
            1 => CreateHow::Guarded(self.set_attributes()),
            _ => CreateHow::Exclusive(self.verifier()),
        }
    }

    fn mknod(&mut self) -> MknodData {
        match self.u32() % 4 {
            0 => MknodData::Character(self.set_attributes(), self.device_number()),
            1 => MknodData::Block(self.set_attributes(), self.device_number()),
            2 => MknodData::Socket(self.set_attributes()),
            _ => MknodData::Fifo(self.set_attributes()),
        }
    }

    fn reply<T, F>(
        &mut self,
        ok: impl FnOnce(&mut Self) -> T,
        failure: impl FnOnce(&mut Self) -> F,
    ) -> ProcedureResults<T, F> {
        if self.bool() {
            Ok(ok(self))
        } else {
            Err(Failure { status: self.one_of(Status::ALL), attributes: failure(self) })
        }
    }

    // As large as RFC 1813 makes it.
    #[allow(clippy::result_large_err)]
    fn create_reply(&mut self) -> CreateReply<'a> {
        self.reply(
            |s| CreateOk { object: s.option(Source::handle), attributes: s.post_op(), directory: s.wcc() },
            Source::wcc,
        )
    }
}

fn encode<T: Encode>(value: &T) -> Vec<u8> {
    let mut buf = vec![0xaa; 8192];
    let mut writer = Writer::new(&mut buf);
    value.encode(&mut writer).expect("8 KiB is enough");
    writer.written().to_vec()
}

fn decode<'a, T: Decode<'a>>(octets: &'a [u8]) -> T {
    let mut reader = Reader::new(octets);
    let value = T::decode(&mut reader).expect("what we encode we decode");
    reader.finish().expect("nothing is left");
    value
}

/// Ours → octets → theirs → octets, and octets → ours.
fn agree<'a, Theirs: Pack + Unpack, Ours: Encode + Decode<'a> + PartialEq + core::fmt::Debug>(
    value: &Ours,
    octets: &'a mut Vec<u8>,
) {
    *octets = encode(value);
    let (their_value, len) = Theirs::unpack(&mut octets.as_slice()).expect("they decode it");
    assert_eq!(len, octets.len(), "they took another length");
    let mut again = Vec::new();
    their_value.pack(&mut again).expect("they encode it");
    assert_eq!(again, *octets);
    assert_eq!(decode::<Ours>(octets), *value);
}

macro_rules! agree {
    ($($theirs:ty: $value:expr;)*) => {
        $({
            let value = $value;
            agree::<$theirs, _>(&value, &mut Vec::new());
        })*
    };
}

proptest! {
    #[test]
    fn arguments_are_what_others_read(octets in prop::collection::vec(any::<u8>(), 0..600)) {
        let s = &mut Source(&octets);
        agree! {
            theirs::GETATTR3args: GetattrArguments { object: s.handle() };
            theirs::SETATTR3args: SetattrArguments {
                object: s.handle(), attributes: s.set_attributes(), guard: s.option(Source::time),
            };
            theirs::LOOKUP3args: LookupArguments { what: s.place() };
            theirs::ACCESS3args: AccessArguments { object: s.handle(), access: s.u32() };
            theirs::READLINK3args: ReadlinkArguments { symlink: s.handle() };
            theirs::READ3args: ReadArguments { file: s.handle(), offset: s.u64(), count: s.u32() };
            theirs::WRITE3args: WriteArguments {
                file: s.handle(), offset: s.u64(), count: s.u32(), stable: s.one_of(Stable::ALL),
                data: Data(Item::Inline(s.octets(255))),
            };
            theirs::CREATE3args: CreateArguments { place: s.place(), how: s.how() };
            theirs::MKDIR3args: MkdirArguments { place: s.place(), attributes: s.set_attributes() };
            theirs::SYMLINK3args: SymlinkArguments {
                place: s.place(), attributes: s.set_attributes(), path: Path(Item::Inline(s.octets(255))),
            };
            theirs::MKNOD3args: MknodArguments { place: s.place(), what: s.mknod() };
            theirs::REMOVE3args: RemoveArguments { object: s.place() };
            theirs::RMDIR3args: RmdirArguments { object: s.place() };
            theirs::RENAME3args: RenameArguments { from: s.place(), to: s.place() };
            theirs::LINK3args: LinkArguments { file: s.handle(), link: s.place() };
            theirs::READDIR3args: ReaddirArguments {
                directory: s.handle(), cookie: s.u64(), verifier: s.verifier(), count: s.u32(),
            };
            theirs::READDIRPLUS3args: ReaddirplusArguments {
                directory: s.handle(), cookie: s.u64(), verifier: s.verifier(),
                dircount: s.u32(), maxcount: s.u32(),
            };
            theirs::FSSTAT3args: FsstatArguments { root: s.handle() };
            theirs::FSINFO3args: FsinfoArguments { root: s.handle() };
            theirs::PATHCONF3args: PathconfArguments { object: s.handle() };
            theirs::COMMIT3args: CommitArguments { file: s.handle(), offset: s.u64(), count: s.u32() };
            their_mount::dirpath: mount3::PathArguments { path: s.name() };
        }
    }

    #[test]
    fn results_are_what_others_read(octets in prop::collection::vec(any::<u8>(), 0..1500)) {
        let s = &mut Source(&octets);
        agree! {
            theirs::GETATTR3res: s.reply(|s| GetattrOk { attributes: s.attributes() }, |_| ());
            theirs::SETATTR3res: s.reply(|s| SetattrOk { object: s.wcc() }, Source::wcc);
            theirs::LOOKUP3res: s.reply(
                |s| LookupOk { object: s.handle(), attributes: s.post_op(), directory: s.post_op() },
                Source::post_op,
            );
            theirs::ACCESS3res: s.reply(
                |s| AccessOk { attributes: s.post_op(), access: s.u32() }, Source::post_op,
            );
            theirs::READLINK3res: s.reply(
                |s| ReadlinkOk { attributes: s.post_op(), path: Path(Item::Inline(s.octets(255))) },
                Source::post_op,
            );
            theirs::READ3res: s.reply(
                |s| ReadOk {
                    attributes: s.post_op(), count: s.u32(), eof: s.bool(),
                    data: Data(Item::Inline(s.octets(255))),
                },
                Source::post_op,
            );
            theirs::WRITE3res: s.reply(
                |s| WriteOk {
                    file: s.wcc(), count: s.u32(), committed: s.one_of(Stable::ALL), verifier: s.verifier(),
                },
                Source::wcc,
            );
            theirs::CREATE3res: s.create_reply();
            theirs::MKDIR3res: s.create_reply();
            theirs::SYMLINK3res: s.create_reply();
            theirs::MKNOD3res: s.create_reply();
            theirs::REMOVE3res: s.reply(|s| RemoveOk { directory: s.wcc() }, Source::wcc);
            theirs::RMDIR3res: s.reply(|s| RemoveOk { directory: s.wcc() }, Source::wcc);
            theirs::RENAME3res: s.reply(
                |s| RenameOk { from: s.wcc(), to: s.wcc() }, |s| RenameOk { from: s.wcc(), to: s.wcc() },
            );
            theirs::LINK3res: s.reply(
                |s| LinkOk { attributes: s.post_op(), directory: s.wcc() },
                |s| LinkOk { attributes: s.post_op(), directory: s.wcc() },
            );
            theirs::FSSTAT3res: s.reply(
                |s| FsstatOk {
                    attributes: s.post_op(), bytes_total: s.u64(), bytes_free: s.u64(),
                    bytes_available: s.u64(), files_total: s.u64(), files_free: s.u64(),
                    files_available: s.u64(), invariant_seconds: s.u32(),
                },
                Source::post_op,
            );
            theirs::FSINFO3res: s.reply(
                |s| FsinfoOk {
                    attributes: s.post_op(), read_max: s.u32(), read_preferred: s.u32(),
                    read_multiple: s.u32(), write_max: s.u32(), write_preferred: s.u32(),
                    write_multiple: s.u32(), readdir_preferred: s.u32(), file_size_max: s.u64(),
                    time_delta: s.time(), properties: s.u32(),
                },
                Source::post_op,
            );
            theirs::PATHCONF3res: s.reply(
                |s| PathconfOk {
                    attributes: s.post_op(), link_max: s.u32(), name_max: s.u32(), no_trunc: s.bool(),
                    chown_restricted: s.bool(), case_insensitive: s.bool(), case_preserving: s.bool(),
                },
                Source::post_op,
            );
            theirs::COMMIT3res: s.reply(
                |s| CommitOk { file: s.wcc(), verifier: s.verifier() }, Source::wcc,
            );
        }
    }

    #[test]
    fn lists_are_what_others_read(octets in prop::collection::vec(any::<u8>(), 0..3000), count in 0usize..9) {
        let s = &mut Source(&octets);
        let (attributes, verifier) = (s.post_op(), s.verifier());
        let entries: Vec<_> = (0..count)
            .map(|_| EntryPlus {
                fileid: s.u64(), name: s.name(), cookie: s.u64(),
                attributes: s.post_op(), handle: s.option(Source::handle),
            })
            .collect();
        let mut buf = [0; 8192];
        let mut writer = Writer::new(&mut buf);
        let mut list = Listing::begin(&mut writer, &attributes, verifier, u32::MAX, u32::MAX).unwrap();
        prop_assert!(entries.iter().all(|entry| list.push(entry)));
        list.finish(true).unwrap();
        let octets = writer.written().to_vec();

        let (their_value, len) = theirs::READDIRPLUS3res::unpack(&mut octets.as_slice()).unwrap();
        prop_assert_eq!(len, octets.len());
        prop_assert_eq!(their_value.unwrap().reply.entries.into_inner().len(), count);
        let ours: ReaddirplusReply = decode(&octets);
        let ours = ours.unwrap();
        prop_assert_eq!((ours.attributes, ours.verifier, ours.eof), (attributes, verifier, true));
        prop_assert_eq!(ours.entries.into_iter().collect::<Vec<_>>(), entries);
    }

    /// Whatever arrives: an error or a value that encodes and decodes to itself.
    #[test]
    fn noise_never_panics(octets in prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => 0u8..8, 1 => any::<u8>()], 0..400)) {
        macro_rules! noise {
            ($($type:ty)*) => {$({
                if let Ok(value) = <$type>::decode(&mut Reader::new(&octets)) {
                    assert_eq!(decode::<$type>(&encode(&value)), value);
                }
            })*};
        }
        noise! {
            GetattrArguments SetattrArguments LookupArguments AccessArguments ReadlinkArguments
            ReadArguments WriteArguments CreateArguments MkdirArguments SymlinkArguments MknodArguments
            RemoveArguments RmdirArguments RenameArguments LinkArguments ReaddirArguments
            ReaddirplusArguments FsstatArguments FsinfoArguments PathconfArguments CommitArguments
            GetattrReply SetattrReply LookupReply AccessReply ReadlinkReply ReadReply WriteReply CreateReply
            RemoveReply RenameReply LinkReply ReaddirReply ReaddirplusReply FsstatReply FsinfoReply
            PathconfReply CommitReply
            mount3::PathArguments mount3::MntReply mount3::Mounts mount3::Exports
        }
        if let Ok(Ok(list)) = ReaddirplusReply::decode(&mut Reader::new(&octets)) {
            list.entries.into_iter().for_each(drop);
        }
    }
}

/// Same layout could hide swapped fields: compare by name where neighbours have one type.
#[test]
fn fields_have_the_others_names() {
    let octets: Vec<u8> = (0..=255).collect();
    let ours: Attributes = Attributes { file_type: FileType::Fifo, ..Source(&octets).attributes() };
    let encoded = encode(&ours);
    let (fattr, _) = theirs::fattr3::unpack(&mut encoded.as_slice()).unwrap();
    assert_eq!(
        (fattr.mode, fattr.nlink, fattr.uid, fattr.gid, fattr.size, fattr.used, fattr.fsid, fattr.fileid),
        (ours.mode, ours.nlink, ours.uid, ours.gid, ours.size, ours.used, ours.fsid, ours.fileid)
    );
    assert_eq!(
        (fattr.rdev.specdata1, fattr.atime.seconds, fattr.mtime.seconds, fattr.ctime.seconds),
        (ours.rdev.major, ours.atime.seconds, ours.mtime.seconds, ours.ctime.seconds)
    );
    assert_eq!(encoded.len(), ATTRIBUTES_LEN);

    let wcc = encode(&ours.wcc());
    let (wcc, _) = theirs::wcc_attr::unpack(&mut wcc.as_slice()).unwrap();
    assert_eq!(
        (wcc.size, wcc.mtime.nseconds, wcc.ctime.nseconds),
        (ours.size, ours.mtime.nanoseconds, ours.ctime.nanoseconds)
    );

    let set = SetAttributes {
        uid: Some(1),
        gid: Some(2),
        mtime: SetTime::ServerTime,
        size: Some(3),
        ..SetAttributes::default()
    };
    let (sattr, _) = theirs::sattr3::unpack(&mut encode(&set).as_slice()).unwrap();
    assert_eq!((sattr.uid.unwrap(), sattr.gid.unwrap(), sattr.size.unwrap()), (1, 2, 3));
    assert!(matches!(sattr.mtime, theirs::set_mtime::SET_TO_SERVER_TIME));

    let plus = ReaddirplusArguments {
        directory: Handle(&[]),
        cookie: 1,
        verifier: [2; 8],
        dircount: 3,
        maxcount: 4,
    };
    let (args, _) = theirs::READDIRPLUS3args::unpack(&mut encode(&plus).as_slice()).unwrap();
    assert_eq!((args.cookie, args.dircount, args.maxcount), (1, 3, 4));
}

#[test]
fn every_number_is_the_others_number() {
    for &status in Status::ALL {
        let (theirs, _) = theirs::nfsstat3::unpack(&mut encode(&status).as_slice()).unwrap();
        let name = format!("{theirs:?}").replace("NFS3ERR_", "").replace('_', "");
        assert_eq!(name, format!("{status:?}").to_uppercase());
    }
    assert_eq!(Status::ALL.len(), 28);
    assert_eq!(Procedure::ALL.len(), Procedure::COUNT);
    for (number, procedure) in Procedure::ALL.iter().enumerate() {
        let theirs = theirs::NFS_PROGRAM::try_from(number as u32).unwrap();
        assert_eq!(format!("{theirs:?}"), format!("NFSPROC3_{procedure:?}").to_uppercase());
    }
    for &status in mount3::Status::ALL {
        let (theirs, _) = their_mount::mountstat3::unpack(&mut encode(&status).as_slice()).unwrap();
        assert_eq!(format!("{theirs:?}").replace("MNT3ERR_", ""), format!("{status:?}").to_uppercase());
    }
    assert_eq!(mount3::Procedure::ALL.len(), mount3::Procedure::COUNT);
}

#[test]
fn mount_results_are_what_others_read() {
    let ok: mount3::MntReply = Ok(mount3::MntOk {
        handle: Handle(&[7; 20]),
        flavors: mount3::Flavors::new(&[[0, 0, 0, 1], [0, 0, 0, 0]]),
    });
    agree::<their_mount::mountres3, _>(&ok, &mut Vec::new());
    let refused: mount3::MntReply = Err(mount3::Status::Acces);
    agree::<their_mount::mountres3, _>(&refused, &mut Vec::new());

    let mut buf = [0; 256];
    let mut writer = Writer::new(&mut buf);
    let mount = |host, path| mount3::Mount { host: Name(host), path: Name(path) };
    let mounts = [mount(b"alpha", b"/data"), mount(b"b", b"/")];
    mount3::encode_mounts(&mut writer, mounts).unwrap();
    let octets = writer.written().to_vec();
    assert_eq!(decode::<mount3::Mounts>(&octets).into_iter().collect::<Vec<_>>(), mounts);
    let theirs = List(vec![
        their_mount::mountbody {
            ml_hostname: their_mount::name(Opaque::borrowed(b"alpha")),
            ml_directory: their_mount::dirpath(Opaque::borrowed(b"/data")),
        },
        their_mount::mountbody {
            ml_hostname: their_mount::name(Opaque::borrowed(b"b")),
            ml_directory: their_mount::dirpath(Opaque::borrowed(b"/")),
        },
    ]);
    let mut again = Vec::new();
    theirs.pack(&mut again).unwrap();
    assert_eq!(again, octets);

    let mut buf = [0; 256];
    let mut writer = Writer::new(&mut buf);
    mount3::encode_export(&mut writer, Name(b"/data"), [Name(b"lab"), Name(b"10.0.0.0/8")]).unwrap();
    mount3::encode_export(&mut writer, Name(b"/open"), []).unwrap();
    mount3::encode_exports_end(&mut writer).unwrap();
    let octets = writer.written().to_vec();
    let (theirs, len) = their_mount::exports::unpack(&mut octets.as_slice()).unwrap();
    assert_eq!((theirs.0.len(), len), (2, octets.len()));
    let exports: Vec<_> = decode::<mount3::Exports>(&octets)
        .into_iter()
        .map(|export| (export.path.0, export.groups.into_iter().map(|group| group.0).collect::<Vec<_>>()))
        .collect();
    assert_eq!(exports, [(&b"/data"[..], vec![&b"lab"[..], b"10.0.0.0/8"]), (b"/open", vec![])]);
}
