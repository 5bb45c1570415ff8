//! RoCEv2: connections by their queue pairs, messages by their packets.
//!
//! The connection manager's messages tell which two queue pairs belong together. Where they were not captured, an
//! acknowledgement or a response does: it carries the sequence number of what it answers.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use stag_wire::reliable_reply::{ReliableReply, announces_version_2};
use stag_wire::roce::{self, ConnectionMessage, Packet, Part, QP_GENERAL_SERVICES, RoceOperation};

use crate::conversation::Conversation;
use crate::event::{CapturedFabric, ConnectionEnd, Context, Endpoints, EventKind, Setup, Termination};
use crate::iwarp::SEND_LEN_MAX;
use crate::packet::Datagram;

/// Connections that are followed at once.
const CONNECTIONS_MAX: usize = 4096;
/// Queue pairs whose other end is not known.
const LONELY_MAX: usize = 1024;
/// RDMA Reads of one side that are followed.
const READS_MAX: usize = 4096;
/// Sequence numbers by which an answer may be behind.
const ANSWER_DISTANCE_MAX: i32 = 4096;

const PSN_MASK: u32 = 0x00ff_ffff;

/// How far `psn` is behind or before `expected`.
fn distance(psn: u32, expected: u32) -> i32 {
    (psn.wrapping_sub(expected) << 8).cast_signed() >> 8
}

fn advance(psn: u32, by: u32) -> u32 {
    psn.wrapping_add(by) & PSN_MASK
}

/// A queue pair: the address of its machine, and its number.
type QueuePair = (IpAddr, u32);

/// An RDMA Read, by the sequence numbers of its response.
#[derive(Clone, Copy, Debug)]
struct Read {
    next: u32,
    /// Packets to come.
    packets: u32,
    /// The frame of its request.
    frame: u64,
}

/// What one side sends.
#[derive(Debug, Default)]
struct Half {
    /// Sequence number of its next request.
    next: Option<u32>,
    /// The Send in work, if its start was captured.
    send: Option<Vec<u8>>,
    /// Where the RDMA Write in work goes on.
    write: Option<(u32, u64)>,
    reads: VecDeque<Read>,
    /// The last of its requests that the peer has said to have.
    answered: Option<u32>,
    /// The frame of its last whole Send.
    sent: u64,
}

#[derive(Debug)]
struct Connection {
    id: u64,
    queue_pairs: [Option<QueuePair>; 2],
    /// The server's machine.
    server: IpAddr,
    halves: [Half; 2],
    /// Octets of a packet's payload, once known.
    mtu: Option<u32>,
    conversation: Conversation,
    last_frame: u64,
}

/// A queue pair whose other end is not known yet.
#[derive(Debug)]
struct Lonely {
    /// Who sends to it.
    source: IpAddr,
    last_psn: u32,
    frame: u64,
}

/// All connections of RoCE.
#[derive(Debug, Default)]
pub(crate) struct Roce {
    connections: HashMap<u64, Connection>,
    /// By the queue pair that receives: the connection, and which side receives.
    queue_pairs: HashMap<QueuePair, (u64, ConnectionEnd)>,
    /// By the connection manager's names, each on its own side.
    names: HashMap<(IpAddr, u32), (u64, ConnectionEnd)>,
    lonely: HashMap<QueuePair, Lonely>,
    keep_data: bool,
    held: usize,
}

impl Roce {
    pub(crate) fn new(keep_data: bool) -> Roce {
        Roce { keep_data, ..Roce::default() }
    }

    /// Octets that are held for all connections, roughly.
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Takes a datagram to RoCE's port. `cut`: octets of its message that were left out before it was written down as a whole packet
    /// ([`recording`](crate::recording)).
    pub(crate) fn datagram(&mut self, cx: &mut Context<'_>, datagram: &Datagram<'_>, cut: usize) {
        let (source, destination) = (datagram.source.ip(), datagram.destination.ip());
        let Ok(mut packet) = Packet::parse_start(datagram.payload, datagram.missing) else {
            return self.lose_between(source, destination);
        };
        if datagram.missing == 0 {
            packet.missing = cut;
        }
        cx.totals.segments += 1;
        let whole = datagram.missing == 0;
        if whole && let Some(right) = roce::icrc(datagram.ip_header, datagram.udp_header, datagram.payload) {
            match right == packet.icrc {
                true => cx.totals.crc_good += 1,
                // Adapters may hand out packets without it, so it is counted, and not called an error.
                false => cx.totals.crc_bad += 1,
            }
        }
        if packet.destination_qp == QP_GENERAL_SERVICES {
            if let Some(message) = ConnectionMessage::parse(packet.payload) {
                self.manage(cx, source, destination, &message);
            }
            return;
        }
        if matches!(packet.operation, RoceOperation::Datagram { .. }) {
            return;
        }
        let queue_pair = (destination, packet.destination_qp);
        if !self.queue_pairs.contains_key(&queue_pair) {
            self.pair(cx, source, queue_pair, &packet);
        }
        let Some(&(id, to)) = self.queue_pairs.get(&queue_pair) else { return };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        cx.connection = connection.id;
        connection.last_frame = cx.frame;
        let before = connection.held();
        connection.packet(cx, to.other(), &packet);
        self.held = (self.held + connection.held()).saturating_sub(before);
    }

    /// A packet between two machines cannot be read: it may have been one of any of their connections.
    fn lose_between(&mut self, source: IpAddr, destination: IpAddr) {
        for connection in self.connections.values_mut() {
            let mut machines = connection.queue_pairs.iter().flatten().map(|(address, _)| *address);
            if machines.any(|address| address == source || address == destination) {
                connection.conversation.lose();
            }
        }
    }

    fn insert(&mut self, cx: &mut Context<'_>, endpoints: Endpoints) -> u64 {
        if self.connections.len() >= CONNECTIONS_MAX {
            self.give_up(cx);
        }
        cx.totals.connections += 1;
        let id = cx.totals.connections;
        cx.connection = id;
        cx.emit(EventKind::Opened(endpoints));
        let conversation = Conversation::new(self.keep_data, endpoints.midway, endpoints.server.port());
        let connection = Connection {
            id,
            queue_pairs: [None; 2],
            server: endpoints.server.ip(),
            halves: Default::default(),
            mtu: None,
            conversation,
            last_frame: cx.frame,
        };
        self.held += connection.held();
        self.connections.insert(id, connection);
        id
    }

    /// Learns that what `side` receives comes to this queue pair.
    fn register(&mut self, id: u64, side: ConnectionEnd, queue_pair: QueuePair) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.queue_pairs[side.index()] = Some(queue_pair);
        self.lonely.remove(&queue_pair);
        self.queue_pairs.insert(queue_pair, (id, side));
    }

    /// Takes a message of the connection manager.
    fn manage(
        &mut self,
        cx: &mut Context<'_>,
        source: IpAddr,
        destination: IpAddr,
        message: &ConnectionMessage<'_>,
    ) {
        match *message {
            ConnectionMessage::Request { local_id, local_qp, starting_psn, path_mtu, .. } => {
                if let Some(&(id, _)) = self.names.get(&(source, local_id)) {
                    // Asked again.
                    let asked = self.connections.get(&id).and_then(|known| known.queue_pairs[0]);
                    if asked == Some((source, local_qp)) {
                        return;
                    }
                }
                let endpoints = Endpoints {
                    fabric: CapturedFabric::Roce,
                    client: SocketAddr::new(source, message.client_port().unwrap_or(0)),
                    server: SocketAddr::new(destination, message.port().unwrap_or(0)),
                    midway: false,
                };
                let id = self.insert(cx, endpoints);
                self.names.insert((source, local_id), (id, ConnectionEnd::Client));
                self.register(id, ConnectionEnd::Client, (source, local_qp));
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.mtu = Some(path_mtu);
                    connection.halves[ConnectionEnd::Server.index()].next = Some(starting_psn);
                }
                self.set_up(cx, id, ConnectionEnd::Client, "CM REQ", message);
            }
            ConnectionMessage::Reply { local_id, remote_id, local_qp, starting_psn, .. } => {
                let Some(&(id, ConnectionEnd::Client)) = self.names.get(&(destination, remote_id)) else {
                    return;
                };
                if self.names.get(&(source, local_id)).is_some_and(|(known, _)| *known == id) {
                    return;
                }
                self.names.insert((source, local_id), (id, ConnectionEnd::Server));
                self.register(id, ConnectionEnd::Server, (source, local_qp));
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.halves[ConnectionEnd::Client.index()].next = Some(starting_psn);
                }
                self.set_up(cx, id, ConnectionEnd::Server, "CM REP", message);
            }
            ConnectionMessage::Reject { remote_id, .. } => {
                let Some(&(id, to)) = self.names.get(&(destination, remote_id)) else { return };
                self.set_up(cx, id, to.other(), "CM REJ", message);
                self.close(cx, id);
            }
            ConnectionMessage::DisconnectReply { remote_id, .. } => {
                let Some(&(id, _)) = self.names.get(&(destination, remote_id)) else { return };
                self.close(cx, id);
            }
            _ => {}
        }
    }

    /// Reports a message of the connection manager.
    fn set_up(
        &mut self,
        cx: &mut Context<'_>,
        id: u64,
        from: ConnectionEnd,
        name: &'static str,
        message: &ConnectionMessage<'_>,
    ) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        cx.connection = id;
        let private_data = message.private_data();
        let mut options = Vec::new();
        let mut parameters = None;
        match *message {
            ConnectionMessage::Request {
                local_qp, responder_resources, initiator_depth, path_mtu, ..
            } => {
                options.push(("qp", format!("{local_qp:#x}")));
                options.push(("ird", responder_resources.to_string()));
                options.push(("ord", initiator_depth.to_string()));
                options.push(("mtu", path_mtu.to_string()));
                parameters = connection.conversation.private_data(from, private_data);
            }
            ConnectionMessage::Reply { local_qp, responder_resources, initiator_depth, .. } => {
                options.push(("qp", format!("{local_qp:#x}")));
                options.push(("ird", responder_resources.to_string()));
                options.push(("ord", initiator_depth.to_string()));
                parameters = connection.conversation.private_data(from, private_data);
            }
            ConnectionMessage::Reject { reason, .. } => options.push(("reason", reason.to_string())),
            _ => {}
        }
        // The field has a fixed length; zeros at its end belong to neither side.
        let used = private_data.iter().rposition(|octet| *octet != 0).map_or(0, |last| last + 1);
        let private_data = &private_data[..used];
        let reliable_reply = ReliableReply::find(private_data);
        let announces_version_2 = announces_version_2(private_data);
        let setup = Setup { name, options, private_data, parameters, reliable_reply, announces_version_2 };
        cx.emit(EventKind::Setup(from, setup));
    }

    /// Looks for the other end of a queue pair that no connection message told of.
    fn pair(&mut self, cx: &mut Context<'_>, source: IpAddr, queue_pair: QueuePair, packet: &Packet<'_>) {
        // A connection whose REP was not captured: the client's first packet tells the server's queue pair.
        let mut open = self.connections.values_mut().filter(|connection| {
            let [client, server] = connection.queue_pairs;
            server.is_none()
                && connection.server == queue_pair.0
                && client.is_some_and(|(address, _)| address == source)
        });
        if let (Some(connection), None) = (open.next(), open.next()) {
            connection.conversation.lose();
            let id = connection.id;
            return self.register(id, ConnectionEnd::Server, queue_pair);
        }
        let is_answer = matches!(
            packet.operation,
            RoceOperation::Acknowledge { .. } | RoceOperation::ReadResponse { .. }
        );
        let mut candidates = self.lonely.iter().filter(|((address, _), lonely)| {
            let behind = distance(lonely.last_psn, packet.psn);
            *address == source
                && lonely.source == queue_pair.0
                && (!is_answer || (0..ANSWER_DISTANCE_MAX).contains(&behind))
        });
        let first = candidates.next().map(|(peer, _)| *peer);
        let is_only = candidates.next().is_none();
        if let Some(peer) = first.filter(|peer| is_only && *peer != queue_pair) {
            // The one that was heard first asked for something.
            let endpoints = Endpoints {
                fabric: CapturedFabric::Roce,
                client: SocketAddr::new(queue_pair.0, 0),
                server: SocketAddr::new(peer.0, 0),
                midway: true,
            };
            let id = self.insert(cx, endpoints);
            self.register(id, ConnectionEnd::Client, queue_pair);
            self.register(id, ConnectionEnd::Server, peer);
            return;
        }
        if self.lonely.len() >= LONELY_MAX
            && let Some((&oldest, _)) = self.lonely.iter().min_by_key(|(_, lonely)| lonely.frame)
        {
            self.lonely.remove(&oldest);
        }
        self.lonely.insert(queue_pair, Lonely { source, last_psn: packet.psn, frame: cx.frame });
    }

    /// Ends a connection.
    fn close(&mut self, cx: &mut Context<'_>, id: u64) {
        let Some(mut connection) = self.connections.remove(&id) else { return };
        for queue_pair in connection.queue_pairs.into_iter().flatten() {
            self.queue_pairs.remove(&queue_pair);
        }
        self.names.retain(|_, (named, _)| *named != id);
        self.held = self.held.saturating_sub(connection.held());
        cx.connection = id;
        connection.close(cx);
    }

    /// Gives up the connection that was quiet for the longest time; false if there is none.
    pub(crate) fn give_up(&mut self, cx: &mut Context<'_>) -> bool {
        let quietest = self.connections.values().min_by_key(|connection| connection.last_frame);
        let Some(id) = quietest.map(|connection| connection.id) else { return false };
        cx.totals.given_up += 1;
        self.close(cx, id);
        true
    }

    /// Ends all connections.
    pub(crate) fn finish(&mut self, cx: &mut Context<'_>) {
        let mut ids: Vec<u64> = self.connections.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.close(cx, id);
        }
    }
}

impl Connection {
    fn held(&self) -> usize {
        let halves = self.halves.iter();
        let halves = halves.map(|half| half.send.as_ref().map_or(0, Vec::len) + 16 * half.reads.len());
        1024 + halves.sum::<usize>() + self.conversation.held()
    }

    fn packet(&mut self, cx: &mut Context<'_>, from: ConnectionEnd, packet: &Packet<'_>) {
        if packet.missing > 0 {
            // What it moves is not all there to be compared with what is said of it.
            self.conversation.lose();
        }
        match packet.operation {
            RoceOperation::ReadResponse { part } => self.read_response(cx, from, part, packet),
            RoceOperation::Acknowledge { syndrome } => {
                self.check_answer(from.other(), packet.psn);
                self.acknowledge(cx, from, syndrome, &packet.operation);
            }
            RoceOperation::Datagram { .. } => {}
            _ => self.request(cx, from, packet),
        }
    }

    /// Takes a packet that its receiver acts upon.
    fn request(&mut self, cx: &mut Context<'_>, from: ConnectionEnd, packet: &Packet<'_>) {
        let half = &mut self.halves[from.index()];
        let ahead = half.next.map_or(0, |next| distance(packet.psn, next));
        if ahead < 0 {
            cx.totals.duplicates += 1;
            return;
        }
        if ahead > 0 {
            half.send = None;
            half.write = None;
            self.tell_gap(cx, from, u64::from(ahead.unsigned_abs()));
        }
        let half = &mut self.halves[from.index()];
        half.next = Some(advance(packet.psn, 1));
        if let RoceOperation::Send { part: Part::First | Part::Middle, .. }
        | RoceOperation::Write { part: Part::First | Part::Middle, .. } = packet.operation
        {
            // All packets but the last of a message are full.
            self.mtu = Some((packet.payload.len() + packet.missing) as u32).filter(|mtu| *mtu > 0);
        }
        match packet.operation {
            RoceOperation::Send { part, invalidate } if packet.missing > 0 => {
                let is_new = half.send.take().is_some() || part.starts();
                if part.ends() {
                    half.sent = cx.frame;
                }
                let (octets, missing) = (packet.payload, packet.missing);
                if part == Part::Only && self.conversation.send_start(cx, from, (octets, missing), invalidate)
                {
                    return;
                }
                if is_new {
                    cx.totals.gaps += 1;
                    self.conversation.lack(from);
                    cx.emit(EventKind::Note(from, "a message that the capture cut: it is not read"));
                }
            }
            RoceOperation::Send { part, invalidate } => self.send(cx, from, part, invalidate, packet.payload),
            RoceOperation::Write { part, target } => {
                if let Some(target) = target {
                    half.write = Some((target.handle, target.address));
                }
                let Some((handle, address)) = half.write.take() else { return };
                if !part.ends() {
                    let len = packet.payload.len() + packet.missing;
                    half.write = Some((handle, address.wrapping_add(len as u64)));
                }
                self.conversation.write(cx, from, (handle, address), packet.payload, part.starts());
            }
            RoceOperation::ReadRequest(target) => {
                let packets = self.mtu.map(|mtu| target.length.div_ceil(mtu).max(1));
                let half = &mut self.halves[from.index()];
                // The response takes as many numbers as it has packets.
                half.next = packets.map(|packets| advance(packet.psn, packets));
                if half.reads.len() == READS_MAX {
                    half.reads.pop_front();
                }
                let packets = packets.unwrap_or(u32::MAX);
                half.reads.push_back(Read { next: packet.psn, packets, frame: cx.frame });
                let source = (target.handle, target.address, u64::from(target.length));
                self.conversation.read_request(cx, from, (0, 0), source);
            }
            _ => {}
        }
    }

    fn send(
        &mut self,
        cx: &mut Context<'_>,
        from: ConnectionEnd,
        part: Part,
        invalidate: Option<u32>,
        payload: &[u8],
    ) {
        let half = &mut self.halves[from.index()];
        if part.starts() {
            half.send = Some(Vec::new());
        }
        let Some(mut message) = half.send.take() else { return };
        if message.len() + payload.len() > SEND_LEN_MAX {
            cx.totals.other_sends += 1;
            return self.conversation.lose();
        }
        message.extend_from_slice(payload);
        if part.ends() {
            half.sent = cx.frame;
            self.conversation.send(cx, from, &message, invalidate);
        } else {
            self.halves[from.index()].send = Some(message);
        }
    }

    fn read_response(&mut self, cx: &mut Context<'_>, from: ConnectionEnd, part: Part, packet: &Packet<'_>) {
        let initiator = from.other();
        self.check_answer(initiator, packet.psn);
        loop {
            let Some(read) = self.halves[initiator.index()].reads.front_mut() else {
                cx.totals.duplicates += 1;
                return;
            };
            let ahead = distance(packet.psn, read.next);
            if ahead < 0 {
                cx.totals.duplicates += 1;
                return;
            }
            if ahead == 0 {
                read.next = advance(read.next, 1);
                read.packets = read.packets.saturating_sub(1);
                break;
            }
            // A part, or the rest, of this answer is missing.
            self.halves[initiator.index()].reads.pop_front();
            self.conversation.drop_read(initiator);
            self.tell_gap(cx, from, u64::from(ahead.unsigned_abs()));
        }
        if part.ends() {
            self.halves[initiator.index()].reads.pop_front();
        }
        self.conversation.read_data(cx, initiator, packet.payload, packet.missing, part.ends());
    }

    /// What is answered was sent: if it was not captured, it will not be.
    fn check_answer(&mut self, requester: ConnectionEnd, psn: u32) {
        let half = &mut self.halves[requester.index()];
        if half.next.is_some_and(|next| distance(psn, next) >= 0) {
            half.answered = Some(psn);
            self.conversation.lose();
        }
    }

    fn tell_gap(&mut self, cx: &mut Context<'_>, from: ConnectionEnd, packets: u64) {
        cx.totals.gaps += 1;
        self.conversation.lack(from);
        cx.emit(EventKind::Gap(from, packets));
    }

    /// Reports what was answered and never captured, and the end.
    fn close(&mut self, cx: &mut Context<'_>) {
        for from in [ConnectionEnd::Client, ConnectionEnd::Server] {
            let Half { next, answered, .. } = &self.halves[from.index()];
            let (next, answered) = (*next, *answered);
            if let (Some(next), Some(answered)) = (next, answered)
                && distance(answered, next) >= 0
            {
                self.tell_gap(cx, from, u64::from(distance(answered, next).unsigned_abs()) + 1);
            }
            // It went on with what it had read.
            let asked = &self.halves[from.other().index()];
            let lacks = asked.reads.iter().find(|read| read.frame < asked.sent);
            if let Some(&Read { packets, .. }) = lacks.filter(|read| read.packets != u32::MAX) {
                self.tell_gap(cx, from, u64::from(packets));
            }
        }
        self.conversation.close(cx);
    }

    fn acknowledge(
        &mut self,
        cx: &mut Context<'_>,
        from: ConnectionEnd,
        syndrome: u8,
        operation: &RoceOperation,
    ) {
        if !operation.is_nak() {
            return;
        }
        let text = match syndrome & 0x1f {
            // A packet was lost, and is sent again.
            0 => return,
            1 => "NAK: invalid request",
            2 => "NAK: remote access error",
            3 => "NAK: remote operational error",
            _ => "NAK",
        };
        cx.emit(EventKind::Terminate(from, Termination { text: text.to_owned() }));
    }
}
