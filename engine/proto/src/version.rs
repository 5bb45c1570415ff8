//! Which version of RPC-over-RDMA a connection speaks, seen from the end that calls (version-two-01, section 5).
//!
//! ```text
//!              probe sent            a Reply in version 2
//!  Unknown ──────────────▶ Probing ───────────────────────▶ Agreed(Two)
//!     ▲                    │     │
//!     │ the connection     │     │ ERR_VERS with a range that has 1
//!     │ is lost: One next  │     └──────────────────────────────────▶ Agreed(One), on the same connection
//!     └────────────────────┘
//! ```
//!
//! The probe is an RPC NULL in RDMA2_MSG (V2-X-4), short enough for a peer of version 1 (V2-5-a), and the only message until it
//! is answered.

use stag_wire::rpcrdma2::PROBE_LEN_MAX;

/// A version of RPC-over-RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolVersion {
    /// RFC 8166.
    One,
    /// Version 2 as of June 2016.
    Two,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unknown,
    Probing,
    Agreed(ProtocolVersion),
    /// The peer speaks neither.
    Failed,
}

/// What may be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextMessage {
    /// The probe: a Call of version 2 of at most this length, and then nothing until its answer.
    Probe {
        /// Octets.
        len_max: u32,
    },
    /// Nothing: the probe was not answered yet.
    Wait,
    /// Messages of this version.
    Any(ProtocolVersion),
    /// Nothing, ever: the peer speaks no version that this end does.
    Nothing,
}

/// The version of one peer's connections, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionProbe {
    state: State,
    /// What is assumed on the next connection; `None`: it is probed again.
    assumed: Option<ProtocolVersion>,
}

impl VersionProbe {
    /// Of a peer that may speak version 2; with `false` only version 1 is used, and nothing is probed.
    #[must_use]
    pub fn new(tries_version_2: bool) -> Self {
        let assumed = (!tries_version_2).then_some(ProtocolVersion::One);
        Self { state: assumed.map_or(State::Unknown, State::Agreed), assumed }
    }

    /// Returns what may be sent now.
    #[must_use]
    pub fn next_message(&self) -> NextMessage {
        match self.state {
            State::Unknown => NextMessage::Probe { len_max: PROBE_LEN_MAX },
            State::Probing => NextMessage::Wait,
            State::Agreed(version) => NextMessage::Any(version),
            State::Failed => NextMessage::Nothing,
        }
    }

    /// The probe was sent.
    pub fn handle_sent(&mut self) {
        if self.state == State::Unknown {
            self.state = State::Probing;
        }
    }

    /// A message of version 2 came that is no error, with the probe's xid (V2-5.1-a).
    pub fn handle_answer(&mut self) {
        if self.state == State::Probing {
            self.state = State::Agreed(ProtocolVersion::Two);
        }
    }

    /// The probe was answered with ERR_VERS and this range (V2-5.2-a). Of a range without 1 nothing can be spoken. A peer that
    /// refuses version 2 and says that it speaks it is taken at the first of these words.
    pub fn handle_err_vers(&mut self, low: u32, high: u32) {
        if self.state != State::Probing {
            return;
        }
        let speaks_one = low <= 1 && high >= 1;
        self.state = if speaks_one { State::Agreed(ProtocolVersion::One) } else { State::Failed };
        if speaks_one {
            self.assumed = Some(ProtocolVersion::One);
        }
    }

    /// The connection is gone. If the probe was not answered, the next one speaks version 1 (V2-5.2-b); if the peer spoke
    /// version 2, it is probed again: it may be another program by then.
    pub fn handle_disconnect(&mut self) {
        if self.state == State::Probing {
            self.assumed = Some(ProtocolVersion::One);
        }
        if self.state != State::Failed {
            self.state = self.assumed.map_or(State::Unknown, State::Agreed);
        }
    }
}
