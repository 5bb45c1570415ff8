//! Reads the RPC messages inside: the bodies of NFS versions 3 and 4, NFSACL and
//! MOUNT by their codecs, so that their chunks can be checked against the items that they hold.

use stag_wire::rpc::{self, Accepted, CallHeader, Denied, ReplyBody, ReplyHeader};
use stag_wire::xdr::{Decode, Reader, Reduced, XdrError};
use stag_wire::{mount3, nfs3};

use crate::compound;
use crate::procedure::{CalledProcedure, NFSACL, Rpc, Status};
use crate::reading::{Called, Problem, Reading};
use crate::status;

/// Reads a Call, from which the Read chunks `reduced` were moved out.
pub(crate) fn read_call(payload: &[u8], reduced: &[Reduced]) -> Reading {
    let mut reading = Reading::default();
    let mut reader = Reader::with_reduced(payload, reduced);
    let header = match CallHeader::parse(&mut reader) {
        Ok(header) => header,
        Err(error) => return Reading { problem: Some(Problem::Header(error)), ..reading },
    };
    let target =
        CalledProcedure { program: header.program, version: header.version, procedure: header.procedure };
    reading.rpc = Some(Rpc::Call(target));
    // RPCSEC_GSS wraps the arguments.
    if header.credential.flavor != rpc::flavor::RPCSEC_GSS
        && let Err(error) = arguments(target, reader, &mut reading)
    {
        reading.problem = Some(Problem::Body(error));
    }
    reading
}

/// Reads the Reply to a Call, whose results went to the Write chunks `reduced`.
pub(crate) fn read_reply(payload: &[u8], called: Option<&Called>, reduced: &[Reduced]) -> Reading {
    let mut reading = Reading::default();
    let mut reader = Reader::with_reduced(payload, reduced);
    let header = match ReplyHeader::parse(&mut reader) {
        Ok(header) => header,
        Err(error) => return Reading { problem: Some(Problem::Header(error)), ..reading },
    };
    let status = match header.body {
        ReplyBody::Accepted { outcome, .. } => match outcome {
            Accepted::Success => Status::Success,
            Accepted::ProgUnavail => Status::NotExecuted("PROG_UNAVAIL"),
            Accepted::ProgMismatch { .. } => Status::NotExecuted("PROG_MISMATCH"),
            Accepted::ProcUnavail => Status::NotExecuted("PROC_UNAVAIL"),
            Accepted::GarbageArgs => Status::NotExecuted("GARBAGE_ARGS"),
            Accepted::SystemErr => Status::NotExecuted("SYSTEM_ERR"),
        },
        ReplyBody::Denied(Denied::RpcMismatch { .. }) => Status::NotExecuted("RPC_MISMATCH"),
        ReplyBody::Denied(Denied::AuthError(why)) => Status::Authentication(why),
    };
    let (Status::Success, Some(called)) = (status, called) else {
        let target = called.map(|called| called.target);
        return Reading { rpc: Some(Rpc::Reply(target, status)), ..reading };
    };
    let status = program_status(called.target, reader.rest()).unwrap_or(status);
    reading.rpc = Some(Rpc::Reply(Some(called.target), status));
    if let Err(error) = results(called, reader, &mut reading) {
        reading.problem = Some(Problem::Body(error));
    }
    reading
}

/// Reads the status that the results of most procedures start with.
fn program_status(target: CalledProcedure, results: &[u8]) -> Option<Status> {
    let number = u32::from_be_bytes(*results.first_chunk()?);
    if target.procedure == 0 {
        return None;
    }
    let name = match (target.program_name()?, target.version) {
        ("NFS" | "NFSACL", 2 | 3) => status::nfs3(number),
        ("NFS", 4) | ("NFS-CB", 1) => status::nfs4(number),
        ("MOUNT", _) if target.procedure == 1 => status::mount3(number),
        _ => return None,
    };
    Some(Status::Program { number, name })
}

/// Reads a value and all the rest with it.
fn whole<'a, T: Decode<'a>>(mut reader: Reader<'a>) -> Result<(), XdrError> {
    reader.value::<T>()?;
    reader.finish()
}

fn arguments(target: CalledProcedure, reader: Reader<'_>, reading: &mut Reading) -> Result<(), XdrError> {
    match (target.program, target.version) {
        _ if target.is_compound() => compound::read_call(reader, reading),
        _ if target.is_callback_compound() => compound::read_callback(reader, reading),
        (nfs3::PROGRAM, nfs3::VERSION) => nfs3_arguments(target.procedure, reader),
        (mount3::PROGRAM, mount3::VERSION) => match mount3::Procedure::from_number(target.procedure) {
            Some(mount3::Procedure::Mnt | mount3::Procedure::Umnt) => {
                whole::<mount3::PathArguments<'_>>(reader)
            }
            Some(_) => reader.finish(),
            None => Ok(()),
        },
        // Nothing of it is DDP-eligible (8267-5.2-a), so no Read chunk may have a place in it.
        (NFSACL, _) if reader.reduced().is_empty() => Ok(()),
        (NFSACL, _) => Err(XdrError::IneligibleChunk),
        _ => Ok(()),
    }
}

fn results(called: &Called, reader: Reader<'_>, reading: &mut Reading) -> Result<(), XdrError> {
    let (target, sent) = (called.target, called.sent.as_deref());
    match (target.program, target.version) {
        _ if target.is_compound() => compound::read_reply(reader, sent, reading),
        _ if target.is_callback_compound() => compound::read_callback_reply(reader, sent, reading),
        (nfs3::PROGRAM, nfs3::VERSION) => nfs3_results(target.procedure, reader),
        (NFSACL, _) if reader.reduced().iter().any(|chunk| chunk.len != 0) => Err(XdrError::IneligibleChunk),
        _ => Ok(()),
    }
}

fn nfs3_arguments(procedure: u32, reader: Reader<'_>) -> Result<(), XdrError> {
    use nfs3::{self as n, Procedure as P};
    let Some(procedure) = P::from_number(procedure) else { return Ok(()) };
    match procedure {
        P::Null => reader.finish(),
        P::Getattr => whole::<n::GetattrArguments<'_>>(reader),
        P::Setattr => whole::<n::SetattrArguments<'_>>(reader),
        P::Lookup => whole::<n::LookupArguments<'_>>(reader),
        P::Access => whole::<n::AccessArguments<'_>>(reader),
        P::Readlink => whole::<n::ReadlinkArguments<'_>>(reader),
        P::Read => whole::<n::ReadArguments<'_>>(reader),
        P::Write => whole::<n::WriteArguments<'_>>(reader),
        P::Create => whole::<n::CreateArguments<'_>>(reader),
        P::Mkdir => whole::<n::MkdirArguments<'_>>(reader),
        P::Symlink => whole::<n::SymlinkArguments<'_>>(reader),
        P::Mknod => whole::<n::MknodArguments<'_>>(reader),
        P::Remove => whole::<n::RemoveArguments<'_>>(reader),
        P::Rmdir => whole::<n::RmdirArguments<'_>>(reader),
        P::Rename => whole::<n::RenameArguments<'_>>(reader),
        P::Link => whole::<n::LinkArguments<'_>>(reader),
        P::Readdir => whole::<n::ReaddirArguments<'_>>(reader),
        P::Readdirplus => whole::<n::ReaddirplusArguments<'_>>(reader),
        P::Fsstat => whole::<n::FsstatArguments<'_>>(reader),
        P::Fsinfo => whole::<n::FsinfoArguments<'_>>(reader),
        P::Pathconf => whole::<n::PathconfArguments<'_>>(reader),
        P::Commit => whole::<n::CommitArguments<'_>>(reader),
    }
}

fn nfs3_results(procedure: u32, reader: Reader<'_>) -> Result<(), XdrError> {
    use nfs3::{self as n, Procedure as P};
    let Some(procedure) = P::from_number(procedure) else { return Ok(()) };
    match procedure {
        P::Null => reader.finish(),
        P::Getattr => whole::<n::GetattrReply>(reader),
        P::Setattr => whole::<n::SetattrReply>(reader),
        P::Lookup => whole::<n::LookupReply<'_>>(reader),
        P::Access => whole::<n::AccessReply>(reader),
        P::Readlink => whole::<n::ReadlinkReply<'_>>(reader),
        P::Read => whole::<n::ReadReply<'_>>(reader),
        P::Write => whole::<n::WriteReply>(reader),
        P::Create | P::Mkdir | P::Symlink | P::Mknod => whole::<n::CreateReply<'_>>(reader),
        P::Remove | P::Rmdir => whole::<n::RemoveReply>(reader),
        P::Rename => whole::<n::RenameReply>(reader),
        P::Link => whole::<n::LinkReply>(reader),
        P::Readdir => whole::<n::ReaddirReply<'_>>(reader),
        P::Readdirplus => whole::<n::ReaddirplusReply<'_>>(reader),
        P::Fsstat => whole::<n::FsstatReply>(reader),
        P::Fsinfo => whole::<n::FsinfoReply>(reader),
        P::Pathconf => whole::<n::PathconfReply>(reader),
        P::Commit => whole::<n::CommitReply>(reader),
    }
}
