//! Slots: the sequence rules of RFC 8881 section 2.10.6, by number, and against a model.

use proptest::collection::vec;
use proptest::prelude::*;
use stag_state::slot::{SequenceFault, Sequenced, SlotClaim, SlotRequest, SlotStage, SlotTable};

const KEPT_MAX: u32 = 16;

fn request(slot: u32, sequence_id: u32, fingerprint: u64) -> SlotRequest {
    SlotRequest { slot, sequence_id, highest_slot: slot, fingerprint }
}

fn new(table: &SlotTable, request: &SlotRequest) -> SlotClaim {
    match table.sequence(request) {
        Ok(Sequenced::New(claim)) => claim,
        other => panic!("{request:?}: {other:?}"),
    }
}

fn repeated(table: &SlotTable, request: &SlotRequest) -> Vec<u8> {
    match table.sequence(request) {
        Ok(Sequenced::Retry(claim)) => table.repeat(claim, <[u8]>::to_vec),
        other => panic!("{request:?}: {other:?}"),
    }
}

/// 8881-2.10.6.1-a, 8881-2.10.6.1-b, 8881-2.10.6.1-c
#[test]
fn new_requests_retries_and_misordered_ones_are_told_apart() {
    let table = SlotTable::new(2, KEPT_MAX);
    for wrong in [0, 2, u32::MAX] {
        assert_eq!(table.sequence(&request(0, wrong, 7)), Err(SequenceFault::Misordered), "{wrong}");
    }
    let claim = new(&table, &request(0, 1, 7));
    table.finish(claim, Some(b"first"));
    for _ in 0..2 {
        assert_eq!(repeated(&table, &request(0, 1, 7)), b"first");
    }
    assert_eq!(table.sequence(&request(0, 3, 7)), Err(SequenceFault::Misordered));
    let claim = new(&table, &request(0, 2, 8));
    table.finish(claim, Some(b"second"));
    assert_eq!(repeated(&table, &request(0, 2, 8)), b"second");
    assert_eq!(table.sequence(&request(0, 1, 7)), Err(SequenceFault::Misordered), "its reply is gone");
    assert_eq!(table.stage(1), Some((0, SlotStage::Unused)), "slots know nothing of each other");
}

/// 8881-2.10.6.2-a
#[test]
fn a_retry_of_what_is_still_executed_waits() {
    let table = SlotTable::new(1, KEPT_MAX);
    let claim = new(&table, &request(0, 1, 7));
    assert_eq!(table.sequence(&request(0, 1, 7)), Err(SequenceFault::InProgress));
    assert_eq!(
        table.sequence(&request(0, 2, 7)),
        Err(SequenceFault::Misordered),
        "its client has no reply yet"
    );
    assert_eq!(table.running(), 1);
    table.finish(claim, Some(b"reply"));
    assert_eq!((table.running(), repeated(&table, &request(0, 1, 7))), (0, b"reply".to_vec()));
}

/// 8881-2.10.6.1.3-a
#[test]
fn a_reply_that_is_not_kept_or_too_long_is_gone() {
    let table = SlotTable::new(1, KEPT_MAX);
    let long = [0; KEPT_MAX as usize + 1];
    for (sequence_id, reply) in [(1, None), (2, Some(&long[..]))] {
        let claim = new(&table, &request(0, sequence_id, 7));
        table.finish(claim, reply);
        assert_eq!(table.sequence(&request(0, sequence_id, 7)), Ok(Sequenced::RetryUnkept));
    }
    assert!(table.kept_octets() <= KEPT_MAX as usize);
}

/// 8881-2.10.6.1.3.1-a, 8881-2.10.6.1.2-a
#[test]
fn a_retry_that_is_another_request_is_told_and_changes_nothing() {
    let table = SlotTable::new(1, KEPT_MAX);
    let claim = new(&table, &request(0, 1, 7));
    table.finish(claim, Some(b"reply"));
    assert_eq!(table.sequence(&request(0, 1, 8)), Err(SequenceFault::FalseRetry));
    assert_eq!(repeated(&table, &request(0, 1, 7)), b"reply");
    let claim = new(&table, &request(0, 2, 9));
    table.finish(claim, None);
    assert_eq!(table.sequence(&request(0, 2, 8)), Err(SequenceFault::FalseRetry));
    assert_eq!(table.stage(0), Some((2, SlotStage::Unkept)));
}

/// 8881-18.46.3-c
#[test]
fn slots_beyond_the_table_are_refused() {
    let table = SlotTable::new(4, KEPT_MAX);
    assert_eq!(table.sequence(&request(4, 1, 0)), Err(SequenceFault::BadSlot));
    let high = SlotRequest { highest_slot: 4, ..request(3, 1, 0) };
    assert_eq!(table.sequence(&high), Err(SequenceFault::BadHighSlot));
    assert_eq!(table.highest(), 3);
}

/// What a client does with a slot.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Sends a request, this far from the next sequence id.
    Send { slot: u32, distance: u32, fingerprint: u64 },
    /// The server answers it, and keeps this many octets, or none.
    Finish { slot: u32, kept: Option<u8> },
}

fn step() -> impl Strategy<Value = Step> {
    let distance = prop_oneof![4 => Just(0), 3 => Just(u32::MAX), 1 => any::<u32>()];
    prop_oneof![
        (0..3_u32, distance, 0..2_u64).prop_map(|(slot, distance, fingerprint)| Step::Send {
            slot,
            distance,
            fingerprint
        }),
        (0..2_u32, proptest::option::of(0..20_u8)).prop_map(|(slot, kept)| Step::Finish { slot, kept }),
    ]
}

/// A slot as the RFC describes it.
#[derive(Default)]
struct Model {
    last: u32,
    fingerprint: u64,
    running: Option<SlotClaim>,
    reply: Option<Vec<u8>>,
    executed: u32,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 512 }))]

    /// 8881-2.10.6.1-a to 8881-2.10.6.2-a: each sequence id is executed once, and a retry hears what the first one did.
    #[test]
    fn slots_do_as_the_model_does(steps in vec(step(), 0..100)) {
        let table = SlotTable::new(2, KEPT_MAX);
        let mut models = [Model::default(), Model::default()];
        for step in steps {
            match step {
                Step::Finish { slot, kept } => {
                    let model = &mut models[slot as usize];
                    let Some(claim) = model.running.take() else { continue };
                    let reply = kept.map(|len| vec![len; usize::from(len)]);
                    table.finish(claim, reply.as_deref());
                    model.reply = reply.filter(|reply| reply.len() <= KEPT_MAX as usize);
                }
                Step::Send { slot: 2, .. } => {
                    prop_assert_eq!(table.sequence(&request(2, 1, 0)), Err(SequenceFault::BadSlot));
                }
                Step::Send { slot, distance, fingerprint } => {
                    let model = &mut models[slot as usize];
                    let sequence_id = model.last.wrapping_add(1).wrapping_add(distance);
                    let found = table.sequence(&request(slot, sequence_id, fingerprint));
                    let is_retry = sequence_id == model.last && model.executed > 0;
                    match found {
                        Ok(Sequenced::New(claim)) => {
                            prop_assert_eq!(distance, 0);
                            prop_assert!(model.running.is_none());
                            model.running = Some(claim);
                            (model.last, model.fingerprint) = (sequence_id, fingerprint);
                            model.executed += 1;
                        }
                        Ok(Sequenced::Retry(claim)) => {
                            prop_assert!(is_retry && model.running.is_none() && fingerprint == model.fingerprint);
                            prop_assert_eq!(table.repeat(claim, |octets| Some(octets.to_vec())), model.reply.clone());
                        }
                        Ok(Sequenced::RetryUnkept) => {
                            prop_assert!(is_retry && model.running.is_none() && model.reply.is_none());
                            prop_assert_eq!(fingerprint, model.fingerprint);
                        }
                        Err(SequenceFault::InProgress) => prop_assert!(is_retry && model.running.is_some()),
                        Err(SequenceFault::FalseRetry) => {
                            prop_assert!(is_retry && fingerprint != model.fingerprint);
                        }
                        Err(SequenceFault::Misordered) => {
                            prop_assert!(!is_retry && (distance != 0 || model.running.is_some()));
                        }
                        Err(other) => prop_assert!(false, "{:?}", other),
                    }
                }
            }
            for (slot, model) in (0..).zip(&models) {
                prop_assert_eq!(table.stage(slot).map(|(last, _)| last), Some(model.executed));
            }
            prop_assert!(table.kept_octets() <= 2 * 2 * KEPT_MAX as usize);
        }
        // What is under way ends.
        for claim in models.into_iter().filter_map(|model| model.running) {
            table.finish(claim, None);
        }
        prop_assert_eq!(table.running(), 0);
    }
}
