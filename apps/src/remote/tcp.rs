//! RPC over TCP, one Call after the other, for MOUNT and rpcbind.
//!
//! A Call and its Reply are records of RFC 5531 section 11. A server may cut its Reply into fragments.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use stag::nfs::client::Operation;
use stag::wire::record::{FRAGMENTS_MAX, MARK_LEN, Mark};
use stag::wire::rpc::{Accepted, AuthStat, CallHeader, Denied, OpaqueAuth, ReplyBody, ReplyHeader, flavor};
use stag::wire::xdr::{Reader, Writer};

use crate::seed::random_seed;

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// How long an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Octets of a Call: header, credential, and a path.
const CALL_LEN_MAX: usize = 4096;

/// Octets of a Reply: a list of exports.
const REPLY_LEN_MAX: usize = 1 << 20;

/// Ports that only root may send from; exports that are `secure` want one. The lowest are well-known services'.
const RESERVED_PORTS: std::ops::RangeInclusive<u16> = 665..=1023;

/// Why there are no results.
#[derive(Debug)]
pub(super) enum TcpError {
    /// No connection.
    Connect(io::Error),
    /// No answer, or not all of it.
    Broken(io::Error),
    /// It does not serve the program, or not this version of it.
    NotServed,
    /// It refused the credential.
    Refused(AuthStat),
    /// Its answer makes no sense.
    Senseless,
}

impl fmt::Display for TcpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TcpError::Connect(error) | TcpError::Broken(error) => match error.kind() {
                io::ErrorKind::ConnectionRefused => f.write_str("no server listens there"),
                io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => f.write_str("no answer in time"),
                io::ErrorKind::UnexpectedEof => f.write_str("it ended the connection"),
                io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                    f.write_str("it cut the connection")
                }
                _ => error.fmt(f),
            },
            TcpError::NotServed => f.write_str("it does not serve this program"),
            TcpError::Refused(status) => write!(f, "it refuses the credential (auth_stat {})", status.0),
            TcpError::Senseless => f.write_str("its answer is malformed"),
        }
    }
}

/// A connection to a server.
pub(super) struct TcpRpc {
    stream: TcpStream,
    xid: u32,
    /// Whether it comes from a port that only root may use.
    pub(super) from_reserved_port: bool,
}

impl TcpRpc {
    /// Connects to a host, whichever of its addresses answers, from a reserved port if that is permitted.
    pub(super) fn connect(host: &str, port: u16) -> Result<TcpRpc, TcpError> {
        let addresses = (host, port).to_socket_addrs().map_err(TcpError::Connect)?;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in addresses {
            match open(address) {
                Ok((stream, from_reserved_port)) => {
                    // A server that recorded an earlier Call with this xid must not take ours for it.
                    return Ok(TcpRpc { stream, xid: random_seed(), from_reserved_port });
                }
                Err(error) => last = error,
            }
        }
        Err(TcpError::Connect(last))
    }

    /// Makes a Call, and returns the encoded results.
    pub(super) fn call<O: Operation>(
        &mut self,
        operation: &O,
        credential: Option<&[u8]>,
    ) -> Result<Vec<u8>, TcpError> {
        self.xid = self.xid.wrapping_add(1);
        let mut space = vec![0; CALL_LEN_MAX];
        let mut writer = Writer::new(&mut space[MARK_LEN..]);
        let header = CallHeader {
            xid: self.xid,
            program: O::PROGRAM,
            version: O::VERSION,
            procedure: operation.procedure(),
            credential: credential
                .map_or(OpaqueAuth::NONE, |body| OpaqueAuth { flavor: flavor::AUTH_SYS, body }),
            verifier: OpaqueAuth::NONE,
        };
        let too_long =
            |_| TcpError::Broken(io::Error::new(io::ErrorKind::InvalidInput, "the Call is too long"));
        header.emit(&mut writer).and_then(|()| writer.value(operation)).map_err(too_long)?;
        let len = writer.position();
        space[..MARK_LEN].copy_from_slice(&Mark::whole(len as u32).to_bytes());
        self.stream.write_all(&space[..MARK_LEN + len]).map_err(TcpError::Broken)?;

        let mut record = self.record()?;
        let mut reader = Reader::new(&record);
        let header = ReplyHeader::parse(&mut reader).map_err(|_| TcpError::Senseless)?;
        if header.xid != self.xid {
            return Err(TcpError::Senseless);
        }
        match header.body {
            ReplyBody::Accepted { outcome: Accepted::Success, .. } => {}
            ReplyBody::Accepted {
                outcome: Accepted::ProgUnavail | Accepted::ProgMismatch { .. } | Accepted::ProcUnavail,
                ..
            } => return Err(TcpError::NotServed),
            ReplyBody::Denied(Denied::AuthError(status)) => return Err(TcpError::Refused(status)),
            ReplyBody::Accepted { .. } | ReplyBody::Denied(_) => return Err(TcpError::Senseless),
        }
        let start = reader.position();
        record.drain(..start);
        Ok(record)
    }

    /// Reads one record.
    fn record(&mut self) -> Result<Vec<u8>, TcpError> {
        let mut record = Vec::new();
        for _ in 0..FRAGMENTS_MAX {
            let mut mark = [0; MARK_LEN];
            self.stream.read_exact(&mut mark).map_err(TcpError::Broken)?;
            let mark = Mark::from_bytes(mark);
            let len = mark.len as usize;
            let start = record.len();
            if len > REPLY_LEN_MAX - start {
                return Err(TcpError::Senseless);
            }
            record.resize(start + len, 0);
            self.stream.read_exact(&mut record[start..]).map_err(TcpError::Broken)?;
            if mark.is_last {
                return Ok(record);
            }
        }
        Err(TcpError::Senseless)
    }
}

/// A connection to one address, and whether it comes from a reserved port.
fn open(address: SocketAddr) -> io::Result<(TcpStream, bool)> {
    for port in RESERVED_PORTS.rev() {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        let mut own: SocketAddr = match address {
            SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        own.set_port(port);
        match socket.bind(&own.into()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => continue,
            // Not root: any port will have to do.
            Err(_) => break,
        }
        match socket.connect_timeout(&address.into(), CONNECT_TIMEOUT) {
            // An earlier connection from here to there is not forgotten yet.
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {}
            connected => {
                connected?;
                let stream = TcpStream::from(socket);
                prepare(&stream)?;
                return Ok((stream, true));
            }
        }
    }
    let stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
    prepare(&stream)?;
    Ok((stream, false))
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_nodelay(true)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use stag::nfs::client::Null;

    use super::*;

    /// A server that reads one Call and answers with these octets, each as a write of its own; `xid` stands for
    /// the Call's.
    fn serve(answer: impl Fn([u8; 4]) -> Vec<Vec<u8>> + Send + 'static) -> TcpRpc {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut mark = [0; MARK_LEN];
            stream.read_exact(&mut mark).unwrap();
            let mark = Mark::from_bytes(mark);
            assert!(mark.is_last);
            let mut call = vec![0; mark.len as usize];
            stream.read_exact(&mut call).unwrap();
            for piece in answer([call[0], call[1], call[2], call[3]]) {
                stream.write_all(&piece).unwrap();
                stream.flush().unwrap();
            }
        });
        TcpRpc::connect("127.0.0.1", port).unwrap()
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    const LAST: u32 = 1 << 31;

    #[test]
    fn each_connection_begins_with_another_xid() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let xid = || TcpRpc::connect("127.0.0.1", port).unwrap().xid;
        assert_ne!(xid(), xid());
    }

    #[test]
    fn a_reply_in_fragments_is_put_together() {
        let mut rpc = serve(|xid| {
            let reply = [&xid[..], &words(&[1, 0, 0, 0, 0, 7, 8])].concat();
            let mut pieces = vec![words(&[9]), reply[..9].to_vec(), words(&[0])];
            pieces.extend([words(&[LAST | (reply.len() as u32 - 9)]), reply[9..].to_vec()]);
            pieces
        });
        assert_eq!(rpc.call(&Null, None).unwrap(), words(&[7, 8]));
    }

    #[test]
    fn what_a_server_may_answer_is_told_apart() {
        type Expected = fn(&TcpError) -> bool;
        let cases: [(Vec<u32>, Expected); 5] = [
            (vec![1, 0, 0, 0, 1], |error| matches!(error, TcpError::NotServed)),
            (vec![1, 0, 0, 0, 2, 1, 1], |error| matches!(error, TcpError::NotServed)),
            (vec![1, 1, 1, 5], |error| matches!(error, TcpError::Refused(AuthStat::TOOWEAK))),
            (vec![0, 0, 0, 0, 0], |error| matches!(error, TcpError::Senseless)),
            (vec![1, 0, 0, 0, 5], |error| matches!(error, TcpError::Senseless)),
        ];
        for (body, expected) in cases {
            let mut rpc = serve(move |xid| {
                let reply = [&xid[..], &words(&body)].concat();
                vec![words(&[LAST | reply.len() as u32]), reply]
            });
            let error = rpc.call(&Null, Some(&[0; 20])).unwrap_err();
            assert!(expected(&error), "{error:?}");
        }
    }

    #[test]
    fn a_length_that_lies_and_an_early_end_are_errors() {
        let mut rpc = serve(|_| vec![words(&[LAST | 0x7fff_ffff])]);
        assert!(matches!(rpc.call(&Null, None), Err(TcpError::Senseless)));
        let mut rpc = serve(|_| vec![words(&[LAST | 100, 1])]);
        assert!(matches!(rpc.call(&Null, None), Err(TcpError::Broken(_))));
        let mut rpc = serve(|_| vec![words(&[0; 1025])]);
        assert!(matches!(rpc.call(&Null, None), Err(TcpError::Senseless)));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let error = TcpRpc::connect("127.0.0.1", port).err().unwrap();
        assert_eq!(error.to_string(), "no server listens there");
    }
}
