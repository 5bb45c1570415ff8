//! The files that data is being written to.

use stag_vfs::Ticket;

/// WRITEs that are under way: the number of the file of each, in the places that their tickets say.
#[derive(Default)]
pub(super) struct Writing {
    files: Vec<Option<u64>>,
    count: usize,
}

impl Writing {
    pub(super) fn begin(&mut self, Ticket(place): Ticket, fileid: u64) {
        let place = place as usize;
        if self.files.len() <= place {
            self.files.resize(place + 1, None);
        }
        self.count += usize::from(self.files[place].replace(fileid).is_none());
    }

    /// Something is over, which may be no WRITE. Returns the number of the file if it is one.
    pub(super) fn end(&mut self, Ticket(place): Ticket) -> Option<u64> {
        let file = self.files.get_mut(place as usize).and_then(Option::take);
        self.count -= usize::from(file.is_some());
        file
    }

    /// Whether one of them is of the file with this number.
    pub(super) fn contains(&self, fileid: u64) -> bool {
        self.count > 0 && self.files.contains(&Some(fileid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_under_way_until_it_is_over() {
        let mut writing = Writing::default();
        writing.begin(Ticket(4), 9);
        writing.begin(Ticket(0), 9);
        writing.begin(Ticket(2), 8);
        assert!(writing.contains(9) && writing.contains(8) && !writing.contains(7));
        writing.end(Ticket(4));
        writing.end(Ticket(5));
        writing.end(Ticket(77));
        assert!(writing.contains(9));
        writing.end(Ticket(0));
        assert!(!writing.contains(9) && writing.contains(8));
        writing.end(Ticket(2));
        assert_eq!(writing.count, 0);
    }
}
