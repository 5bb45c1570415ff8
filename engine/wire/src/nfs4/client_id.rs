//! Client ids of 4.0: SETCLIENTID, SETCLIENTID_CONFIRM. And security flavors: SECINFO, SECINFO_NO_NAME.

use super::locations::NetAddress;
use super::value::{List, Refusal};
use super::{OWNER_LEN_MAX, Opaque, Status4, Verifier4};
use crate::nfs3::value::{numbers, records};
use crate::rpc::flavor::RPCSEC_GSS;
use crate::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError};

/// Octets of a GSS mechanism's object id at most. No RFC sets a limit; that of Kerberos has 11.
pub const OID_LEN_MAX: u32 = 256;
/// Security flavors in one answer at most. No RFC sets a limit.
pub const FLAVORS_MAX: u32 = 64;

records! {
    /// Who a client is (nfs_client_id4).
    ClientName<'a> {
        /// Changes with each restart of the client.
        verifier: Verifier4,
        /// The client's name, of its choice.
        id: Opaque<'a, OWNER_LEN_MAX>,
    }

    /// Where a client takes callbacks (cb_client4).
    CallbackLocation<'a> {
        /// Program number.
        program: u32,
        /// Where.
        address: NetAddress<'a>,
    }

    /// SETCLIENTID4args.
    SetclientidArguments<'a> {
        /// Who.
        client: ClientName<'a>,
        /// Where it takes callbacks.
        callback: CallbackLocation<'a>,
        /// Comes with each callback.
        callback_ident: u32,
    }

    /// SETCLIENTID4resok, and SETCLIENTID_CONFIRM4args.
    ClientIdAndVerifier {
        /// The client id.
        clientid: u64,
        /// To confirm it with.
        confirm: Verifier4,
    }

    /// A GSS mechanism and service (rpcsec_gss_info).
    GssMechanism<'a> {
        /// The mechanism's object id.
        oid: Opaque<'a, OID_LEN_MAX>,
        /// Quality of protection.
        quality: u32,
        /// What is protected.
        service: GssService,
    }
}

numbers! {
    /// What RPCSEC_GSS protects (rpc_gss_svc_t).
    GssService {
        /// The header.
        None = 1,
        /// Arguments and results against change.
        Integrity = 2,
        /// Arguments and results against readers.
        Privacy = 3,
    }
}

numbers! {
    /// Of what SECINFO_NO_NAME tells the security (secinfo_style4).
    SecinfoStyle {
        /// Of the current object.
        CurrentHandle = 0,
        /// Of its parent.
        Parent = 1,
    }
}

/// A security flavor (secinfo4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecurityFlavor<'a> {
    /// RPCSEC_GSS, with a mechanism.
    Gss(GssMechanism<'a>),
    /// Another flavor, by its number.
    Other(u32),
}

impl<'a> Decode<'a> for SecurityFlavor<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, XdrError> {
        match reader.u32()? {
            RPCSEC_GSS => reader.value().map(SecurityFlavor::Gss),
            flavor => Ok(SecurityFlavor::Other(flavor)),
        }
    }
}

impl Encode for SecurityFlavor<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        match self {
            SecurityFlavor::Gss(mechanism) => {
                writer.u32(RPCSEC_GSS)?;
                writer.value(mechanism)
            }
            SecurityFlavor::Other(flavor) => writer.u32(*flavor),
        }
    }
}

/// SECINFO4resok: the flavors in the server's order of preference.
pub type SecinfoOk<'a> = List<'a, SecurityFlavor<'a>, FLAVORS_MAX>;
/// SETCLIENTID4res: if another principal uses the name, it says where.
pub type SetclientidResult<'a> =
    Result<ClientIdAndVerifier, Refusal<NetAddress<'a>, { Status4::ClidInuse.number() }>>;
