//! Clients, sessions and opens take of the heap what their prices say at most, and a sixth of that at least.
//!
//! A program of its own, because it replaces the allocator.

use std::time::Duration;

use stag_state::back::{BackConnection, BackUse, CallbackParameters};
use stag_state::client::{ClientConfig, ClientId, ClientTable, ExchangeRequest, Principal, SessionRequest};
use stag_state::open::{OpenConfig, OpenRequest, OpenTable, ShareModes};
use stag_state::session::{ChannelLimits, Session};
use stag_state::slot::{Sequenced, SlotRequest};
use stag_state::{FileKey, HostSite};
use stag_testing::CountingAllocator;
use stag_vfs::ObjectId;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Just behind where maps and vectors grow, and just before.
const COUNTS: [u32; 4] = [3584, 3585, 4096, 4097];

/// Checks that what was taken is within the price, and more than a sixth of it: a price that is far too high wastes memory.
fn check(what: &str, count: u32, taken: i64, price: u64) {
    let (taken, price) = (u64::try_from(taken).unwrap(), price * u64::from(count));
    println!("{what}: {count} take {taken} octets of {price}");
    assert!(taken <= price, "{what}: {count} take {taken} octets, the price is {price}");
    assert!(taken > price / 6, "{what}: {count} take {taken} octets, the price is {price}");
}

const WISHES: ChannelLimits = ChannelLimits {
    request_max: 1 << 20,
    response_max: 1 << 20,
    response_kept_max: 512,
    operations_max: 8,
    slots: 32,
};

/// Clients of different sites, each with its name.
fn clients(config: ClientConfig, count: u32, name_len: usize) -> (ClientTable, Vec<ClientId>) {
    let mut table = ClientTable::new(config, 1);
    let mut ids = Vec::with_capacity(count as usize);
    for number in 0..count {
        let mut owner = vec![0; name_len];
        owner[..4].copy_from_slice(&number.to_be_bytes());
        let request = ExchangeRequest {
            owner: &owner,
            verifier: [0; 8],
            principal: Principal(0),
            site: HostSite(number.into()),
            is_update: false,
            minor_version: 2,
        };
        ids.push(table.exchange_id(&request, |_| false, Duration::ZERO).unwrap().client);
    }
    (table, ids)
}

#[test]
fn a_client_takes_what_it_is_said_to_take() {
    let config = ClientConfig { clients_max: 1 << 20, owner_len_max: 64, ..ClientConfig::default() };
    for count in COUNTS {
        let before = CountingAllocator::taken();
        let (table, ids) = clients(config, count, 64);
        drop(ids);
        check("clients", count, CountingAllocator::taken() - before, config.client_len());
        drop(table);
    }
}

#[test]
fn a_session_takes_what_it_is_said_to_take() {
    let config =
        ClientConfig { clients_max: 1 << 20, session_octets_max: 1 << 30, ..ClientConfig::default() };
    for count in [900, 1025] {
        let (mut table, ids) = clients(config, count, 16);
        let before = CountingAllocator::taken();
        let mut fore = None;
        for client in ids {
            let callback =
                CallbackParameters { program: 1, minor_version: 1, user: Some(vec![7; 400].into()) };
            let request = SessionRequest {
                callback: Some(&callback),
                back_connection: Some(BackConnection(0)),
                client,
                sequence_id: 1,
                principal: Principal(0),
                fore: WISHES,
                back: WISHES,
            };
            let grant = table.create_session(&request, Duration::ZERO).unwrap();
            fore = Some(grant.fore);
            let session = table.session(grant.key).unwrap();
            drop(callback);
            for connection in 0..6 {
                session.with_back_channel(|channel| channel.bind(BackConnection(connection), BackUse::Back));
            }
            for slot in 0..grant.fore.slots {
                let request = SlotRequest { slot, sequence_id: 1, highest_slot: slot, fingerprint: 0 };
                let Ok(Sequenced::New(claim)) = session.sequence(&request, Duration::ZERO) else {
                    panic!("a first request")
                };
                session.slots().finish(claim, Some(&[7; 512]));
            }
        }
        check("sessions", count, CountingAllocator::taken() - before, Session::memory_max(&fore.unwrap()));
    }
}

#[test]
fn an_open_takes_what_it_is_said_to_take() {
    let config = OpenConfig { states_max: 1 << 20, owner_octets_max: 0, ..OpenConfig::default() };
    let price = (config.memory_max() >> 20) + 16;
    let config = OpenConfig { owner_octets_max: 1 << 30, ..config };
    for count in COUNTS {
        let before = CountingAllocator::taken();
        let mut table = OpenTable::new(config, 1, 0);
        for number in 0..count {
            // Each of a client, an owner and a file of its own: the most that one can take.
            let mut owner = [0; 16];
            owner[..4].copy_from_slice(&number.to_be_bytes());
            let file = FileKey { volume: 1, object: ObjectId { fileid: number.into(), generation: 0 } };
            let (client, modes) = (ClientId(number.into()), ShareModes { access: 1, deny: 0 });
            let elsewhere = ShareModes::default();
            table.open(&OpenRequest { client, owner: &owner, file, modes, elsewhere }).unwrap();
        }
        check("opens", count, CountingAllocator::taken() - before, price);
    }
}
