//! Opens, share reservations and state ids: the rules of RFC 8881 sections 8.2 and 9.7 to 9.9, by number, and against a model.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;
use stag_state::FileKey;
use stag_state::client::ClientId;
use stag_state::open::{OpenConfig, OpenFault, OpenGrant, OpenRefused, OpenRequest, OpenTable, ShareModes};
use stag_state::stateid::{
    NoStateRoom, Revoked, SpecialState, StateFault, StateKind, StateName, StateToken, compare_seqids,
};
use stag_vfs::ObjectId;

const SLOTS: u32 = 64;
const R: ShareModes = ShareModes { access: 1, deny: 0 };
const W: ShareModes = ShareModes { access: 2, deny: 0 };
const RW: ShareModes = ShareModes { access: 3, deny: 0 };
const R_DENY_W: ShareModes = ShareModes { access: 1, deny: 2 };

fn file(number: u64) -> FileKey {
    FileKey { volume: 1, object: ObjectId { fileid: number, generation: 0 } }
}

fn table() -> OpenTable {
    OpenTable::new(OpenConfig::default(), 5, 2)
}

fn request(client: u64, owner: &[u8], number: u64, modes: ShareModes) -> OpenRequest<'_> {
    OpenRequest {
        client: ClientId(client),
        owner,
        file: file(number),
        modes,
        elsewhere: ShareModes::default(),
    }
}

fn open(table: &mut OpenTable, client: u64, owner: &[u8], modes: ShareModes) -> OpenGrant {
    table.open(&request(client, owner, 1, modes)).unwrap()
}

fn close(table: &mut OpenTable, token: &StateToken, client: u64) -> Result<(), OpenFault> {
    table.close(token, ClientId(client), file(1), SLOTS, |_| {})
}

/// 8881-9.7-a, 8881-9.7-b
#[test]
fn opens_conflict_by_what_they_have_and_deny() {
    assert_eq!(ShareModes::new(0, 0), None);
    assert_eq!(ShareModes::new(4, 0), None);
    assert_eq!(ShareModes::new(1, 4), None);
    assert_eq!(ShareModes::new(3, 2), Some(ShareModes { access: 3, deny: 2 }));
    let mut table = table();
    open(&mut table, 1, b"a", R_DENY_W);
    assert_eq!(table.open(&request(2, b"b", 1, W)), Err(OpenRefused::Conflict(Some(ClientId(1)))));
    open(&mut table, 2, b"b", R);
    let denies = ShareModes { access: 1, deny: 1 };
    assert!(matches!(table.open(&request(3, b"c", 1, denies)), Err(OpenRefused::Conflict(Some(_)))));
    assert_eq!(table.file_modes(file(1)), R_DENY_W);
    // Shares of another protocol count.
    let elsewhere = ShareModes { access: 0, deny: 1 };
    let refused = table.open(&OpenRequest { elsewhere, ..request(3, b"c", 2, R) });
    assert_eq!(refused, Err(OpenRefused::Conflict(None)));
    assert_eq!(table.count(), 2);
}

/// 8881-9.9-a, 8881-8.2.2-a
#[test]
fn a_second_open_of_an_owner_extends_the_first_and_one_close_ends_both() {
    let mut table = table();
    let first = open(&mut table, 1, b"a", R);
    assert_eq!((first.token.seqid, first.is_upgrade), (1, false));
    let second = open(&mut table, 1, b"a", W);
    assert_eq!((second.token.seqid, second.is_upgrade), (2, true));
    assert_eq!(second.token.other, first.token.other);
    assert_eq!(open(&mut table, 1, b"a", W).token.seqid, 3, "even without a change");
    assert_eq!((table.file_modes(file(1)), table.count()), (RW, 1));
    let other = open(&mut table, 1, b"b", R);
    assert_ne!(other.token.other, first.token.other, "another owner");
    assert_eq!(close(&mut table, &second.token, 1), Err(StateFault::Old.into()));
    assert_eq!(close(&mut table, &StateToken { seqid: 0, ..first.token }, 1), Ok(()));
    assert_eq!(close(&mut table, &StateToken { seqid: 3, ..first.token }, 1), Err(StateFault::Bad.into()));
    assert_eq!((table.file_modes(file(1)), table.count()), (R, 1));
    assert!(table.has_state(ClientId(1)) && !table.has_state(ClientId(2)));
}

/// 8881-18.18.3-a, 8881-9.9-b
#[test]
fn a_downgrade_goes_to_what_some_opens_had_together() {
    let mut table = table();
    let token = open(&mut table, 1, b"a", RW).token;
    let downgrade = |table: &mut OpenTable, token: &StateToken, modes| {
        table.downgrade(token, ClientId(1), file(1), modes, SLOTS)
    };
    assert_eq!(downgrade(&mut table, &token, R), Err(OpenFault::NotOpened), "no OPEN asked for that");
    let mut table = self::table();
    open(&mut table, 1, b"a", R);
    let token = open(&mut table, 1, b"a", W).token;
    let denies = ShareModes { access: 1, deny: 2 };
    assert_eq!(downgrade(&mut table, &token, denies), Err(OpenFault::NotOpened));
    let token = downgrade(&mut table, &token, RW).unwrap();
    assert_eq!(token.seqid, 3, "even without a change");
    let token = downgrade(&mut table, &token, R).unwrap();
    assert_eq!((token.seqid, table.file_modes(file(1))), (4, R));
    assert_eq!(downgrade(&mut table, &token, RW), Err(OpenFault::NotOpened), "it was given up");
    let stranger = table.downgrade(&token, ClientId(2), file(1), R, SLOTS);
    assert_eq!(stranger, Err(StateFault::Bad.into()));
}

/// 8881-9.8-a
#[test]
fn a_close_frees_locks_and_ends_lock_owners() {
    let mut table = table();
    let token = open(&mut table, 1, b"a", RW).token;
    let open = table.states().find(&token, ClientId(1), None, &[StateKind::Open], SLOTS).unwrap();
    let locker = table.add_locker(open, b"process").unwrap();
    assert_eq!(table.add_locker(open, b"process"), Ok(locker));
    let locks = table.states().token(locker);
    assert_eq!(table.advance(locker).seqid, 2);
    assert_eq!((table.modes(locker), table.count()), (Some(RW), 2));
    let mut unlocked = Vec::new();
    let unlock = |owner: &[u8]| unlocked.push(owner.to_vec());
    table.close(&token, ClientId(1), file(1), SLOTS, unlock).unwrap();
    assert_eq!(unlocked, [b"process"]);
    let found = table.states().find(&locks, ClientId(1), None, &[StateKind::Lock], SLOTS);
    assert_eq!((found, table.count()), (Err(StateFault::Bad), 0));
}

/// 8881-8.2.4-a
#[test]
fn a_state_id_is_of_its_start_client_file_and_kind() {
    let mut table = table();
    let token = open(&mut table, 1, b"a", R).token;
    let find = |token: &StateToken, client, number: u64, kind| {
        table.states().find(token, ClientId(client), Some(file(number)), &[kind], SLOTS).err()
    };
    assert_eq!(find(&token, 1, 1, StateKind::Open), None);
    assert_eq!(find(&token, 2, 1, StateKind::Open), Some(StateFault::Bad));
    assert_eq!(find(&token, 1, 2, StateKind::Open), Some(StateFault::Bad));
    assert_eq!(find(&token, 1, 1, StateKind::Lock), Some(StateFault::Bad));
    let with = |at: usize| {
        let mut other = token.other;
        other[at] ^= 1;
        find(&StateToken { other, ..token }, 1, 1, StateKind::Open)
    };
    assert_eq!([with(0), with(3)], [Some(StateFault::Stale); 2], "another start of the server");
    for part in 4..12 {
        assert_eq!(with(part), Some(StateFault::Bad), "octet {part}");
    }
    let Some(StateName::Of(name)) = token.name() else { panic!("it names a state") };
    assert_eq!((name.epoch, name.home), (5, 2));
}

/// 8881-8.2.3-a
#[test]
fn special_state_ids_are_those_of_the_rfc() {
    let name = |seqid, octet| StateToken { seqid, other: [octet; 12] }.name();
    assert_eq!(name(0, 0), Some(StateName::Special(SpecialState::Anonymous)));
    assert_eq!(name(1, 0), Some(StateName::Special(SpecialState::Current)));
    assert_eq!(name(u32::MAX, 0xff), Some(StateName::Special(SpecialState::ReadBypass)));
    for (seqid, octet) in [(u32::MAX, 0), (2, 0), (0, 0xff), (1, 0xff)] {
        assert_eq!(name(seqid, octet), None, "{seqid} {octet}");
    }
    let special = StateToken { seqid: 0, other: [0; 12] };
    let found = table().states().find(&special, ClientId(1), None, &[StateKind::Open], SLOTS);
    assert_eq!(found, Err(StateFault::Bad), "no open");
}

/// 8881-8.2.2-b
#[test]
fn seqids_are_compared_around_their_wrap() {
    use std::cmp::Ordering::{Equal, Greater, Less};
    for (a, b, expected) in [
        (1, 2, Less),
        (2, 2, Equal),
        (u32::MAX, 1, Less),
        (1, u32::MAX, Greater),
        (63, u32::MAX - 63, Greater),
        (64, u32::MAX - 63, Less),
        (u32::MAX - 64, 1, Greater),
    ] {
        assert_eq!(compare_seqids(a, b, SLOTS), expected, "{a} {b}");
        assert_eq!(compare_seqids(b, a, SLOTS), expected.reverse(), "{b} {a}");
    }
    let mut table = table();
    let old = open(&mut table, 1, b"a", R).token;
    let new = open(&mut table, 1, b"a", R).token;
    let find = |seqid| {
        let token = StateToken { seqid, ..old };
        table.states().find(&token, ClientId(1), None, &[StateKind::Open], SLOTS).err()
    };
    assert_eq!([find(old.seqid), find(new.seqid), find(0)], [Some(StateFault::Old), None, None]);
    assert_eq!([find(3), find(u32::MAX)], [Some(StateFault::Bad), Some(StateFault::Old)]);
}

/// 8881-8.2.4-a: revoked state is told until it is freed.
#[test]
fn revoked_state_is_told_until_it_is_freed() {
    let mut table = table();
    let token = open(&mut table, 1, b"a", R_DENY_W).token;
    table.revoke_client(ClientId(1), Revoked::Expired);
    assert_eq!(close(&mut table, &token, 1), Err(StateFault::Revoked(Revoked::Expired).into()));
    open(&mut table, 2, b"b", W);
    assert!(table.has_state(ClientId(1)), "its name");
    assert_eq!(table.free_revoked(&token, ClientId(2)), Err(StateFault::Bad));
    assert_eq!(table.free_revoked(&token, ClientId(1)), Ok(true));
    assert_eq!(table.free_revoked(&token, ClientId(1)), Err(StateFault::Bad));
    assert!(!table.has_state(ClientId(1)));
    let own = open(&mut table, 2, b"b", W).token;
    assert_eq!(table.free_revoked(&own, ClientId(2)), Ok(false), "it is not revoked");
}

#[test]
fn names_are_not_used_again_for_something_else() {
    let mut table = table();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..1000 {
        let token = open(&mut table, 1, b"a", R).token;
        assert!(seen.insert(token.other));
        close(&mut table, &token, 1).unwrap();
        assert_eq!(close(&mut table, &token, 1), Err(StateFault::Bad.into()));
    }
}

#[test]
fn a_client_takes_no_more_than_it_leaves_for_others() {
    let config =
        OpenConfig { states_max: 100, owner_octets_max: 1000, file_opens_max: 10, ..OpenConfig::default() };
    let mut table = OpenTable::new(config, 1, 0);
    let opens = |table: &mut OpenTable, client, len: usize, files: u64| {
        (0..200_u64)
            .filter(|number| {
                let mut owner = vec![7; len];
                owner[..8].copy_from_slice(&number.to_be_bytes());
                table.open(&request(client, &owner, number % files + 1, R)).is_ok()
            })
            .count()
    };
    assert_eq!(opens(&mut table, 1, 8, 1000), 50, "half of all states");
    assert_eq!(opens(&mut table, 2, 8, 1000), 25);
    table.free_client(ClientId(1));
    table.free_client(ClientId(2));
    assert_eq!((table.count(), table.has_state(ClientId(1))), (0, false));
    assert_eq!(opens(&mut table, 1, 8, 2), 20, "ten for each file");
    table.free_client(ClientId(1));
    assert_eq!(opens(&mut table, 1, 300, 1000), 2, "names of 300 octets each");
    let long = vec![0; 2000];
    assert_eq!(table.open(&request(3, &long, 1, R)), Err(OpenRefused::NoRoom(NoStateRoom)));
    let per_open = OpenConfig { owner_octets_max: 0, ..config }.memory_max() / 100;
    assert!(per_open <= 800, "{per_open}");
}

/// What arbitrary clients do.
#[derive(Clone, Copy, Debug)]
enum Act {
    Open { client: u64, owner: u8, file: u64, modes: ShareModes },
    Downgrade { which: usize, modes: ShareModes, is_old: bool },
    Close { which: usize, is_old: bool },
    Free(u64),
}

fn modes() -> impl Strategy<Value = ShareModes> {
    let deny = prop_oneof![4 => Just(0), 1 => 0..4_u8];
    (1..4_u8, deny).prop_map(|(access, deny)| ShareModes { access, deny })
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (1..4_u64, 0..2_u8, 1..3_u64, modes())
            .prop_map(|(client, owner, file, modes)| Act::Open { client, owner, file, modes }),
        2 => (any::<usize>(), modes(), any::<bool>())
            .prop_map(|(which, modes, is_old)| Act::Downgrade { which, modes, is_old }),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(which, is_old)| Act::Close { which, is_old }),
        1 => (1..4_u64).prop_map(Act::Free),
    ]
}

/// By client, owner and file: the modes, all that was asked for, and the newest state id.
type Model = HashMap<(u64, u8, u64), (ShareModes, Vec<ShareModes>, StateToken)>;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 512 }))]

    /// 8881-9.7-b, 8881-9.9-a, 8881-9.9-b: no two opens that exclude each other, and state ids that count each change.
    #[test]
    fn opens_do_as_the_model_does(acts in vec(act(), 0..100)) {
        let mut table = table();
        let mut model = Model::new();
        for act in acts {
            match act {
                Act::Open { client, owner, file, modes } => {
                    let name = [owner];
                    let is_free = model.iter().all(|(key, (held, ..))| key.2 != file || !held.conflicts(&modes));
                    match table.open(&request(client, &name, file, modes)) {
                        Ok(grant) => {
                            prop_assert!(is_free);
                            let key = (client, owner, file);
                            prop_assert_eq!(grant.is_upgrade, model.contains_key(&key));
                            let fresh = (ShareModes::default(), Vec::new(), StateToken { seqid: 0, ..grant.token });
                            let (held, asked, token) = model.entry(key).or_insert(fresh);
                            prop_assert_eq!((grant.token.seqid, grant.token.other), (token.seqid + 1, token.other));
                            *held = ShareModes { access: held.access | modes.access, deny: held.deny | modes.deny };
                            asked.push(modes);
                            *token = grant.token;
                        }
                        Err(OpenRefused::Conflict(who)) => {
                            prop_assert!(!is_free);
                            prop_assert!(model.keys().any(|key| Some(ClientId(key.0)) == who));
                        }
                        Err(other) => prop_assert!(false, "{:?}", other),
                    }
                }
                Act::Downgrade { which, modes, is_old } => {
                    let mut keys: Vec<_> = model.keys().copied().collect();
                    keys.sort_unstable();
                    let Some(key) = keys.get(which % keys.len().max(1)).copied() else { continue };
                    let (held, asked, token) = model.get_mut(&key).unwrap();
                    let sent = StateToken { seqid: token.seqid - u32::from(is_old), ..*token };
                    let found = table.downgrade(&sent, ClientId(key.0), self::file(key.2), modes, SLOTS);
                    if is_old && sent.seqid != 0 {
                        prop_assert_eq!(found, Err(OpenFault::State(StateFault::Old)));
                    } else if let Ok(next) = found {
                        prop_assert_eq!(next.seqid, token.seqid + 1);
                        prop_assert!(modes.access & !held.access == 0 && modes.deny & !held.deny == 0);
                        (*held, *token) = (modes, next);
                        asked.retain(|one| one.access & !modes.access == 0 && one.deny & !modes.deny == 0);
                        asked.push(modes);
                    } else {
                        prop_assert_eq!(found, Err(OpenFault::NotOpened));
                        prop_assert!(!asked.contains(&modes));
                    }
                }
                Act::Close { which, is_old } => {
                    let mut keys: Vec<_> = model.keys().copied().collect();
                    keys.sort_unstable();
                    let Some(key) = keys.get(which % keys.len().max(1)).copied() else { continue };
                    let token = model[&key].2;
                    let sent = StateToken { seqid: token.seqid - u32::from(is_old), ..token };
                    let found = table.close(&sent, ClientId(key.0), self::file(key.2), SLOTS, |_| {});
                    if is_old && sent.seqid != 0 {
                        prop_assert_eq!(found, Err(OpenFault::State(StateFault::Old)));
                    } else {
                        prop_assert_eq!(found, Ok(()));
                        model.remove(&key);
                    }
                }
                Act::Free(client) => {
                    table.free_client(ClientId(client));
                    model.retain(|key, _| key.0 != client);
                }
            }
            prop_assert_eq!(table.count() as usize, model.len());
            for number in 1..3 {
                let mut all = ShareModes::default();
                for (held, ..) in model.iter().filter(|(key, _)| key.2 == number).map(|(_, value)| value) {
                    all = ShareModes { access: all.access | held.access, deny: all.deny | held.deny };
                }
                prop_assert_eq!(table.file_modes(self::file(number)), all);
            }
            for client in 1..4 {
                let own = model.keys().filter(|key| key.0 == client).count();
                prop_assert_eq!(table.states().of_client(ClientId(client)).count(), own);
                prop_assert_eq!(table.has_state(ClientId(client)), model.keys().any(|key| key.0 == client));
            }
        }
    }
}

/// A file system that is no longer served: nothing of it is left, and all else stays.
#[test]
fn opens_of_a_volume_end_together() {
    let mut table = table();
    let first = open(&mut table, 1, b"a", RW);
    open(&mut table, 2, b"b", R);
    let open_index = table.states().find(&first.token, ClientId(1), Some(file(1)), &[StateKind::Open], SLOTS);
    table.add_locker(open_index.unwrap(), b"locker").unwrap();
    let other = FileKey { volume: 2, ..file(1) };
    let kept = table.open(&OpenRequest { file: other, ..request(1, b"a", 1, R) }).unwrap();
    table.free_volume(1);
    assert_eq!(table.count(), 1);
    assert!(table.has_state(ClientId(1)) && !table.has_state(ClientId(2)));
    assert_eq!(close(&mut table, &first.token, 1), Err(StateFault::Bad.into()));
    assert_eq!(table.close(&kept.token, ClientId(1), other, SLOTS, |_| {}), Ok(()));
    assert_eq!(table.count(), 0);
}
