//! Clients that want everything: what each gets is bounded, what is refused says so, and another client goes on unharmed.

use std::collections::HashSet;
use std::time::Duration;

use stag_nfs::callout::NoCallOut;
use stag_nfs::server::{Locking, LockingConfig};
use stag_nfs::state::Recovered;
use stag_state::LockConfig;
use stag_state::client::ClientConfig;
use stag_state::open::OpenConfig;
use stag_state::session::{ChannelLimits, Session};
use stag_wire::nfs4::lock::LockKind;
use stag_wire::nfs4::open::{OpenClaim, OpenHow};
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::session::CreateSessionOk;
use stag_wire::nfs4::{StateId, Status4};

use super::Lab;
use super::client::{FORE, create_session, exchange_id};
use super::files::{GETFH, ROOT, put};
use super::state::{BOTH, READ, close, lock_more, lock_new, locku, open_as, read, write};

fn lab() -> (Lab, Vec<u8>) {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let file = lab.make_file(b"file");
    (lab, file)
}

/// Has the server keep locks and opens within these limits.
fn replace_locking(lab: &Lab, config: LockingConfig) {
    *lab.pair.locking.borrow_mut() =
        Locking::new(config, Recovered::nothing(), Box::new(NoCallOut::default()));
}

/// Whether the client of the lab is served.
fn check_unharmed(lab: &mut Lab, file: &[u8]) {
    let open = lab.open_at(file, BOTH);
    assert_eq!(lab.status(&[put(file), write(open, 0, b"x"), read(open, 0, 1)]), Status4::Ok);
    assert_eq!(lab.status(&[put(file), close(open)]), Status4::Ok);
}

/// EXCHANGE_ID of a client that calls itself so: its client id, and the sequence id of its first session.
fn exchange(lab: &mut Lab, name: u32) -> Result<(u64, u32), Status4> {
    lab.pair.compound(2, &[exchange_id(&name.to_be_bytes(), 1)], |answer| match answer.outcomes[..] {
        [Outcome4::ExchangeId(Ok(ok))] => Ok((ok.clientid, ok.sequence_id)),
        _ => Err(answer.status),
    })
}

fn create(lab: &mut Lab, client: u64, sequence_id: u32) -> Result<CreateSessionOk, Status4> {
    lab.pair.compound(2, &[create_session(client, sequence_id, FORE)], |answer| match answer.outcomes[..] {
        [Outcome4::CreateSession(Ok(session))] => Ok(session),
        _ => Err(answer.status),
    })
}

/// Clients that never make a session are half of all at most, and gone after a term.
#[test]
fn half_made_clients_leave_room_for_others() {
    let (mut lab, file) = lab();
    let most = ClientConfig::default().clients_max;
    let refused = (0..most).find_map(|name| exchange(&mut lab, name).err().map(|status| (name, status)));
    let (count, status) = refused.unwrap();
    assert_eq!(status, Status4::Delay);
    assert!(count <= most / 2, "{count} of {most}");
    check_unharmed(&mut lab, &file);
    lab.wait(Duration::from_secs(100));
    assert!(exchange(&mut lab, most).is_ok(), "those that were not confirmed are gone");
    check_unharmed(&mut lab, &file);
}

/// Ten thousand sessions are asked for: a client gets a few, and all together no more memory than is set aside.
#[test]
fn ten_thousand_sessions_take_no_more_than_their_memory() {
    let (mut lab, file) = lab();
    let ClientConfig { client_sessions_max, session_octets_max, .. } = ClientConfig::default();
    let (mut asked, mut octets, mut refused) = (0, 0, 0);
    for name in 0.. {
        let Ok((client, first)) = exchange(&mut lab, name) else { break };
        for number in 0..=client_sessions_max {
            asked += 1;
            match create(&mut lab, client, first + number) {
                Ok(CreateSessionOk { fore, .. }) => {
                    assert!(number < client_sessions_max, "a client has {number} sessions");
                    octets += Session::memory_max(&ChannelLimits {
                        request_max: fore.request_max,
                        response_max: fore.response_max,
                        response_kept_max: fore.response_cached_max,
                        operations_max: fore.operations_max,
                        slots: fore.requests_max,
                    });
                }
                Err(status) => {
                    assert_eq!(status, Status4::NoSpc);
                    refused += 1;
                }
            }
        }
        if asked >= 10_000 {
            break;
        }
    }
    assert!(asked >= 10_000 && refused > 0, "{refused} of {asked} were refused");
    assert!(octets <= session_octets_max, "{octets} octets of sessions");
    check_unharmed(&mut lab, &file);
}

/// 8881-18.36.4-c: a CREATE_SESSION that is sent again makes no other session.
#[test]
fn a_session_is_made_once() {
    let (mut lab, file) = lab();
    let (client, first) = exchange(&mut lab, 7).unwrap();
    let session = create(&mut lab, client, first).unwrap();
    for _ in 0..1000 {
        assert_eq!(create(&mut lab, client, first).unwrap(), session);
    }
    assert_eq!(create(&mut lab, client, first + 2), Err(Status4::SeqMisordered));
    let destroy = Argument4::DestroySession(session.session);
    assert_eq!(lab.pair.status(2, &[destroy]), Status4::Ok);
    assert_eq!(lab.pair.status(2, &[Argument4::DestroyClientid(client)]), Status4::Ok);
    check_unharmed(&mut lab, &file);
}

/// 8881-2.10.6.1.3.1-a: other requests with a sequence id that was used neither get its reply nor take its place.
#[test]
fn false_retries_change_nothing() {
    let (mut lab, file) = lab();
    lab.keeps = true;
    let kept = [lab.sequence(3), ROOT, GETFH];
    let first = lab.pair.compound(2, &kept, |answer| format!("{answer:?}"));
    for number in 0..1000_u64 {
        let other = [kept[0], put(&file), read(StateId::ANONYMOUS, number, 1)];
        assert_eq!(lab.pair.status(2, &other), Status4::SeqFalseRetry);
    }
    assert_eq!(lab.pair.compound(2, &kept, |answer| format!("{answer:?}")), first);
    check_unharmed(&mut lab, &file);
}

/// 8881-8.2.4-a: no other octets lead to a state, and none to that of another client.
#[test]
fn forged_state_ids_lead_nowhere() {
    let (mut lab, file) = lab();
    let mut victim = lab.another_ready(b"victim");
    let state = lab.by(&mut victim, |lab| lab.open_at(&file, BOTH));
    let own = lab.open_at(&file, BOTH);
    for start in [state, own] {
        for bit in 0..96 {
            let mut forged = start;
            forged.other[bit / 8] ^= 1 << (bit % 8);
            if forged.other == own.other {
                continue;
            }
            for operation in [write(forged, 0, b"x"), close(forged), locku(forged, (0, 1))] {
                assert_eq!(lab.status(&[put(&file), operation]), Status4::BadStateid, "{start:?}, bit {bit}");
            }
        }
    }
    assert_eq!(lab.status(&[put(&file), write(state, 0, b"x")]), Status4::BadStateid);
    lab.by(&mut victim, |lab| assert_eq!(lab.status(&[put(&file), write(state, 0, b"x")]), Status4::Ok));
}

/// A client takes locks and opens until it gets no more. Another one still gets some.
#[test]
fn a_storm_of_locks_and_opens_ends() {
    let (mut lab, file) = lab();
    let other_file = lab.make_file(b"other");
    // Those of a server with little memory.
    let config = LockingConfig {
        opens: OpenConfig::within(1 << 20),
        locks: LockConfig::within(1 << 20),
        ..LockingConfig::default()
    };
    replace_locking(&lab, config.clone());
    let open = lab.open_at(&file, BOTH);
    let lock = lab.state(&[put(&file), lock_new(open, b"p", LockKind::Write, (0, 1))]).unwrap();
    let refused = (1..u64::from(config.locks.locks_max)).find_map(|place| {
        // Whichever seqid it has by now.
        let more = lock_more(StateId { seqid: 0, ..lock }, LockKind::Write, (2 * place, 1));
        let status = lab.status(&[put(&file), more]);
        (status != Status4::Ok).then_some((place, status))
    });
    let (count, status) = refused.unwrap();
    assert_eq!(status, Status4::Delay);
    assert!((100..=u64::from(config.locks.host_locks_max)).contains(&count), "{count} locks");
    let mut owners = HashSet::new();
    let refused = (0..config.opens.states_max).find_map(|owner| {
        let owner = owner.to_be_bytes();
        let more = open_as(&owner, (READ, 0), OpenHow::NoCreate, OpenClaim::Handle);
        let status = lab.status(&[put(&file), more]);
        owners.insert(owner);
        (status != Status4::Ok).then_some(status)
    });
    assert_eq!(refused, Some(Status4::Delay));
    assert!(owners.len() <= config.opens.file_opens_max as usize + 1, "{} opens", owners.len());
    let mut other = lab.another_ready(b"other");
    lab.by(&mut other, |lab| {
        check_unharmed(lab, &other_file);
        let open = lab.open_at(&other_file, BOTH);
        let lock = lock_new(open, b"p", LockKind::Write, (0, 1));
        assert_eq!(lab.status(&[put(&other_file), lock]), Status4::Ok);
    });
}

/// A client that never renews its lease keeps what it holds until there is no room for others: then it loses all.
#[test]
fn who_never_renews_makes_room() {
    let (mut lab, file) = lab();
    let config = LockingConfig {
        opens: OpenConfig { states_max: 16, ..OpenConfig::default() },
        locks: LockConfig { locks_max: 16, ..LockConfig::default() },
        ..LockingConfig::default()
    };
    replace_locking(&lab, config);
    let opens = |lab: &mut Lab, most: u32| {
        let open = |lab: &mut Lab, owner: u32| {
            let owner = owner.to_be_bytes();
            lab.status(&[put(&file), open_as(&owner, (READ, 0), OpenHow::NoCreate, OpenClaim::Handle)])
        };
        (0..most).position(|owner| open(lab, owner) != Status4::Ok)
    };
    let (mut silent, mut other) = (lab.another_ready(b"silent"), lab.another_ready(b"other"));
    assert_eq!(lab.by(&mut silent, |lab| opens(lab, 16)), Some(8));
    assert_eq!(lab.by(&mut other, |lab| opens(lab, 16)), Some(4), "half of what is left");
    lab.wait(Duration::from_secs(100));
    // The one that was heard last keeps its own.
    lab.by(&mut other, |lab| assert_eq!(lab.status(&[ROOT]), Status4::Ok));
    assert_eq!(opens(&mut lab, 5), None);
    lab.by(&mut silent, |lab| {
        let sequence = lab.sequence(0);
        assert_eq!(lab.pair.status(2, &[sequence, ROOT]), Status4::BadSession);
    });
    lab.by(&mut other, |lab| assert_eq!(lab.status(&[ROOT]), Status4::Ok));
}
