//! Procedures that are run again, from their start, because a step that reads had no answer at first.
//!
//! A Call is over when its service returns, so its arguments are kept, encoded as they came.

use stag_rpc::Reply;
use stag_vfs::{FsError, Store, Timestamp};
use stag_wire::nfs3::{
    AccessReply, FsinfoReply, FsstatReply, GetattrReply, PathconfReply, Procedure, ReaddirArguments,
    ReaddirplusArguments,
};
use stag_wire::xdr::{Decode, Encode, Reader, Writer};

use super::nfs::{
    Answer, LookedUp, access, create, fsinfo, fsstat, getattr, link, lookup, mkdir, mknod, pathconf, remove,
    rename, rmdir, setattr,
};
use super::transfer::{AgainTransfer, AnsweredTransfer, LinkRead, readlink, symlink};
use super::waiting::{Begun, Changed, Pending, WaitsFor};
use super::words::failure;
use super::{Asker, CallContext, ExportTable, listing, mount, nfsacl};
use crate::handle::HANDLE_LEN;

/// A procedure to run again.
pub(super) struct Again {
    what: What,
    asker: Asker,
}

enum What {
    /// One of NFS; its arguments.
    Nfs(Procedure, Vec<u8>),
    /// One of NFSACL.
    Nfsacl(stag_wire::nfsacl::Procedure, Vec<u8>),
    /// MNT of a path.
    Mount(Vec<u8>),
    /// READ, WRITE or COMMIT.
    Transfer(AgainTransfer),
}

/// What became of it.
pub(super) enum Answered {
    Changed(Changed),
    Getattr(GetattrReply),
    Lookup(LookedUp),
    Access(AccessReply),
    Fsstat(FsstatReply),
    Fsinfo(FsinfoReply),
    Pathconf(PathconfReply),
    Readlink(LinkRead),
    Getacl(nfsacl::Gotten),
    Mnt(Result<[u8; HANDLE_LEN], stag_wire::mount3::Status>),
    /// A listing, of which everything is known now.
    List(Again),
    Transfer(AnsweredTransfer),
}

/// Arguments as they are on the wire.
pub(super) fn encoded(arguments: &impl Encode) -> Vec<u8> {
    let mut octets = vec![0; 256];
    loop {
        let mut writer = Writer::new(&mut octets);
        if writer.value(arguments).is_ok() {
            let len = writer.written().len();
            octets.truncate(len);
            return octets;
        }
        let len = octets.len();
        octets.resize(2 * len, 0);
    }
}

fn decoded<'o, T: Decode<'o>>(octets: &'o [u8]) -> Option<T> {
    Reader::new(octets).value().ok()
}

impl Again {
    /// A procedure of NFS with these arguments.
    pub(super) fn new(procedure: Procedure, arguments: &impl Encode, asker: &CallContext<'_>) -> Again {
        Again { what: What::Nfs(procedure, encoded(arguments)), asker: asker.to_owned() }
    }

    /// A procedure of NFSACL with these arguments.
    pub(super) fn of_nfsacl(
        procedure: stag_wire::nfsacl::Procedure,
        arguments: &impl Encode,
        asker: &CallContext<'_>,
    ) -> Again {
        Again { what: What::Nfsacl(procedure, encoded(arguments)), asker: asker.to_owned() }
    }

    /// MNT of a path.
    pub(super) fn of_mount(path: &[u8], asker: &CallContext<'_>) -> Again {
        Again { what: What::Mount(path.to_vec()), asker: asker.to_owned() }
    }

    /// READ, WRITE or COMMIT.
    pub(super) fn of_transfer(transfer: AgainTransfer, asker: &CallContext<'_>) -> Again {
        Again { what: What::Transfer(transfer), asker: asker.to_owned() }
    }

    /// Runs it. `Err`: what is left to do, and what it waits for; nothing, if these are results that need no wait.
    pub(super) fn run<S: Store + ?Sized>(
        self,
        exports: &mut ExportTable<S>,
        now: Timestamp,
    ) -> Result<Answered, (Option<WaitsFor>, Pending)> {
        if let What::Transfer(transfer) = self.what {
            let asker = self.asker;
            return match transfer.run(exports, &asker.context(), now) {
                Ok(answered) => Ok(Answered::Transfer(answered)),
                Err((waits, Ok(later))) => Err((Some(waits), Pending::Transfer(later))),
                Err((waits, Err(again))) => {
                    Err((Some(waits), Pending::Again(Again { what: What::Transfer(again), asker })))
                }
            };
        }
        let found = {
            let asker = self.asker.context();
            match &self.what {
                What::Nfs(procedure, octets) => run_nfs(*procedure, octets, exports, &asker, now),
                What::Nfsacl(procedure, octets) => nfsacl::rerun(*procedure, octets, exports, &asker, now),
                What::Mount(path) => {
                    let found = mount::find(exports, &asker, path);
                    if let Ok(found) = &found {
                        mount::log(exports, &asker, path, found);
                    }
                    found.map(|found| Ran::Over(Answered::Mnt(found)))
                }
                What::Transfer(_) => Ok(Ran::Lost),
            }
        };
        match found {
            Ok(Ran::Over(answered)) => Ok(answered),
            Ok(Ran::Listed) => Ok(Answered::List(self)),
            Ok(Ran::Begun(Begun::Over(changed))) => {
                Err((exports.uncommitted.take(), Pending::Changed(changed)))
            }
            Ok(Ran::Begun(Begun::Acts(waits, acting))) => Err((Some(waits), Pending::Acting(acting))),
            Ok(Ran::Begun(Begun::Waits(waits))) | Err(waits) => Err((Some(waits), Pending::Again(self))),
            // The arguments were decoded once, so they can be again.
            Ok(Ran::Lost) => Ok(Answered::Getattr(Err(failure(FsError::Fault, ())))),
        }
    }
}

/// How a run ended that does not wait for a step that reads.
pub(super) enum Ran {
    Over(Answered),
    Begun(Begun),
    /// A listing can be written.
    Listed,
    /// The arguments cannot be decoded.
    Lost,
}

fn run_nfs<S: Store + ?Sized>(
    procedure: Procedure,
    octets: &[u8],
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    now: Timestamp,
) -> Result<Ran, WaitsFor> {
    macro_rules! answer {
        ($run:ident, $kind:ident) => {
            match decoded(octets) {
                Some(arguments) => Ran::Over(Answered::$kind($run(exports, asker, &arguments, now)?)),
                None => Ran::Lost,
            }
        };
    }
    macro_rules! change {
        ($run:ident) => {
            match decoded(octets) {
                Some(arguments) => Ran::Begun($run(exports, asker, &arguments, now)),
                None => Ran::Lost,
            }
        };
    }
    Ok(match procedure {
        Procedure::Getattr => match decoded(octets) {
            Some(arguments) => {
                getattr(exports, asker, &arguments, |results| Ran::Over(Answered::Getattr(*results)))?
            }
            None => Ran::Lost,
        },
        Procedure::Lookup => answer!(lookup, Lookup),
        Procedure::Access => answer!(access, Access),
        Procedure::Fsstat => answer!(fsstat, Fsstat),
        Procedure::Fsinfo => answer!(fsinfo, Fsinfo),
        Procedure::Pathconf => answer!(pathconf, Pathconf),
        Procedure::Readlink => answer!(readlink, Readlink),
        Procedure::Setattr => change!(setattr),
        Procedure::Create => change!(create),
        Procedure::Mkdir => change!(mkdir),
        Procedure::Mknod => change!(mknod),
        Procedure::Symlink => change!(symlink),
        Procedure::Remove => change!(remove),
        Procedure::Rmdir => change!(rmdir),
        Procedure::Rename => change!(rename),
        Procedure::Link => change!(link),
        Procedure::Readdir => match decoded::<ReaddirArguments<'_>>(octets) {
            Some(arguments) => {
                listing::probe(exports, asker, &(&arguments).into(), now).map(|()| Ran::Listed)?
            }
            None => Ran::Lost,
        },
        Procedure::Readdirplus => match decoded::<ReaddirplusArguments<'_>>(octets) {
            Some(arguments) => {
                listing::probe(exports, asker, &(&arguments).into(), now).map(|()| Ran::Listed)?
            }
            None => Ran::Lost,
        },
        Procedure::Null | Procedure::Read | Procedure::Write | Procedure::Commit => Ran::Lost,
    })
}

impl Answered {
    /// Answers with it.
    pub(super) fn send<S: Store + ?Sized>(
        self,
        exports: &mut ExportTable<S>,
        reply: &mut Reply<'_>,
        now: Timestamp,
    ) {
        match self {
            Answered::Changed(results) => results.send(Ok(()), reply),
            Answered::Getattr(results) => results.send(reply),
            Answered::Lookup(results) => results.send(reply),
            Answered::Access(results) => results.send(reply),
            Answered::Fsstat(results) => results.send(reply),
            Answered::Fsinfo(results) => results.send(reply),
            Answered::Pathconf(results) => results.send(reply),
            Answered::Readlink(results) => results.send(exports, reply),
            Answered::Getacl(results) => results.send(reply),
            Answered::Mnt(found) => mount::send(&found, reply),
            Answered::Transfer(transfer) => transfer.send(reply),
            Answered::List(again) => {
                let asker = again.asker.context();
                let listed = match &again.what {
                    What::Nfs(Procedure::Readdir, octets) => decoded::<ReaddirArguments<'_>>(octets)
                        .map(|arguments| listing::list(exports, &asker, &(&arguments).into(), reply, now)),
                    What::Nfs(_, octets) => decoded::<ReaddirplusArguments<'_>>(octets)
                        .map(|arguments| listing::list(exports, &asker, &(&arguments).into(), reply, now)),
                    _ => None,
                };
                if !matches!(listed, Some(Ok(()))) {
                    ExportTable::<S>::refuse_for_now(reply);
                }
            }
        }
    }
}
