//! Access control lists of a directory of the machine: they decide, are set and are inherited as in the kernel.

use std::fs::{self, File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::{Mode, OFlags, XattrFlags, getxattr, mkdirat, openat, setxattr};
use stag_disk::Errno;
use stag_disk::system::{FileUser, FileUsers};
use stag_stores::directory::{DirectoryStore, MayWait};
use stag_testing::Scratch;
use stag_vfs::{
    Acl, AclEntry, CreateMode, FsError, ObjectId, SetLists, Stability, Store, Update, UserIdentity,
    WriteData, access, kind,
};

use crate::lab::{Lab, NONE, PAGE, is_root};

const ROOT: UserIdentity = UserIdentity::ROOT;
const OWNER: u32 = 10;
const GROUP: u32 = 20;
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// A list of these entries, beside those of a mode.
fn list(mode: u32, mask: u32, named: &[(u32, u32, u32)]) -> Acl {
    let entry = |(kind, id, permissions)| AclEntry { kind, id, permissions };
    let base = [
        (kind::OWNER, 0, mode >> 6 & 7),
        (kind::OWNING_GROUP, 0, mode >> 3 & 7),
        (kind::MASK, 0, mask),
        (kind::OTHER, 0, mode & 7),
    ];
    let entries: Vec<_> = base.iter().chain(named).copied().map(entry).collect();
    Acl::from_entries(entries.into_iter()).unwrap()
}

fn access_list(acl: &Acl) -> SetLists {
    SetLists { access: Some(Some(acl.clone())), default: None }
}

/// A directory whose system calls may wait like this. `None`: there are no lists here.
fn lab(may_wait: MayWait) -> Option<Lab> {
    let lab = match may_wait {
        MayWait::Nothing => Lab::at_once(64, |_| {}),
        _ => Lab::directory(64, |config| config.may_wait = Some(may_wait)),
    };
    if lab.store.of(|store: &DirectoryStore| store.profile().can.keeps_lists) {
        return Some(lab);
    }
    stag_testing::skipped("the file system of temporary files has no access control lists");
    None
}

/// The same, once for each way to wait, if this process may act as any user.
fn labs() -> Vec<Lab> {
    if !is_root() {
        println!("only root may act as other users");
        return Vec::new();
    }
    [MayWait::Nothing, MayWait::Device, MayWait::Everything].into_iter().filter_map(lab).collect()
}

impl Lab {
    fn path(&self, name: &str) -> std::path::PathBuf {
        self.scratch.as_ref().expect("a directory").0.join(name)
    }

    fn set_lists(&mut self, user: &UserIdentity, object: ObjectId, set: &SetLists) -> Result<(), FsError> {
        let now = self.now();
        self.store.set_lists(user, object, set, now)
    }
}

/// What the kernel keeps under a name.
fn attribute(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut space = [0; 4096];
    match getxattr(path, name, &mut space) {
        Ok(len) => Some(space[..len].to_vec()),
        Err(Errno::NODATA) => None,
        Err(error) => panic!("{}: {error}", path.display()),
    }
}

/// Whether the kernel lets a user open what `name` is.
fn opens(users: &FileUsers, user: &UserIdentity, folder: &File, name: &str, flags: OFlags) -> bool {
    let groups = [user.groups(), &[user.gid]].concat();
    let user = FileUser { uid: user.uid, gid: user.gid, groups: &groups, privileged: user.is_root() };
    match users.run(&user, || openat(folder, name, flags, Mode::empty())) {
        Ok(_) => true,
        Err(Errno::ACCESS) => false,
        Err(error) => panic!("{name}: {error}"),
    }
}

/// Users of each class, files and directories with lists and without: READ, WRITE, ACCESS and LOOKUP are permitted where the kernel
/// permits them.
#[test]
fn the_kernel_and_the_store_permit_the_same() {
    let named = [(kind::USER, 11, 6), (kind::USER, 12, 0), (kind::GROUP, 30, 5), (kind::GROUP, 31, 2)];
    for mut lab in labs() {
        let users = FileUsers::new().unwrap();
        let root = lab.root();
        fs::set_permissions(lab.path(""), Permissions::from_mode(0o755)).unwrap();
        let top = File::open(lab.path("")).unwrap();
        let callers = [
            UserIdentity::new(OWNER, 99, []),
            UserIdentity::new(11, 99, []),
            UserIdentity::new(12, GROUP, []),
            UserIdentity::new(13, 99, [GROUP]),
            UserIdentity::new(14, 30, [31]),
            UserIdentity::new(15, 99, [31]),
            UserIdentity::new(16, 99, []),
        ];
        for (at, (mode, mask)) in
            [(0o640, 7), (0o640, 4), (0o604, 0), (0o771, 5), (0o644, 6), (0o777, 7)].into_iter().enumerate()
        {
            let (file, folder) = (format!("f{at}"), format!("d{at}"));
            let made = lab.create(&ROOT, root, &file, &CreateMode::Guarded(NONE)).unwrap();
            let below = lab.mkdir(&ROOT, root, &folder, 0o755).unwrap();
            lab.create(&ROOT, below, "inner", &CreateMode::Guarded(NONE)).unwrap();
            for object in [made, below] {
                let set = Update { uid: Some(OWNER), gid: Some(GROUP), ..NONE };
                lab.set(&ROOT, object, set).unwrap();
                let list = list(mode, mask, &named);
                assert_eq!(lab.set_lists(&ROOT, object, &access_list(&list)), Ok(()));
                assert_eq!(lab.store.lists(object), Ok((Some(list), None)));
            }
            for caller in callers {
                let case = format!("{mode:o} {mask:o} {caller:?}");
                let reads = opens(&users, &caller, &top, &file, OFlags::RDONLY);
                let writes = opens(&users, &caller, &top, &file, OFlags::WRONLY);
                let searches = opens(&users, &caller, &top, &format!("{folder}/inner"), OFlags::PATH);
                let bits = lab.store.access(&caller, made, 0x3f).unwrap();
                assert_eq!(bits & access::READ != 0, reads, "ACCESS to read, {case}");
                assert_eq!(bits & access::MODIFY != 0, writes, "ACCESS to write, {case}");
                assert_eq!(lab.store.lookup(&caller, below, b"inner").is_ok(), searches, "LOOKUP, {case}");
                // An owner has opened its file before (RFC 1813 section 4.4); what may be executed is read for that.
                let is_owner = caller.uid == OWNER;
                let executes = bits & access::EXECUTE != 0;
                let read = lab.read_of(&caller, made, 0, 1).is_ok();
                assert_eq!(read, reads || is_owner || executes, "READ, {case}");
                let data = WriteData::Inline(b"x");
                let written = lab.write_of(&caller, made, 0, data, Stability::FileSync).is_ok();
                assert_eq!(written, writes || is_owner, "WRITE, {case}");
            }
        }
    }
}

/// Lists are set as the caller, and taken away; mode and list keep in step.
#[test]
fn lists_are_set_as_the_caller() {
    for mut lab in labs() {
        let root = lab.root();
        let file = lab.create(&ROOT, root, "f", &CreateMode::Guarded(NONE)).unwrap();
        let folder = lab.mkdir(&ROOT, root, "d", 0o750).unwrap();
        for object in [file, folder] {
            let set = Update { uid: Some(OWNER), gid: Some(GROUP), mode: Some(0o2750), ..NONE };
            lab.set(&ROOT, object, set).unwrap();
        }
        let (owner, other) = (UserIdentity::new(OWNER, 99, []), UserIdentity::new(11, GROUP, []));
        let named = list(0o640, 6, &[(kind::USER, 7, 6)]);
        assert_eq!(lab.set_lists(&other, file, &access_list(&named)), Err(FsError::NotPermitted));
        assert_eq!(lab.set_lists(&owner, file, &access_list(&named)), Ok(()));
        // An outsider to the group makes no program that runs as the group.
        assert_eq!(lab.store.attributes(file).unwrap().mode, 0o660);
        let both = SetLists { access: Some(Some(named.clone())), default: Some(Some(named.clone())) };
        assert_eq!(lab.set_lists(&owner, file, &both), Err(FsError::AccessDenied), "only directories");
        assert_eq!(lab.set_lists(&owner, folder, &both), Ok(()));
        assert_eq!(lab.store.lists(folder), Ok((Some(named.clone()), Some(named.clone()))));
        // The mode is the mask.
        lab.set(&owner, file, Update { mode: Some(0o600), ..NONE }).unwrap();
        assert_eq!(lab.store.lists(file), Ok((Some(list(0o640, 0, &[(kind::USER, 7, 6)])), None)));
        let none = SetLists { access: Some(None), default: Some(None) };
        assert_eq!(lab.set_lists(&owner, folder, &none), Ok(()));
        assert_eq!(lab.set_lists(&owner, folder, &none), Ok(()), "they are away already");
        assert_eq!(lab.store.lists(folder), Ok((None, None)));
        let minimal = access_list(&Acl::from_mode(0o751));
        assert_eq!(lab.set_lists(&ROOT, folder, &minimal), Ok(()));
        let mode = lab.store.attributes(folder).unwrap().mode;
        assert_eq!((mode & 0o777, lab.store.lists(folder)), (0o751, Ok((None, None))));
        lab.settle().unwrap();
    }
}

/// New objects get what the kernel gives them: from a default list instead of the umask, which otherwise counts for no client.
#[test]
fn new_objects_inherit_as_in_the_kernel() {
    for may_wait in [MayWait::Nothing, MayWait::Device] {
        let Some(mut lab) = lab(may_wait) else { return };
        let root = lab.root();
        let folder = lab.mkdir(&ROOT, root, "d", 0o755).unwrap();
        let default = list(0o750, 5, &[(kind::USER, 7, 7)]);
        let set = SetLists { access: None, default: Some(Some(default.clone())) };
        assert_eq!(lab.set_lists(&ROOT, folder, &set), Ok(()));
        let above = File::open(lab.path("d")).unwrap();
        for mode in [0o777, 0o666, 0o640, 0o600, 0o2775] {
            let names = [format!("f{mode:o}"), format!("d{mode:o}")];
            let how = CreateMode::Guarded(Update { mode: Some(mode), ..NONE });
            lab.create(&ROOT, folder, &names[0], &how).unwrap();
            lab.mkdir(&ROOT, folder, &names[1], mode).unwrap();
            let own = names.clone().map(|name| format!("own-{name}"));
            let bits = Mode::from_raw_mode(mode);
            openat(&above, &*own[0], OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, bits).unwrap();
            mkdirat(&above, &*own[1], bits).unwrap();
            for (ours, kernels) in names.iter().zip(&own) {
                let [ours, kernels] = [ours, kernels].map(|name| lab.path("d").join(name));
                for name in [ACCESS, DEFAULT] {
                    assert_eq!(attribute(&ours, name), attribute(&kernels, name), "{ours:?} {name}");
                }
                let [ours, kernels] = [&ours, &kernels].map(|path| fs::metadata(path).unwrap().permissions());
                assert_eq!(ours.mode() & 0o777, kernels.mode() & 0o777, "{mode:o}");
            }
        }
        // Without a default list the client's mode counts, whatever the umask of the server is.
        for (name, mode) in [("open", 0o777), ("closed", 0o600)] {
            let made = lab.mkdir(&ROOT, root, name, mode).unwrap();
            assert_eq!(lab.store.attributes(made).unwrap().mode, mode);
        }
    }
}

/// A list that a process of the server's machine sets counts from then on, also when the object was known to have none.
#[test]
fn a_list_that_is_set_locally_is_seen_at_once() {
    for mut lab in labs() {
        let root = lab.root();
        let file = lab.create(&ROOT, root, "f", &CreateMode::Guarded(NONE)).unwrap();
        let set = Update { uid: Some(OWNER), gid: Some(GROUP), mode: Some(0o640), ..NONE };
        lab.set(&ROOT, file, set).unwrap();
        let caller = UserIdentity::new(7, 99, []);
        // The kernel's octets of the list, by a file of its own.
        let model = lab.create(&ROOT, root, "model", &CreateMode::Guarded(NONE)).unwrap();
        lab.set_lists(&ROOT, model, &access_list(&list(0o640, 6, &[(kind::USER, 7, 6)]))).unwrap();
        let octets = attribute(&lab.path("model"), ACCESS).unwrap();
        for _ in 0..3 {
            assert_eq!(lab.read_of(&caller, file, 0, 1).err(), Some(FsError::AccessDenied));
            assert_eq!(lab.store.access(&caller, file, 0x3f), Ok(0));
            setxattr(lab.path("f"), ACCESS, &octets, XattrFlags::empty()).unwrap();
            assert_eq!(lab.read_of(&caller, file, 0, 1).err(), None);
            assert_eq!(lab.store.access(&caller, file, access::READ), Ok(access::READ));
            let none = SetLists { access: Some(Some(Acl::from_mode(0o640))), default: None };
            lab.set_lists(&ROOT, file, &none).unwrap();
        }
    }
}

/// A list with more entries than clients can be told cannot be shown, and permits nothing to those who need it.
#[test]
fn a_list_that_is_too_long_is_refused() {
    if !is_root() || !Path::new("/dev/shm").is_dir() {
        return stag_testing::skipped(
            "only root may act as other users, and only tmpfs has lists of any length",
        );
    }
    let folder = Scratch(Path::new("/dev/shm").join(Scratch::vacant().0.file_name().unwrap()));
    fs::create_dir(&folder.0).unwrap();
    let pool = Lab::pool(PAGE, 64);
    let store = Lab::open(&folder, &pool, |_| {});
    let mut lab = Lab { pool, store, seconds: 0, baseline: 0, scratch: Some(folder) };
    let file = lab.file("f");
    let mut octets = 2u32.to_le_bytes().to_vec();
    let mut add = |kind: u32, permissions: u16, id: u32| {
        octets.extend((kind as u16).to_le_bytes());
        octets.extend(permissions.to_le_bytes());
        octets.extend(id.to_le_bytes());
    };
    add(kind::OWNER, 6, u32::MAX);
    (1000..3000).for_each(|id| add(kind::USER, 6, id));
    add(kind::OWNING_GROUP, 6, u32::MAX);
    add(kind::MASK, 6, u32::MAX);
    add(kind::OTHER, 6, u32::MAX);
    match setxattr(lab.path("f"), ACCESS, &octets, XattrFlags::empty()) {
        Ok(()) => {}
        Err(Errno::OPNOTSUPP) => return stag_testing::skipped("this tmpfs has no access control lists"),
        Err(error) => panic!("{error}"),
    }
    assert_eq!(lab.store.lists(file), Err(FsError::AccessDenied));
    let named = UserIdentity::new(1500, 99, []);
    assert_eq!(lab.read_of(&named, file, 0, 1).err(), Some(FsError::AccessDenied));
    assert_eq!(lab.store.access(&named, file, 0x3f), Err(FsError::AccessDenied));
    assert!(lab.read_of(&ROOT, file, 0, 1).is_ok(), "root needs no list");
    // It can be replaced.
    lab.set_lists(&ROOT, file, &access_list(&list(0o640, 4, &[(kind::USER, 1500, 4)]))).unwrap();
    assert!(lab.read_of(&named, file, 0, 1).is_ok());
}

/// Where the file system has no lists, what a mode can say is set, and no more.
#[test]
fn a_file_system_without_lists_takes_modes() {
    if !is_root() {
        return stag_testing::skipped("only root mounts file systems");
    }
    let folder = Scratch::folder();
    let mount = Command::new("mount").args(["-t", "ramfs", "ramfs"]).arg(&folder.0).status();
    if !mount.is_ok_and(|status| status.success()) {
        return stag_testing::skipped("no ramfs can be mounted here");
    }
    let pool = Lab::pool(PAGE, 64);
    let store = Lab::open(&folder, &pool, |_| {});
    let path = folder.0.clone();
    let mut lab = Lab { pool, store, seconds: 0, baseline: 0, scratch: Some(folder) };
    let file = lab.file("f");
    assert!(!lab.store.of(|store: &DirectoryStore| store.profile().can.keeps_lists));
    let named = list(0o640, 6, &[(kind::USER, 7, 6)]);
    assert_eq!(lab.set_lists(&ROOT, file, &access_list(&named)), Err(FsError::NotSupported));
    assert_eq!(lab.set_lists(&ROOT, file, &access_list(&Acl::from_mode(0o604))), Ok(()));
    assert_eq!(lab.store.attributes(file).unwrap().mode, 0o604);
    assert_eq!(lab.store.lists(file), Ok((None, None)));
    assert_eq!(lab.store.access(&UserIdentity::new(7, 99, []), file, 0x3f), Ok(access::READ));
    let top = File::open(&path).unwrap();
    let flags = OFlags::RDWR | OFlags::CREATE;
    drop(openat(top.as_fd(), "by-the-kernel", flags, Mode::from_raw_mode(0o666)).unwrap());
    drop((lab, top));
    let unmounted = Command::new("umount").arg("-l").arg(&path).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
}
