//! Clients and sessions of 4.1 and later: EXCHANGE_ID, CREATE_SESSION, SEQUENCE and what belongs to them.

use super::client_id::GssService;
use super::value::{List, unions};
use super::{Bitmap, Name4, OWNER_LEN_MAX, Opaque, SessionId, StateId, Status4, Time4, Verifier4};
use crate::nfs3::value::{numbers, records};
use crate::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError};

/// Security parameters for callbacks in one request at most. No RFC sets a limit; there are three flavors.
pub const CALLBACK_SECURITIES_MAX: u32 = 16;
/// State ids of one TEST_STATEID at most. No RFC sets a limit; a request of 1 MiB could hold 65,536.
pub const STATEIDS_MAX: u32 = 1 << 16;
/// Octets of a GSS handle at most. No RFC sets a limit.
pub const GSS_HANDLE_LEN_MAX: u32 = 1024;
/// Hash or encryption algorithms, or handles, in one request at most. No RFC sets a limit.
pub const ALGORITHMS_MAX: u32 = 64;
/// Octets of an SSV or of its digest at most. No RFC sets a limit; they are as long as a hash.
pub const SSV_LEN_MAX: u32 = 1024;

/// A GSS handle.
pub type GssHandle<'a> = Opaque<'a, GSS_HANDLE_LEN_MAX>;

records! {
    /// Who a client is (client_owner4).
    ClientOwner<'a> {
        /// Changes with each restart of the client.
        verifier: Verifier4,
        /// The client's name, of its choice.
        id: Opaque<'a, OWNER_LEN_MAX>,
    }

    /// Which server this is (server_owner4): two addresses with the same values are one server (8881-2.10.5).
    ServerOwner<'a> {
        /// The same: sessions can be shared.
        minor: u64,
        /// The same: client ids can be shared.
        major: Opaque<'a, OWNER_LEN_MAX>,
    }

    /// Who made an implementation (nfs_impl_id4).
    Implementation<'a> {
        /// Whose.
        domain: Name4<'a>,
        /// Which.
        name: Name4<'a>,
        /// When.
        date: Time4,
    }

    /// EXCHANGE_ID4args.
    ExchangeIdArguments<'a> {
        /// Who asks.
        owner: ClientOwner<'a>,
        /// Bits of [`exchange_flag`].
        flags: u32,
        /// How the client wants its state protected.
        protection: StateProtection<'a>,
        /// What the client is.
        implementation: Option<Implementation<'a>>,
    }

    /// EXCHANGE_ID4resok.
    ExchangeIdOk<'a> {
        /// The client id.
        clientid: u64,
        /// The sequence id of the first CREATE_SESSION.
        sequence_id: u32,
        /// Bits of [`exchange_flag`].
        flags: u32,
        /// How state is protected.
        protection: StateProtected<'a>,
        /// Which server this is.
        server_owner: ServerOwner<'a>,
        /// Where ids of this server have a meaning.
        server_scope: Opaque<'a, OWNER_LEN_MAX>,
        /// What the server is.
        implementation: Option<Implementation<'a>>,
    }

    /// Operations that a machine credential protects (state_protect_ops4).
    ProtectedOperations<'a> {
        /// These need it.
        must_enforce: Bitmap<'a>,
        /// These may use it.
        must_allow: Bitmap<'a>,
    }

    /// Wishes for SP4_SSV (ssv_sp_parms4).
    SsvWishes<'a> {
        /// The operations.
        operations: ProtectedOperations<'a>,
        /// Hash algorithms, as object ids.
        hashes: List<'a, Opaque<'a, { super::client_id::OID_LEN_MAX }>, ALGORITHMS_MAX>,
        /// Encryption algorithms, as object ids.
        ciphers: List<'a, Opaque<'a, { super::client_id::OID_LEN_MAX }>, ALGORITHMS_MAX>,
        /// Outstanding SSV versions.
        window: u32,
        /// GSS handles wanted.
        handle_count: u32,
    }

    /// What SP4_SSV became (ssv_prot_info4).
    SsvProtection<'a> {
        /// The operations.
        operations: ProtectedOperations<'a>,
        /// Index of the hash algorithm.
        hash: u32,
        /// Index of the encryption algorithm.
        cipher: u32,
        /// Octets of the SSV.
        len: u32,
        /// Outstanding SSV versions.
        window: u32,
        /// GSS handles.
        handles: List<'a, GssHandle<'a>, ALGORITHMS_MAX>,
    }

    /// Limits of a channel (channel_attrs4).
    #[derive(Default)]
    ChannelAttributes {
        /// Octets of padding in requests' headers.
        header_pad: u32,
        /// Octets of a request at most.
        request_max: u32,
        /// Octets of a reply at most.
        response_max: u32,
        /// Octets of a kept reply at most.
        response_cached_max: u32,
        /// Operations of a COMPOUND at most.
        operations_max: u32,
        /// Requests outstanding at most: slots.
        requests_max: u32,
        /// RDMA Reads outstanding at most.
        rdma_ird: Option<u32>,
    }

    /// A user for callbacks (authsys_parms).
    CallbackUser<'a> {
        /// Arbitrary.
        stamp: u32,
        /// Name of the machine.
        machine_name: Opaque<'a, { crate::rpc::AuthSys::MACHINE_NAME_LEN_MAX }>,
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
        /// Further groups.
        gids: List<'a, u32, { crate::rpc::AuthSys::GIDS_MAX }>,
    }

    /// GSS handles for callbacks (gss_cb_handles4).
    CallbackGss<'a> {
        /// What is protected.
        service: GssService,
        /// The server's.
        from_server: GssHandle<'a>,
        /// The client's.
        from_client: GssHandle<'a>,
    }

    /// CREATE_SESSION4args.
    CreateSessionArguments<'a> {
        /// The client id.
        clientid: u64,
        /// The one that was told, counted up for each session.
        sequence_id: u32,
        /// Bits of [`session_flag`].
        flags: u32,
        /// Wishes for requests of the client.
        fore: ChannelAttributes,
        /// Wishes for requests of the server.
        back: ChannelAttributes,
        /// Program number of callbacks.
        callback_program: u32,
        /// Credentials for callbacks: one of these.
        callback_securities: List<'a, CallbackSecurity<'a>, CALLBACK_SECURITIES_MAX>,
    }

    /// CREATE_SESSION4resok.
    CreateSessionOk {
        /// The session.
        session: SessionId,
        /// The request's.
        sequence_id: u32,
        /// Bits of [`session_flag`].
        flags: u32,
        /// Limits for requests of the client.
        fore: ChannelAttributes,
        /// Limits for requests of the server.
        back: ChannelAttributes,
    }

    /// BACKCHANNEL_CTL4args.
    BackchannelCtlArguments<'a> {
        /// Program number of callbacks.
        callback_program: u32,
        /// Credentials for callbacks: one of these.
        callback_securities: List<'a, CallbackSecurity<'a>, CALLBACK_SECURITIES_MAX>,
    }

    /// BIND_CONN_TO_SESSION4args.
    BindConnArguments {
        /// The session.
        session: SessionId,
        /// For which channel.
        direction: DirectionFromClient,
        /// The connection is to step up to RDMA.
        use_rdma: bool,
    }

    /// BIND_CONN_TO_SESSION4resok.
    BindConnOk {
        /// The session.
        session: SessionId,
        /// For which channel.
        direction: DirectionFromServer,
        /// The connection steps up to RDMA.
        use_rdma: bool,
    }

    /// SEQUENCE4resok.
    SequenceOk {
        /// The session.
        session: SessionId,
        /// The request's.
        sequence_id: u32,
        /// The request's.
        slot: u32,
        /// The highest slot that the server accepts now.
        highest_slot: u32,
        /// The highest slot that the server wants the client to use.
        target_highest_slot: u32,
        /// Bits of [`sequence_status`].
        status_flags: u32,
    }

    /// SET_SSV4args.
    SetSsvArguments<'a> {
        /// Goes into the SSV.
        ssv: Opaque<'a, SSV_LEN_MAX>,
        /// Of the SEQUENCE.
        digest: Opaque<'a, SSV_LEN_MAX>,
    }

    /// Some request of a client (referring_call4).
    ReferringCall {
        /// Its sequence id.
        sequence_id: u32,
        /// Its slot.
        slot: u32,
    }
}

/// SEQUENCE4args. Shared with CB_SEQUENCE4args, which has more behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SequenceArguments {
    /// The session.
    pub session: SessionId,
    /// Counts the slot's requests.
    pub sequence_id: u32,
    /// The slot.
    pub slot: u32,
    /// The highest slot in use.
    pub highest_slot: u32,
    /// The reply must be kept for a retry.
    pub keep_reply: bool,
}

const SEQUENCE_LEN: usize = 32;

// It is in every COMPOUND, and its length is fixed, so the remaining octets are checked once.
impl<'a> Decode<'a> for SequenceArguments {
    #[inline]
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        let words = reader.array::<SEQUENCE_LEN>()?;
        let word = |at: usize| u32::from_be_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
        let mut session = SessionId::default();
        session.0.copy_from_slice(&words[..16]);
        let keep_reply = match word(28) {
            0 => false,
            1 => true,
            found => return Err(XdrError::BadBool(found)),
        };
        Ok(SequenceArguments {
            session,
            sequence_id: word(16),
            slot: word(20),
            highest_slot: word(24),
            keep_reply,
        })
    }
}

impl Encode for SequenceArguments {
    #[inline]
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        let place = writer.array::<SEQUENCE_LEN>()?;
        place[..16].copy_from_slice(&self.session.0);
        let words = [self.sequence_id, self.slot, self.highest_slot, u32::from(self.keep_reply)];
        place[16..].copy_from_slice(words.map(u32::to_be_bytes).as_flattened());
        Ok(())
    }
}

unions! {
    /// How a client wants its state protected (state_protect4_a).
    StateProtection<'a> {
        /// Not at all.
        None = 0,
        /// By the machine credential.
        MachineCredential = 1 (ProtectedOperations<'a>),
        /// By a secret state verifier.
        Ssv = 2 (SsvWishes<'a>),
    }

    /// How state is protected (state_protect4_r).
    StateProtected<'a> {
        /// Not at all.
        None = 0,
        /// By the machine credential.
        MachineCredential = 1 (ProtectedOperations<'a>),
        /// By a secret state verifier.
        Ssv = 2 (SsvProtection<'a>),
    }

    /// Credentials for callbacks (callback_sec_parms4): the numbers are those of RPC's flavors.
    CallbackSecurity<'a> {
        /// None.
        None = 0,
        /// A user.
        User = 1 (CallbackUser<'a>),
        /// RPCSEC_GSS.
        Gss = 6 (CallbackGss<'a>),
    }
}

numbers! {
    /// Which channels a client wants of a connection (channel_dir_from_client4).
    DirectionFromClient {
        /// Its own requests'.
        Fore = 1,
        /// The server's requests'.
        Back = 2,
        /// Its own, or both.
        ForeOrBoth = 3,
        /// The server's, or both.
        BackOrBoth = 7,
    }
}

numbers! {
    /// Which channels a connection has (channel_dir_from_server4).
    DirectionFromServer {
        /// The client's requests'.
        Fore = 1,
        /// The server's requests'.
        Back = 2,
        /// Both.
        Both = 3,
    }
}

/// Bits of EXCHANGE_ID's flags.
pub mod exchange_flag {
    /// NFS4ERR_MOVED is understood, for referrals.
    pub const SUPPORTS_REFERRALS: u32 = 1;
    /// NFS4ERR_MOVED is understood, for migration.
    pub const SUPPORTS_MIGRATION: u32 = 2;
    /// Operations are fenced (RFC 7862).
    pub const SUPPORTS_FENCES: u32 = 4;
    /// State ids belong to principals.
    pub const BIND_PRINCIPAL: u32 = 0x100;
    /// A server without pNFS.
    pub const USE_NON_PNFS: u32 = 0x1_0000;
    /// A metadata server.
    pub const USE_PNFS_MDS: u32 = 0x2_0000;
    /// A data server.
    pub const USE_PNFS_DS: u32 = 0x4_0000;
    /// The three roles.
    pub const PNFS_MASK: u32 = 0x7_0000;
    /// Asked: change the confirmed record.
    pub const UPDATE_CONFIRMED: u32 = 0x4000_0000;
    /// Told: the record is confirmed.
    pub const CONFIRMED: u32 = 0x8000_0000;
    /// What a client may set.
    pub const FROM_CLIENT: u32 = SUPPORTS_REFERRALS
        | SUPPORTS_MIGRATION
        | SUPPORTS_FENCES
        | BIND_PRINCIPAL
        | PNFS_MASK
        | UPDATE_CONFIRMED;
}

/// Bits of CREATE_SESSION's flags.
pub mod session_flag {
    /// The reply cache survives a restart.
    pub const PERSIST: u32 = 1;
    /// This connection is for callbacks as well.
    pub const CONN_BACK_CHANNEL: u32 = 2;
    /// The connection is to step up to RDMA.
    pub const CONN_RDMA: u32 = 4;
}

/// Bits of SEQUENCE's status flags.
pub mod sequence_status {
    /// No session has a connection for callbacks.
    pub const CB_PATH_DOWN: u32 = 0x1;
    /// GSS contexts for callbacks expire soon.
    pub const CB_GSS_CONTEXTS_EXPIRING: u32 = 0x2;
    /// GSS contexts for callbacks have expired.
    pub const CB_GSS_CONTEXTS_EXPIRED: u32 = 0x4;
    /// The lease expired, and all state is revoked.
    pub const EXPIRED_ALL_STATE_REVOKED: u32 = 0x8;
    /// The lease expired, and some state is revoked.
    pub const EXPIRED_SOME_STATE_REVOKED: u32 = 0x10;
    /// An administrator revoked state.
    pub const ADMIN_STATE_REVOKED: u32 = 0x20;
    /// Delegations or layouts were revoked.
    pub const RECALLABLE_STATE_REVOKED: u32 = 0x40;
    /// State has moved.
    pub const LEASE_MOVED: u32 = 0x80;
    /// The server restarted: reclaim.
    pub const RESTART_RECLAIM_NEEDED: u32 = 0x100;
    /// This session has no connection for callbacks.
    pub const CB_PATH_DOWN_SESSION: u32 = 0x200;
    /// Callbacks fail for reasons of the client.
    pub const BACKCHANNEL_FAULT: u32 = 0x400;
    /// Device ids changed.
    pub const DEVID_CHANGED: u32 = 0x800;
    /// Device ids were deleted.
    pub const DEVID_DELETED: u32 = 0x1000;
}

/// TEST_STATEID4args.
pub type TestStateidArguments<'a> = List<'a, StateId, STATEIDS_MAX>;
/// TEST_STATEID4resok: a status for each.
pub type TestStateidOk<'a> = List<'a, Status4, STATEIDS_MAX>;
