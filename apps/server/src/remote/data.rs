//! Reads and writes the data of files while no task runs: several Calls in flight, each with its own chunk.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use stag_wire::nfs3::Stable;

use super::error::RemoteError;
use super::node::RemoteHandle;
use super::session::{Session, Task, WriteState};

/// Calls in flight.
const DEPTH: usize = 4;

/// Restarts of a server within the writing of one piece that are taken without complaint.
const RESTARTS_MAX: usize = 5;

/// Does `work` for each part of a piece of data, `DEPTH` of them at once, until one fails.
fn for_each<T>(
    session: &Session,
    parts: impl IntoIterator<Item = T>,
    work: impl AsyncFn(T) -> Result<(), RemoteError>,
) -> Result<(), RemoteError> {
    let waiting: RefCell<VecDeque<T>> = RefCell::new(parts.into_iter().collect());
    let failure = RefCell::new(None);
    let worker = async || {
        loop {
            let part = waiting.borrow_mut().pop_front();
            let Some(part) = part else { return };
            if let Err(error) = work(part).await {
                failure.borrow_mut().get_or_insert(error);
                waiting.borrow_mut().clear();
            }
        }
    };
    session.run_alone((0..DEPTH).map(|_| Box::pin(worker()) as Task<'_>).collect());
    failure.into_inner().map_or(Ok(()), Err)
}

/// Reads from `offset` into `buffer`; returns how much there was.
pub(super) fn read(
    session: &Session,
    file: &RemoteHandle,
    offset: u64,
    buffer: &mut [u8],
) -> Result<usize, RemoteError> {
    let (part_len, end) = (session.read_len_max(), Cell::new(buffer.len()));
    let fill = async |(start, part): (usize, &mut [u8])| {
        let mut at = 0;
        while at < part.len() && start + at < end.get() {
            let found = session.read(file, offset + (start + at) as u64, part.len() - at).await?;
            part[at..at + found.len].copy_from_slice(found.octets()?);
            at += found.len;
            if found.eof {
                end.set(end.get().min(start + at));
            }
        }
        Ok(())
    };
    // The first alone: most files end within it.
    let (first, rest) = buffer.split_at_mut(part_len.min(buffer.len()));
    let first_len = first.len();
    session.wait_for(fill((0, first)))?;
    let starts = (first_len..).step_by(part_len);
    for_each(session, starts.zip(rest.chunks_mut(part_len)), fill)?;
    Ok(end.get())
}

/// Writes `data` at `offset`, so that it is safe when this returns: once more, if the server was started anew before.
pub(super) fn write(
    session: &Session,
    file: &RemoteHandle,
    offset: u64,
    data: &[u8],
) -> Result<(), RemoteError> {
    let part_len = session.write_len_max();
    // One Call that is safe at once, or several and one COMMIT.
    let stable = if data.len() <= part_len { Stable::FileSync } else { Stable::Unstable };
    for _ in 0..RESTARTS_MAX {
        let state = RefCell::new(WriteState::default());
        for_each(session, (0..).step_by(part_len).zip(data.chunks(part_len)), async |(start, part)| {
            let mut buffer = session.buffer(part.len()).await;
            buffer.copy_from_slice(part);
            let written = session.write(file, offset + start as u64, buffer, stable).await?;
            state.borrow_mut().merge(written);
            Ok(())
        })?;
        let state = state.into_inner();
        if !state.is_unsafe() || state.is_kept_by(session.wait_for(session.commit(file))?) {
            return Ok(());
        }
    }
    Err(RemoteError::Broken("the server forgets what was written again and again".to_owned()))
}
