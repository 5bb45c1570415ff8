//! MOUNT: finds the handle of an export. A server of ours serves it on the RDMA connection, any other over
//! TCP, at a port that its rpcbind knows.

use stag_nfs::client::{AnyOperation, FinishedCall, Operation};
use stag_rpc::{BlockingClient, StreamCallError};
use stag_wire::mount3;
use stag_wire::rpc::{OpaqueAuth, flavor};
use stag_wire::rpcbind::{self, Mapping, PortmapProcedure};
use stag_wire::xdr::{Encode, Overflow, Reader, Writer};

use super::credentials;
use super::error::RemoteError;
use super::link::Link;
use super::tcp::{call, connect};
use crate::options;
use crate::url::Url;

/// Where MOUNT is served.
pub(super) enum Mount {
    /// On the connection that NFS has.
    Fabric,
    /// Over TCP.
    Tcp(Box<BlockingClient>),
}

/// The results of a MOUNT Call.
pub(super) enum Results {
    Fabric(FinishedCall),
    Tcp(Vec<u8>),
}

impl Results {
    /// The results; `O` is what was called.
    pub(super) fn reply<O: Operation>(&self) -> Result<O::Reply<'_>, RemoteError> {
        match self {
            Results::Fabric(finished) => Ok(finished.reply::<O>()?),
            Results::Tcp(octets) => {
                let mut reader = Reader::new(octets);
                reader.value().map_err(|_| RemoteError::senseless("MOUNT"))
            }
        }
    }
}

impl Mount {
    /// Finds out where `url`'s server has it.
    pub(super) fn find(link: &mut dyn Link, url: &Url) -> Result<Mount, RemoteError> {
        if let Some(port) = url.mount_port.or(options::get().mount_port) {
            let (host, _) = url.host_and_port()?;
            return match connect(host, port) {
                Ok(rpc) => Ok(Mount::Tcp(Box::new(rpc))),
                Err(error) => Err(RemoteError::Broken(format!(
                    "MOUNT at {host}, TCP port {port}: {error}; see mountport"
                ))),
            };
        }
        match link.call(&AnyOperation::new(&MountNull)) {
            Ok(_) => return Ok(Mount::Fabric),
            Err(RemoteError::NotServed) if url.fabric.is_network() => {}
            Err(error) => return Err(error),
        }
        // The kernel's NFS server has only NFS there.
        let (host, port) = url.host_and_port()?;
        let by_rpcbind = match registered_port(host) {
            Ok(Some(port)) => match connect(host, port) {
                Ok(rpc) => return Ok(Mount::Tcp(Box::new(rpc))),
                Err(error) => format!("TCP port {port}, which its rpcbind names: {error}"),
            },
            Ok(None) => "its rpcbind knows no MOUNT version 3 over TCP (is rpc.mountd running?)".to_owned(),
            Err(error) => format!("its rpcbind, TCP port {}: {error}", rpcbind::PORT),
        };
        if let Ok(mut rpc) = connect(host, port)
            && call(&mut rpc, &MountNull, OpaqueAuth::NONE).is_ok()
        {
            return Ok(Mount::Tcp(Box::new(rpc)));
        }
        Err(RemoteError::Broken(format!(
            "no MOUNT service found, on the connection or by TCP: {by_rpcbind}; if you know its port, add \
             ?mountport=PORT to the URL"
        )))
    }

    /// Makes a MOUNT Call.
    pub(super) fn call<O: Operation>(
        &mut self,
        link: &mut dyn Link,
        operation: &O,
    ) -> Result<Results, RemoteError> {
        match self {
            Mount::Fabric => link.call(&AnyOperation::new(operation)).map(Results::Fabric),
            Mount::Tcp(rpc) => {
                let body = &credentials::encode();
                call(rpc, operation, OpaqueAuth { flavor: flavor::AUTH_SYS, body })
                    .map(Results::Tcp)
                    .map_err(|error| RemoteError::Broken(format!("MOUNT over TCP: {error}")))
            }
        }
    }

    /// What a refusal of MNT means, with the repair.
    pub(super) fn refusal(&self, path: &str, status: mount3::Status) -> RemoteError {
        use mount3::Status;
        RemoteError::Broken(match (status, self) {
            (Status::NoEnt, _) => format!("mounting {path}: no such export or folder"),
            (Status::Acces | Status::Perm, Mount::Tcp(rpc)) if !rpc.is_from_reserved_port() => format!(
                "mounting {path}: permission denied; the server may want a source port below 1024: run as \
                 root, or say `insecure` for the export in its /etc/exports"
            ),
            (Status::Acces | Status::Perm, _) => {
                format!("mounting {path}: permission denied; is it exported to this machine?")
            }
            (status, _) => format!("mounting {path}: {status:?}"),
        })
    }
}

/// The TCP port of MOUNT version 3, as the host's rpcbind has it.
fn registered_port(host: &str) -> Result<Option<u16>, String> {
    let mut rpc = connect(host, rpcbind::PORT)?;
    let port = call(&mut rpc, &Getport, OpaqueAuth::NONE)
        .and_then(|octets| Reader::new(&octets).u32().map_err(|_| StreamCallError::BadReply))
        .and_then(|port| u16::try_from(port).map_err(|_| StreamCallError::BadReply));
    match port {
        Ok(0) => Ok(None),
        Ok(port) => Ok(Some(port)),
        Err(error) => Err(error.to_string()),
    }
}

/// NULL of MOUNT: is it there?
struct MountNull;

/// GETPORT of the port mapper, for MOUNT.
struct Getport;

/// Says what is called, and the type of its results.
macro_rules! operations {
    ($($type:ident: $program:expr, $version:expr, $procedure:expr, $reply:ty, $len:expr, $encode:expr;)*) => {$(
        impl Encode for $type {
            fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
                let encode: fn(&mut Writer<'_>) -> Result<(), Overflow> = $encode;
                encode(writer)
            }
        }

        impl Operation for $type {
            const PROGRAM: u32 = $program;
            const VERSION: u32 = $version;
            type Reply<'r> = $reply;

            fn procedure(&self) -> u32 {
                $procedure
            }

            fn results_len_max(&self, _: bool) -> u32 {
                $len
            }
        }
    )*};
}

operations! {
    MountNull: mount3::PROGRAM, mount3::VERSION, mount3::Procedure::Null.number(), (), 0, |_| Ok(());
    Getport: rpcbind::PROGRAM, rpcbind::VERSION_PORTMAP, PortmapProcedure::Getport.number(), u32, 4, |writer| {
        let (program, version) = (mount3::PROGRAM, mount3::VERSION);
        writer.value(&Mapping { program, version, protocol: rpcbind::protocol::TCP, port: 0 })
    };
}
