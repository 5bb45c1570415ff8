//! Loads on names and attributes: each client core has a folder of its own, with files in it.
//!
//! Calls take the files in turn, and never one that another Call is at. CREATE and REMOVE run out of them: then the clock stops,
//! the files are as they were again, and it goes on.

use anyhow::{Context, Result, anyhow, bail};
use stag_nfs::client::{FinishedCall, Target};
use stag_rpc::{Chunks, CompletedCall, ConnectionId, Credentials};
use stag_wire::nfs3::{
    CreateArguments, CreateHow, DirectoryName, Handle, LookupArguments, MkdirArguments, Name,
    ReaddirplusArguments, RemoveArguments, RenameArguments, RmdirArguments, SetAttributes, SetattrArguments,
};

use super::worked_files::{Names, WorkedFile};
use super::{Client, TIMEOUT};
use crate::opened::Opened;
use crate::scenario::{LISTING_LEN, MeasuredOperation, Scenario};

/// Files of a client core at least, if the scenario has not more.
const FILES_MIN: usize = 1000;

/// Modes that SETATTR sets in turn.
const MODES: [u32; 2] = [0o600, 0o640];

/// How many files a client core has: more than Calls can be at.
#[must_use]
pub fn files(scenario: &Scenario) -> usize {
    if !scenario.operation.has_names() {
        return 0;
    }
    FILES_MIN.max(scenario.files).max(2 * scenario.depth * scenario.connections)
}

fn name(index: usize, is_renamed: bool) -> String {
    format!("{}-{index:06}", if is_renamed { 'b' } else { 'a' })
}

impl<P: Opened> Client<'_, P> {
    /// Makes the folder, and the files in it that the load begins with.
    pub(super) fn make_names(&mut self, id: ConnectionId, export: &str, folder: String) -> Result<()> {
        let root = self.mount(id, export)?;
        let place = DirectoryName { directory: Handle(&root), name: Name(folder.as_bytes()) };
        let attributes = SetAttributes { mode: Some(0o700), ..SetAttributes::default() };
        let finished = self.ask(id, &MkdirArguments { place, attributes }, Chunks::default())?;
        let made = match finished.reply::<MkdirArguments<'_>>()? {
            Ok(ok) => ok.object.context("the server gave no handle")?.0.to_vec(),
            Err(failure) => bail!("mkdir {folder}: {:?}", failure.status),
        };
        let lanes = self.scenario.depth * self.scenario.connections;
        self.names = Some(Names {
            place: (root, folder),
            folder: made,
            files: vec![WorkedFile::default(); files(self.scenario)],
            next: 0,
            at: vec![0; lanes],
            listings: vec![Default::default(); lanes],
            entries: 0,
            listed: 0,
        });
        Ok(())
    }

    /// Makes the files, if the load begins with them. All connections are there.
    pub(super) fn fill_names(&mut self) -> Result<()> {
        match self.scenario.operation {
            MeasuredOperation::Create => Ok(()),
            _ => self.for_each_file(MeasuredOperation::Create),
        }
    }

    /// Leaves the export as it was found.
    pub(super) fn remove_names(&mut self) -> Result<()> {
        if self.names.is_none() {
            return Ok(());
        }
        self.for_each_file(MeasuredOperation::Remove)?;
        let (Some(names), Some(connection)) = (self.names.take(), self.connections.first()) else {
            return Ok(());
        };
        let (above, folder) = &names.place;
        let object = DirectoryName { directory: Handle(above), name: Name(folder.as_bytes()) };
        let finished = self.ask(connection.id, &RmdirArguments { object }, Chunks::default())?;
        match finished.reply::<RmdirArguments<'_>>()? {
            Ok(_) => Ok(()),
            Err(failure) => bail!("rmdir {folder}: {:?}", failure.status),
        }
    }

    /// Whether CREATE or REMOVE has come to the last file.
    #[inline]
    pub(super) fn is_out_of_names(&self) -> bool {
        self.scenario.operation.uses_names_up()
            && self.names.as_ref().is_some_and(|names| names.next == names.files.len())
    }

    /// Takes back what CREATE or REMOVE did. No Call is outstanding.
    #[cold]
    pub(super) fn renew_names(&mut self) -> Result<()> {
        self.for_each_file(match self.scenario.operation {
            MeasuredOperation::Create => MeasuredOperation::Remove,
            _ => MeasuredOperation::Create,
        })?;
        if let Some(names) = &mut self.names {
            names.next = 0;
        }
        Ok(())
    }

    /// Makes or removes every file that is not as it should be then, as many at once as the load has Calls outstanding.
    fn for_each_file(&mut self, operation: MeasuredOperation) -> Result<()> {
        let lanes = self.scenario.depth * self.scenario.connections;
        let is_making = operation == MeasuredOperation::Create;
        let files = self.names.as_ref().map_or(&[][..], |names| &names.files);
        let differs = |file: &WorkedFile| file.handle.is_empty() == is_making;
        let mut left: Vec<usize> = (0..files.len()).filter(|index| differs(&files[*index])).collect();
        let mut outstanding = 0;
        while outstanding > 0 || !left.is_empty() {
            self.poll(self.clock.now());
            while let Some(done) = self.engine.completed() {
                outstanding -= 1;
                let index = done.user as usize;
                self.end_at_file(operation, index, done)?;
            }
            while let Some(index) = left.last().copied().filter(|_| outstanding < lanes) {
                let id = self.connections[index % self.connections.len()].id;
                if self.engine.credits_available(id) == 0 {
                    break;
                }
                left.pop();
                self.begin_at_file(operation, index, id, index as u64)?;
                outstanding += 1;
            }
            if self.scenario.may_sleep {
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    /// Begins the Call of one lane.
    pub(super) fn begin_at_name(&mut self, lane: usize) -> Result<()> {
        let id = self.connections[lane / self.scenario.depth].id;
        let operation = self.scenario.operation;
        let names = self.names.as_mut().context("names were made")?;
        if operation == MeasuredOperation::Readdirplus {
            let (cookie, verifier) = names.listings[lane];
            let arguments = ReaddirplusArguments {
                directory: Handle(&names.folder),
                cookie,
                verifier,
                dircount: LISTING_LEN,
                maxcount: LISTING_LEN,
            };
            let target =
                Target { connection: id, credentials: Credentials::Sys(&self.credential), timeout: TIMEOUT };
            let begun = target.begin(&mut self.engine, &arguments, &mut Chunks::default(), lane as u64);
            return begun.map(drop).map_err(|refused| anyhow!("a Call was not begun: {refused}"));
        }
        let count = names.files.len();
        // There are more files than lanes.
        while names.files[names.next % count].is_busy {
            names.next += 1;
        }
        let index = names.next % count;
        names.next = if operation.uses_names_up() { index + 1 } else { (index + 1) % count };
        names.at[lane] = index;
        names.files[index].is_busy = true;
        self.begin_at_file(operation, index, id, lane as u64)
    }

    fn begin_at_file(
        &mut self,
        operation: MeasuredOperation,
        index: usize,
        id: ConnectionId,
        user: u64,
    ) -> Result<()> {
        let Names { files, folder, .. } = self.names.as_ref().context("names were made")?;
        let file = &files[index];
        let [own, other] = [file.is_renamed, !file.is_renamed].map(|is_renamed| name(index, is_renamed));
        let place = |name| DirectoryName { directory: Handle(folder), name: Name(name) };
        let object = place(own.as_bytes());
        let target =
            Target { connection: id, credentials: Credentials::Sys(&self.credential), timeout: TIMEOUT };
        let (engine, mut chunks) = (&mut self.engine, Chunks::default());
        let mode =
            |is_open| SetAttributes { mode: Some(MODES[usize::from(is_open)]), ..SetAttributes::default() };
        let begun = match operation {
            MeasuredOperation::Lookup => {
                target.begin(engine, &LookupArguments { what: object }, &mut chunks, user)
            }
            MeasuredOperation::Create => {
                let how = CreateHow::Guarded(mode(false));
                target.begin(engine, &CreateArguments { place: object, how }, &mut chunks, user)
            }
            MeasuredOperation::Remove => target.begin(engine, &RemoveArguments { object }, &mut chunks, user),
            MeasuredOperation::Rename => {
                let arguments = RenameArguments { from: object, to: place(other.as_bytes()) };
                target.begin(engine, &arguments, &mut chunks, user)
            }
            MeasuredOperation::Setattr => {
                let attributes = mode(!file.is_open);
                let arguments = SetattrArguments { object: Handle(&file.handle), attributes, guard: None };
                target.begin(engine, &arguments, &mut chunks, user)
            }
            _ => bail!("{} works on no name", operation.name()),
        };
        begun.map(drop).map_err(|refused| anyhow!("a Call was not begun: {refused}"))
    }

    /// Looks at the end of one lane's Call.
    pub(super) fn end_at_name(&mut self, lane: usize, done: CompletedCall) -> Result<()> {
        let operation = self.scenario.operation;
        let names = self.names.as_mut().context("names were made")?;
        if operation == MeasuredOperation::Readdirplus {
            let finished = FinishedCall::new(done);
            let ok = match finished.reply::<ReaddirplusArguments<'_>>()? {
                Ok(ok) => ok,
                Err(failure) => bail!("readdirplus: {:?}", failure.status),
            };
            let (mut cookie, before) = (names.listings[lane].0, names.entries);
            for entry in ok.entries {
                cookie = entry.cookie;
                names.entries += 1;
            }
            names.listed += 1;
            if names.entries == before && !ok.eof {
                bail!("readdirplus: the server returned no entry");
            }
            names.listings[lane] = if ok.eof { Default::default() } else { (cookie, ok.verifier) };
            return Ok(());
        }
        let index = names.at[lane];
        names.files[index].is_busy = false;
        self.end_at_file(operation, index, done)
    }

    fn end_at_file(&mut self, operation: MeasuredOperation, index: usize, done: CompletedCall) -> Result<()> {
        let finished = FinishedCall::new(done);
        let file = &mut self.names.as_mut().context("names were made")?.files[index];
        let status = match operation {
            MeasuredOperation::Lookup => match finished.reply::<LookupArguments<'_>>()? {
                Ok(ok) if ok.object.0 == file.handle => None,
                Ok(_) => bail!("lookup: the server gave the handle of another file"),
                Err(failure) => Some(failure.status),
            },
            MeasuredOperation::Create => match finished.reply::<CreateArguments<'_>>()? {
                Ok(ok) => {
                    let handle = ok.object.context("the server gave no handle")?.0.to_vec();
                    *file = WorkedFile { handle, ..WorkedFile::default() };
                    None
                }
                Err(failure) => Some(failure.status),
            },
            MeasuredOperation::Remove => {
                file.handle.clear();
                finished.reply::<RemoveArguments<'_>>()?.err().map(|failure| failure.status)
            }
            MeasuredOperation::Rename => {
                file.is_renamed = !file.is_renamed;
                finished.reply::<RenameArguments<'_>>()?.err().map(|failure| failure.status)
            }
            MeasuredOperation::Setattr => {
                file.is_open = !file.is_open;
                finished.reply::<SetattrArguments<'_>>()?.err().map(|failure| failure.status)
            }
            _ => None,
        };
        match status {
            None => Ok(()),
            Some(status) => bail!("{}: {status:?}", operation.name()),
        }
    }
}
