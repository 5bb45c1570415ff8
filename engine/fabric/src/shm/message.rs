//! The two messages of the rendezvous, and the refusal.
//!
//! ```text
//!   client                                     server
//!     | HELLO  + part, arenas                     |
//!     |------------------------------------------>|  ConnectRequest; prepare, accept
//!     |                     ACCEPT + part, arenas |
//!     |<------------------------------------------|  Established
//!     | Established                               |
//! ```
//!
//! or REJECT with a reason. Each is one datagram of a SOCK_SEQPACKET socket, in the machine's own byte order,
//! with the descriptors beside it. The socket then stays open: it shows the peer's end, and carries a WAKE to a
//! side that sleeps, at most one for each time that it went to sleep.

use super::bells::BellPlace;
use super::pages::Layout;
use super::regions::REGIONS_MAX;
use crate::QueuePairCapacity;

/// Octets of private data at most.
pub(super) const PRIVATE_DATA_LEN_MAX: usize = 256;
/// Octets of a reason at most.
pub(super) const REASON_LEN_MAX: usize = 256;
/// Octets of a message at most.
pub(super) const LEN_MAX: usize = FIXED_LEN + 8 * REGIONS_MAX + PRIVATE_DATA_LEN_MAX;

const MAGIC: u32 = u32::from_be_bytes(*b"Stag");
/// Counts changes of the messages and of the layout of shared memory.
const VERSION: u32 = 5;
const FIXED_LEN: usize = 4 * 15;

/// The datagram that wakes a side that sleeps.
pub(super) const WAKE: [u8; 12] = {
    let ([a, b, c, d], [e, f, g, h]) = (MAGIC.to_ne_bytes(), VERSION.to_ne_bytes());
    let [i, j, k, l] = 4u32.to_ne_bytes();
    [a, b, c, d, e, f, g, h, i, j, k, l]
};

/// What each side says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Introduction {
    /// Whether it may sleep, and wants to be woken.
    pub(super) may_sleep: bool,
    /// What it has posted at most.
    pub(super) capacity: QueuePairCapacity,
    /// The sizes of its part of the connection's memory.
    pub(super) layout: Layout,
    /// The lengths of its arenas, whose descriptors come along in this order, behind that of its part.
    pub(super) arenas: Vec<u64>,
    /// Where its bell for this connection is, if it has one: then the descriptor of that memory comes last.
    pub(super) bell: Option<BellPlace>,
    /// The user's private data.
    pub(super) private_data: Vec<u8>,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// The client would like to connect.
    Hello(Introduction),
    /// The server agrees.
    Accept(Introduction),
    /// The server does not, and says why.
    Reject(String),
}

/// Why a datagram is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Malformed {
    /// Another program, or another version of this one.
    Version,
    /// Too short, too long, or a value out of its range.
    Content,
}

impl Message {
    /// Its bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, introduction) = match self {
            Message::Hello(introduction) => (1, introduction),
            Message::Accept(introduction) => (2, introduction),
            Message::Reject(reason) => {
                let mut bytes: Vec<u8> = [MAGIC, VERSION, 3].iter().flat_map(|w| w.to_ne_bytes()).collect();
                bytes.extend_from_slice(&reason.as_bytes()[..floor_char_boundary(reason, REASON_LEN_MAX)]);
                return bytes;
            }
        };
        let Introduction { may_sleep, capacity, layout, arenas, bell, private_data } = introduction;
        let bell = bell.unwrap_or(BellPlace { count: 0, index: 0 });
        debug_assert!(arenas.len() <= REGIONS_MAX && private_data.len() <= PRIVATE_DATA_LEN_MAX);
        let words = [
            MAGIC,
            VERSION,
            kind,
            u32::from(*may_sleep),
            capacity.receives,
            capacity.sends,
            capacity.exposures,
            capacity.send_len_max,
            capacity.receive_len_max,
            layout.ring_len,
            layout.exposures,
            bell.count,
            bell.index,
            arenas.len() as u32,
            private_data.len() as u32,
        ];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes.extend(arenas.iter().flat_map(|len| len.to_ne_bytes()));
        bytes.extend_from_slice(private_data);
        bytes
    }

    /// Reads a datagram. Its values are in range; the descriptors are still to be checked.
    pub(super) fn decode(bytes: &[u8]) -> Result<Message, Malformed> {
        let mut reader = Reader(bytes);
        if reader.word()? != MAGIC || reader.word()? != VERSION {
            return Err(Malformed::Version);
        }
        match reader.word()? {
            1 => reader.introduction().map(Message::Hello),
            2 => reader.introduction().map(Message::Accept),
            3 => {
                let reason = reader.0.get(..REASON_LEN_MAX).unwrap_or(reader.0);
                Ok(Message::Reject(String::from_utf8_lossy(reason).into_owned()))
            }
            _ => Err(Malformed::Content),
        }
    }
}

/// The longest start of `text` of at most `len` bytes.
fn floor_char_boundary(text: &str, len: usize) -> usize {
    if text.len() <= len {
        return text.len();
    }
    (0..=len).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn word(&mut self) -> Result<u32, Malformed> {
        let (word, rest) = self.0.split_first_chunk().ok_or(Malformed::Content)?;
        self.0 = rest;
        Ok(u32::from_ne_bytes(*word))
    }

    fn introduction(&mut self) -> Result<Introduction, Malformed> {
        let may_sleep = self.word()? != 0;
        let capacity = QueuePairCapacity {
            receives: self.word()?,
            sends: self.word()?,
            exposures: self.word()?,
            send_len_max: self.word()?,
            receive_len_max: self.word()?,
            // Not sent: the peer does not need it.
            receive_targets: 0,
        };
        let layout = Layout { ring_len: self.word()?, exposures: self.word()? };
        let bell = BellPlace { count: self.word()?, index: self.word()? };
        let bell = (bell.count > 0).then_some(bell);
        let (arenas, private_data) = (self.word()? as usize, self.word()? as usize);
        let is_valid = layout.is_valid() && bell.is_none_or(BellPlace::is_valid);
        if !is_valid || arenas > REGIONS_MAX || private_data > PRIVATE_DATA_LEN_MAX {
            return Err(Malformed::Content);
        }
        let (lens, private) = self.0.split_at_checked(8 * arenas).ok_or(Malformed::Content)?;
        if private.len() != private_data {
            return Err(Malformed::Content);
        }
        let arenas = lens.chunks_exact(8).map(|len| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(len);
            u64::from_ne_bytes(bytes)
        });
        let (arenas, private_data) = (arenas.collect(), private.to_vec());
        Ok(Introduction { may_sleep, capacity, layout, arenas, bell, private_data })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn introduction() -> Introduction {
        Introduction {
            may_sleep: true,
            capacity: QueuePairCapacity {
                receives: 32,
                sends: 64,
                exposures: 128,
                send_len_max: 1024,
                receive_len_max: 4096,
                receive_targets: 0,
            },
            layout: Layout { ring_len: 16384, exposures: 128 },
            arenas: vec![1 << 30, 4096],
            bell: Some(BellPlace { count: 1024, index: 1023 }),
            private_data: b"private".to_vec(),
        }
    }

    #[test]
    fn messages_survive_the_trip() {
        for message in [
            Message::Hello(introduction()),
            Message::Accept(introduction()),
            Message::Reject("full: 8 queue pairs".to_owned()),
        ] {
            let bytes = message.encode();
            assert!(bytes.len() <= LEN_MAX);
            assert_eq!(Message::decode(&bytes), Ok(message));
        }
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        let Ok(Message::Reject(reason)) = Message::decode(&Message::Reject("ä".repeat(200) + "x").encode())
        else {
            panic!("a reject is a reject");
        };
        assert_eq!(reason, "ä".repeat(128));
    }

    #[test]
    fn every_cut_and_every_stray_byte_is_refused_or_in_range() {
        let bytes = Message::Hello(introduction()).encode();
        for cut in 0..bytes.len() {
            assert!(Message::decode(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] = value;
                if let Ok(Message::Hello(i)) = Message::decode(&bytes) {
                    assert!(i.layout.is_valid() && i.arenas.len() <= REGIONS_MAX);
                    assert!(i.bell.is_none_or(BellPlace::is_valid));
                }
            }
        }
        assert_eq!(Message::decode(b"GET / HTTP/1.1\r\n"), Err(Malformed::Version));
        assert_eq!(Message::decode(&WAKE), Err(Malformed::Content));
    }
}
