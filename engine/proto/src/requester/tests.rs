//! The fast paths against the general one: the same octets leave, and each message gets the same verdict.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use stag_wire::rpcrdma::{ReadSegment, SINGLE_LEN, Segment, SingleChunk, header_len};

use super::*;

const OFFERED: Segment = Segment { handle: 7, length: 4096, offset: 0x1_0000_2000 };

/// A Requester that has one credit more than the Call takes.
fn requester(remote_invalidation: bool) -> Requester {
    let parameters = Parameters { call_threshold: 1024, reply_threshold: 1024, remote_invalidation };
    let mut requester = Requester::new(&RequesterConfig {
        slots: 4,
        parameters,
        credits_requested: 4,
        segments_max: 8,
        xid_seed: 0x5eed,
    });
    requester.window.handle_grant(2);
    requester
}

/// A Call with the lists of `single`, in the making.
fn begin(requester: &mut Requester, single: &SingleChunk) -> (RequesterCallId, CallForm) {
    let call = requester.begin().expect("a credit");
    let header_len = match single {
        SingleChunk::Read(_) => header_len(1, [], None),
        SingleChunk::Write(_) => header_len(0, [1], None),
    };
    (call, CallForm { long: false, reply_chunk: false, header_len: header_len as u32 })
}

/// Hands the lists of `single` to `emit`.
fn with_lists<T>(single: &SingleChunk, emit: impl FnOnce(&ChunkLists<'_>) -> T) -> T {
    match single {
        SingleChunk::Read(read) => emit(&ChunkLists { reads: &[*read], ..ChunkLists::default() }),
        SingleChunk::Write(segment) => emit(&ChunkLists { writes: &[&[*segment]], ..ChunkLists::default() }),
    }
}

/// A Call sent in the short way, and its twin sent in the general one. With their headers.
fn twins(
    single: &SingleChunk,
    remote_invalidation: bool,
    len: usize,
) -> [(Requester, RequesterCallId, Vec<u8>); 2] {
    let mut short = requester(remote_invalidation);
    let mut out = vec![0xaa; len];
    let (call, form) = begin(&mut short, single);
    let emitted = with_lists(single, |lists| short.emit_call(call, &form, lists, &mut out));
    out.truncate(emitted.unwrap_or(0));
    let mut general = requester(remote_invalidation);
    let (twin, form) = begin(&mut general, single);
    assert_eq!(call, twin);
    let mut expected = vec![0xaa; len];
    let credits = general.window.requested();
    let written = with_lists(single, |lists| general.emit_chunks(twin, &form, lists, credits, &mut expected));
    assert_eq!(emitted, written);
    expected.truncate(written.unwrap_or(0));
    if written.is_ok() {
        let slot = &mut general.slots[twin.index()];
        (slot.state, slot.outcome) = (State::Sent, EndedCall::MaybeExecuted);
    }
    [(short, call, out), (general, twin, expected)]
}

/// All that a driver can tell of what was received, and of the Requester after it.
fn verdict(requester: &mut Requester, call: RequesterCallId, received: RequesterReceived<'_>) -> String {
    let lens: Vec<u32> = match &received {
        RequesterReceived::Reply(reply) => reply.write_lens().collect(),
        _ => Vec::new(),
    };
    let told = match received {
        RequesterReceived::Reply(AnsweredCall { call, payload, memory, .. }) => {
            format!("{call:?} {payload:?} {memory:?} {lens:?}")
        }
        other => format!("{other:?}"),
    };
    let state = requester.slots[call.index()].state;
    let mut fences = Vec::new();
    while let Some(handle) = requester.poll_fence(call) {
        fences.push((handle, requester.handle_fenced(call, handle)));
    }
    let mut outcomes = Vec::new();
    let window = requester.window;
    requester.handle_disconnect(|call, outcome| outcomes.push((call, outcome)));
    format!("{told}, {state:?}, fences {fences:?}, {window:?}, {outcomes:?}")
}

fn any_single() -> impl Strategy<Value = SingleChunk> {
    let position = select(vec![40, 44, 96, 1 << 20, 42, 0]);
    prop_oneof![
        Just(SingleChunk::Write(OFFERED)),
        position.prop_map(|position| SingleChunk::Read(ReadSegment { position, segment: OFFERED })),
    ]
}

/// A Reply near to a good one: with the lists that belong to it, or others.
#[derive(Clone, Debug)]
struct NearReply {
    /// Version, credits, procedure.
    fixed: (u32, u32, u32),
    /// Handle, length and offset of the segments of each Write chunk.
    writes: Vec<Vec<(u32, u32, u64)>>,
    /// Whether there is a Reply chunk.
    reply_word: u32,
    /// What the xid of the Payload stream differs by, msg_type, octets of the rest.
    stream: (u32, u32, usize),
    damage: Option<(usize, u8)>,
    /// Octets that are missing at the end.
    missing: usize,
}

impl NearReply {
    fn octets(&self, xid: u32) -> Vec<u8> {
        let (version, credits, procedure) = self.fixed;
        let (other, msg_type, rest) = self.stream;
        let mut words = vec![xid, version, credits, procedure, 0];
        for chunk in &self.writes {
            words.extend([1, chunk.len() as u32]);
            for &(handle, length, offset) in chunk {
                words.extend([handle, length, (offset >> 32) as u32, offset as u32]);
            }
        }
        words.extend([0, self.reply_word, xid ^ other, msg_type]);
        let mut octets: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
        octets.extend(vec![0x55; rest]);
        if let Some((at, octet)) = self.damage
            && let Some(place) = octets.get_mut(at)
        {
            *place = octet;
        }
        octets.truncate(octets.len().saturating_sub(self.missing));
        octets
    }
}

fn any_reply() -> impl Strategy<Value = NearReply> {
    let length = prop_oneof![4 => 0..=4096u32, 1 => Just(4097), 1 => any::<u32>()];
    let segment = (select(vec![7, 7, 7, 7, 7, 8]), length, near(OFFERED.offset, vec![0, u64::MAX - 99]));
    let chunk = near(1usize, vec![0, 2]).prop_flat_map(move |count| vec(segment.clone(), count));
    let writes = select(vec![0usize, 0, 1, 1, 1, 1, 2]).prop_flat_map(move |count| vec(chunk.clone(), count));
    let fixed = (near(1u32, vec![2]), 0..9u32, near(0u32, vec![1, 4]));
    let stream = (near(0u32, vec![4]), near(1u32, vec![0]), 0..60usize);
    let damage = prop_oneof![5 => Just(None), 1 => (0..80usize, any::<u8>()).prop_map(Some)];
    let missing = prop_oneof![5 => Just(0usize), 1 => 0..60usize];
    (fixed, writes, near(0u32, vec![1, 2]), stream, damage, missing).prop_map(
        |(fixed, writes, reply_word, stream, damage, missing)| NearReply {
            fixed,
            writes,
            reply_word,
            stream,
            damage,
            missing,
        },
    )
}

/// Nearly always `good`.
fn near<T: Copy + std::fmt::Debug + 'static>(good: T, others: Vec<T>) -> impl Strategy<Value = T> + Clone {
    prop_oneof![8 => Just(good), 1 => select(others)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8192))]

    #[test]
    fn the_short_way_writes_the_octets_of_the_general_one(
        single in any_single(),
        len in prop_oneof![Just(1024usize), 0..2 * SINGLE_LEN],
    ) {
        let [(_, _, short), (_, _, general)] = twins(&single, true, len);
        prop_assert_eq!(short, general);
    }

    #[test]
    fn the_short_way_gives_the_verdict_of_the_general_one(
        single in any_single(),
        remote_invalidation in any::<bool>(),
        reply in any_reply(),
        invalidated in select(vec![None, Some(7), Some(7), Some(8)]),
        (is_cancelled, xid) in (near(false, vec![true]), near(0u32, vec![4])),
    ) {
        let [(mut short, call, header), (mut general, ..)] = twins(&single, remote_invalidation, 1024);
        if header.is_empty() {
            return Ok(());
        }
        if is_cancelled {
            prop_assert_eq!(short.cancel(call), general.cancel(call));
        }
        let message = reply.octets(call.xid() ^ xid);
        let found = short.handle_receive(&message, invalidated);
        let found = verdict(&mut short, call, found);
        let expected = general.receive_any(&message, invalidated);
        let expected = verdict(&mut general, call, expected);
        prop_assert_eq!(found, expected);
    }
}

/// The strategies above reach what they are for: good Replies go the short way, and bad ones do not.
#[test]
fn a_good_reply_goes_the_short_way() {
    for single in
        [SingleChunk::Write(OFFERED), SingleChunk::Read(ReadSegment { position: 96, segment: OFFERED })]
    {
        for (handle, memory) in [(Some(7), ExposedMemory::Safe), (None, ExposedMemory::Exposed)] {
            let [(mut short, call, mut reply), _] = twins(&single, true, 1024);
            if matches!(single, SingleChunk::Read(_)) {
                reply.drain(16..40);
            }
            reply.extend([call.xid().to_be_bytes(), 1u32.to_be_bytes()].concat());
            let found = short.handle_short(&reply, handle).expect("as offered");
            let written = matches!(single, SingleChunk::Write(_)).then_some(4096);
            assert_eq!((found.call, found.written, found.memory), (call, written, memory));
            assert_eq!(found.start as usize, reply.len() - 8);
        }
    }
}
