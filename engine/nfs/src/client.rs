//! The client: typed Calls of NFS version 3 and MOUNT that do not block.
//!
//! A [`Target`] names the connection, the user, and the time-out; [`Target::begin`] begins the Call of any
//! [`Operation`] (its arguments' type says which), with its chunks. When the engine reports the end of the
//! Call, [`FinishedCall`] reads the results.
//!
//! ```text
//! target.begin(&mut engine, &ReadArguments { .. }, &mut Chunks::write(buf), user)?
//!     ... engine.poll(now), engine.completed() ...
//! FinishedCall::new(completed).reply::<ReadArguments>()?
//! ```

mod room;

pub use room::{ReplyRoom, Unbounded};

use std::time::Duration;

use stag_fabric::Provider;
use stag_memory::Buf;
use stag_rpc::{
    CallError, CallId, CallRefused, Chunks, CompletedCall, ConnectionId, Credentials, Engine, Few, ReplyMode,
    Request, Services,
};
use stag_wire::nfs3::{self, PATH_LEN_MAX, POST_OP_ATTRIBUTES_LEN_MAX, Procedure};
use stag_wire::rpc::{AUTH_BODY_LEN_MAX, CALL_HEADER_LEN_MIN};
use stag_wire::rpcrdma::HEADER_LEN_MIN;
use stag_wire::xdr::{Decode, Encode, Item, Reader, Reduced};
use stag_wire::{mount3, nfsacl};

use crate::binding::reply_len_max;

/// Results of MOUNT that are lists, in octets at most. RFC 1813 sets no bound.
const MOUNT_LIST_LEN_MAX: u32 = 1 << 16;

/// Octets of a listing's results at most, when `count` are asked for. RFC 1813 lets the count bound all of them; Linux's
/// server lets it bound the entries, and puts status, attributes and verifier in front: without room for them it answers a
/// full Reply with ERR_CHUNK.
const fn listing_len_max(count: u32) -> u32 {
    count.saturating_add(4 + (4 + 84) + nfs3::VERIFIER_LEN as u32)
}

/// The arguments of a procedure, which know their results' type.
pub trait Operation: Encode {
    /// Program number.
    const PROGRAM: u32;
    /// Version of the program.
    const VERSION: u32;
    /// The results.
    type Reply<'r>: Decode<'r>;

    /// Procedure number.
    fn procedure(&self) -> u32;

    /// The longest possible results in octets, without what goes to Write chunks when `reduced`.
    fn results_len_max(&self, reduced: bool) -> u32;
}

/// Says for each procedure of NFS: arguments, results, and what bounds their length.
macro_rules! operations {
    (@limit $operation:ident) => { 0 };
    (@limit $operation:ident, $this:ident, $limit:expr) => {{
        let $this = $operation;
        $limit
    }};
    ($($arguments:ident is $procedure:ident giving $reply:ident $(<$lt:lifetime>)?
        $(limited by |$this:ident| $limit:expr)?;)*) => {$(
        impl Operation for nfs3::$arguments<'_> {
            const PROGRAM: u32 = nfs3::PROGRAM;
            const VERSION: u32 = nfs3::VERSION;
            type Reply<'r> = nfs3::$reply $(<$lt>)?;

            #[inline]
            fn procedure(&self) -> u32 {
                Procedure::$procedure.number()
            }

            #[inline]
            fn results_len_max(&self, reduced: bool) -> u32 {
                let limit = operations!(@limit self $(, $this, $limit)?);
                let len = reply_len_max(Procedure::$procedure, limit);
                if reduced { len.reduced } else { len.whole }
            }
        }
    )*};
}

operations! {
    GetattrArguments is Getattr giving GetattrReply;
    SetattrArguments is Setattr giving SetattrReply;
    LookupArguments is Lookup giving LookupReply<'r>;
    AccessArguments is Access giving AccessReply;
    ReadlinkArguments is Readlink giving ReadlinkReply<'r> limited by |_this| PATH_LEN_MAX;
    ReadArguments is Read giving ReadReply<'r> limited by |this| this.count;
    WriteArguments is Write giving WriteReply;
    CreateArguments is Create giving CreateReply<'r>;
    MkdirArguments is Mkdir giving CreateReply<'r>;
    SymlinkArguments is Symlink giving CreateReply<'r>;
    MknodArguments is Mknod giving CreateReply<'r>;
    RemoveArguments is Remove giving RemoveReply;
    RmdirArguments is Rmdir giving RemoveReply;
    RenameArguments is Rename giving RenameReply;
    LinkArguments is Link giving LinkReply;
    ReaddirArguments is Readdir giving ReaddirReply<'r> limited by |this| listing_len_max(this.count);
    ReaddirplusArguments is Readdirplus giving ReaddirplusReply<'r> limited by |this| listing_len_max(this.maxcount);
    FsstatArguments is Fsstat giving FsstatReply;
    FsinfoArguments is Fsinfo giving FsinfoReply;
    PathconfArguments is Pathconf giving PathconfReply;
    CommitArguments is Commit giving CommitReply;
}

/// NULL of NFS: a Call that does nothing, to see whether the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Null;

/// MNT of MOUNT: the handle of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mnt<'a>(pub mount3::PathArguments<'a>);

/// EXPORT of MOUNT: what is exported to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListExports;

/// GETACL of NFSACL: the access control lists of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Getacl<'a>(pub nfsacl::GetaclArguments<'a>);

/// SETACL of NFSACL: puts others in their stead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setacl<'a>(pub nfsacl::SetaclArguments<'a>);

/// Two lists as long as Linux keeps them: 8267-5.2-a sets no bound. [`ReplyRoom`] begins with less.
const LISTS_LEN_MAX: u32 =
    4 + POST_OP_ATTRIBUTES_LEN_MAX as u32 + 4 + 2 * (8 + nfsacl::ENTRY_LEN as u32 * nfsacl::ENTRIES_MAX);

/// Says the same for the rest.
macro_rules! other_operations {
    ($($type:ty: $module:ident $procedure:ident, $reply:ty, $len:expr, $encode:expr;)*) => {$(
        impl Encode for $type {
            #[inline]
            fn encode(
                &self,
                writer: &mut stag_wire::xdr::Writer<'_>,
            ) -> Result<(), stag_wire::xdr::Overflow> {
                let encode: fn(&Self, &mut stag_wire::xdr::Writer<'_>) -> _ = $encode;
                encode(self, writer)
            }
        }

        impl Operation for $type {
            const PROGRAM: u32 = $module::PROGRAM;
            const VERSION: u32 = $module::VERSION;
            type Reply<'r> = $reply;

            #[inline]
            fn procedure(&self) -> u32 {
                $module::Procedure::$procedure.number()
            }

            #[inline]
            fn results_len_max(&self, _: bool) -> u32 {
                $len
            }
        }
    )*};
}

other_operations! {
    Null: nfs3 Null, (), 0, |_, _| Ok(());
    Mnt<'_>: mount3 Mnt, mount3::MntReply<'r>,
        4 + 4 + nfs3::HANDLE_LEN_MAX + 4 + 4 * mount3::FLAVORS_MAX, |this, writer| writer.value(&this.0);
    ListExports: mount3 Export, mount3::Exports<'r>, MOUNT_LIST_LEN_MAX, |_, _| Ok(());
    Getacl<'_>: nfsacl Getacl, nfsacl::GetaclReply<'r>, LISTS_LEN_MAX, |this, writer| writer.value(&this.0);
    Setacl<'_>: nfsacl Setacl, nfsacl::SetaclReply, 4 + POST_OP_ATTRIBUTES_LEN_MAX as u32,
        |this, writer| writer.value(&this.0);
}

/// Where Calls go, as whom, and how long they may take.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The connection.
    pub connection: ConnectionId,
    /// Who calls.
    pub credentials: Credentials<'a>,
    /// Time after which a Call is given up.
    pub timeout: Duration,
}

impl Target<'_> {
    /// Octets of data that a WRITE to a handle of `file_len` octets may carry inline: as many as let the whole Call fit the
    /// threshold that both ends agreed on. More goes by a Read chunk, which costs a round trip on most fabrics.
    ///
    /// 0 without a connection.
    #[must_use]
    pub fn inline_write_len_max<P: Provider, S: Services>(
        &self,
        engine: &Engine<P, S>,
        file_len: usize,
    ) -> usize {
        /// Offset, count, stability, and the lengths of handle and data.
        const FIXED_LEN: usize = 8 + 4 + 4 + 4 + 4;
        let threshold = engine.parameters(self.connection).map_or(0, |parameters| parameters.call_threshold);
        let credentials = match self.credentials {
            Credentials::None => 0,
            Credentials::Sys(body) => body.len().next_multiple_of(4),
            // Credential and verifier, however long.
            Credentials::Own(_) => 2 * AUTH_BODY_LEN_MAX as usize,
        };
        let headers = HEADER_LEN_MIN + CALL_HEADER_LEN_MIN + credentials;
        let rest = (threshold as usize).saturating_sub(headers + FIXED_LEN + file_len.next_multiple_of(4));
        rest / 4 * 4
    }

    /// Begins a Call. `user` comes back with its end.
    ///
    /// `chunks` is the memory for its DDP-eligible item: [`Chunks::write`] for the results of READ, as large as
    /// its count; [`Chunks::read`] for the data of WRITE, whose arguments then say [`Item::Reduced`]. Without
    /// them the item is inline. A Reply chunk, where it might be needed, is the engine's business.
    ///
    /// # Errors
    ///
    /// Nothing was sent then, and the chunks are as they were; otherwise they are taken.
    #[inline]
    pub fn begin<P: Provider, S: Services, O: Operation>(
        &self,
        engine: &mut Engine<P, S>,
        operation: &O,
        chunks: &mut Chunks,
        user: u64,
    ) -> Result<CallId, CallRefused> {
        let number = (O::PROGRAM, O::VERSION, operation.procedure());
        let request = self.request(number, operation.results_len_max(!chunks.write.is_empty()), user);
        engine.call(self.connection, &request, chunks, |writer| writer.value(operation))
    }

    /// Does what [`begin`](Target::begin) does, compiled once for all operations.
    ///
    /// For programs that make Calls of many kinds: each costs a few instructions more.
    ///
    /// # Errors
    ///
    /// Those of [`begin`](Target::begin).
    pub fn begin_any<P: Provider, S: Services>(
        &self,
        engine: &mut Engine<P, S>,
        operation: &AnyOperation<'_>,
        chunks: &mut Chunks,
        user: u64,
    ) -> Result<CallId, CallRefused> {
        let results_len_max =
            if chunks.write.is_empty() { operation.whole_len_max } else { operation.reduced_len_max };
        let request = self.request(operation.number, results_len_max, user);
        engine.call(self.connection, &request, chunks, |writer| writer.value(operation.arguments))
    }

    #[inline]
    fn request(
        &self,
        (program, version, procedure): (u32, u32, u32),
        results_len_max: u32,
        user: u64,
    ) -> Request<'_> {
        Request {
            program,
            version,
            procedure,
            credentials: self.credentials,
            user,
            timeout: self.timeout,
            results_len_max,
            retransmit: true,
            reply_mode: reply_mode(program, procedure),
        }
    }
}

/// Who provides the memory of a procedure's results, if the server can. Lists of access rights and the targets of links are hardly
/// ever as long as they may be: a Reply chunk for each would be in vain.
#[inline]
fn reply_mode(program: u32, procedure: u32) -> ReplyMode {
    let is_rarely_long = match program {
        nfs3::PROGRAM => procedure == Procedure::Readlink.number(),
        nfsacl::PROGRAM => procedure == nfsacl::Procedure::Getacl.number(),
        _ => false,
    };
    if is_rarely_long { ReplyMode::Responder } else { ReplyMode::Auto }
}

/// An [`Operation`] whose type is erased.
pub struct AnyOperation<'a> {
    /// Program, version and procedure.
    number: (u32, u32, u32),
    whole_len_max: u32,
    reduced_len_max: u32,
    arguments: &'a dyn Encode,
}

impl<'a> AnyOperation<'a> {
    /// Erases the type of `operation`.
    #[must_use]
    pub fn new<O: Operation>(operation: &'a O) -> AnyOperation<'a> {
        AnyOperation {
            number: (O::PROGRAM, O::VERSION, operation.procedure()),
            whole_len_max: operation.results_len_max(false),
            reduced_len_max: operation.results_len_max(true),
            arguments: operation,
        }
    }

    /// Returns its program's number.
    #[must_use]
    pub fn program(&self) -> u32 {
        self.number.0
    }
}

/// Why there are no results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The Call failed below NFS.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The results are not those of the procedure.
    #[error("the server's results are malformed: {0}")]
    Results(#[from] stag_wire::xdr::XdrError),
}

/// A Call that is over.
#[derive(Debug)]
pub struct FinishedCall {
    completed: CompletedCall,
    /// The Write chunk that its results may be reduced by: none, if none was provided.
    reduced: Option<[Reduced; 1]>,
}

impl FinishedCall {
    /// Makes the results of a Call of [`Target::begin`] readable.
    #[must_use]
    pub fn new(completed: CompletedCall) -> FinishedCall {
        let reduced = match &completed.result {
            Ok(results) if !completed.written.is_empty() => Some([results.reduced()]),
            _ => None,
        };
        FinishedCall { completed, reduced }
    }

    /// What the engine said.
    #[must_use]
    pub fn completed(&self) -> &CompletedCall {
        &self.completed
    }

    /// The results. `O` must be the type that the Call was begun with.
    ///
    /// # Errors
    ///
    /// When there are none; what NFS itself says about a failure is in the results.
    pub fn reply<O: Operation>(&self) -> Result<O::Reply<'_>, ClientError> {
        let results = self.completed.result.as_ref().map_err(|error| *error)?;
        let reduced = self.reduced.as_ref().map_or(&[][..], |reduced| reduced);
        let mut reader = Reader::with_reduced(results.bytes(), reduced);
        let reply = reader.value()?;
        reader.finish()?;
        Ok(reply)
    }

    /// The octets of an eligible item of the results, in the pieces that they lie in.
    pub fn octets<'s>(&'s self, item: &Item<'s>) -> impl Iterator<Item = &'s [u8]> + use<'s> {
        let (inline, mut left) = match *item {
            Item::Inline(octets) => (Some(octets), 0),
            Item::Reduced { len, .. } => (None, len as usize),
        };
        let written = self.completed.written.iter().map_while(move |(_, buf)| {
            let now = left.min(buf.len());
            left -= now;
            (now > 0).then(|| &buf[..now])
        });
        inline.into_iter().chain(written)
    }

    /// Takes the Write chunk's buffers back: with the data, if the Call succeeded.
    #[must_use]
    pub fn into_buffers(self) -> Few<(u8, Buf)> {
        self.completed.written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_may_be_as_long_as_linux_makes_it() {
        // RFC 1813 section 3.3.17; 8267-D-1: status, attributes and verifier, `maxcount` octets of entries, no more.
        let directory = nfs3::Handle(&[]);
        let (dircount, maxcount) = (65536, 65536);
        let arguments =
            nfs3::ReaddirplusArguments { directory, cookie: 0, verifier: [0; 8], dircount, maxcount };
        assert!(arguments.results_len_max(false) >= 4 + 88 + 8 + maxcount);
        let arguments = nfs3::ReaddirArguments { directory, cookie: 0, verifier: [0; 8], count: u32::MAX };
        assert_eq!(arguments.results_len_max(false), u32::MAX);
    }
}
