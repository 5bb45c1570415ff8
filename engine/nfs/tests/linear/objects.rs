//! What the clients of a group share, and how it behaves when one Call comes after the other.

use stag_wire::nfs3::Status;

use crate::history::Step;

/// Octets of a WRITE, which is one value from the beginning: whole pages, and a part of one.
pub(crate) const WRITE_LEN: u32 = 2 * 4096 + 100;

/// Sizes of a file before a Call and after it, of the attributes that came with the Reply, if both are told: no other Call comes
/// between. Where only the one after it is told, it may be that of any moment before the Reply: a step of its own.
pub(crate) type Sizes = Option<(u32, u32)>;

/// A Call on a file, and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileStep {
    /// WRITE of this value.
    Write { value: u8, sizes: Sizes },
    /// SETATTR of the size.
    Resize { len: u32, sizes: Sizes },
    /// READ of all.
    Read(FileState),
    /// GETATTR, or the attributes that came with another Call.
    Size(u32),
}

/// A file: one value, and zeros behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct FileState {
    value: u8,
    filled: u32,
    len: u32,
}

impl FileState {
    fn new(value: u8, filled: u32, len: u32) -> FileState {
        FileState { value: if filled == 0 { 0 } else { value }, filled, len }
    }

    /// Of what was read. `None`: it is torn.
    pub(crate) fn of(octets: &[u8]) -> Option<FileState> {
        let value = octets.first().copied().unwrap_or(0);
        let filled = octets.iter().take_while(|octet| **octet == value && value > 0).count();
        let is_whole = octets[filled..].iter().all(|octet| *octet == 0);
        is_whole.then(|| FileState::new(value, filled as u32, octets.len() as u32))
    }
}

impl FileStep {
    /// Whether the file has this size after the step, as a store tells that does all at once.
    pub(crate) fn agrees_with(&self, size: u32) -> bool {
        match *self {
            FileStep::Write { sizes, .. } | FileStep::Resize { sizes, .. } => {
                sizes.is_some_and(|(_, after)| after == size)
            }
            FileStep::Read(found) => found.len == size,
            FileStep::Size(found) => found == size,
        }
    }
}

impl Step for FileStep {
    type State = FileState;

    fn follow(&self, state: &FileState) -> Option<FileState> {
        let FileState { value, filled, len } = *state;
        let (next, sizes) = match *self {
            FileStep::Write { value, sizes } => (FileState::new(value, WRITE_LEN, len.max(WRITE_LEN)), sizes),
            FileStep::Resize { len: wanted, sizes } => {
                (FileState::new(value, filled.min(wanted), wanted), sizes)
            }
            FileStep::Read(found) => return (found == *state).then_some(found),
            FileStep::Size(found) => return (found == len).then_some(*state),
        };
        sizes.is_none_or(|sizes| sizes == (len, next.len)).then_some(next)
    }

    fn only_looks(&self) -> bool {
        matches!(self, FileStep::Read(_) | FileStep::Size(_))
    }
}

/// Names of a directory that its clients use.
pub(crate) const NAMES: [&str; 3] = ["first", "second", "third"];

/// What each name leads to: a file's number, or nothing.
pub(crate) type DirectoryState = [Option<u32>; NAMES.len()];

/// A Call on the names of a directory, and its answer. Names are their places in [`NAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DirectoryStep {
    /// CREATE (GUARDED): the new file.
    Create(usize, Result<u32, Status>),
    Remove(usize, Result<(), Status>),
    Lookup(usize, Result<u32, Status>),
    Rename(usize, usize, Result<(), Status>),
}

impl Step for DirectoryStep {
    type State = DirectoryState;

    fn follow(&self, state: &DirectoryState) -> Option<DirectoryState> {
        let mut next = *state;
        let is_so = match *self {
            DirectoryStep::Create(name, answer) => match (state[name], answer) {
                (Some(_), answer) => answer == Err(Status::Exist),
                (None, Ok(file)) => {
                    next[name] = Some(file);
                    !state.contains(&Some(file))
                }
                (None, Err(_)) => false,
            },
            DirectoryStep::Remove(name, answer) => {
                next[name] = None;
                answer == state[name].map(drop).ok_or(Status::NoEnt)
            }
            DirectoryStep::Lookup(name, answer) => answer == state[name].ok_or(Status::NoEnt),
            DirectoryStep::Rename(from, to, answer) => {
                if from != to && state[from].is_some() {
                    next[to] = next[from].take();
                }
                answer == state[from].map(drop).ok_or(Status::NoEnt)
            }
        };
        is_so.then_some(next)
    }

    fn only_looks(&self) -> bool {
        matches!(self, DirectoryStep::Lookup(..))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_one_call_after_the_other() {
        let mut octets = vec![7; WRITE_LEN as usize];
        let written = FileStep::Write { value: 7, sizes: Some((0, WRITE_LEN)) }.follow(&FileState::default());
        assert_eq!(written, FileState::of(&octets));
        let shorter =
            FileStep::Resize { len: 9, sizes: Some((WRITE_LEN, 9)) }.follow(&written.unwrap()).unwrap();
        let longer = FileStep::Resize { len: 20, sizes: Some((9, 20)) }.follow(&shorter).unwrap();
        octets.truncate(9);
        assert_eq!(FileState::of(&octets), Some(shorter));
        octets.resize(20, 0);
        assert_eq!(FileState::of(&octets), Some(longer));
        assert_eq!(FileStep::Size(9).follow(&longer), None);
        octets[15] = 7;
        assert_eq!(FileState::of(&octets), None, "torn");
    }
}
