//! Trunking: whether two addresses are one server (RFC 8881 section 2.10.5).
//!
//! A server says who it is in EXCHANGE_ID; all its addresses and reactors say the same. A client compares.

/// Who a server is, as EXCHANGE_ID tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerIdentity<'a> {
    /// so_major_id.
    pub major: &'a [u8],
    /// so_minor_id.
    pub minor: u64,
    /// eir_server_scope.
    pub scope: &'a [u8],
}

/// What two connections may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trunking {
    /// Nothing: they are two servers.
    Apart,
    /// The client id, and so opens and locks; each has sessions of its own.
    ClientId,
    /// Sessions, too.
    Session,
}

impl Trunking {
    /// Compares what two EXCHANGE_IDs of a client answered: the client id, and who the server is (8881-2.10.5-a).
    #[must_use]
    pub fn of(first: (u64, &ServerIdentity<'_>), second: (u64, &ServerIdentity<'_>)) -> Trunking {
        let (a, b) = (first.1, second.1);
        if first.0 != second.0 || a.major != b.major || a.scope != b.scope {
            Trunking::Apart
        } else if a.minor != b.minor {
            Trunking::ClientId
        } else {
            Trunking::Session
        }
    }
}
