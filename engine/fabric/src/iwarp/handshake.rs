//! MPA's request and reply: the offers of both sides, and the agreement (RFC 5044 section 7, RFC 6581).

use std::net::SocketAddr;
use std::time::Duration;

use stag_wire::mpa::{self, Enhanced, Frame, FrameError, FrameKind, ReadyToReceive};

use super::config::{IwarpConfig, Revision};
use super::socket::{Moved, Socket};
use super::terms::Terms;
use crate::DisconnectReason;

/// Octets of the user's private data at most: what siw takes (siw-4), without the words in front.
pub(super) const PRIVATE_DATA_LEN_MAX: usize = mpa::PRIVATE_DATA_LEN_MAX_SIW - 2 * mpa::ENHANCED_LEN;

/// A frame that is being received.
#[derive(Default)]
pub(super) struct Incomplete(Vec<u8>);

/// How far it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Not all of it is there.
    Waiting,
    /// It is there: [`Incomplete::octets`].
    Whole,
    /// The peer closed, or the connection is lost.
    Gone,
    /// It is no frame.
    Bad(FrameError),
}

impl Incomplete {
    /// Takes what came, and nothing behind the frame.
    pub(super) fn receive(&mut self, socket: &Socket) -> Progress {
        loop {
            let (len, is_known) = match mpa::frame_len(&self.0) {
                Ok(len) => (len, true),
                Err(FrameError::Truncated(needed)) => (needed, false),
                Err(error) => return Progress::Bad(error),
            };
            let at = self.0.len();
            if at >= len {
                return if is_known { Progress::Whole } else { Progress::Waiting };
            }
            self.0.resize(len, 0);
            let moved = socket.receive(&mut self.0[at..]);
            let came = if let Moved::Octets(count) = moved { count } else { 0 };
            self.0.truncate(at + came);
            match moved {
                Moved::Octets(_) => {}
                Moved::Nothing => return Progress::Waiting,
                Moved::End | Moved::Lost => return Progress::Gone,
            }
        }
    }

    /// What came.
    pub(super) fn octets(&self) -> &[u8] {
        &self.0
    }
}

/// Connecting side: what it does, until it is connected.
pub(super) struct Dial {
    pub(super) address: SocketAddr,
    pub(super) private_data: Vec<u8>,
    /// When to give up; from the first `poll` on.
    pub(super) deadline: Option<Duration>,
    /// The request is out.
    pub(super) has_asked: bool,
    pub(super) reply: Incomplete,
    pub(super) revision: Revision,
    /// It failed before it began; the next `poll` says so.
    pub(super) failed: Option<DisconnectReason>,
}

/// Accepting side: what the peer asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    revision: u8,
    crc: bool,
    large_fpdus: bool,
    enhanced: Option<Enhanced>,
}

impl Offer {
    pub(super) fn new(request: &Frame<'_>) -> Offer {
        let &Frame { revision, crc, large_fpdus, enhanced, .. } = request;
        Offer { revision, crc, large_fpdus, enhanced }
    }

    /// The reply that accepts: as the request, with our values (siw wants its S and revision back).
    pub(super) fn reply<'a>(&self, config: &IwarpConfig, private_data: &'a [u8]) -> Frame<'a> {
        let enhanced = self.enhanced.map(|asked| Enhanced {
            peer_to_peer: asked.peer_to_peer.map(choose),
            ird: config.ird,
            // 6581-9-d: no more than the peer takes.
            ord: if asked.ird == mpa::NOT_NEGOTIATED { config.ord } else { config.ord.min(asked.ird) },
        });
        Frame {
            kind: FrameKind::Reply,
            markers: false,
            crc: self.crc || config.crc,
            rejected: false,
            large_fpdus: self.large_fpdus && config.large_fpdus,
            revision: self.revision,
            enhanced,
            private_data,
        }
    }

    /// The reply that refuses.
    pub(super) fn refusal<'a>(&self, config: &IwarpConfig, reason: &'a str) -> Frame<'a> {
        let mut len = reason.len().min(PRIVATE_DATA_LEN_MAX);
        while !reason.is_char_boundary(len) {
            len -= 1;
        }
        Frame { rejected: true, ..self.reply(config, &reason.as_bytes()[..len]) }
    }

    /// What holds once the reply is sent.
    pub(super) fn terms(&self, config: &IwarpConfig, segment_len: usize) -> Terms {
        let reply = self.reply(config, &[]);
        let ready = reply.enhanced.and_then(|enhanced| enhanced.peer_to_peer);
        Terms {
            crc: reply.crc,
            ird: config.ird.into(),
            ord: reply.enhanced.map_or(config.ord, |enhanced| enhanced.ord).into(),
            segment_len,
            ulpdu_len_max: ulpdu_len_max(reply.large_fpdus, segment_len),
            swallows_send: ready.is_some_and(|ready| ready.send),
            waits: true,
        }
    }
}

/// Which message is to make us ready, of those that are offered (6581-9-b). Like siw, Write if nothing is.
fn choose(offered: ReadyToReceive) -> ReadyToReceive {
    let none = ReadyToReceive::default();
    match offered {
        ReadyToReceive { write: true, .. } => ReadyToReceive { write: true, ..none },
        ReadyToReceive { read: true, .. } => ReadyToReceive { read: true, ..none },
        ReadyToReceive { send: true, .. } => ReadyToReceive { send: true, ..none },
        _ => ReadyToReceive { write: true, ..none },
    }
}

fn ulpdu_len_max(large_fpdus: bool, segment_len: usize) -> usize {
    if large_fpdus { mpa::ULPDU_LEN_MAX } else { mpa::mulpdu(segment_len) }
}

/// The request.
pub(super) fn request<'a>(config: &IwarpConfig, revision: Revision, private_data: &'a [u8]) -> Frame<'a> {
    let ready = ReadyToReceive { send: false, write: true, read: true };
    let enhanced =
        Enhanced { peer_to_peer: config.peer_to_peer.then_some(ready), ird: config.ird, ord: config.ord };
    Frame {
        kind: FrameKind::Request,
        markers: false,
        crc: config.crc,
        rejected: false,
        large_fpdus: config.large_fpdus,
        revision: if revision == Revision::One { 1 } else { 2 },
        enhanced: (revision == Revision::Two).then_some(enhanced),
        private_data,
    }
}

/// What became of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Connected, on these terms; the peer wants this message first (6581-9-c).
    Accepted(Terms, Option<ReadyToReceive>),
    /// The peer says no, and why.
    Rejected(String),
    /// It cannot be: this is wrong with it.
    Violation(&'static str),
    /// The peer wants to read more at once than we take (6581-9-d); the reply says so.
    TooManyReads,
}

/// What a reply means.
pub(super) fn answer(config: &IwarpConfig, reply: &Frame<'_>, segment_len: usize) -> Answer {
    if reply.kind != FrameKind::Reply {
        return Answer::Violation("a request in answer to a request");
    }
    if reply.rejected {
        return Answer::Rejected(String::from_utf8_lossy(reply.private_data).into_owned());
    }
    if reply.markers {
        return Answer::Violation("a reply that asks for markers");
    }
    let mut ord = config.ord;
    let mut ready = None;
    if let Some(enhanced) = reply.enhanced {
        if enhanced.ord != mpa::NOT_NEGOTIATED && enhanced.ord > config.ird {
            return Answer::TooManyReads;
        }
        if enhanced.ird != mpa::NOT_NEGOTIATED {
            ord = ord.min(enhanced.ird);
        }
        ready = enhanced.peer_to_peer.filter(|_| config.peer_to_peer);
    }
    let terms = Terms {
        crc: config.crc || reply.crc,
        ird: config.ird.into(),
        ord: ord.into(),
        segment_len,
        ulpdu_len_max: ulpdu_len_max(config.large_fpdus && reply.large_fpdus, segment_len),
        swallows_send: false,
        waits: false,
    };
    Answer::Accepted(terms, ready)
}

/// Sends a frame. It is the first that goes out, so there is room for it. `false`: the connection is lost.
pub(super) fn send(socket: &Socket, frame: &Frame<'_>) -> bool {
    let mut octets = [0; mpa::FRAME_LEN_MAX];
    let Some(len) = frame.emit(&mut octets) else { return false };
    socket.send(&octets[..len], false) == Moved::Octets(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: IwarpConfig = IwarpConfig {
        may_sleep: false,
        queue_pairs: 1,
        completions: 1,
        crc: false,
        peer_to_peer: true,
        revision: Revision::Two,
        ird: 16,
        ord: 32,
        large_fpdus: true,
        connect_timeout: Duration::ZERO,
        request_timeout: Duration::ZERO,
        handshakes: 1,
        dead_peer_timeout: Duration::ZERO,
        congestion_control: None,
        send_buffer: None,
        receive_buffer: None,
    };

    fn enhanced(ird: u16, ord: u16) -> Option<Enhanced> {
        Some(Enhanced { peer_to_peer: None, ird, ord })
    }

    /// 6581-9-d, 6581-9-e: neither end has more Reads outstanding than the other takes.
    #[test]
    fn reads_are_negotiated() {
        let asked = request(&CONFIG, Revision::Two, b"");
        for (ird, ours) in [(0, 0), (5, 5), (128, 32), (mpa::NOT_NEGOTIATED, 32)] {
            let offer = Offer::new(&Frame { enhanced: enhanced(ird, 0), ..asked });
            assert_eq!(offer.terms(&CONFIG, 1460).ord, ours);
            assert_eq!(offer.reply(&CONFIG, b"").enhanced, enhanced(16, ours as u16));
            let reply = Frame { kind: FrameKind::Reply, enhanced: enhanced(ird, 16), ..asked };
            match answer(&CONFIG, &reply, 1460) {
                Answer::Accepted(terms, None) => assert_eq!((terms.ord, terms.ird), (ours, 16)),
                other => panic!("{other:?}"),
            }
        }
        let greedy = Frame { kind: FrameKind::Reply, enhanced: enhanced(16, 17), ..asked };
        assert_eq!(answer(&CONFIG, &greedy, 1460), Answer::TooManyReads);
    }

    /// 5044-7.1-c, siw-2: either side turns CRCs on, for both.
    #[test]
    fn crcs_are_negotiated() {
        for (we_ask, they_ask) in [(false, false), (false, true), (true, false), (true, true)] {
            let config = IwarpConfig { crc: we_ask, ..CONFIG };
            let frame = Frame { crc: they_ask, ..request(&CONFIG, Revision::Two, b"") };
            let offer = Offer::new(&frame);
            assert_eq!(offer.reply(&config, b"").crc, we_ask || they_ask);
            assert_eq!(offer.terms(&config, 1460).crc, we_ask || they_ask);
            let reply = Frame { kind: FrameKind::Reply, enhanced: enhanced(16, 16), ..frame };
            match answer(&config, &reply, 1460) {
                Answer::Accepted(terms, _) => assert_eq!(terms.crc, we_ask || they_ask),
                other => panic!("{other:?}"),
            }
        }
    }

    /// 6581-9-a, 6581-9-b, 6581-9-f: the peer-to-peer model is echoed with one message, and S and revision as they came.
    #[test]
    fn the_reply_is_like_the_request() {
        let none = ReadyToReceive::default();
        for (offered, chosen) in [
            (ReadyToReceive { send: true, write: true, read: true }, ReadyToReceive { write: true, ..none }),
            (ReadyToReceive { send: true, read: true, ..none }, ReadyToReceive { read: true, ..none }),
            (ReadyToReceive { send: true, ..none }, ReadyToReceive { send: true, ..none }),
            (none, ReadyToReceive { write: true, ..none }),
        ] {
            let words = Enhanced { peer_to_peer: Some(offered), ird: 1, ord: 1 };
            let asked = Frame { enhanced: Some(words), ..request(&CONFIG, Revision::Two, b"") };
            let reply = Offer::new(&asked).reply(&CONFIG, b"");
            assert_eq!((reply.revision, reply.enhanced.and_then(|e| e.peer_to_peer)), (2, Some(chosen)));
            assert_eq!(Offer::new(&asked).terms(&CONFIG, 1460).swallows_send, chosen.send);
        }
        let plain = request(&CONFIG, Revision::One, b"");
        let reply = Offer::new(&plain).reply(&CONFIG, b"");
        assert_eq!((reply.revision, reply.enhanced), (1, None));
        let long = "x".repeat(PRIVATE_DATA_LEN_MAX - 1) + "\u{e9}";
        let refusal = Offer::new(&plain).refusal(&CONFIG, &long);
        assert_eq!((refusal.rejected, refusal.private_data.len()), (true, PRIVATE_DATA_LEN_MAX - 1));
    }

    /// 5044-5-a, 5044-5-b: FPDUs follow the segment size, unless both sides like them larger.
    #[test]
    fn fpdus_are_as_long_as_both_like() {
        let asked = request(&CONFIG, Revision::Two, b"");
        assert_eq!(Offer::new(&asked).terms(&CONFIG, 1460).ulpdu_len_max, mpa::ULPDU_LEN_MAX);
        let linux = Frame { large_fpdus: false, ..asked };
        assert_eq!(Offer::new(&linux).terms(&CONFIG, 1460).ulpdu_len_max, 1454);
        let small = IwarpConfig { large_fpdus: false, ..CONFIG };
        assert_eq!(Offer::new(&asked).terms(&small, 8948).ulpdu_len_max, 8942);
    }
}
