//! Calls over TCP, to what a server has beside NFS.

use std::net::ToSocketAddrs;
use std::time::Duration;

use stag_nfs::client::Operation;
use stag_rpc::{BlockingClient, CallSource, StreamCall, StreamCallError, StreamLimits};
use stag_wire::rpc::OpaqueAuth;

/// How long a TCP connection may take to come about, and then each answer.
const TIMEOUTS: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(10));

/// Bounds of Calls over TCP: header, credential, and a path; of their Replies: a list of exports.
const LIMITS: StreamLimits = StreamLimits { calls_max: 1, call_len_max: 4096, reply_len_max: 1 << 20 };

/// Connects to a host by TCP, to the first of its addresses that answers, from a reserved port if that is permitted: exports
/// that are `secure` want one.
pub(super) fn connect(host: &str, port: u16) -> Result<BlockingClient, String> {
    let addresses = (host, port).to_socket_addrs().map_err(|error| error.to_string())?;
    let mut problem = "the host has no address".to_owned();
    for address in addresses {
        match BlockingClient::connect(address, CallSource::ReservedPort, LIMITS, TIMEOUTS) {
            Ok(rpc) => return Ok(rpc),
            Err(error) => problem = error.to_string(),
        }
    }
    Err(problem)
}

/// Makes a Call over TCP, and returns the encoded results.
pub(super) fn call<O: Operation>(
    rpc: &mut BlockingClient,
    operation: &O,
    credential: OpaqueAuth<'_>,
) -> Result<Vec<u8>, StreamCallError> {
    let (program, version, procedure) = (O::PROGRAM, O::VERSION, operation.procedure());
    rpc.call(&StreamCall { program, version, procedure, credential, arguments: operation })
}
