//! NFSACL version 3: the access control lists of the exports' objects. Served on the connections that NFS is served
//! on; nothing in it is reduced, and a GETACL Reply is as long as the lists are (8267-5.2-a).

use std::borrow::Cow;
use std::time::Duration;

use stag_rpc::{Call, Home, Outcome, Procedure as Bound, Reply, Service, Token};
use stag_wire::nfs3::PostOpAttributes;
use stag_wire::nfsacl::{self, Entry, GetaclArguments, Procedure, SetaclArguments, encode_acl, kind, mask};
use stag_wire::xdr::Reader;

use super::nfs::plain;
use super::rerun::{Again, Answered, Ran};
use super::waiting::{Begun, Ending, Pending, Program, Waiter, WaitsFor};
use super::words::failure;
use super::{CallContext, ExportTable, SharedExports, TimeOfDay, decode};
use crate::binding;
use stag_vfs::Store;
use stag_vfs::{Acl, AclEntry, FsError, SetLists, Timestamp};

/// The service NFSACL version 3.
pub struct Nfsacl<S: Store + ?Sized> {
    exports: SharedExports<S>,
    time: TimeOfDay,
}

/// SETACL may be repeated: it says what the lists are, not how they change.
static BOUND: [Bound; Procedure::COUNT] = {
    let mut bound = [Bound::plain(""); Procedure::COUNT];
    let mut index = 0;
    while index < bound.len() {
        bound[index] = Bound::plain(binding::NFSACL3[index].name);
        index += 1;
    }
    bound
};

impl<S: Store + ?Sized> Nfsacl<S> {
    pub(super) fn new(exports: SharedExports<S>, time: TimeOfDay) -> Nfsacl<S> {
        Nfsacl { exports, time }
    }
}

impl<S: Store + ?Sized> Service for Nfsacl<S> {
    fn program(&self) -> u32 {
        nfsacl::PROGRAM
    }

    fn versions(&self) -> (u32, u32) {
        ExportTable::<S>::versions(self.exports.borrow().has_version_3, nfsacl::VERSION)
    }

    fn procedure(&self, _: u32, procedure: u32) -> Option<&'static Bound> {
        BOUND.get(usize::try_from(procedure).ok()?)
    }

    fn home(&self, call: &Call<'_>) -> Home {
        let writes = call.procedure == Procedure::Setacl as u32;
        self.exports.borrow().home_of_object(call, writes)
    }

    fn call(&mut self, call: &mut Call<'_>, reply: &mut Reply<'_>) -> Outcome {
        let now = self.time.at(call.now());
        let asker = CallContext::of(call);
        let exports = &mut *self.exports.borrow_mut();
        match Procedure::from_number(call.procedure) {
            Some(Procedure::Getacl) => {
                if let Some(arguments) = decode(call, reply) {
                    match getacl(exports, &asker, &arguments) {
                        Ok(gotten) => gotten.send(reply),
                        Err(waits) => {
                            let again = Again::of_nfsacl(Procedure::Getacl, &arguments, &asker);
                            let pending = Pending::Again(again);
                            return exports.keep(waits, Waiter::of(Program::Nfsacl, call), pending);
                        }
                    }
                    ExportTable::<S>::refuse_for_memory(reply);
                    exports.tell_refused(reply);
                }
            }
            Some(Procedure::Setacl) => {
                if let Some(arguments) = decode(call, reply) {
                    let begun = setacl(exports, &asker, &arguments, now);
                    let again = || Again::of_nfsacl(Procedure::Setacl, &arguments, &asker);
                    let outcome = exports.answer(begun, again, Waiter::of(Program::Nfsacl, call), reply);
                    exports.tell_refused(reply);
                    return outcome;
                }
            }
            Some(Procedure::Null) => reply.success(|_| Ok(())),
            // The engine calls only what `procedure` knows.
            None => reply.system_error(),
        }
        Outcome::Done
    }

    // What becomes readable meanwhile, and how long nothing happens, NFS says of the same stores.

    fn stage(&self, token: Token) -> &'static str {
        self.exports.borrow().stage(token)
    }

    #[inline]
    fn poll_later(&mut self, now: Duration) -> Option<Token> {
        let time = || self.time.at(now);
        self.exports.borrow_mut().poll_later(Program::Nfsacl, now, time)
    }

    fn finish(&mut self, token: Token, reply: &mut Reply<'_>) {
        self.exports.borrow_mut().finish(token, reply, &mut Vec::new());
    }

    fn abandoned(&mut self, token: Token) {
        self.exports.borrow_mut().abandon(token, &mut Vec::new());
    }
}

/// Lists in the order of the wire. One that was not asked for is empty.
struct Shown {
    access: Vec<AclEntry>,
    default: Vec<AclEntry>,
}

/// What GETACL ends with.
pub(super) struct Gotten {
    wanted: u32,
    shown: Result<Shown, FsError>,
    attributes: PostOpAttributes,
}

fn getacl<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &GetaclArguments<'_>,
) -> Result<Gotten, WaitsFor> {
    let wanted = arguments.mask;
    let (shown, attributes) = exports.with_object(asker, arguments.object, |exports, opened, seen| {
        if wanted & !mask::ALL != 0 {
            return Err(FsError::Invalid.into());
        }
        let volume = exports.volume(opened);
        let (uid, gid) = (seen.uid, seen.gid);
        let access = if wanted & (mask::ACCESS | mask::ACCESS_COUNT) != 0 {
            let acl = volume.access_acl(seen)?;
            acl.map_or_else(|| Acl::from_mode(seen.mode), Cow::into_owned).entries(uid, gid, 0)
        } else {
            Vec::new()
        };
        let default = if wanted & (mask::DEFAULT | mask::DEFAULT_COUNT) != 0 {
            let acl = volume.default_acl(seen.object)?;
            acl.map_or_else(Vec::new, |acl| acl.entries(uid, gid, kind::DEFAULT))
        } else {
            Vec::new()
        };
        Ok(Shown { access, default })
    })?;
    Ok(Gotten { wanted, shown, attributes })
}

impl Gotten {
    pub(super) fn send(&self, reply: &mut Reply<'_>) {
        let Gotten { wanted, shown, attributes } = self;
        match shown {
            Ok(shown) => reply.success(|writer| {
                writer.u32(0)?;
                writer.value(attributes)?;
                writer.u32(*wanted)?;
                for (entries, whole) in [(&shown.access, mask::ACCESS), (&shown.default, mask::DEFAULT)] {
                    encode_acl(writer, entries.iter().map(entry), wanted & whole == 0)?;
                }
                Ok(())
            }),
            Err(error) => {
                let failed = failure(*error, *attributes);
                let results: nfsacl::GetaclReply<'_> = Err(failed);
                reply.success(|writer| writer.value(&results));
                reply.failed_with(failed.status.number());
            }
        }
    }
}

fn setacl<S: Store + ?Sized>(
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    arguments: &SetaclArguments<'_>,
    now: Timestamp,
) -> Begun {
    exports.change(asker, arguments.object, Ending::Setacl, |exports, opened, seen| {
        let set = lists(arguments)?;
        plain(exports.volume_mut(opened).set_lists(&opened.caller, seen, &set, now))
    })
}

/// Runs a procedure that waited once more.
pub(super) fn rerun<S: Store + ?Sized>(
    procedure: Procedure,
    octets: &[u8],
    exports: &mut ExportTable<S>,
    asker: &CallContext<'_>,
    now: Timestamp,
) -> Result<Ran, WaitsFor> {
    let mut reader = Reader::new(octets);
    Ok(match procedure {
        Procedure::Null => Ran::Lost,
        Procedure::Getacl => match reader.value() {
            Ok(arguments) => Ran::Over(Answered::Getacl(getacl(exports, asker, &arguments)?)),
            Err(_) => Ran::Lost,
        },
        Procedure::Setacl => match reader.value() {
            Ok(arguments) => Ran::Begun(setacl(exports, asker, &arguments, now)),
            Err(_) => Ran::Lost,
        },
    })
}

/// An entry in the words of the protocol, which has the same numbers.
fn entry(&AclEntry { kind, id, permissions }: &AclEntry) -> Entry {
    Entry { kind, id, permissions }
}

/// The lists that a SETACL gives.
fn lists(arguments: &SetaclArguments<'_>) -> Result<SetLists, FsError> {
    if arguments.mask & !mask::ALL != 0 {
        return Err(FsError::Invalid);
    }
    let list = |bit, acl: &nfsacl::Acl<'_>| {
        if arguments.mask & bit == 0 {
            return Ok(None);
        }
        let entries =
            acl.entries.iter().map(|Entry { kind, id, permissions }| AclEntry { kind, id, permissions });
        if acl.count as usize != entries.len() {
            return Err(FsError::Invalid);
        }
        // No entries: no list.
        let made = if entries.len() == 0 { None } else { Some(Acl::from_entries(entries)) };
        made.transpose().map(Some).map_err(|_| FsError::Invalid)
    };
    let access = list(mask::ACCESS, &arguments.access)?;
    Ok(SetLists { access, default: list(mask::DEFAULT, &arguments.default)? })
}
