//! Back channels: binding, proof, loss, and what a client's requests are told (RFC 8881 sections 2.10.3.1, 18.33, 18.34, 18.46.3).

use std::sync::Arc;
use std::time::Duration;

use stag_state::HostSite;
use stag_state::back::{
    BACK_CONNECTIONS_MAX, BackAnswer, BackCall, BackChannel, BackConnection, BackProbe, BackStage, BackUse,
    CallbackParameters,
};
use stag_state::client::{ClientConfig, ClientTable, ExchangeRequest, Principal, SessionRequest};
use stag_state::session::{ChannelLimits, Session, SessionKey};

const FIRST: BackConnection = BackConnection(1);
const SECOND: BackConnection = BackConnection(2);

fn parameters(program: u32) -> CallbackParameters {
    CallbackParameters { program, minor_version: 1, user: None }
}

fn channel() -> BackChannel {
    BackChannel::new(Some(parameters(7)))
}

fn call(connection: BackConnection, probe: BackProbe) -> Option<BackCall> {
    Some(BackCall { connection, parameters: parameters(7), probe })
}

/// One that is proven over its first connection.
fn proven() -> BackChannel {
    let mut channel = channel();
    channel.bind(FIRST, BackUse::Both);
    assert_eq!(channel.next_call(), call(FIRST, BackProbe::Null));
    channel.answered(BackAnswer::Answered);
    assert_eq!(
        (channel.stage(), channel.next_call()),
        (BackStage::Greeted, call(FIRST, BackProbe::Sequence(1)))
    );
    channel.answered(BackAnswer::Answered);
    assert_eq!((channel.stage(), channel.next_call()), (BackStage::Proven, None));
    channel
}

#[test]
fn a_connection_is_proven_by_null_and_then_by_sequence() {
    let mut absent = channel();
    assert_eq!((absent.stage(), absent.next_call()), (BackStage::Absent, None));
    absent.connection_ended(FIRST);
    absent.set_parameters(parameters(8));
    assert_eq!((absent.stage(), absent.next_call()), (BackStage::Absent, None));
    let channel = proven();
    assert_eq!((channel.back_use(FIRST), channel.back_use(SECOND)), (Some(BackUse::Both), None));
}

#[test]
fn one_call_at_a_time_is_under_way() {
    let mut channel = channel();
    channel.bind(FIRST, BackUse::Both);
    assert!(channel.next_call().is_some());
    assert_eq!(channel.next_call(), None);
    channel.bind(SECOND, BackUse::Back);
    assert_eq!(channel.next_call(), None, "the first answer is to come");
    // It says nothing of the second connection.
    channel.answered(BackAnswer::Answered);
    assert_eq!(channel.next_call(), call(SECOND, BackProbe::Null));
}

#[test]
fn without_a_credential_nothing_is_bound() {
    let mut channel = BackChannel::new(None);
    channel.bind(FIRST, BackUse::Both);
    assert_eq!((channel.stage(), channel.parameters()), (BackStage::Absent, None));
    channel.set_parameters(parameters(7));
    channel.bind(FIRST, BackUse::Both);
    assert_eq!(channel.next_call(), call(FIRST, BackProbe::Null));
}

/// 8881-20.9.3-a: a request without a reply is asked again, in the same slot with the same sequence id.
#[test]
fn a_sequence_id_without_an_answer_is_used_again() {
    let mut channel = channel();
    channel.bind(FIRST, BackUse::Both);
    channel.next_call();
    channel.answered(BackAnswer::Answered);
    assert_eq!(channel.next_call(), call(FIRST, BackProbe::Sequence(1)));
    channel.connection_ended(FIRST);
    assert_eq!(channel.stage(), BackStage::Down);
    channel.answered(BackAnswer::Unanswered);
    assert_eq!((channel.stage(), channel.next_call()), (BackStage::Down, None));
    channel.bind(SECOND, BackUse::Both);
    channel.next_call();
    channel.answered(BackAnswer::Answered);
    assert_eq!(channel.next_call(), call(SECOND, BackProbe::Sequence(1)));
    // NFS4ERR_DELAY: the client has not used it.
    channel.answered(BackAnswer::Delayed);
    assert_eq!(channel.stage(), BackStage::Proven);
    channel.bind(FIRST, BackUse::Both);
    channel.next_call();
    channel.answered(BackAnswer::Answered);
    assert_eq!(channel.next_call(), call(FIRST, BackProbe::Sequence(1)));
    // Another one is bound meanwhile: the answer still says that the id is used.
    channel.set_parameters(parameters(7));
    channel.bind(BackConnection(3), BackUse::Back);
    channel.answered(BackAnswer::Answered);
    channel.next_call();
    channel.answered(BackAnswer::Answered);
    assert_eq!(channel.next_call(), call(BackConnection(3), BackProbe::Sequence(2)));
}

#[test]
fn the_loss_of_a_connection_leaves_the_others() {
    let mut channel = proven();
    channel.bind(SECOND, BackUse::Back);
    // A connection that is not in use says nothing.
    channel.bind(BackConnection(3), BackUse::Back);
    channel.connection_ended(SECOND);
    channel.connection_ended(SECOND);
    assert_eq!(channel.next_call(), call(BackConnection(3), BackProbe::Null));
    channel.connection_ended(BackConnection(3));
    channel.answered(BackAnswer::Unanswered);
    assert_eq!(channel.next_call(), call(FIRST, BackProbe::Null));
    // A connection without an answer is not bound any more.
    channel.answered(BackAnswer::Unanswered);
    assert_eq!(
        (channel.stage(), channel.back_use(FIRST), channel.next_call()),
        (BackStage::Down, None, None)
    );
    channel.bind(FIRST, BackUse::Both);
    assert_eq!(channel.next_call(), call(FIRST, BackProbe::Null));
}

/// 8881-18.34.3-b: of a connection that is bound already nothing changes.
#[test]
fn binding_again_changes_nothing() {
    let mut channel = proven();
    channel.bind(FIRST, BackUse::Back);
    assert_eq!((channel.stage(), channel.back_use(FIRST)), (BackStage::Proven, Some(BackUse::Both)));
}

#[test]
fn connections_are_bounded_and_the_oldest_gives_way() {
    let mut channel = channel();
    for number in 0..10 {
        channel.bind(BackConnection(number), BackUse::Back);
        let bound = (0..10).filter(|number| channel.back_use(BackConnection(*number)).is_some()).count();
        assert_eq!(bound, (number as usize + 1).min(BACK_CONNECTIONS_MAX));
    }
    assert_eq!(channel.back_use(BackConnection(6)), Some(BackUse::Back));
}

/// 8881-18.33.3-a: the program is replaced; it is proven anew, as it may be none.
#[test]
fn another_program_is_proven() {
    let mut channel = proven();
    channel.set_parameters(parameters(7));
    assert_eq!(channel.stage(), BackStage::Proven);
    let user: Arc<[u8]> = [1; 20].into();
    let other = CallbackParameters { program: 9, minor_version: 2, user: Some(user) };
    channel.set_parameters(other.clone());
    let wanted = BackCall { connection: FIRST, parameters: other, probe: BackProbe::Null };
    assert_eq!(channel.next_call(), Some(wanted));
}

#[test]
fn a_client_that_misunderstands_its_slot_needs_another_session() {
    let mut channel = channel();
    channel.bind(FIRST, BackUse::Both);
    channel.next_call();
    channel.answered(BackAnswer::Answered);
    channel.next_call();
    channel.answered(BackAnswer::Misunderstood);
    assert_eq!(channel.stage(), BackStage::Faulty);
    channel.bind(SECOND, BackUse::Both);
    channel.connection_ended(SECOND);
    channel.set_parameters(parameters(9));
    channel.answered(BackAnswer::Answered);
    assert_eq!((channel.stage(), channel.next_call()), (BackStage::Faulty, None));
    // To CB_NULL there is no such answer.
    let mut channel = self::channel();
    channel.bind(FIRST, BackUse::Both);
    channel.next_call();
    channel.answered(BackAnswer::Misunderstood);
    assert_eq!(channel.stage(), BackStage::Down);
}

const LIMITS: ChannelLimits = ChannelLimits {
    request_max: 4096,
    response_max: 4096,
    response_kept_max: 512,
    operations_max: 8,
    slots: 2,
};

/// A session of a client, the `sequence_id`th, with a connection for callbacks or without.
fn session(
    table: &mut ClientTable,
    sequence_id: u32,
    back_connection: Option<BackConnection>,
) -> (SessionKey, Arc<Session>) {
    let asked = ExchangeRequest {
        owner: b"client",
        verifier: [1; 8],
        principal: Principal(1),
        site: HostSite(1),
        is_update: false,
        minor_version: 1,
    };
    let client = table.exchange_id(&asked, |_| false, Duration::ZERO).unwrap().client;
    let request = SessionRequest {
        client,
        sequence_id,
        principal: Principal(1),
        fore: LIMITS,
        back: LIMITS,
        callback: Some(&parameters(7)),
        back_connection,
    };
    let grant = table.create_session(&request, Duration::ZERO).unwrap();
    assert_eq!(grant.has_back_connection, back_connection.is_some());
    (grant.key, Arc::clone(table.session(grant.key).unwrap()))
}

/// Whether SEQUENCE says CB_PATH_DOWN, and CB_PATH_DOWN_SESSION.
fn told(session: &Session) -> (bool, bool) {
    (session.lease().back_paths().are_down(), session.is_back_channel_broken())
}

/// 8881-18.46.3-e
#[test]
fn requests_are_told_which_paths_are_down() {
    let mut table = ClientTable::new(ClientConfig::default(), 1);
    let (_, without) = session(&mut table, 1, None);
    assert_eq!(told(&without), (false, false), "it never asked for callbacks");
    let (key, first) = session(&mut table, 2, Some(FIRST));
    let (_, second) = session(&mut table, 3, Some(SECOND));
    assert_eq!([&without, &first, &second].map(|session| told(session)), [(false, false); 3]);
    first.with_back_channel(|channel| channel.connection_ended(FIRST));
    assert_eq!(
        [&without, &first, &second].map(|session| told(session)),
        [(false, false), (false, true), (false, false)]
    );
    second.with_back_channel(|channel| channel.connection_ended(SECOND));
    assert_eq!(
        [&without, &first, &second].map(|session| told(session)),
        [(true, false), (true, true), (true, true)]
    );
    second.with_back_channel(|channel| channel.bind(FIRST, BackUse::Both));
    assert_eq!(
        [&without, &first, &second].map(|session| told(session)),
        [(false, false), (false, true), (false, false)]
    );
    // A session that ends counts no more, and has no back channel.
    second.with_back_channel(|channel| channel.connection_ended(FIRST));
    assert_eq!(table.destroy_session(key, false), Ok(true));
    assert_eq!(first.with_back_channel(|channel| channel.stage()), None);
    assert_eq!([&without, &second].map(|session| told(session)), [(true, false), (true, true)]);
    let key = second.key();
    assert_eq!(table.destroy_session(key, false), Ok(true));
    assert_eq!(told(&without), (false, false), "none is left that asked for callbacks");
}
