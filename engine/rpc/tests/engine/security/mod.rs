//! Calls of a sealed flavor over RDMA: in place or not, at their reactor or carried, in both versions.

mod keyed;
mod site;
mod tcp;

use stag_rpc::{AuthUnix, CallError, CallRefused, Chunks, ConnectionEvent, Credentials, Request, Secured};
use stag_wire::rpc::AuthStat;

use crate::support::program::{
    BIG, DEFER, ECHO, FORGET, GET, GET_ONE, LATER, NEVER, ONCE, PUT, PUT_ONE, Program, pattern, sum,
};
use crate::support::{Node, bytes, error, opaque, request, request_for, small, words};
use keyed::{Mode, NUMBER, Sealer, USER};
use site::{Site, WHO_PROGRAM, Way, ways};

/// The modes of Calls that services see.
const MODES: [Mode; 3] = [Mode::Header, Mode::Body, Mode::Encrypted];

/// Runs a test each way that Calls reach the services, with the sessions 1, 2 and 3.
fn each_way(test: impl Fn(&mut Site, Way)) {
    for way in ways() {
        let mut site = Site::new(way);
        site.make_sessions(3);
        test(&mut site, way);
        site.close();
    }
}

fn who() -> Request<'static> {
    Request { program: WHO_PROGRAM, version: 1, ..request_for(1, 100) }
}

#[test]
fn a_sealed_call_is_answered_with_a_sealed_reply() {
    each_way(|site, way| {
        for mode in MODES {
            let sealer = Sealer::new(mode, 1);
            for len in [0, 1, 300, 700] {
                let text = pattern(1, len);
                let echo = request_for(ECHO, len + 8);
                let done = site.call(&sealer, echo, Chunks::default(), |writer| writer.opaque(&text));
                assert_eq!(bytes(&done), opaque(&text), "{way:?} {mode:?} {len}");
            }
        }
        assert_eq!(site.keyed().opened, 12, "each is opened once: {way:?}");
        let carried: u64 = site.servers.iter().map(|server| server.engine.statistics().calls_carried).sum();
        assert_eq!(carried, if way.reactors == 2 { 12 } else { 0 });
        // Plain Calls take their way beside them.
        let mut chunks = Chunks::default();
        let plain = request_for(ECHO, 100);
        let call =
            site.client.engine.call(site.connection, &plain, &mut chunks, |writer| writer.opaque(b"plain"));
        assert_eq!(bytes(&site.finish(call.expect("there is a credit"))), opaque(b"plain"));
    });
}

/// What services see of a caller is what its flavor says.
#[test]
fn a_caller_has_the_name_that_its_flavor_gives() {
    each_way(|site, way| {
        for mode in MODES {
            for (session, name) in
                [(1, format!("{NUMBER:#x} session 1")), (2, format!("user {USER}")), (3, "none".to_owned())]
            {
                let done = site.call(&Sealer::new(mode, session), who(), Chunks::default(), |_| Ok(()));
                assert_eq!(bytes(&done), opaque(name.as_bytes()), "{way:?} {mode:?}");
            }
        }
    });
}

#[test]
fn a_reply_that_comes_later_is_sealed() {
    each_way(|site, way| {
        let mut calls = Vec::new();
        for (number, mode) in (0..).zip(MODES) {
            let call =
                site.begin(&Sealer::new(mode, 1), request_for(LATER, 20), Chunks::default(), |writer| {
                    writer.u64(1000 - 100 * number)?;
                    writer.opaque(&[number as u8])
                });
            calls.push((call.expect("there is a credit"), number as u8));
        }
        for (call, number) in calls {
            assert_eq!(bytes(&site.finish(call)), opaque(&[number]), "{way:?}");
        }
        // By another thread.
        for mode in MODES {
            let sealer = Sealer::new(mode, 2);
            let call = site.begin(&sealer, request_for(DEFER, 20), Chunks::default(), |_| Ok(()));
            site.run(|site| !site.program().deferred.is_empty());
            let deferred = site.program().deferred.pop().expect("just seen");
            deferred.finish(|reply| reply.success(|writer| writer.u32(9)));
            assert_eq!(bytes(&site.finish(call.expect("there is a credit"))), 9_u32.to_be_bytes(), "{way:?}");
        }
    });
}

/// The connection of a sealed Call ends before it is answered: nothing is left of it.
#[test]
fn a_connection_may_end_while_a_sealed_call_waits() {
    each_way(|site, _| {
        let begun =
            site.begin(&Sealer::new(Mode::Body, 1), request_for(LATER, 20), Chunks::default(), |writer| {
                writer.u64(NEVER)?;
                writer.opaque(b"lost")
            });
        begun.expect("there is a credit");
        site.run(|site| site.program().kept() == 1);
    });
}

/// RFC 5531 section 9: AUTH_ERROR with AUTH_BADVERF, AUTH_BADCRED or AUTH_REJECTEDCRED. No service hears of it.
#[test]
fn a_call_that_is_not_its_callers_is_refused() {
    each_way(|site, way| {
        let echo = request_for(ECHO, 100);
        let mut refused = |sealer: &Sealer, status: AuthStat| {
            let done = site.call(sealer, echo, Chunks::default(), |writer| writer.opaque(b"text"));
            assert_eq!(error(&done), CallError::Authentication(status.0), "{way:?} {:?}", sealer.mode);
        };
        for mode in MODES {
            // Another key; changed arguments; no such session.
            refused(&Sealer { key: 1, ..Sealer::new(mode, 1) }, AuthStat::BADVERF);
            if mode != Mode::Header {
                refused(&Sealer { is_forger: true, ..Sealer::new(mode, 2) }, AuthStat::BADVERF);
            }
            refused(&Sealer::new(mode, 99), AuthStat::REJECTEDCRED);
        }
        assert_eq!((site.keyed().opened, site.program().executed), (0, 0));
    });
}

/// A control Call is answered whatever its program, and no service hears of it.
#[test]
fn a_control_call_is_answered_by_the_flavor() {
    each_way(|site, _| {
        let sealer = Sealer::new(Mode::Hello, 7);
        for (program, session) in [(0x2fff_0000, 4_u32), (WHO_PROGRAM, 5)] {
            let hello = Request { program, version: 9, ..request_for(0, 4) };
            let done = site.call(&sealer, hello, Chunks::default(), |_| Ok(()));
            assert_eq!(bytes(&done), session.to_be_bytes());
        }
        assert_eq!((site.keyed().opened, site.program().executed), (0, 0));
    });
}

/// RFC 2203 section 5.3.3.1: a repeated message is dropped.
#[test]
fn a_repeated_message_is_not_answered() {
    each_way(|site, way| {
        let sealer = Sealer::new(Mode::Body, 1);
        let echo = Request { timeout: std::time::Duration::from_millis(50), ..request_for(ECHO, 100) };
        let done = site.call(&sealer, echo, Chunks::default(), |writer| writer.opaque(b"one"));
        assert_eq!(bytes(&done), opaque(b"one"));
        sealer.repeat();
        let done = site.call(&sealer, echo, Chunks::default(), |writer| writer.opaque(b"two"));
        assert_eq!(error(&done), CallError::TimedOut, "{way:?}");
        assert_eq!(site.program().executed, 1);
    });
}

/// 8166-8.2-b: a signed header has no influence on eligibility.
#[test]
fn data_of_a_call_with_a_signed_header_goes_by_chunk() {
    each_way(|site, way| {
        let sealer = Sealer::new(Mode::Header, 1);
        for len in [100, 4096, 50_000] {
            let octets = pattern(len as u32, len);
            for procedure in [PUT, PUT_ONE] {
                let chunks = Chunks::read(site.client.data(&octets));
                let done = site.call(&sealer, request_for(procedure, 100), chunks, |writer| {
                    writer.u32(1)?;
                    writer.eligible_opaque_reduced(len as u32).map(drop)
                });
                assert_eq!(bytes(&done), [0, sum(&octets)].map(u32::to_be_bytes).concat(), "{way:?} {len}");
            }
            for procedure in [GET, GET_ONE] {
                let chunks = Chunks::write(site.client.space(len));
                let done = site.call(&sealer, request_for(procedure, 100), chunks, |writer| {
                    words(writer, &[5, 1, len as u32])
                });
                assert_eq!(bytes(&done), (len as u32).to_be_bytes(), "{way:?} {len}");
                assert_eq!(done.written, [(0, pattern(5, len))], "{way:?} {len}");
            }
        }
        assert_eq!(site.keyed().opened, 12);
    });
}

/// 8166-8.2-b: what is protected is not reduced.
#[test]
fn data_of_a_protected_call_goes_inline() {
    each_way(|site, way| {
        for mode in [Mode::Body, Mode::Encrypted] {
            let sealer = Sealer::new(mode, 1);
            let octets = pattern(1, 5000);
            let chunks = Chunks::read(site.client.data(&octets));
            let refused = site.begin(&sealer, request_for(PUT, 100), chunks, |writer| {
                writer.u32(1)?;
                writer.eligible_opaque_reduced(5000).map(drop)
            });
            assert_eq!(refused, Err(CallRefused::Protected));
            let done = site.call(&sealer, request_for(PUT_ONE, 100), Chunks::default(), |writer| {
                writer.u32(1)?;
                writer.eligible_opaque_inline(&octets)
            });
            assert_eq!(bytes(&done), [0, sum(&octets)].map(u32::to_be_bytes).concat(), "{way:?} {mode:?}");
            let get = request_for(GET_ONE, 5100);
            let done = site.call(&sealer, get, Chunks::default(), |writer| words(writer, &[5, 1, 5000]));
            assert_eq!(bytes(&done), opaque(&pattern(5, 5000)), "{way:?} {mode:?}");
        }
    });
}

/// 8166-8.2-b: a client offers chunks all the same. With data in a Read chunk the Call is refused, a Write chunk stays unused.
#[test]
fn chunks_of_a_protected_call_are_refused_or_unused() {
    each_way(|site, way| {
        let octets = pattern(1, 5000);
        let arguments = words_of(&[1]);
        let sealer = Sealer { claims_chunks: Some(arguments), ..Sealer::new(Mode::Body, 1) };
        let chunks = Chunks::read(site.client.data(&octets));
        let done = site.call(&sealer, request_for(PUT_ONE, 100), chunks, |writer| {
            writer.u32(1)?;
            writer.eligible_opaque_reduced(5000).map(drop)
        });
        assert_eq!(error(&done), CallError::Chunk, "{way:?}");
        assert_eq!(site.keyed().opened, 0, "it is not even opened");

        let sealer = Sealer { claims_chunks: Some(words_of(&[5, 1, 300])), ..Sealer::new(Mode::Body, 1) };
        let chunks = Chunks::write(site.client.space(300));
        let get = request_for(GET_ONE, 400);
        let done = site.call(&sealer, get, chunks, |writer| words(writer, &[5, 1, 300]));
        assert_eq!(bytes(&done), opaque(&pattern(5, 300)), "{way:?}");
        assert_eq!(done.written, [(0, Vec::new())]);
    });
}

fn words_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// Calls and Replies that do not fit inline.
#[test]
fn long_messages_are_sealed() {
    each_way(|site, way| {
        for mode in MODES {
            let sealer = Sealer::new(mode, 1);
            let text = pattern(2, 3000);
            let echo = request_for(ECHO, 3008);
            let done = site.call(&sealer, echo, Chunks::default(), |writer| writer.opaque(&text));
            assert_eq!(bytes(&done), opaque(&text), "{way:?} {mode:?}");
            for len in [900, 960, 990, 5000, 100_000] {
                let big = request_for(BIG, len as usize + 8);
                let done = site.call(&sealer, big, Chunks::default(), |writer| words(writer, &[5, len]));
                assert_eq!(bytes(&done), opaque(&pattern(5, len as usize)), "{way:?} {mode:?} {len}");
            }
        }
    });
}

/// The client left no room for such results: ERR_CHUNK, if the same Call without a seal gets that. The connection goes on.
#[test]
fn results_without_room_are_refused() {
    each_way(|site, way| {
        let mut chunks = Chunks::default();
        let plain = site
            .client
            .engine
            .call(site.connection, &request(BIG), &mut chunks, |writer| words(writer, &[5, 5000]));
        let plain = site.finish(plain.expect("there is a credit")).result.err();
        for mode in MODES {
            let sealer = Sealer::new(mode, 1);
            let done =
                site.call(&sealer, request(BIG), Chunks::default(), |writer| words(writer, &[5, 5000]));
            assert_eq!(done.result.err(), plain, "{way:?} {mode:?}");
            let done =
                site.call(&sealer, request_for(ECHO, 20), Chunks::default(), |writer| writer.opaque(b"on"));
            assert_eq!(bytes(&done), opaque(b"on"));
        }
    });
}

#[test]
fn errors_are_sealed() {
    each_way(|site, way| {
        for mode in MODES {
            let sealer = Sealer::new(mode, 1);
            let mut ends = |request: Request<'_>, ending: CallError| {
                let done = site.call(&sealer, request, Chunks::default(), |writer| writer.u32(u32::MAX));
                assert_eq!(error(&done), ending, "{way:?} {mode:?}");
            };
            ends(request(ECHO), CallError::GarbageArguments);
            ends(request(FORGET), CallError::SystemError);
            ends(request(999), CallError::ProcedureUnavailable);
            ends(Request { version: 9, ..request(ECHO) }, CallError::ProgramMismatch { low: 2, high: 3 });
            ends(Request { program: 1, ..request(ECHO) }, CallError::ProgramUnavailable);
        }
    });
}

#[test]
fn a_reply_that_is_not_the_servers_is_refused() {
    each_way(|site, way| {
        for (reply_key, is_mute) in [(1, false), (keyed::KEY, true)] {
            let keyed = site.keyed();
            (keyed.reply_key, keyed.is_mute) = (reply_key, is_mute);
            for mode in MODES {
                let sealer = Sealer::new(mode, if is_mute { 2 } else { 1 });
                let echo = request_for(ECHO, 100);
                let done = site.call(&sealer, echo, Chunks::default(), |writer| writer.opaque(b"text"));
                assert_eq!(error(&done), CallError::Unverified, "{way:?} {mode:?}");
                // An error, too.
                let done = site.call(&sealer, request(999), Chunks::default(), |_| Ok(()));
                assert_eq!(error(&done), CallError::Unverified, "{way:?} {mode:?}");
            }
            let sealer = Sealer::new(Mode::Header, if is_mute { 2 } else { 1 });
            (0..10).for_each(|_| sealer.skip());
            let chunks = Chunks::write(site.client.space(300));
            let done =
                site.call(&sealer, request_for(GET, 100), chunks, |writer| words(writer, &[5, 1, 300]));
            assert_eq!(error(&done), CallError::Unverified, "{way:?}");
        }
    });
}

/// A procedure that must not be executed twice is, if it is called twice: another xid is another Call.
#[test]
fn calls_that_must_not_be_repeated() {
    each_way(|site, _| {
        for (mode, count) in MODES.into_iter().zip([1_u32, 3, 5]) {
            let sealer = Sealer::new(mode, 1);
            for count in [count, count + 1] {
                let once = request_for(ONCE, 20);
                let done = site.call(&sealer, once, Chunks::default(), |writer| words(writer, &[0, 0]));
                assert_eq!(bytes(&done), count.to_be_bytes());
            }
        }
    });
}

/// A server takes the flavors that it names, and no others: AUTH_NONE is refused with NULL too, wherever that arrives.
#[test]
fn a_flavor_that_is_not_named_is_refused() {
    use stag_fabric::sim::{FaultPlan, Odds, World};
    for in_place in [Odds::NEVER, Odds::ALWAYS] {
        let world = World::new(1, FaultPlan { in_place, ..FaultPlan::default() });
        let mut server = Node::new(&world, "server", small(), 1 << 20, |memory| {
            Secured::new((Program::new(memory.pools.payload.clone()),), (AuthUnix,))
        });
        server.engine.listen("server").expect("the address is free");
        let mut client = Node::new(&world, "client", small(), 1 << 20, |_| ());
        let connection = client.engine.connect("server").expect("the address is fine");
        let mut run = |client: &mut Node<()>, done: &dyn Fn(&Node<()>) -> bool| {
            for _ in 0..crate::support::PASSES_MAX {
                if done(client) {
                    return;
                }
                let now = world.now();
                if server.poll(now) + client.poll(now) == 0 {
                    world.advance_before(None);
                }
            }
            panic!("what was awaited did not happen");
        };
        run(&mut client, &|client| client.events.contains(&ConnectionEvent::Established { connection }));
        // RFC 5531 section 8.2: 20 octets of an empty user.
        let nobody = [0; 20];
        let sealer = Sealer::new(Mode::Body, 1);
        let refused = Err(CallError::Authentication(AuthStat::BADCRED.0));
        for (credentials, ending) in [
            (Credentials::None, refused),
            (Credentials::Sys(&nobody), Ok(())),
            (Credentials::Own(&sealer), refused),
        ] {
            for procedure in [0, ECHO] {
                let request = Request { credentials, ..request_for(procedure, 20) };
                let call =
                    client.engine.call(connection, &request, &mut Chunks::default(), |writer| writer.u32(0));
                call.expect("there is a credit");
                run(&mut client, &|client| !client.done.is_empty());
                let done = client.done.pop().expect("just seen");
                assert_eq!(done.result.map(drop), ending, "{in_place:?} {credentials:?} {procedure}");
            }
        }
    }
}
