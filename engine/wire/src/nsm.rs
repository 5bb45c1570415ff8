//! The Network Status Monitor, version 1 (X/Open XNFS chapter 11), program 100024: hosts tell each other that they
//! restarted, so that locks are freed or claimed again. Nothing in it is DDP-eligible (RFC 8267 section 1).
//!
//! A host's *state* is odd while it is up; it grows by two at each restart.

use crate::nfs3::value::{numbers, opaques, records};
use crate::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError};

/// Program number of NSM.
pub const PROGRAM: u32 = 100_024;
/// The version there is.
pub const VERSION: u32 = 1;

/// Longest name of a host, in bytes (SM_MAXSTRLEN).
pub const NAME_LEN_MAX: u32 = 1024;
/// Octets that a monitor keeps for its client (SM_PRIV_SIZE).
pub const PRIVATE_LEN: usize = 16;

numbers! {
    /// The procedures.
    Procedure {
        /// Does nothing.
        Null = 0,
        /// Whether a host would be monitored.
        Stat = 1,
        /// Monitors a host.
        Mon = 2,
        /// Monitors a host no longer.
        Unmon = 3,
        /// Monitors no host of this client any longer.
        UnmonAll = 4,
        /// Behaves as if the host had restarted.
        SimuCrash = 5,
        /// Another host says that it restarted.
        Notify = 6,
    }
}

impl Procedure {
    /// How many there are: they are numbered from 0 without a gap.
    pub const COUNT: usize = 7;
}

numbers! {
    /// Whether a host is monitored (res).
    Outcome {
        /// It is (STAT_SUCC).
        Success = 0,
        /// It is not (STAT_FAIL).
        Fail = 1,
    }
}

opaques! {
    /// A host's name.
    Name up to NAME_LEN_MAX;
}

records! {
    /// Arguments of SM_STAT (sm_name).
    StatArguments<'a> {
        /// The host.
        name: Name<'a>,
    }

    /// Results of SM_STAT and SM_MON (sm_stat_res).
    StatResults {
        /// Whether the host is monitored.
        outcome: Outcome,
        /// The state of the monitor's own host.
        state: u32,
    }

    /// Whom to call when a host's state changes (my_id).
    Requester<'a> {
        /// The host to call.
        name: Name<'a>,
        /// Program number.
        program: u32,
        /// Version of the program.
        version: u32,
        /// Procedure of the version.
        procedure: u32,
    }

    /// Arguments of SM_UNMON (mon_id).
    MonitorId<'a> {
        /// The host.
        name: Name<'a>,
        /// The client that asks.
        requester: Requester<'a>,
    }

    /// Arguments of SM_MON (mon).
    MonArguments<'a> {
        /// What to monitor, and for whom.
        id: MonitorId<'a>,
        /// To be given back in the call.
        private: Private,
    }

    /// Results of SM_UNMON and SM_UNMON_ALL (sm_stat).
    State {
        /// The state of the monitor's own host.
        state: u32,
    }

    /// Arguments of SM_NOTIFY (stat_chge).
    NotifyArguments<'a> {
        /// The host that restarted.
        name: Name<'a>,
        /// Its new state.
        state: u32,
    }
}

/// The octets that a monitor keeps for its client, and returns with a notification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Private(pub [u8; PRIVATE_LEN]);

impl<'a> Decode<'a> for Private {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        reader.array().copied().map(Private)
    }
}

impl Encode for Private {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        *writer.array()? = self.0;
        Ok(())
    }
}
