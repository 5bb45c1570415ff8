//! A target for the machines of NFS version 4's state: an input is what arbitrary clients do, four octets each.

use std::collections::HashSet;
use std::time::Duration;

use stag_state::back::{BackAnswer, BackConnection, BackStage, BackUse, CallbackParameters};
use stag_state::client::{
    ClientConfig, ClientId, ClientStage, ClientTable, EndedClient, ExchangeRequest, Principal, SessionRequest,
};
use stag_state::grace::Grace;
use stag_state::open::{OpenConfig, OpenRequest, OpenTable, ShareModes};
use stag_state::session::{ChannelLimits, SessionKey};
use stag_state::slot::{Sequenced, SlotClaim, SlotRequest};
use stag_state::stateid::{Revoked, StateKind, StateToken};
use stag_state::{FileKey, HostSite};
use stag_vfs::ObjectId;

const CLIENTS_MAX: u32 = 8;
const SESSIONS_MAX: u32 = 3;
const STATES_MAX: u32 = 32;
const SLOTS: u32 = 2;

/// A request that is executed: its session, and its claim.
type Running = (SessionKey, SlotClaim);

struct World {
    clients: ClientTable,
    opens: OpenTable,
    grace: Grace,
    now: Duration,
    /// Ids that were told, good or not any more.
    ids: Vec<ClientId>,
    keys: Vec<SessionKey>,
    tokens: Vec<(ClientId, StateToken)>,
    running: Vec<Running>,
    ended: HashSet<ClientId>,
    /// Requests that were executed: session, slot, sequence id.
    executed: HashSet<(SessionKey, u32, u32)>,
}

fn file(octet: u8) -> FileKey {
    FileKey { volume: 1, object: ObjectId { fileid: u64::from(octet % 4), generation: 0 } }
}

fn pick<T: Copy>(all: &[T], octet: u8) -> Option<T> {
    all.get(usize::from(octet) % all.len().max(1)).copied()
}

/// What SEQUENCE makes of a request.
fn sequence(world: &mut World, [a, b, c]: [u8; 3]) {
    let Some(key) = pick(&world.keys, a) else { return };
    let Some(session) = world.clients.session(key) else { return };
    let (slot, fingerprint) = (u32::from(b % 4), u64::from(b >> 7));
    let last = session.slots().stage(slot).map_or(0, |(last, _)| last);
    let sequence_id = last.wrapping_add(u32::from(c % 4)).wrapping_sub(1);
    let request = SlotRequest { slot, sequence_id, highest_slot: u32::from(c >> 6), fingerprint };
    match session.sequence(&request, world.now) {
        Ok(Sequenced::New(claim)) => {
            assert!(world.executed.insert((key, slot, sequence_id)), "executed twice");
            if c & 0x20 != 0 {
                session.slots().finish(claim, Some(&[b; 20][..usize::from(b % 20)]));
            } else {
                world.running.push((key, claim));
            }
        }
        Ok(Sequenced::Retry(claim)) => session.slots().repeat(claim, |reply| assert!(reply.len() <= 16)),
        Ok(Sequenced::RetryUnkept) | Err(_) => {}
    }
}

/// OPEN, and what follows it.
fn open(world: &mut World, [a, b, c]: [u8; 3]) {
    let Some(client) = pick(&world.ids, a) else { return };
    let Some(record) = world.clients.client(client).filter(|record| record.stage() == ClientStage::Confirmed)
    else {
        return;
    };
    if world.grace.may_take(record.has_reclaimed() || c & 1 == 0, world.now).is_err() {
        return;
    }
    let Some(modes) = ShareModes::new(u32::from(b & 3), u32::from(b >> 2 & 3)) else { return };
    let owner = [b >> 7];
    let elsewhere = ShareModes::default();
    let request = OpenRequest { client, owner: &owner, file: file(c), modes, elsewhere };
    if let Ok(grant) = world.opens.open(&request) {
        world.tokens.push((client, grant.token));
        let kinds = [StateKind::Open];
        let found = world.opens.states().find(&grant.token, client, Some(file(c)), &kinds, SLOTS);
        let index = found.expect("it was just given");
        if c & 0x80 != 0
            && let Ok(locker) = world.opens.add_locker(index, &owner)
        {
            world.tokens.push((client, world.opens.states().token(locker)));
        }
    }
}

fn change(world: &mut World, [a, b, c]: [u8; 3]) {
    let Some((client, mut token)) = pick(&world.tokens, a) else { return };
    if b & 0x40 != 0 {
        token.other[usize::from(c % 12)] ^= 1 << (c >> 5);
    }
    match b & 7 {
        0 | 1 => drop(world.opens.close(&token, client, file(c), SLOTS, |_| {})),
        2 => drop(world.opens.free_revoked(&token, client)),
        3 if c == 0 => world.opens.revoke_client(client, Revoked::Expired),
        _ => {
            if let Some(modes) = ShareModes::new(u32::from(c & 3), u32::from(c >> 2 & 3)) {
                let next = world.opens.downgrade(&token, client, file(b), modes, SLOTS);
                world.tokens.extend(next.ok().map(|next| (client, next)));
            }
        }
    }
}

fn act(world: &mut World, kind: u8, rest: [u8; 3]) {
    let [a, b, c] = rest;
    match kind % 10 {
        0 | 1 => {
            let owner = [a % 4];
            let request = ExchangeRequest {
                owner: &owner,
                verifier: [b % 2; 8],
                principal: Principal(u64::from(b >> 1 & 1)),
                site: HostSite(u128::from(c % 2)),
                is_update: c & 0x80 != 0,
                minor_version: 2,
            };
            let opens = &world.opens;
            if let Ok(found) = world.clients.exchange_id(&request, |id| opens.has_state(id), world.now) {
                assert!(!world.ended.contains(&found.client), "an id is used once");
                world.ids.push(found.client);
            }
        }
        2 | 3 => {
            let Some(client) = pick(&world.ids, a) else { return };
            let limits = ChannelLimits {
                request_max: u32::from(b) * 16,
                response_max: u32::from(b) * 16,
                response_kept_max: 16,
                operations_max: u32::from(c),
                slots: u32::from(c % 4),
            };
            let sequence_id = u32::from(c >> 4);
            let principal = Principal(u64::from(a >> 7));
            let callback = CallbackParameters {
                program: 1,
                minor_version: 1,
                user: (c & 2 != 0).then(|| [c; 8].into()),
            };
            let request = SessionRequest {
                client,
                sequence_id,
                principal,
                fore: limits,
                back: limits,
                callback: (c & 1 != 0).then_some(&callback),
                back_connection: (b & 1 != 0).then_some(BackConnection(u64::from(b >> 1 & 7))),
            };
            if let Ok(grant) = world.clients.create_session(&request, world.now) {
                assert!(grant.fore.slots <= SLOTS && grant.fore.response_kept_max <= 16);
                world.keys.push(grant.key);
            }
        }
        4 => sequence(world, rest),
        5 => open(world, rest),
        6 => change(world, rest),
        7 => {
            if let Some((key, claim)) = world.running.pop()
                && let Some(session) = world.clients.session(key)
            {
                session.slots().finish(claim, (a & 1 == 0).then_some(&[b; 16]));
            }
        }
        8 => {
            if let Some(key) = pick(&world.keys, a) {
                let _ = world.clients.destroy_session(key, b & 1 == 0);
            }
            if let Some(client) = pick(&world.ids, c) {
                let _ = world.clients.destroy_client(client, world.opens.has_state(client));
            }
        }
        9 if a & 1 == 0 => call_back(world, rest),
        _ => {
            world.now += Duration::from_secs(u64::from(a));
            if let Some(client) = pick(&world.ids, b) {
                match c & 3 {
                    0 => drop(world.clients.expire(client, world.now)),
                    1 => {
                        if world.clients.reclaim_complete(client)
                            && let Some(record) = world.clients.client(client)
                        {
                            world.grace.complete(record.owner(), world.now);
                        }
                    }
                    _ => world.clients.sweep(world.now),
                }
            }
        }
    }
}

/// Something happens to a back channel.
fn call_back(world: &mut World, [a, b, c]: [u8; 3]) {
    let Some(session) = pick(&world.keys, a >> 1).and_then(|key| world.clients.session(key)) else { return };
    let connection = BackConnection(u64::from(b >> 5));
    session.with_back_channel(|channel| match c & 7 {
        0 | 1 => channel.bind(connection, if b & 1 == 0 { BackUse::Back } else { BackUse::Both }),
        2 => channel.connection_ended(connection),
        3 => channel.set_parameters(CallbackParameters {
            program: u32::from(b & 3),
            minor_version: 1,
            user: None,
        }),
        4 => channel.answered(BackAnswer::Unanswered),
        5 => channel.answered(if b & 1 == 0 { BackAnswer::Delayed } else { BackAnswer::Misunderstood }),
        _ => {
            if let Some(call) = channel.next_call() {
                assert!(channel.back_use(call.connection).is_some());
                assert_eq!(channel.next_call(), None, "one at a time");
            } else {
                channel.answered(BackAnswer::Answered);
            }
        }
    });
}

/// What the requests of a client are told of its back channels is what these are.
fn check_back_channels(world: &World) {
    for (_, record) in world.clients.clients() {
        let sessions = record.sessions().iter().filter_map(|key| world.clients.session(*key));
        let (mut wanted, mut broken) = (0, 0);
        for session in sessions {
            let stage = session.with_back_channel(|channel| channel.stage());
            let stage = stage.unwrap_or(BackStage::Absent);
            wanted += u32::from(stage != BackStage::Absent);
            broken += u32::from(stage.is_broken());
            assert_eq!(session.is_back_channel_broken(), stage.is_broken());
        }
        assert_eq!(record.lease().back_paths().are_down(), wanted > 0 && wanted == broken);
    }
}

fn check(world: &mut World) {
    check_back_channels(world);
    while let Some(EndedClient { client, .. }) = world.clients.poll_ended() {
        assert!(world.ended.insert(client), "reported twice");
        world.opens.free_client(client);
        assert!(!world.opens.has_state(client));
    }
    let mut seen = HashSet::new();
    for (id, record) in world.clients.clients() {
        assert!(
            seen.insert((record.owner().to_vec(), record.stage() == ClientStage::Confirmed)),
            "two records"
        );
        assert!(record.sessions().len() <= SESSIONS_MAX as usize);
        assert!(
            record.sessions().iter().all(|key| world.clients.session(*key).is_some_and(|s| s.client() == id))
        );
    }
    assert!(seen.len() <= CLIENTS_MAX as usize && world.opens.count() <= STATES_MAX);
    let owned: usize = world.clients.clients().map(|(_, record)| record.sessions().len()).sum();
    assert_eq!(owned, world.clients.session_count());
}

/// Arbitrary clients of NFS version 4: each request is executed once, each end is reported once, and all is bounded.
pub fn nfs4_state(input: &[u8]) {
    let limits = ChannelLimits {
        request_max: 4096,
        response_max: 4096,
        response_kept_max: 16,
        operations_max: 8,
        slots: SLOTS,
    };
    let config = ClientConfig {
        clients_max: CLIENTS_MAX,
        client_sessions_max: SESSIONS_MAX,
        session_octets_max: 16 << 10,
        fore: limits,
        back: limits,
        ..ClientConfig::default()
    };
    let opens = OpenConfig { states_max: STATES_MAX, file_opens_max: 8, ..OpenConfig::default() };
    let known = input.first().filter(|first| *first & 1 != 0).map(|_| Box::from(&[0_u8][..]));
    let mut world = World {
        clients: ClientTable::new(config, 3),
        opens: OpenTable::new(opens, 3, 0),
        grace: Grace::new(known, Duration::ZERO, config.lease_term),
        now: Duration::ZERO,
        ids: Vec::new(),
        keys: Vec::new(),
        tokens: Vec::new(),
        running: Vec::new(),
        ended: HashSet::new(),
        executed: HashSet::new(),
    };
    for [kind, rest @ ..] in input.as_chunks::<4>().0 {
        act(&mut world, *kind, *rest);
        check(&mut world);
    }
}
