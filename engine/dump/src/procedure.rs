//! What is called, and what its Reply says: program, version, procedure and status by name.

use std::fmt;

use stag_wire::rpc::AuthStat;
use stag_wire::{mount3, nfs3, nfs4};

/// Program number of NFSACL.
pub(crate) const NFSACL: u32 = 100_227;
/// First of the program numbers that clients choose for their callbacks.
const TRANSIENT: u32 = 0x4000_0000;

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalledProcedure {
    /// Program number.
    pub program: u32,
    /// Its version.
    pub version: u32,
    /// Procedure number.
    pub procedure: u32,
}

/// Names of NFS version 2's procedures.
const NFS2: [&str; 18] = [
    "NULL",
    "GETATTR",
    "SETATTR",
    "ROOT",
    "LOOKUP",
    "READLINK",
    "READ",
    "WRITECACHE",
    "WRITE",
    "CREATE",
    "REMOVE",
    "RENAME",
    "LINK",
    "SYMLINK",
    "MKDIR",
    "RMDIR",
    "READDIR",
    "STATFS",
];
/// Names of NFS version 3's procedures.
const NFS3: [&str; nfs3::Procedure::COUNT] = [
    "NULL",
    "GETATTR",
    "SETATTR",
    "LOOKUP",
    "ACCESS",
    "READLINK",
    "READ",
    "WRITE",
    "CREATE",
    "MKDIR",
    "SYMLINK",
    "MKNOD",
    "REMOVE",
    "RMDIR",
    "RENAME",
    "LINK",
    "READDIR",
    "READDIRPLUS",
    "FSSTAT",
    "FSINFO",
    "PATHCONF",
    "COMMIT",
];
const MOUNT3: [&str; mount3::Procedure::COUNT] = ["NULL", "MNT", "DUMP", "UMNT", "UMNTALL", "EXPORT"];

impl CalledProcedure {
    /// Returns the program's name.
    #[must_use]
    pub fn program_name(&self) -> Option<&'static str> {
        Some(match self.program {
            nfs3::PROGRAM => "NFS",
            mount3::PROGRAM => "MOUNT",
            NFSACL => "NFSACL",
            100_000 => "PORTMAP",
            100_021 => "NLM",
            100_024 => "NSM",
            TRANSIENT.. if self.version == nfs4::CALLBACK_VERSION => "NFS-CB",
            _ => return None,
        })
    }

    /// Returns the procedure's name.
    #[must_use]
    pub fn procedure_name(&self) -> Option<&'static str> {
        let names: &[&str] = match (self.program_name()?, self.version) {
            ("NFS", 2) => &NFS2,
            ("NFS", 3) => &NFS3,
            ("NFS", 4) => &["NULL", "COMPOUND"],
            ("NFS-CB", 1) => &["CB_NULL", "CB_COMPOUND"],
            ("MOUNT", 1..=3) => &MOUNT3,
            ("NFSACL", 2) => &["NULL", "GETACL", "SETACL", "GETATTR", "ACCESS"],
            ("NFSACL", _) => &["NULL", "GETACL", "SETACL"],
            _ => &["NULL"],
        };
        names.get(usize::try_from(self.procedure).ok()?).copied()
    }
}

impl CalledProcedure {
    pub(crate) fn is_compound(&self) -> bool {
        (self.program, self.version, self.procedure) == (nfs4::PROGRAM, nfs4::VERSION, nfs4::COMPOUND)
    }

    pub(crate) fn is_callback_compound(&self) -> bool {
        self.program_name() == Some("NFS-CB") && self.procedure == nfs4::COMPOUND
    }
}

impl fmt::Display for CalledProcedure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.program_name() {
            Some(name) => write!(f, "{name}")?,
            None => write!(f, "program {}", self.program)?,
        }
        write!(f, " v{} ", self.version)?;
        match self.procedure_name() {
            Some(name) => f.write_str(name),
            None => write!(f, "procedure {}", self.procedure),
        }
    }
}

/// What a Reply says of its Call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It was executed; the program has no status of its own, or it is not known here.
    Success,
    /// It was executed, and the program says this.
    Program {
        /// The program's number for it.
        number: u32,
        /// Its name.
        name: Option<&'static str>,
    },
    /// It was not executed.
    NotExecuted(&'static str),
    /// It was not executed, for reasons of authentication.
    Authentication(AuthStat),
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Status::Success => f.write_str("SUCCESS"),
            Status::Program { name: Some(name), .. } => f.write_str(name),
            Status::Program { number, name: None } => write!(f, "status {number}"),
            Status::NotExecuted(name) => f.write_str(name),
            Status::Authentication(AuthStat(number)) => write!(f, "AUTH_ERROR {number}"),
        }
    }
}

/// An RPC message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rpc {
    /// A Call.
    Call(CalledProcedure),
    /// A Reply. What it answers is known from the Call.
    Reply(Option<CalledProcedure>, Status),
}

impl Rpc {
    /// Returns what is or was called.
    #[must_use]
    pub fn target(&self) -> Option<CalledProcedure> {
        match *self {
            Rpc::Call(target) => Some(target),
            Rpc::Reply(target, _) => target,
        }
    }
}
