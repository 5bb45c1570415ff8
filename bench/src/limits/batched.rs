//! The limit of small Calls at depth over iWARP: TCP alone, with the Calls' octets and as many outstanding. Messages
//! that are due leave by one send, and what has come is taken by one receive, in each turn of either end. All of
//! them have one length each way.

use std::hint::black_box;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;

use anyhow::{Context, Result};
use stag_runtime::Clock;

use super::tcp_ends::{TIME, connect, crc32c, fpdu_len};
use super::{join, on_core};
use crate::pin::pin;
use crate::scenario::{MeasuredOperation, Scenario};

/// The largest data of a Call that counts as small: of more, a stream is the limit.
const DATA_LEN_MAX: usize = 64 << 10;

/// Octets that one send or receive moves at most: some of the largest messages.
const TURN_LEN_MAX: usize = 256 << 10;

/// Turns between two looks at the clock.
const LOOK_INTERVAL: u32 = 64;

/// Octets of transport and RPC headers without lists and credentials: of a Call, and of its Reply.
const HEADERS: [usize; 2] = [28 + 40, 28 + 24];
/// Octets that AUTH_SYS and a file handle add to a Call.
const FILE: usize = 32 + 36;
/// Octets of a chunk list with one segment, beyond an empty one.
const CHUNK: usize = 24;
/// Octets of a file's attributes.
const ATTRIBUTES: usize = 84;
/// Octets of a name in a Call.
const NAME: usize = 12;
/// Octets of attributes to set, of which the mode is set.
const SET: usize = 28;
/// Octets of what is told of an object before a change.
const BEFORE: usize = 4 + 24 + 4;
/// Octets of a tagged FPDU around the data.
const TAGGED: usize = 2 + 14 + 4;

/// One kind of message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Message {
    /// Octets, headers of DDP and MPA included.
    len: usize,
    /// Octets of data in it.
    data_len: usize,
}

/// What a Call and its Reply are on the wire if the data goes in one trip.
fn messages(operation: MeasuredOperation, size: usize) -> [Message; 2] {
    let plain = |len: usize| Message { len: fpdu_len(len), data_len: 0 };
    let beside =
        |len: usize| Message { len: fpdu_len(len) + TAGGED + size.next_multiple_of(4), data_len: size };
    let inside = |len: usize| Message { len: fpdu_len(len + 4 + size), data_len: size };
    let [call, reply] = HEADERS;
    match operation {
        MeasuredOperation::Null => [plain(call), plain(reply)],
        MeasuredOperation::Getattr => [plain(call + FILE), plain(reply + 4 + ATTRIBUTES)],
        // Offset and count; attributes, count, end and the length of the data.
        MeasuredOperation::Read => {
            [plain(call + FILE + CHUNK + 12), beside(reply + CHUNK + 4 + 4 + ATTRIBUTES + 12)]
        }
        // Offset, count, stability and the length; two sets of attributes, count, stability and verifier.
        MeasuredOperation::Write => {
            [beside(call + FILE + CHUNK + 20), plain(reply + 4 + 4 + 24 + 4 + ATTRIBUTES + 16)]
        }
        // A name; a handle and two sets of attributes.
        MeasuredOperation::Lookup => [plain(call + FILE + NAME), plain(reply + 4 + 36 + 2 * ATTRIBUTES)],
        MeasuredOperation::Setattr => [plain(call + FILE + SET + 4), plain(reply + 4 + BEFORE + ATTRIBUTES)],
        MeasuredOperation::Create => {
            [plain(call + FILE + NAME + 4 + SET), plain(reply + 4 + 40 + 2 * ATTRIBUTES + BEFORE)]
        }
        MeasuredOperation::Remove => [plain(call + FILE + NAME), plain(reply + 4 + BEFORE + ATTRIBUTES)],
        MeasuredOperation::Rename => {
            [plain(call + FILE + 36 + 2 * NAME), plain(reply + 4 + 2 * (BEFORE + ATTRIBUTES))]
        }
        // Not compared: their messages have many lengths.
        MeasuredOperation::Mix | MeasuredOperation::Readdirplus => [plain(call + FILE + 24), plain(reply)],
        MeasuredOperation::Echo => [inside(call), inside(reply)],
        MeasuredOperation::Reply => [plain(call + 4), inside(reply)],
    }
}

/// Calls a second of `cores` (client, server), at the depth of all connections of a client; `None` of large ones.
///
/// # Errors
///
/// When the loopback fails.
pub(super) fn measure(cores: [usize; 2], scenario: &Scenario) -> Result<Option<f64>> {
    use MeasuredOperation::{Mix, Readdirplus};
    // Their messages have many lengths.
    if matches!(scenario.operation, Mix | Readdirplus)
        || scenario.operation.has_size() && scenario.size > DATA_LEN_MAX
    {
        return Ok(None);
    }
    let (one, other) = connect(scenario.congestion_control)?;
    let [call, reply] = messages(scenario.operation, scenario.size);
    let (depth, crc) = (scenario.depth * scenario.connections, scenario.crc);
    let server = thread::spawn(move || {
        pin(cores[1]);
        let mut end = End::new(other, reply, call, crc);
        let mut owed = 0;
        // Until the other end is closed.
        while let Ok(found) = end.take() {
            owed += found;
            while owed > 0 && end.put() {
                owed -= 1;
            }
            if end.send().is_err() {
                return;
            }
        }
    });
    let measured = on_core(cores[0], move |clock| calls(End::new(one, call, reply, crc), depth, clock));
    join(server);
    measured.map(Some).context("batched messages over TCP")
}

/// Keeps `depth` Calls outstanding, and says how many end in a second.
fn calls(mut end: End, depth: usize, clock: &Clock) -> io::Result<f64> {
    let (mut outstanding, mut turns, mut ended) = (0, 0u32, 0usize);
    let (mut start, mut is_warm) = (clock.now(), false);
    loop {
        while outstanding < depth && end.put() {
            outstanding += 1;
        }
        end.send()?;
        let found = end.take()?;
        (outstanding, ended, turns) = (outstanding - found, ended + found, turns.wrapping_add(1));
        if turns.is_multiple_of(LOOK_INTERVAL) {
            let took = clock.now() - start;
            if is_warm && took >= TIME {
                return Ok(ended as f64 / took.as_secs_f64());
            }
            // The first fifth is for the connection to find its pace.
            if !is_warm && took >= TIME / 5 {
                (is_warm, start, ended) = (true, clock.now(), 0);
            }
        }
    }
}

/// One end of the connection.
struct End {
    socket: TcpStream,
    /// What it sends, and what it receives.
    messages: [Message; 2],
    /// Whether it computes the CRC32C of all octets.
    crc: bool,
    /// What it sends data from, and puts arrived data into.
    data: [Vec<u8>; 2],
    /// Messages that are due: from the second number to the third.
    due: (Vec<u8>, usize, usize),
    /// What has come, up to that number.
    arrived: (Vec<u8>, usize),
}

impl End {
    fn new(socket: TcpStream, sent: Message, received: Message, crc: bool) -> End {
        let buffer = |message: Message| vec![0x5a; TURN_LEN_MAX.max(2 * message.len)];
        End {
            socket,
            messages: [sent, received],
            crc,
            data: [sent, received].map(|message| vec![0xa5; message.data_len]),
            due: (buffer(sent), 0, 0),
            arrived: (buffer(received), 0),
        }
    }

    /// Makes one message; `false` if there is no room.
    fn put(&mut self) -> bool {
        let Message { len, data_len } = self.messages[0];
        let (octets, _, end) = &mut self.due;
        let Some(message) = octets.get_mut(*end..*end + len) else { return false };
        message[len - data_len..].copy_from_slice(&self.data[0]);
        if self.crc {
            black_box(crc32c(message));
        }
        *end += len;
        true
    }

    /// Sends what is due, or a part of it.
    fn send(&mut self) -> io::Result<()> {
        let (octets, begin, end) = &mut self.due;
        if begin == end {
            return Ok(());
        }
        match self.socket.write(&octets[*begin..*end]) {
            Ok(len) => *begin += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if begin == end {
            (*begin, *end) = (0, 0);
        }
        Ok(())
    }

    /// Takes what has come, and says how many messages are complete.
    fn take(&mut self) -> io::Result<usize> {
        let Message { len, data_len } = self.messages[1];
        let (octets, end) = &mut self.arrived;
        match self.socket.read(&mut octets[*end..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(more) => *end += more,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error),
        }
        let count = *end / len;
        for message in octets[..count * len].chunks_exact(len) {
            if self.crc {
                black_box(crc32c(message));
            }
            self.data[1].copy_from_slice(&message[len - data_len..]);
            black_box(&mut self.data[1]);
        }
        octets.copy_within(count * len..*end, 0);
        *end -= count * len;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_as_long_as_those_of_a_call() {
        let lengths =
            |operation, size| messages(operation, size).map(|message| (message.len, message.data_len));
        assert_eq!(lengths(MeasuredOperation::Null, 0), [(92, 0), (76, 0)]);
        let [call, reply] = lengths(MeasuredOperation::Read, 4096);
        assert!(call.0 < 256 && call.1 == 0 && reply.0 > 4096 + 128 && reply.1 == 4096, "{call:?} {reply:?}");
        let [call, reply] = lengths(MeasuredOperation::Write, 4096);
        assert!(call.0 > 4096 + 128 && call.1 == 4096 && reply.0 < 256 && reply.1 == 0, "{call:?} {reply:?}");
    }

    /// As all tests, it asserts no time: that all that is sent arrives, at any depth, and that large Calls have no such limit.
    #[test]
    fn calls_of_every_kind_end_at_every_depth() {
        use MeasuredOperation::{Echo, Getattr, Null, Read, Readdirplus, Rename, Reply, Write};
        for (operation, size, depth) in [
            (Null, 0, 1),
            (Getattr, 0, 32),
            (Read, 4096, 200),
            (Write, DATA_LEN_MAX, 32),
            (Echo, 1, 3),
            (Reply, 5, 2),
            (Rename, 0, 7),
        ] {
            let scenario = Scenario { operation, size, depth, ..Scenario::default() };
            let rate = measure([0, 0], &scenario).unwrap();
            assert!(rate.is_some_and(|rate| rate >= 0.0), "{operation:?}: {rate:?}");
        }
        let large = Scenario { operation: Read, size: DATA_LEN_MAX + 1, ..Scenario::default() };
        assert_eq!(measure([0, 0], &large).unwrap(), None);
        let listing = Scenario { operation: Readdirplus, ..Scenario::default() };
        assert_eq!(measure([0, 0], &listing).unwrap(), None);
    }
}
