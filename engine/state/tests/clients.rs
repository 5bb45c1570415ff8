//! Clients and sessions: the cases of RFC 8881 section 18.35.4 and 18.36.4, by number, and arbitrary clients.

use std::sync::Arc;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use stag_state::HostSite;
use stag_state::client::{
    ClientConfig, ClientId, ClientStage, ClientTable, DestroyRefused, ExchangeRefused, ExchangeRequest,
    Exchanged, Principal, SessionFault, SessionGrant, SessionRequest,
};
use stag_state::open::OpenConfig;
use stag_state::session::{ChannelLimits, Session, SessionBusy, SessionRefused};
use stag_state::slot::{Sequenced, SlotRequest};

const WISHES: ChannelLimits = ChannelLimits {
    request_max: 1_049_620,
    response_max: 1_049_480,
    response_kept_max: 7_584,
    operations_max: 8,
    slots: 64,
};

const BACK: ChannelLimits = ChannelLimits {
    request_max: 4068,
    response_max: 4068,
    response_kept_max: 0,
    operations_max: 2,
    slots: 16,
};

fn at(second: u64) -> Duration {
    Duration::from_secs(second)
}

fn table() -> ClientTable {
    ClientTable::new(ClientConfig::default(), 1)
}

const ASKED: ExchangeRequest<'_> = ExchangeRequest {
    owner: b"client",
    verifier: [1; 8],
    principal: Principal(1),
    site: HostSite(1),
    is_update: false,
    minor_version: 1,
};

fn exchange(table: &mut ClientTable, request: &ExchangeRequest<'_>) -> Result<Exchanged, ExchangeRefused> {
    table.exchange_id(request, |_| false, at(0))
}

/// A client's first CREATE_SESSION.
fn first_session(client: ClientId) -> SessionRequest<'static> {
    SessionRequest {
        client,
        sequence_id: 1,
        principal: Principal(1),
        fore: WISHES,
        back: BACK,
        callback: None,
        back_connection: None,
    }
}

fn session(table: &mut ClientTable, found: &Exchanged) -> Result<SessionGrant, SessionFault> {
    let (client, sequence_id) = (found.client, found.sequence_id);
    let request = SessionRequest {
        client,
        sequence_id,
        principal: Principal(1),
        fore: WISHES,
        back: BACK,
        callback: None,
        back_connection: None,
    };
    table.create_session(&request, at(0))
}

/// A client with one session.
fn confirmed(table: &mut ClientTable) -> (ClientId, SessionGrant) {
    let found = exchange(table, &ASKED).unwrap();
    let grant = session(table, &found).unwrap();
    (found.client, grant)
}

/// The next client that ended.
fn ended(table: &mut ClientTable) -> Option<ClientId> {
    table.poll_ended().map(|ended| ended.client)
}

/// 8881-18.35.4-a, 8881-18.35.4-d
#[test]
fn a_new_owner_gets_a_record_and_another_until_it_is_confirmed() {
    let mut table = table();
    let first = exchange(&mut table, &ASKED).unwrap();
    assert_eq!((first.sequence_id, first.is_confirmed), (1, false));
    let other = ExchangeRequest { principal: Principal(2), verifier: [9; 8], ..ASKED };
    let second = exchange(&mut table, &other).unwrap();
    assert_ne!(first.client, second.client);
    assert!(table.client(first.client).is_none());
    assert_eq!(session(&mut table, &first), Err(SessionFault::StaleClient));
    assert_eq!(ended(&mut table), None, "it held nothing");
}

/// 8881-18.35.4-b
#[test]
fn a_confirmed_client_hears_the_same_again() {
    let mut table = table();
    let (client, _) = confirmed(&mut table);
    let again = exchange(&mut table, &ASKED).unwrap();
    assert_eq!(again, Exchanged { client, sequence_id: 2, is_confirmed: true });
    assert_eq!(table.clients().count(), 1);
}

/// 8881-18.35.4-c
#[test]
fn another_principal_gets_the_owner_only_if_its_client_is_idle_or_lapsed() {
    let other = ExchangeRequest { principal: Principal(2), ..ASKED };
    let mut first = table();
    let (client, grant) = confirmed(&mut first);
    assert_eq!(exchange(&mut first, &other), Err(ExchangeRefused::InUse), "it has a session");
    assert_eq!(first.destroy_session(grant.key, false), Ok(true));
    let with_opens = first.exchange_id(&other, |id| id == client, at(0));
    assert_eq!(with_opens, Err(ExchangeRefused::InUse), "it has opens");
    assert!(!exchange(&mut first, &other).unwrap().is_confirmed);
    assert_eq!(ended(&mut first), Some(client));
    // A lease that has lapsed protects nothing.
    let mut second = table();
    let (client, grant) = confirmed(&mut second);
    let held = std::sync::Arc::clone(second.session(grant.key).unwrap());
    assert!(second.exchange_id(&other, |_| true, at(91)).is_ok());
    assert_eq!((ended(&mut second), ended(&mut second)), (Some(client), None));
    let slot = SlotRequest { slot: 0, sequence_id: 1, highest_slot: 0, fingerprint: 0 };
    assert_eq!(held.sequence(&slot, at(91)), Err(SessionRefused::NoSession));
}

/// 8881-18.35.4-e, 8881-18.36.4-b
#[test]
fn a_client_that_restarted_ends_its_last_incarnation_when_it_is_confirmed() {
    let mut table = table();
    let (old, old_session) = confirmed(&mut table);
    let restarted = exchange(&mut table, &ExchangeRequest { verifier: [2; 8], ..ASKED }).unwrap();
    assert!(!restarted.is_confirmed && restarted.client != old);
    assert!(table.client(old).is_some() && table.session(old_session.key).is_some(), "until then it stays");
    // The old incarnation, if it is still there, is heard as before.
    assert_eq!(exchange(&mut table, &ASKED).unwrap().client, old);
    let restarted = exchange(&mut table, &ExchangeRequest { verifier: [2; 8], ..ASKED }).unwrap();
    session(&mut table, &restarted).unwrap();
    assert_eq!((ended(&mut table), ended(&mut table)), (Some(old), None));
    assert!(table.session(old_session.key).is_none());
    assert_eq!(table.client(restarted.client).unwrap().stage(), ClientStage::Confirmed);
    assert_eq!(table.clients().count(), 1);
}

/// 8881-18.35.4-f, 8881-18.35.4-g, 8881-18.35.4-h, 8881-18.35.4-i
#[test]
fn only_its_own_confirmed_record_is_updated() {
    let mut table = table();
    let update = ExchangeRequest { is_update: true, ..ASKED };
    assert_eq!(exchange(&mut table, &update), Err(ExchangeRefused::NoRecord));
    let found = exchange(&mut table, &ASKED).unwrap();
    assert_eq!(exchange(&mut table, &update), Err(ExchangeRefused::NoRecord), "not confirmed");
    session(&mut table, &found).unwrap();
    assert_eq!(exchange(&mut table, &update).unwrap().client, found.client);
    let other = ExchangeRequest { verifier: [2; 8], ..update };
    assert_eq!(exchange(&mut table, &other), Err(ExchangeRefused::NotSame));
    let other = ExchangeRequest { principal: Principal(2), ..update };
    assert_eq!(exchange(&mut table, &other), Err(ExchangeRefused::NotPermitted));
    assert_eq!(table.clients().count(), 1);
}

/// 8881-18.35.4-j
#[test]
fn a_client_that_is_not_confirmed_in_time_is_forgotten() {
    let mut table = table();
    let found = exchange(&mut table, &ASKED).unwrap();
    table.sweep(at(90));
    assert!(table.client(found.client).is_some());
    table.sweep(at(91));
    assert!(table.client(found.client).is_none());
    assert_eq!((table.clients().count(), ended(&mut table)), (0, None));
    // The same without a sweep.
    let client = exchange(&mut table, &ASKED).unwrap().client;
    let asked = first_session(client);
    assert_eq!(table.create_session(&asked, at(91)), Err(SessionFault::StaleClient));
    assert!(table.client(client).is_none());
}

/// 8881-18.36.4-a, 8881-18.36.4-c
#[test]
fn create_session_is_executed_once_for_each_sequence_id() {
    let mut table = table();
    let found = exchange(&mut table, &ASKED).unwrap();
    let asked = first_session(found.client);
    let mut create = |request: SessionRequest<'_>| table.create_session(&request, at(0));
    assert_eq!(create(SessionRequest { client: ClientId(9), ..asked }), Err(SessionFault::StaleClient));
    assert_eq!(create(SessionRequest { principal: Principal(2), ..asked }), Err(SessionFault::InUse));
    // Sequence id 0 finds the answer that was put there for it.
    for wrong in [0, 2] {
        assert_eq!(create(SessionRequest { sequence_id: wrong, ..asked }), Err(SessionFault::Misordered));
    }
    let first = create(asked).unwrap();
    assert_eq!(create(asked), Ok(first));
    let second = create(SessionRequest { sequence_id: 2, ..asked }).unwrap();
    assert_ne!(first.key, second.key);
    assert_eq!(create(asked), Err(SessionFault::Misordered));
    // Only the first session confirms the client.
    assert_eq!(create(SessionRequest { principal: Principal(2), sequence_id: 2, ..asked }), Ok(second));
    assert_eq!(table.session_count(), 2);
}

/// 8881-18.36.4-c asks for a further sequence id after a failure. Some clients use the same one again, which the Linux server takes.
/// Both are taken: what failed has changed nothing.
#[test]
fn create_session_after_a_failure_is_executed() {
    let mut table = table();
    let found = exchange(&mut table, &ASKED).unwrap();
    let asked = first_session(found.client);
    let small = ChannelLimits { response_max: 16, ..WISHES };
    let mut create =
        |sequence_id, fore| table.create_session(&SessionRequest { sequence_id, fore, ..asked }, at(0));
    for _ in 0..2 {
        assert_eq!(create(1, small), Err(SessionFault::TooSmall));
    }
    assert_eq!(create(3, WISHES), Err(SessionFault::Misordered));
    let first = create(1, WISHES).unwrap();
    assert_eq!(create(1, small), Ok(first), "a retry");
    assert_eq!(create(2, small), Err(SessionFault::TooSmall));
    let second = create(3, WISHES).unwrap();
    assert_eq!(create(3, WISHES), Ok(second), "a retry");
    assert_eq!(create(2, WISHES), Err(SessionFault::Misordered));
    assert_eq!(table.session_count(), 2);
}

/// 8881-18.36.3-a
#[test]
fn no_limit_is_above_what_was_asked_for() {
    let mut table = table();
    let (_, grant) = confirmed(&mut table);
    assert_eq!(grant.back, BACK, "slots and operations of callbacks are the client's to say");
    let expected = ChannelLimits { response_kept_max: 2048, ..WISHES };
    assert_eq!(grant.fore, expected);
    let small = ChannelLimits { response_max: 600, ..WISHES };
    let agreed = ChannelLimits::agree(&small, &ClientConfig::default().fore).unwrap();
    assert_eq!((agreed.response_max, agreed.response_kept_max), (600, 600));
    for useless in [
        ChannelLimits { slots: 0, ..WISHES },
        ChannelLimits { operations_max: 0, ..WISHES },
        ChannelLimits { request_max: 100, ..WISHES },
    ] {
        assert_eq!(ChannelLimits::agree(&useless, &WISHES), None);
    }
}

/// 8881-18.37.3-a, 8881-18.50.3-a, 8881-18.46.3-d
#[test]
fn a_session_ends_when_nothing_runs_and_a_client_when_it_has_none() {
    let mut table = table();
    let (client, grant) = confirmed(&mut table);
    let session = std::sync::Arc::clone(table.session(grant.key).unwrap());
    let slot = SlotRequest { slot: 3, sequence_id: 1, highest_slot: 3, fingerprint: 0 };
    let Ok(Sequenced::New(claim)) = session.sequence(&slot, at(60)) else { panic!("a first request") };
    assert_eq!(session.lease().heard(), at(60));
    assert_eq!(table.destroy_session(grant.key, false), Err(SessionBusy));
    assert_eq!(table.destroy_client(client, false), Err(DestroyRefused::Busy));
    session.slots().finish(claim, None);
    // The request that asks may run in the session itself.
    let own = SlotRequest { sequence_id: 2, ..slot };
    let Ok(Sequenced::New(claim)) = session.sequence(&own, at(60)) else { panic!("a second request") };
    assert_eq!(table.destroy_session(grant.key, true), Ok(true));
    session.slots().finish(claim, None);
    assert_eq!(
        session.sequence(&SlotRequest { sequence_id: 3, ..slot }, at(60)),
        Err(SessionRefused::NoSession)
    );
    assert_eq!(table.destroy_session(grant.key, false), Ok(false), "it is gone");
    assert_eq!(table.destroy_client(client, true), Err(DestroyRefused::Busy), "it has opens");
    assert_eq!(table.destroy_client(client, false), Ok(()));
    assert_eq!(table.destroy_client(client, false), Err(DestroyRefused::StaleClient));
    assert_eq!(ended(&mut table), Some(client));
}

/// 8881-8.4.3-a, 8881-18.51.3-a
#[test]
fn a_lapsed_client_ends_only_when_it_is_wanted() {
    let mut table = table();
    let (client, grant) = confirmed(&mut table);
    assert!(table.reclaim_complete(client) && !table.reclaim_complete(client));
    assert!(!table.expire(client, at(90)), "it is heard of");
    let session = std::sync::Arc::clone(table.session(grant.key).unwrap());
    let slot = SlotRequest { slot: 0, sequence_id: 1, highest_slot: 0, fingerprint: 0 };
    let Ok(Sequenced::New(claim)) = session.sequence(&slot, at(1000)) else { panic!("it lost nothing") };
    session.slots().finish(claim, None);
    assert!(table.expire(client, at(2000)) && !table.expire(client, at(2000)));
    assert_eq!((ended(&mut table), table.clients().count()), (Some(client), 0));
}

#[test]
fn a_storm_of_clients_is_bounded_and_leaves_room_for_others() {
    let config = ClientConfig { clients_max: 64, ..ClientConfig::default() };
    let mut table = ClientTable::new(config, 1);
    let storm = |table: &mut ClientTable, count: u32, now| {
        let mut made = 0;
        for number in 0..count {
            let owner = number.to_be_bytes();
            let request = ExchangeRequest { owner: &owner, ..ASKED };
            made += u32::from(table.exchange_id(&request, |_| false, now).is_ok());
        }
        made
    };
    assert_eq!(storm(&mut table, 1000, at(0)), 32, "a site takes no more than it leaves");
    let other = ExchangeRequest { owner: b"other", site: HostSite(2), ..ASKED };
    assert!(table.exchange_id(&other, |_| false, at(0)).is_ok());
    // Those that were not confirmed make room after a term.
    assert_eq!(storm(&mut table, 1000, at(100)), 32);
    assert_eq!(table.clients().count(), 32);
    assert!(config.client_len() < 4096, "{}", config.client_len());
}

/// 10,000 sessions of one site: each gets fewer slots, and others find room.
#[test]
fn a_storm_of_sessions_is_bounded_in_memory() {
    let config = ClientConfig { session_octets_max: 4 << 20, ..ClientConfig::default() };
    let mut table = ClientTable::new(config, 1);
    let mut create = |owner: &[u8], site| {
        let found =
            table.exchange_id(&ExchangeRequest { owner, site: HostSite(site), ..ASKED }, |_| false, at(0));
        let client = found.unwrap().client;
        let mut slots = Vec::new();
        for sequence_id in 1..=16 {
            let request = SessionRequest {
                client,
                sequence_id,
                principal: Principal(1),
                fore: WISHES,
                back: BACK,
                callback: None,
                back_connection: None,
            };
            slots.extend(table.create_session(&request, at(0)).map(|grant| grant.fore));
        }
        slots
    };
    let storm: Vec<_> = (0..625_u32).flat_map(|number| create(&number.to_be_bytes(), 1)).collect();
    assert_eq!((storm[0].slots, storm.last().unwrap().slots), (64, 32), "fewer as the memory goes");
    let taken: u64 = storm.iter().map(Session::memory_max).sum();
    assert!(taken <= (2 << 20) + Session::memory_max(&storm[0]), "{taken}");
    assert_eq!(create(b"other", 2)[0].slots, 64);
}

/// What an arbitrary client does.
#[derive(Clone, Debug)]
enum Act {
    Exchange { owner: u8, verifier: u8, principal: u8, is_update: bool },
    Create { client: usize, distance: u32, principal: u8 },
    Sequence { session: usize, slot: u32, sequence_id: u32 },
    DestroySession(usize),
    DestroyClient(usize, bool),
    Expire(usize),
    Wait(u8),
}

fn act() -> impl Strategy<Value = Act> {
    let distance = prop_oneof![4 => Just(0_u32), 2 => Just(u32::MAX), 1 => Just(1)];
    prop_oneof![
        4 => (0..3_u8, 0..2_u8, 0..2_u8, any::<bool>())
            .prop_map(|(owner, verifier, principal, is_update)| Act::Exchange { owner, verifier, principal, is_update }),
        4 => (any::<usize>(), distance, 0..2_u8)
            .prop_map(|(client, distance, principal)| Act::Create { client, distance, principal }),
        3 => (any::<usize>(), 0..3_u32, 0..3_u32)
            .prop_map(|(session, slot, sequence_id)| Act::Sequence { session, slot, sequence_id }),
        1 => any::<usize>().prop_map(Act::DestroySession),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(client, busy)| Act::DestroyClient(client, busy)),
        1 => any::<usize>().prop_map(Act::Expire),
        1 => (0..120_u8).prop_map(Act::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 512 }))]

    #[test]
    fn arbitrary_clients_never_break_the_table(acts in vec(act(), 0..120)) {
        let config = ClientConfig { clients_max: 8, client_sessions_max: 3, ..ClientConfig::default() };
        let mut table = ClientTable::new(config, 7);
        let (mut clients, mut sessions, mut second) = (vec![ClientId(0)], Vec::new(), 0);
        let mut ended = std::collections::HashSet::new();
        for act in acts {
            let now = at(second);
            match act {
                Act::Exchange { owner, verifier, principal, is_update } => {
                    let (owner, principal) = ([owner], Principal(principal.into()));
                    let request =
                        ExchangeRequest { owner: &owner, verifier: [verifier; 8], principal, site: HostSite(1), is_update, minor_version: 2 };
                    if let Ok(found) = table.exchange_id(&request, |id| id.0 % 2 == 0, now) {
                        prop_assert!(!ended.contains(&found.client), "an id is used once");
                        let record = table.client(found.client).unwrap();
                        prop_assert_eq!(record.owner(), &owner[..]);
                        prop_assert_eq!(record.stage() == ClientStage::Confirmed, found.is_confirmed);
                        clients.push(found.client);
                    }
                }
                Act::Create { client, distance, principal } => {
                    let client = clients[client % clients.len()];
                    let next = table.client(client).map_or(1, |record| record.sessions().len() as u32 + 1);
                    let sequence_id = next.wrapping_add(distance);
                    let principal = Principal(principal.into());
                    let request = SessionRequest { client, sequence_id, principal, fore: WISHES, back: BACK, callback: None, back_connection: None };
                    if let Ok(grant) = table.create_session(&request, now) {
                        prop_assert_eq!(table.client(client).unwrap().stage(), ClientStage::Confirmed);
                        sessions.push(grant.key);
                    }
                }
                Act::Sequence { session, slot, sequence_id } => {
                    let Some(key) = (!sessions.is_empty()).then(|| sessions[session % sessions.len()]) else { continue };
                    let Some(session) = table.session(key) else { continue };
                    let request = SlotRequest { slot, sequence_id, highest_slot: slot, fingerprint: 0 };
                    match session.sequence(&request, now) {
                        Ok(Sequenced::New(claim)) => session.slots().finish(claim, Some(b"x")),
                        Ok(Sequenced::Retry(claim)) => session.slots().repeat(claim, |_| ()),
                        _ => {}
                    }
                }
                Act::DestroySession(session) => {
                    if !sessions.is_empty() {
                        let key = sessions[session % sessions.len()];
                        prop_assert!(table.destroy_session(key, false).is_ok());
                        prop_assert!(table.session(key).is_none());
                    }
                }
                Act::DestroyClient(client, busy) => {
                    let _ = table.destroy_client(clients[client % clients.len()], busy);
                }
                Act::Expire(client) => drop(table.expire(clients[client % clients.len()], now)),
                Act::Wait(seconds) => {
                    second += u64::from(seconds);
                    table.sweep(at(second));
                }
            }
            while let Some(client) = self::ended(&mut table) {
                prop_assert!(ended.insert(client), "reported twice");
                prop_assert!(table.client(client).is_none());
            }
            // One record of each stage for an owner, and every session belongs to a client that is there.
            let mut seen = std::collections::HashSet::new();
            for (_, record) in table.clients() {
                prop_assert!(seen.insert((record.owner().to_vec(), record.stage() == ClientStage::Confirmed)));
                prop_assert!(record.sessions().len() <= 3);
                prop_assert!(record.stage() != ClientStage::Gone);
                prop_assert!(record.sessions().iter().all(|key| table.session(*key).is_some()));
            }
            let owned: usize = table.clients().map(|(_, record)| record.sessions().len()).sum();
            prop_assert_eq!(owned, table.session_count());
            prop_assert!(table.clients().count() <= 8);
        }
    }
}

/// An operator ends a client whatever it holds: its sessions take nothing more, and the caller is told to free the rest.
#[test]
fn an_evicted_client_starts_again() {
    let mut table = table();
    let (client, grant) = confirmed(&mut table);
    let session = Arc::clone(table.session(grant.key).unwrap());
    let slot = SlotRequest { slot: 0, sequence_id: 1, highest_slot: 0, fingerprint: 0 };
    assert!(table.evict(client) && !table.evict(client));
    assert_eq!(table.poll_ended().map(|ended| ended.client), Some(client));
    assert_eq!(session.sequence(&slot, at(1)), Err(SessionRefused::NoSession));
    assert!(exchange(&mut table, &ASKED).is_ok_and(|again| !again.is_confirmed && again.client != client));
}

/// Limits for little memory are lower ones, and for much the usual ones; what they can take is said beside them.
#[test]
fn limits_follow_the_memory() {
    let usual = ClientConfig::default();
    let mut last = 0;
    for octets in [1, 1 << 20, 16 << 20, 64 << 20, 1 << 30, 1 << 40] {
        let limits = ClientConfig::within(octets);
        let most = limits.memory_max(1);
        assert!(most >= last && limits.clients_max >= 16, "{octets}: {limits:?}");
        assert!(octets < 1 << 20 || most <= octets + octets / 4, "{octets}: {most}");
        assert!(limits.memory_max(8) > most, "each reactor has a map of them");
        last = most;
    }
    assert_eq!(ClientConfig::within(1 << 40), usual);
    let opens = |octets| OpenConfig::within(octets);
    assert_eq!(opens(1 << 40), OpenConfig::default());
    for octets in [1 << 20, 16 << 20] {
        assert!(opens(octets).memory_max() <= octets + (1 << 18), "{octets}: {:?}", opens(octets));
    }
    assert!(opens(1).states_max >= 64);
}
