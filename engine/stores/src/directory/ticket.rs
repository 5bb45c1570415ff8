//! Tickets of what a store does later.

use stag_vfs::Ticket;

/// What a ticket stands for. Each kind is dense, so their tickets are.
pub(super) enum Work {
    Transfer(u32),
    Sync(u32),
    Errand(u32),
}

impl Work {
    pub(super) fn ticket(self) -> Ticket {
        match self {
            Work::Transfer(index) => Ticket(index * 3),
            Work::Sync(index) => Ticket(index * 3 + 1),
            Work::Errand(index) => Ticket(index * 3 + 2),
        }
    }

    pub(super) fn of(Ticket(number): Ticket) -> Work {
        match (number % 3, number / 3) {
            (0, index) => Work::Transfer(index),
            (1, index) => Work::Sync(index),
            (_, index) => Work::Errand(index),
        }
    }
}
