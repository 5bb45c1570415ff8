//! Clients that lose replies and connections, and ask again: each slot's request is executed once, no two owners write at a time,
//! and nothing that was acknowledged is lost.

use stag_fabric::sim::{Random, sweep};
use stag_rpc::Chunks;
use stag_wire::nfs4::lock::LockKind;
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::{StateId, Status4};

use super::Lab;
use super::client::{Compound, RESULTS_MAX};
use super::files::put;
use super::state::{BOTH, Other, lock_more, lock_new, locku, read, write};

/// One octet of the file, which all write in turn while they hold it locked.
const PLACE: (u64, u64) = (0, 1);

/// A client with an open, and a lock if it holds it.
struct Worker {
    other: Other,
    open: StateId,
    lock: Option<StateId>,
    holds: bool,
}

/// Makes a request, and makes it again as often as chance likes: as a client whose reply was lost. All answers are the same.
fn repeated<R: PartialEq + std::fmt::Debug>(
    lab: &mut Lab,
    random: &mut Random,
    operations: &[Argument4<'_>],
    look: impl Fn(Status4, &Outcome4<'_>) -> R,
) -> R {
    lab.keeps = true;
    let slot = random.below(3) as u32;
    let mut all = vec![lab.sequence(slot)];
    all.extend_from_slice(operations);
    let ask = |lab: &mut Lab| {
        let compound = Compound { minor: 2, tag: b"", operations: &all, results_max: RESULTS_MAX };
        let finished = lab.pair.call(&compound, Chunks::default());
        let answer = finished.reply::<Compound<'_>>().unwrap();
        look(answer.status, answer.outcomes.last().unwrap())
    };
    let first = ask(lab);
    while random.below(3) == 0 {
        assert_eq!(ask(lab), first, "a retry gets the kept reply");
    }
    first
}

#[test]
fn retries_are_executed_once_and_writers_exclude_each_other() {
    sweep("retries_are_executed_once_and_writers_exclude_each_other", 0..40, |seed| {
        let mut random = Random::new(seed);
        let mut lab = Lab::of_seed(&["/data,root_squash=no"], seed);
        let file = lab.make_file(b"file");
        let mut workers: Vec<Worker> = [&b"one"[..], b"two", b"three"]
            .into_iter()
            .map(|name| {
                let mut other = lab.another_ready(name);
                let open = lab.by(&mut other, |lab| lab.open_at(&file, BOTH));
                Worker { other, open, lock: None, holds: false }
            })
            .collect();
        let (mut value, mut locks) = (0_u8, 0);
        assert_eq!(lab.status(&[put(&file), write(StateId::ANONYMOUS, 0, &[0])]), Status4::Ok);
        for _ in 0..120 {
            let index = random.below(3) as usize;
            let is_held = workers.iter().any(|worker| worker.holds);
            let Worker { other, open, lock, holds } = &mut workers[index];
            lab.by(other, |lab| {
                let state = |status, outcome: &Outcome4<'_>| match outcome {
                    Outcome4::Lock(Ok(state)) | Outcome4::Locku(Ok(state)) => Ok(*state),
                    _ => Err(status),
                };
                if !*holds {
                    let ask = match *lock {
                        Some(lock) => lock_more(lock, LockKind::Write, PLACE),
                        None => lock_new(*open, b"worker", LockKind::Write, PLACE),
                    };
                    match repeated(lab, &mut random, &[put(&file), ask], state) {
                        Ok(state) => {
                            assert!(!is_held, "two writers");
                            // A retry that were executed again would have counted again.
                            assert_eq!(state.seqid, lock.map_or(1, |lock| lock.seqid + 1));
                            (*lock, *holds, locks) = (Some(state), true, locks + 1);
                        }
                        Err(status) => assert_eq!((status, is_held), (Status4::Denied, true)),
                    }
                    return;
                }
                let held = lock.unwrap();
                let found = lab.octets(&file, read(held, 0, 1), None).unwrap().0;
                assert_eq!(found, [value], "what was acknowledged is there");
                value = value.wrapping_add(1);
                let octets = [value];
                let written = [put(&file), write(held, 0, &octets)];
                assert_eq!(repeated(lab, &mut random, &written, |status, _| status), Status4::Ok);
                if random.below(2) == 0 {
                    let freed = repeated(lab, &mut random, &[put(&file), locku(held, PLACE)], state).unwrap();
                    assert_eq!(freed.seqid, held.seqid + 1);
                    (*lock, *holds) = (Some(freed), false);
                }
            });
        }
        assert!(locks > 5, "{locks} locks");
    });
}
