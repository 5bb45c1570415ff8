//! Tickets of what a store does later.

use stag_vfs::Ticket;

/// What a ticket stands for. Both kinds are dense, so their tickets are.
pub(super) enum Work {
    Transfer(u32),
    Sync(u32),
}

impl Work {
    pub(super) fn ticket(self) -> Ticket {
        match self {
            Work::Transfer(index) => Ticket(index << 1),
            Work::Sync(index) => Ticket(index << 1 | 1),
        }
    }

    pub(super) fn of(Ticket(number): Ticket) -> Work {
        if number & 1 == 0 { Work::Transfer(number >> 1) } else { Work::Sync(number >> 1) }
    }
}
