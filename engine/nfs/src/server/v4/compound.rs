//! COMPOUND: its operations in order, and what becomes of one that has to wait.

use stag_memory::Shared;
use stag_rpc::{Call, Placed, Reply, Token};
use stag_state::slot::SlotClaim;
use stag_vfs::{Finished, Store};
use stag_wire::nfs4::compound::{CompoundCall, Operations};
use stag_wire::nfs4::operation::{Argument4, Operation4};
use stag_wire::nfs4::session::SequenceArguments;
use stag_wire::nfs4::{StateId, Status4};
use stag_wire::xdr::{Decode, Reader, Reduced, XdrError, padded};

use super::super::nfs::{PIECES_MAX, TRANSFER_LEN_MAX};
use super::super::transfer::take_placed;
use super::super::waiting::{Hold, Pending, Program, Waiter, WaitsFor};
use super::super::{Asker, CallContext};
use super::results::{OperationMark, Results};
use super::session::Begun;
use super::status::answered;
use super::{Cursor, Place, Resume, Server, Step, Stop};
use super::{attributes, back, changes, files, handles, listing, locks, names, opens, pseudo, session};

/// What becomes of a Call.
pub(super) enum Ended {
    /// These are its results.
    Answered(Box<Results>),
    /// It is no COMPOUND, and the Reply says so.
    Refused(Box<Results>),
    /// It waits for a store.
    Suspended,
}

/// A COMPOUND that waits for a store.
pub(in crate::server) struct Suspended {
    /// Arguments from the next operation on.
    arguments: Vec<u8>,
    /// Octets that it is counted with.
    counted: usize,
    /// Where they begin in the unreduced stream.
    position: u32,
    /// Operations among them.
    left: u32,
    reduced: Vec<Reduced>,
    data: Vec<(u32, Vec<Shared>)>,
    asker: Asker,
    /// What is left to do of the operation before them.
    resume: Option<(Resume, OperationMark, u32)>,
    standing: Standing,
}

impl Suspended {
    /// Whether its store looks at names or attributes, or changes them, and does not move or sync data.
    pub(in crate::server) fn is_at_names(&self) -> bool {
        matches!(self.resume, None | Some((Resume::Names(_), ..)))
    }
}

/// What a [`Cursor`] has that outlives its Call.
struct Standing {
    minor: u32,
    current: Option<Place>,
    saved: Option<Place>,
    states: [Option<StateId>; 2],
    session: Option<std::sync::Arc<stag_state::session::Session>>,
    claim: Option<SlotClaim>,
    keeps_reply: bool,
    results: Box<Results>,
    read_len_max: u32,
    operations_done: u32,
    has_paid: bool,
}

/// Where the data of Read chunks is.
pub(super) struct OperationData<'c> {
    /// Where it was placed, as long as its Call is there.
    placed: Option<&'c mut dyn PlacedData>,
    /// What was taken from there, by the number of its chunk.
    kept: Vec<(u32, Vec<Shared>)>,
}

/// A Call with Read chunks.
pub(super) trait PlacedData {
    /// The data of the Read chunk number `index`.
    fn placed_data(&mut self, index: u32) -> &mut Placed;
}

impl PlacedData for Call<'_> {
    fn placed_data(&mut self, index: u32) -> &mut Placed {
        self.placed(index)
    }
}

impl OperationData<'_> {
    /// Appends the `len` octets of a Read chunk to `pieces`. `None`: there was no memory for them, NFS4ERR_DELAY.
    pub(super) fn take(&mut self, index: u32, len: u32, pieces: &mut Vec<Shared>) -> Option<()> {
        if let Some(place) = self.kept.iter().position(|(kept, _)| *kept == index) {
            pieces.append(&mut self.kept.swap_remove(place).1);
            return Some(());
        }
        take_placed(self.placed.as_mut()?.placed_data(index), len, pieces)
    }

    /// Puts them back: the operation that took them will run again. `pieces` is empty afterwards.
    pub(super) fn put_back(&mut self, index: u32, pieces: &mut Vec<Shared>) {
        // The list is allocated once, for its capacity.
        let kept = std::mem::replace(pieces, Vec::with_capacity(PIECES_MAX));
        self.kept.push((index, kept));
    }

    /// Takes all of these chunks out of the Call, which ends.
    fn keep(mut self, reduced: &[Reduced]) -> Vec<(u32, Vec<Shared>)> {
        for chunk in reduced {
            let is_kept = self.kept.iter().any(|(kept, _)| *kept == chunk.index);
            if let Some(placed) = self.placed.as_mut().filter(|_| !is_kept) {
                let placed = placed.placed_data(chunk.index);
                if !placed.is_missing() {
                    let pieces = placed.pieces.drain(..).map(stag_memory::Buf::share).collect();
                    self.kept.push((chunk.index, pieces));
                }
            }
        }
        self.kept
    }
}

/// What the transport has for results.
pub(super) enum ReplyRoom<'c> {
    /// This Reply.
    Of(&'c Reply<'c>),
    /// Known from when the Call came: octets of a READ's data.
    Known(u32),
}

impl ReplyRoom<'_> {
    /// Of `len` octets of a READ, those that it should have. `takes_memory`: the store copies them into memory of the client's
    /// part.
    pub(super) fn of_read(&self, len: u32, takes_memory: bool) -> u32 {
        match self {
            ReplyRoom::Of(reply) => {
                let len = if takes_memory { reply.results_room(len) } else { len };
                reply.item_room(len)
            }
            ReplyRoom::Known(most) => len.min(*most),
        }
    }

    /// Pieces that data may be in.
    pub(super) fn pieces(&self) -> usize {
        match self {
            ReplyRoom::Of(reply) => reply.pieces_room(),
            ReplyRoom::Known(_) => usize::MAX,
        }
    }
}

/// How a run ended.
enum Ran {
    Over,
    /// It waits, and goes on with these operations; before them with the rest of one.
    Waits(Hold, Option<(Resume, OperationMark, u32)>),
}

/// Tells a COMPOUND from others: who asks, and the octets behind SEQUENCE, or the first of them.
fn fingerprint(asker: &CallContext<'_>, rest: &[u8]) -> u64 {
    const PRIME: u64 = 0x9e37_79b9_7f4a_7c15;
    let uid = asker.caller.as_ref().map_or(u64::MAX, |caller| u64::from(caller.uid));
    let mix = |hash: u64, word: u64| (hash ^ word).wrapping_mul(PRIME).rotate_left(29);
    let start = &rest[..rest.len().min(128)];
    let (words, last) = start.as_chunks::<8>();
    let hash =
        words.iter().fold(mix(uid, rest.len() as u64), |hash, word| mix(hash, u64::from_le_bytes(*word)));
    last.iter().fold(hash, |hash, octet| mix(hash, u64::from(*octet)))
}

/// Octets of the Call, with its header and its chunks.
fn request_len(arguments: &Reader<'_>) -> u64 {
    let chunks: u64 = arguments.reduced().iter().map(|chunk| padded(chunk.len)).sum();
    arguments.unreduced_position() + arguments.remaining() as u64 + chunks
}

/// Answers a COMPOUND, or lets it wait.
pub(super) fn call<S: Store + ?Sized>(
    mut server: Server<'_, S>,
    call: &mut Call<'_>,
    reply: &mut Reply<'_>,
    mut results: Box<Results>,
) -> Ended {
    let arguments = call.arguments();
    let request_len = request_len(&arguments);
    let CompoundCall { tag, minor_version, mut operations } = match CompoundCall::parse(arguments) {
        Ok(compound) => compound,
        Err(error) => {
            match error {
                XdrError::IneligibleChunk | XdrError::UnusedChunk => reply.bad_chunks(),
                _ => reply.garbage_arguments(),
            }
            return Ended::Refused(results);
        }
    };
    results.begin(tag.0, reply);
    let [one, two] = server.state.config.minor_versions;
    if !matches!((minor_version, one, two), (1, true, _) | (2, _, true)) {
        results.set_status(Status4::MinorVersMismatch);
        results.finish();
        return Ended::Answered(results);
    }
    let (token, connection, caller) = (call.token(), call.connection(), CallContext::of(call));
    let mut cursor = Cursor {
        minor: minor_version,
        caller,
        connection: Some(connection),
        current: None,
        saved: None,
        current_state: None,
        saved_state: None,
        session: None,
        claim: None,
        keeps_reply: false,
        results,
        data: OperationData { placed: Some(call), kept: Vec::new() },
        room: ReplyRoom::Of(reply),
        operations_left: 0,
        operations_done: 0,
        expected_len: 0,
        has_paid: false,
    };
    if let Ran::Waits(hold, rest) = run(&mut server, &mut cursor, &mut operations, request_len) {
        let expected_len = cursor.expected_len;
        let Some(refused) = wait(&mut server, cursor, (hold, rest), &mut operations, token) else {
            reply.expect_results(expected_len);
            return Ended::Suspended;
        };
        cursor = refused;
    }
    close(&mut cursor);
    Ended::Answered(cursor.results)
}

/// Goes on with a COMPOUND whose store is done, if it waited for one, or whose turn at a limit has come. `None`: it waits again.
pub(super) fn go_on<S: Store + ?Sized>(
    mut server: Server<'_, S>,
    suspended: Suspended,
    ready: Option<WaitsFor>,
    token: Token,
) -> Option<Box<Results>> {
    let Suspended { arguments, counted, position, left, reduced, data, asker, resume, standing } = suspended;
    server.state.suspended -= counted;
    let finished = match ready {
        Some(WaitsFor { share, ticket }) => {
            server.exports.shares[share].volume_mut().store_mut().finish(ticket, server.pieces)
        }
        None => Ok(Finished::Ready),
    };
    let mut operations = Operations::resume(left, Reader::with_reduced_at(&arguments, position, &reduced));
    let Standing { minor, current, saved, states: [current_state, saved_state], .. } = standing;
    let mut cursor = Cursor {
        minor,
        caller: asker.context(),
        connection: None,
        current,
        saved,
        current_state,
        saved_state,
        session: standing.session,
        claim: standing.claim,
        keeps_reply: standing.keeps_reply,
        results: standing.results,
        data: OperationData { placed: None, kept: data },
        room: ReplyRoom::Known(standing.read_len_max),
        operations_left: left,
        operations_done: standing.operations_done,
        expected_len: 0,
        has_paid: standing.has_paid,
    };
    let mut ran = None;
    if let Some((resume, mark, number)) = resume {
        let step = server.resume(&mut cursor, resume, finished);
        ran = conclude(&mut server, &mut cursor, step, mark, number);
    }
    server.pieces.clear();
    let ran = match ran {
        Some(ran) => ran,
        None => run(&mut server, &mut cursor, &mut operations, 0),
    };
    if let Ran::Waits(hold, rest) = ran {
        cursor = wait(&mut server, cursor, (hold, rest), &mut operations, token)?;
    }
    close(&mut cursor);
    Some(cursor.results)
}

/// Runs operations up to the end, or up to the first that fails or waits.
fn run<'a, S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    operations: &mut Operations<'a, Argument4<'a>>,
    request_len: u64,
) -> Ran {
    loop {
        let start = operations.clone();
        let Some(number) = operations.next_number() else { return Ran::Over };
        cursor.operations_left = operations.left();
        let (shown, operation) = match number.map(|number| (number, Operation4::lookup(number, cursor.minor)))
        {
            Ok((_, Err(Status4::OpIllegal))) => (Operation4::Illegal.number(), Err(Status4::OpIllegal)),
            Ok((number, operation)) => (number, operation),
            Err(_) => (Operation4::Illegal.number(), Err(Status4::BadXdr)),
        };
        let mark = cursor.results.begin_operation(shown);
        let step = match operation {
            _ if cursor.operations_done == 0 && shown == Operation4::Sequence.number() => {
                match begin(server, cursor, operations, request_len) {
                    Ok(true) => Ok(()),
                    Ok(false) => return Ran::Over,
                    Err(stop) => Err(stop),
                }
            }
            Ok(operation) => match check_place(cursor, operation) {
                Ok(()) if !may_wait(server, cursor, operations) => Err(Status4::Delay.into()),
                Ok(()) => {
                    if has_effects(operation) {
                        cursor.results.note_effects();
                    }
                    perform(server, cursor, operation, operations.reader())
                }
                Err(status) => Err(status.into()),
            },
            // Where it stands is wrong already.
            Err(Status4::NotSupp) if cursor.operations_done == 0 => Err(Status4::OpNotInSession.into()),
            Err(status) => Err(status.into()),
        };
        debug_assert!(server.pieces.is_empty() || step.is_err(), "data goes to the results or to a store");
        match step {
            Ok(()) => {
                cursor.operations_done += 1;
                server.state.counts.succeed(shown);
            }
            step => {
                server.pieces.clear();
                if matches!(step, Err(Stop::Waits(_) | Stop::Limited(_, None))) {
                    *operations = start;
                }
                if let Some(ran) = conclude(server, cursor, step, mark, shown) {
                    return ran;
                }
            }
        }
    }
}

/// Octets that a COMPOUND keeps while it waits: what is left of its arguments, and its results so far.
fn suspended_len<'a>(cursor: &Cursor<'_>, operations: &mut Operations<'a, Argument4<'a>>) -> usize {
    operations.reader().remaining() + cursor.results.heap_len()
}

/// Whether a COMPOUND may wait: there is memory for what it keeps then. Asked before an operation begins, which may have to.
#[inline]
fn may_wait<'a, S: Store + ?Sized>(
    server: &Server<'_, S>,
    cursor: &Cursor<'_>,
    operations: &mut Operations<'a, Argument4<'a>>,
) -> bool {
    let waiting = server.state.suspended;
    waiting == 0 || waiting + suspended_len(cursor, operations) <= server.state.config.suspended_max
}

/// What follows from an operation's end; `None`: the next one.
fn conclude<S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    step: Step,
    mark: OperationMark,
    number: u32,
) -> Option<Ran> {
    let step = step.map_err(|stop| match (stop, Operation4::from_number(number)) {
        (Stop::Fails(status), Some(operation)) => Stop::Fails(answered(operation, status)),
        (stop, _) => stop,
    });
    let counts = &mut server.state.counts;
    match step {
        Ok(()) => counts.succeed(number),
        Err(Stop::Waits(_) | Stop::Later(..) | Stop::Limited(..)) => counts.wait(number),
        Err(Stop::Fails(status) | Stop::FailsWithFields(status)) => counts.fail(number, status),
        Err(Stop::TooBig) => counts.fail(number, Status4::RepTooBig),
    }
    let status = match step {
        Ok(()) => {
            cursor.operations_done += 1;
            return None;
        }
        Err(Stop::Waits(waits)) => {
            cursor.results.forget(mark);
            return Some(Ran::Waits(waits.into(), None));
        }
        Err(Stop::Later(waits, resume)) => {
            return Some(Ran::Waits(waits.into(), Some((resume, mark, number))));
        }
        Err(Stop::Limited(turn, None)) => {
            cursor.results.forget(mark);
            return Some(Ran::Waits(turn.into(), None));
        }
        Err(Stop::Limited(turn, Some(resume))) => {
            return Some(Ran::Waits(turn.into(), Some((resume, mark, number))));
        }
        Err(Stop::FailsWithFields(status)) => {
            cursor.results.fail_with_fields(mark, status);
            return Some(Ran::Over);
        }
        Err(Stop::Fails(status)) => status,
        Err(Stop::TooBig) => cursor.too_big(),
    };
    cursor.results.fail(mark, status);
    if number == Operation4::Setattr.number() {
        // Its failure has the attributes that were set: none.
        cursor.results.word_beyond_limit(0);
    }
    Some(Ran::Over)
}

impl Cursor<'_> {
    /// Which limit the results do not keep.
    fn too_big(&self) -> Status4 {
        let fore = self.session.as_ref().map(|session| session.fore());
        let kept_is_less = fore.is_some_and(|fore| fore.response_kept_max < fore.response_max);
        if self.keeps_reply && kept_is_less { Status4::RepTooBigToCache } else { Status4::RepTooBig }
    }
}

/// Runs SEQUENCE. `false`: the COMPOUND ends here.
fn begin<'a, S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    operations: &mut Operations<'a, Argument4<'a>>,
    request_len: u64,
) -> Step<bool> {
    let arguments = decode::<SequenceArguments>(operations.reader())?;
    let fingerprint = fingerprint(&cursor.caller, operations.reader().rest());
    match session::sequence(server, cursor, &arguments, (fingerprint, request_len))? {
        Begun::Runs => Ok(true),
        Begun::Repeated => Ok(false),
        Begun::Forgotten => {
            if let Some(number) = operations.next_number() {
                let number = number.unwrap_or(Operation4::Illegal.number());
                let (number, status) = match Operation4::lookup(number, cursor.minor) {
                    Err(Status4::OpIllegal) => (Operation4::Illegal.number(), Status4::OpIllegal),
                    _ => (number, Status4::RetryUncachedRep),
                };
                let mark = cursor.results.begin_operation(number);
                cursor.results.fail(mark, status);
            }
            Ok(false)
        }
    }
}

/// Checks where an operation stands (8881-2.10.6.4 and the descriptions of these operations).
fn check_place(cursor: &Cursor<'_>, operation: Operation4) -> Result<(), Status4> {
    let is_alone = cursor.operations_left == 0;
    match (operation, cursor.operations_done) {
        (Operation4::BindConnToSession, 0) if is_alone => Ok(()),
        (Operation4::BindConnToSession, _) => Err(Status4::NotOnlyOp),
        (
            Operation4::ExchangeId
            | Operation4::CreateSession
            | Operation4::DestroySession
            | Operation4::DestroyClientid,
            0,
        ) => {
            if is_alone {
                Ok(())
            } else {
                Err(Status4::NotOnlyOp)
            }
        }
        (_, 0) => Err(Status4::OpNotInSession),
        (Operation4::Sequence, _) => Err(Status4::SequencePos),
        _ => Ok(()),
    }
}

/// Whether an operation must not run twice: it changes more than where its COMPOUND stands.
const fn has_effects(operation: Operation4) -> bool {
    !matches!(
        operation,
        Operation4::Access
            | Operation4::Getattr
            | Operation4::Getfh
            | Operation4::Lockt
            | Operation4::Lookup
            | Operation4::Lookupp
            | Operation4::Nverify
            | Operation4::Putfh
            | Operation4::Putpubfh
            | Operation4::Putrootfh
            | Operation4::Read
            | Operation4::Readdir
            | Operation4::Readlink
            | Operation4::Restorefh
            | Operation4::Savefh
            | Operation4::Secinfo
            | Operation4::SecinfoNoName
            | Operation4::Seek
            | Operation4::TestStateid
            | Operation4::Verify
    )
}

fn decode<'a, T: Decode<'a>>(reader: &mut Reader<'a>) -> Result<T, Status4> {
    reader.value().map_err(|_| Status4::BadXdr)
}

/// Octets of results of the GETFH that comes next; none if it is another operation. An object that is made or opened needs room
/// for it: without its handle, its client could not use it (8881-2.10.6.4).
fn handle_len_behind(reader: &Reader<'_>) -> usize {
    match reader.clone().u32() {
        Ok(number) if number == Operation4::Getfh.number() => handles::GETFH_LEN,
        _ => 0,
    }
}

/// Runs an operation whose arguments come next. Those that no server here executes answer NFS4ERR_NOTSUPP, whatever their
/// arguments are.
fn perform<'a, S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: &mut Cursor<'_>,
    operation: Operation4,
    reader: &mut Reader<'a>,
) -> Step {
    macro_rules! run {
        ($module:ident :: $run:ident) => {
            $module::$run(server, cursor, &decode(reader)?)
        };
    }
    match operation {
        Operation4::Access => run!(handles::access),
        Operation4::Close => run!(opens::close),
        Operation4::Commit => run!(files::commit),
        Operation4::Create => {
            let arguments = decode(reader)?;
            changes::create(server, cursor, &arguments, handle_len_behind(reader))
        }
        Operation4::Getattr => run!(attributes::getattr),
        Operation4::Getfh => run!(handles::getfh),
        Operation4::Link => run!(changes::link),
        Operation4::Lock => run!(locks::lock),
        Operation4::Lockt => run!(locks::lockt),
        Operation4::Locku => run!(locks::locku),
        Operation4::Lookup => run!(names::lookup),
        Operation4::Lookupp => run!(names::lookupp),
        Operation4::Nverify => run!(attributes::nverify),
        Operation4::Open => {
            let arguments = decode(reader)?;
            opens::open(server, cursor, &arguments, handle_len_behind(reader))
        }
        Operation4::OpenDowngrade => run!(opens::open_downgrade),
        Operation4::Putfh => run!(handles::putfh),
        Operation4::Putpubfh | Operation4::Putrootfh => run!(pseudo::putrootfh),
        Operation4::Read => run!(files::read),
        Operation4::Readdir => run!(listing::readdir),
        Operation4::Readlink => run!(names::readlink),
        Operation4::Remove => run!(changes::remove),
        Operation4::Rename => run!(changes::rename),
        Operation4::Restorefh => run!(handles::restorefh),
        Operation4::Savefh => run!(handles::savefh),
        Operation4::Secinfo => run!(names::secinfo),
        Operation4::Setattr => run!(changes::setattr),
        Operation4::Verify => run!(attributes::verify),
        Operation4::Write => run!(files::write),
        Operation4::BackchannelCtl => run!(back::backchannel_ctl),
        Operation4::BindConnToSession => run!(back::bind_conn_to_session),
        Operation4::ExchangeId => run!(session::exchange_id),
        Operation4::CreateSession => run!(session::create_session),
        Operation4::DestroySession => run!(session::destroy_session),
        Operation4::FreeStateid => run!(locks::free_stateid),
        Operation4::SecinfoNoName => run!(session::secinfo_no_name),
        Operation4::TestStateid => run!(locks::test_stateid),
        Operation4::DestroyClientid => run!(session::destroy_clientid),
        Operation4::ReclaimComplete => run!(session::reclaim_complete),
        Operation4::Allocate => run!(files::allocate),
        Operation4::Deallocate => run!(files::deallocate),
        Operation4::IoAdvise => run!(files::io_advise),
        Operation4::Seek => run!(files::seek),
        // It is the first operation, and was run.
        Operation4::Sequence => Err(Status4::SequencePos.into()),
        Operation4::Illegal => Err(Status4::OpIllegal.into()),
        // There are no layouts: a client that asks for one goes on without (8881-18.43.3).
        Operation4::Layoutget => Err(Status4::LayoutUnavailable.into()),
        Operation4::Delegpurge
        | Operation4::Delegreturn
        | Operation4::Openattr
        | Operation4::OpenConfirm
        | Operation4::Renew
        | Operation4::Setclientid
        | Operation4::SetclientidConfirm
        | Operation4::ReleaseLockowner
        | Operation4::GetDirDelegation
        | Operation4::Getdeviceinfo
        | Operation4::Getdevicelist
        | Operation4::Layoutcommit
        | Operation4::Layoutreturn
        | Operation4::SetSsv
        | Operation4::WantDelegation
        | Operation4::Copy
        | Operation4::CopyNotify
        | Operation4::Layouterror
        | Operation4::Layoutstats
        | Operation4::OffloadCancel
        | Operation4::OffloadStatus
        | Operation4::ReadPlus
        | Operation4::WriteSame
        | Operation4::Clone
        | Operation4::Getxattr
        | Operation4::Setxattr
        | Operation4::Listxattrs
        | Operation4::Removexattr => Err(Status4::NotSupp.into()),
    }
}

/// Keeps a COMPOUND until its store is done.
#[cold]
#[inline(never)]
fn suspend<'a, S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    cursor: Cursor<'_>,
    (waits, resume): (Hold, Option<(Resume, OperationMark, u32)>),
    operations: &mut Operations<'a, Argument4<'a>>,
    token: Token,
) {
    let counted = suspended_len(&cursor, operations);
    server.state.suspended += counted;
    let (left, reader) = (operations.left(), operations.reader());
    let suspended = Suspended {
        arguments: reader.rest().to_vec(),
        counted,
        position: reader.unreduced_position() as u32,
        left,
        reduced: reader.reduced().to_vec(),
        data: cursor.data.keep(reader.reduced()),
        asker: cursor.caller.to_owned(),
        resume,
        standing: Standing {
            minor: cursor.minor,
            current: cursor.current,
            saved: cursor.saved,
            states: [cursor.current_state, cursor.saved_state],
            session: cursor.session,
            claim: cursor.claim,
            keeps_reply: cursor.keeps_reply,
            read_len_max: cursor.room.of_read(TRANSFER_LEN_MAX, true),
            results: cursor.results,
            operations_done: cursor.operations_done,
            has_paid: cursor.has_paid,
        },
    };
    let pending = Pending::Compound(Box::new(suspended));
    let waiter = Waiter::new(Program::Nfs4, token, cursor.caller.peer);
    let _ = server.exports.keep(waits, waiter, pending);
}

/// Lets a COMPOUND wait. It comes back if it may not: then it ends with NFS4ERR_DELAY.
#[cold]
#[inline(never)]
fn wait<'c, 'a, S: Store + ?Sized>(
    server: &mut Server<'_, S>,
    mut cursor: Cursor<'c>,
    (waits, resume): (Hold, Option<(Resume, OperationMark, u32)>),
    operations: &mut Operations<'a, Argument4<'a>>,
    token: Token,
) -> Option<Cursor<'c>> {
    if may_wait(server, &cursor, operations) || resume.is_some() {
        suspend(server, cursor, (waits, resume), operations, token);
        return None;
    }
    // Too many wait already. The store's answer is dropped when it comes.
    let number = operations.next_number().and_then(Result::ok).unwrap_or_default();
    let mark = cursor.results.begin_operation(number);
    cursor.results.fail(mark, Status4::Delay);
    server.state.counts.fail(number, Status4::Delay);
    Some(cursor)
}

/// Ends a COMPOUND: its results can be sent, and its slot has them.
fn close(cursor: &mut Cursor<'_>) {
    let Cursor { results, session, claim, keeps_reply, .. } = cursor;
    if let (Some(session), Some(claim)) = (session, claim.take()) {
        results.finish();
        let slots = session.slots();
        match *keeps_reply {
            true => results.with_kept(|kept| slots.finish(claim, Some(kept))),
            false => slots.finish(claim, None),
        }
    } else if !results.is_restored() {
        results.finish();
    }
}
