//! Checks of a Requester: its Calls, and its reaction to wrong answers.

use stag_wire::cm_private_data::{IDENTIFIER, LEN, VERSION as PRIVATE_VERSION};
use stag_wire::rpcrdma::{Segment, VERSION, procedure};

use crate::check::{CheckOutcome, CheckText, Stop, ensure, fail, not_applicable};
use crate::message::{DraftMessage, SeenMessage, Words, call_header};
use crate::probe::own_private_data;
use crate::served::{GRANT, HOLD, ServedClient, is_call};

/// A check of the peer as Requester.
pub struct ClientCheck {
    /// Its name, unique among all checks.
    pub name: &'static str,
    /// The rules that it checks, the main one first.
    pub rules: &'static [&'static str],
    /// What is sent.
    pub sent: &'static str,
    /// What has to come.
    pub expected: &'static str,
    /// Does it.
    pub run: fn(&mut ServedClient) -> CheckOutcome,
}

impl ClientCheck {
    /// What it has in common with checks of the other role.
    #[must_use]
    pub const fn text(&self) -> CheckText {
        CheckText { name: self.name, rules: self.rules, sent: self.sent, expected: self.expected }
    }
}

fn words(fixed: [u32; 4], more: &[u32]) -> Vec<u8> {
    Words::default().words(&fixed).words(more).0
}

/// The first Call of a connection; while it waits for its Reply, no other may come.
fn first_alone(client: &mut ServedClient) -> CheckOutcome {
    let own = own_private_data(false).to_wire();
    let call = client.first_call(&own)?;
    if let Some(seen) = client.message(HOLD)?.filter(is_call) {
        return fail(format!("a second Call, xid {:#010x}, before the first was answered", seen.fixed.xid));
    }
    client.answer(&call)?;
    client.goes_on(&call)
}

/// After a Reply with this grant, the client makes one Call and waits.
fn one_at_a_time(client: &mut ServedClient, grant: u32) -> CheckOutcome {
    // Calls that were sent under the grant before are answered first.
    for _ in 0..GRANT {
        let call = client.call()?;
        client.answer_with(&call, grant)?;
    }
    client.offences.clear();
    let call = client.call()?;
    if let Some(seen) = client.message(HOLD)?.filter(is_call) {
        return fail(format!("a second Call, xid {:#010x}", seen.fixed.xid));
    }
    client.answer(&call)?;
    client.goes_on(&call)
}

/// The client goes on after a connection that was accepted with this private data, in Calls that this allows.
fn accepted_with(client: &mut ServedClient, private_data: &[u8]) -> CheckOutcome {
    let call = client.first_call(private_data)?;
    client.answer(&call)?;
    let came = client.goes_on(&call)?;
    ensure(call.len <= 1024, || format!("a Call of {} octets", call.len))?;
    Ok(came)
}

fn private_data(client: &mut ServedClient) -> CheckOutcome {
    let call = client.call()?;
    let requested = client.requested.clone();
    client.answer(&call)?;
    let Some(place) = requested.windows(IDENTIFIER.len()).position(|window| *window == IDENTIFIER) else {
        return not_applicable("the client sends none, which is its choice");
    };
    let block = &requested[place..];
    ensure(block.len() >= LEN, || format!("{} octets from the identifier on", block.len()))?;
    ensure(block[4] == PRIVATE_VERSION, || format!("version {}", block[4]))?;
    ensure(block[5] & !1 == 0, || format!("reserved flags are set: {:#04x}", block[5]))?;
    Ok(format!("version 1 at octet {place}, flags {}, sizes {} and {}", block[5], block[6], block[7]))
}

/// Some Calls, all of which keep what every Call has to.
fn calls(client: &mut ServedClient) -> CheckOutcome {
    client.offences.clear();
    let before = client.messages;
    for _ in 0..16 {
        let call = client.call()?;
        client.answer(&call)?;
    }
    offences(client)?;
    Ok(format!("{} messages, each as it should be", client.messages - before))
}

fn offences(client: &mut ServedClient) -> Result<(), Stop> {
    match client.offences.first() {
        Some((rule, what)) => fail(format!("{rule}: {what}")),
        None => Ok(()),
    }
}

/// The first segment that a Call offers to be written.
fn offered(call: &SeenMessage) -> Segment {
    let chunks = call.writes().iter().map(Vec::as_slice).chain(call.reply_chunk());
    chunks.flatten().copied().find(|segment| segment.length > 0).unwrap_or_default()
}

/// The checks that leave the connection as it is.
pub static CHECKS: &[ClientCheck] = &[
    ClientCheck {
        name: "client-private-data",
        rules: &["8797-4-a", "8797-4-d", "8797-4.2-a"],
        sent: "nothing yet",
        expected: "a connect request without private data, or with 8 octets: identifier, version 1, reserved flags 0, two sizes",
        run: private_data,
    },
    ClientCheck {
        name: "client-calls",
        rules: &[
            "8166-4.2.2-a",
            "8166-4.2.1-a",
            "8166-3.2-a",
            "8166-4.2.4-c",
            "8166-4.2.4-d",
            "8166-4.6.1-a",
            "8166-4.6.2-a",
            "8166-4.1-b",
            "8166-3.4.5-a",
        ],
        sent: "Replies as they should be",
        expected: "16 Calls of version 1 with one xid each, aligned Positions, within the threshold; no RDMA_MSGP, RDMA_DONE",
        run: calls,
    },
    ClientCheck {
        name: "client-first-alone",
        rules: &["8166-3.3.3-a", "8166-3.3.1-b"],
        sent: "on a new connection, the first Reply late",
        expected: "no second Call before it",
        run: first_alone,
    },
    ClientCheck {
        name: "client-grant-1",
        rules: &["8166-3.3.1-b", "8166-3.3.1-d"],
        sent: "Replies that lower the grant to 1, and then one late",
        expected: "one Call at a time",
        run: |client| one_at_a_time(client, 1),
    },
    ClientCheck {
        name: "client-grant-0",
        rules: &["8166-X-7", "LX-6"],
        sent: "Replies that grant 0 credits, and then one late",
        expected: "one Call at a time: 0 is taken for 1",
        run: |client| one_at_a_time(client, 0),
    },
    ClientCheck {
        name: "client-grant-max",
        rules: &["8166-3.3.1-b", "8166-4.2.3-a"],
        sent: "a Reply that grants 2^32-1 credits",
        expected: "its next Call, and no more at once than it requests",
        run: |client| {
            let call = client.call()?;
            client.answer_with(&call, u32::MAX)?;
            let requested = call.fixed.credits;
            let came = client.goes_on(&call)?;
            ensure(client.unanswered <= requested.max(1), || format!("{} Calls at once", client.unanswered))?;
            Ok(came)
        },
    },
    ClientCheck {
        name: "client-unknown-xid",
        rules: &["8166-X-10", "8167-2.4-a"],
        sent: "a Reply to a Call that was not made, before the right one",
        expected: "its next Call: the first is dropped",
        run: |client| {
            client.drops(|call, mut reply| {
                reply.fixed.xid = !call.fixed.xid;
                reply.payload.splice(..4, reply.fixed.xid.to_be_bytes());
                reply.octets()
            })
        },
    },
    ClientCheck {
        name: "client-short-12",
        rules: &["8166-4.5-a", "8166-4.5-c"],
        sent: "the first 12 octets of a Reply, before the right one",
        expected: "its next Call: the first is dropped",
        run: |client| client.drops(|_, reply| reply.octets()[..12].to_vec()),
    },
    ClientCheck {
        name: "client-short-27",
        rules: &["8166-4.5-a", "8166-X-1"],
        sent: "the first 27 octets of a Reply, before the right one",
        expected: "its next Call: the first is dropped",
        run: |client| client.drops(|_, reply| reply.octets()[..27].to_vec()),
    },
    ClientCheck {
        name: "client-version-2",
        rules: &["8166-4.5-c", "8166-4.2.2-a"],
        sent: "a Reply of version 2, before the right one",
        expected: "its next Call: the first is dropped",
        run: |client| {
            client.drops(|_, mut reply| {
                reply.fixed.version = 2;
                reply.octets()
            })
        },
    },
    ClientCheck {
        name: "client-msgp",
        rules: &["8166-4.6.1-a"],
        sent: "RDMA_MSGP, before the right Reply",
        expected: "its next Call: the first is dropped",
        run: |client| {
            client.drops(|call, _| words([call.fixed.xid, VERSION, GRANT, procedure::MSGP], &[0; 5]))
        },
    },
    ClientCheck {
        name: "client-done",
        rules: &["8166-4.6.2-a"],
        sent: "RDMA_DONE, before the right Reply",
        expected: "its next Call: the first is dropped",
        run: |client| client.drops(|call, _| words([call.fixed.xid, VERSION, GRANT, procedure::DONE], &[])),
    },
    ClientCheck {
        name: "client-proc-9",
        rules: &["8166-4.5-c"],
        sent: "rdma_proc 9, before the right Reply",
        expected: "its next Call: the first is dropped",
        run: |client| {
            client.drops(|_, mut reply| {
                reply.fixed.procedure = 9;
                reply.octets()
            })
        },
    },
    ClientCheck {
        name: "client-error-unreadable",
        rules: &["8166-4.5-e"],
        sent: "RDMA_ERROR with error code 9 for its xid, before the right Reply",
        expected: "its next Call: the first is dropped",
        run: |client| {
            client.drops(|call, _| words([call.fixed.xid, VERSION, GRANT, procedure::ERROR], &[9, 0, 0]))
        },
    },
    ClientCheck {
        name: "client-error-unknown-xid",
        rules: &["8166-4.5-e", "8167-D-1"],
        sent: "ERR_CHUNK for a Call that was not made, before the right Reply",
        expected: "its next Call: the first is dropped",
        run: |client| {
            client.drops(|call, _| words([!call.fixed.xid, VERSION, GRANT, procedure::ERROR], &[2]))
        },
    },
    ClientCheck {
        name: "client-read-list",
        rules: &["8166-4.3.1-a", "8166-4.5-c", "LX-5"],
        sent: "a Reply with a Read list, before the right one",
        expected: "its next Call: the first is dropped",
        run: |client| {
            client.drops(|_, mut reply| {
                reply.reads.push((0, Segment { handle: 1, length: 64, offset: 0 }));
                reply.octets()
            })
        },
    },
    ClientCheck {
        name: "client-list-word",
        rules: &["8166-X-2", "8166-4.5-c"],
        sent: "a Reply whose Write list begins with 3, before the right one",
        expected: "its next Call: the first is dropped",
        run: |client| {
            client.drops(|call, reply| {
                let head = words([call.fixed.xid, VERSION, GRANT, procedure::MSG], &[0, 3, 0]);
                [head, reply.payload].concat()
            })
        },
    },
    ClientCheck {
        name: "client-nomsg-empty",
        rules: &["8166-4.2.4-b", "LX-5"],
        sent: "RDMA_NOMSG without any chunk, before the right Reply",
        expected: "its next Call: the first is dropped",
        run: |client| {
            client.drops(|call, _| words([call.fixed.xid, VERSION, GRANT, procedure::NOMSG], &[0, 0, 0]))
        },
    },
    ClientCheck {
        name: "client-reverse-call",
        rules: &["8167-2.4-a", "8167-2-a", "8167-L-1"],
        sent: "a NULL Call to the client, with the xid of its own Call, before the right Reply",
        expected: "its next Call: the other direction has xids of its own; it may answer, refuse or drop the Call",
        run: |client| {
            client.drops(|call, _| {
                let xid = call.fixed.xid;
                DraftMessage::of(xid, call_header(xid, 0x4000_0001, 1, 0)).octets()
            })
        },
    },
    ClientCheck {
        name: "client-reverse-chunk",
        rules: &["8167-5.3-b", "8167-L-1"],
        sent: "a NULL Call to the client with a Write chunk, before the right Reply",
        expected: "its next Call; it refuses the Call with ERR_CHUNK, or drops or serves it",
        run: |client| {
            client.drops(|call, _| {
                let xid = call.fixed.xid ^ 0x0f0f;
                let mut draft = DraftMessage::of(xid, call_header(xid, 0x4000_0001, 1, 0));
                draft.writes = vec![vec![Segment { handle: 0x5555, length: 64, offset: 0 }]];
                draft.octets()
            })
        },
    },
    ClientCheck {
        name: "client-accept-silent",
        rules: &["8797-5.1-a", "8797-4-b", "8166-3.3.3-b"],
        sent: "after the connection has ended, an accept without private data",
        expected: "Calls of 1024 octets at most, the smallest threshold there is",
        run: |client| accepted_with(client, &[]),
    },
    ClientCheck {
        name: "client-accept-later",
        rules: &["8797-5.2-a", "8797-4-b"],
        sent: "an accept whose private data stands behind other octets",
        expected: "Calls",
        run: |client| accepted_with(client, &[&b"other"[..], &own_private_data(false).to_wire()].concat()),
    },
    ClientCheck {
        name: "client-accept-version-2",
        rules: &["8797-5.2-b", "8797-6-a"],
        sent: "an accept with private data of version 2",
        expected: "Calls of 1024 octets at most: it is as if there were none",
        run: |client| {
            let mut data = own_private_data(false).to_wire();
            data[4] = 2;
            accepted_with(client, &data)
        },
    },
    ClientCheck {
        name: "client-accept-flags",
        rules: &["8797-6-a"],
        sent: "an accept with all reserved flags set",
        expected: "Calls: they are ignored",
        run: |client| {
            let mut data = own_private_data(false).to_wire();
            data[5] = 0xfe;
            accepted_with(client, &data)
        },
    },
];

/// The checks that end connections, and clients.
pub static ENDING: &[ClientCheck] = &[
    ClientCheck {
        name: "client-least-access",
        rules: &["8166-8.1-c"],
        sent: "an RDMA Read of memory that the client offered to be written",
        expected: "a failure: the connection ends",
        run: |client| {
            let call = client.call_with_chunk()?;
            let segment = Segment { length: 4, ..offered(&call) };
            match client.peer().read(segment, HOLD * 10) {
                Ok(_) => fail("the memory could be read"),
                Err(why) => {
                    client.disconnect();
                    Ok(why)
                }
            }
        },
    },
    ClientCheck {
        name: "client-beyond-chunk",
        rules: &["8166-8.1-b", "8166-8.1-a2", "8166-4.4.3-a"],
        sent: "an RDMA Write 1 GiB beyond the memory that the client offered",
        expected: "a failure: the connection ends",
        run: |client| {
            let call = client.call_with_chunk()?;
            let segment = offered(&call);
            let beyond = Segment { offset: segment.offset.wrapping_add(1 << 30), length: 4, ..segment };
            // Where the Write's end says nothing of the other side, the end of the connection does: the client waits for its Reply.
            let came = match client.peer().write(beyond, &[0; 4], HOLD * 10) {
                Err(why) => Ok(why),
                Ok(()) => client.ended_by_write(),
            };
            client.disconnect();
            came
        },
    },
    ClientCheck {
        name: "client-fences",
        rules: &["8166-4.4.1-a", "8166-8.1-b"],
        sent: "after the Reply, an RDMA Write into memory that its Call had offered to be written",
        expected: "a failure: the memory was fenced before the Call was over",
        run: |client| {
            let call = client.call_with_chunk()?;
            let segment = Segment { length: 4, ..offered(&call) };
            client.answer(&call)?;
            // The next Call says that the Reply was taken.
            client.goes_on(&call)?;
            let came = match client.peer().write(segment, &[0; 4], HOLD * 10) {
                Err(why) => Ok(why),
                Ok(()) => client.ended_by_write(),
            };
            client.disconnect();
            came
        },
    },
    ClientCheck {
        name: "client-invalidate-unknown",
        rules: &["8797-X-2", "8797-4.1-b"],
        sent: "a Reply that invalidates a handle which the client never gave away",
        expected: "the end of the connection",
        run: |client| {
            let call = client.call()?;
            let reply = client.reply_to(&call, GRANT).octets();
            client.send(&reply, Some(0x5a5a_5a5a))?;
            match client.message(HOLD * 10) {
                Err(Stop::Fail(why)) => Ok(why),
                Err(stop) => Err(stop),
                Ok(Some(seen)) => fail(format!("{seen}: it goes on")),
                Ok(None) => fail("the connection lives"),
            }
        },
    },
    ClientCheck {
        name: "client-echo-too-long",
        rules: &["8166-X-11"],
        sent: "RDMA_NOMSG whose Reply chunk says 4 octets more than were offered",
        expected: "the Call ends, and does not come again",
        run: |client| {
            let call = client.call_with_chunk()?;
            if call.reply_chunk().is_none() {
                return not_applicable("the Call offers no Reply chunk");
            }
            let mut reply = client.reply_to(&call, GRANT);
            reply.fixed.procedure = procedure::NOMSG;
            reply.payload.clear();
            reply.reply = call.reply_chunk().map(<[_]>::to_vec);
            for segment in reply.reply.iter_mut().flatten() {
                segment.length += 4;
            }
            client.ends_for_good(&call, &reply.octets())
        },
    },
    ClientCheck {
        name: "client-error-chunk",
        rules: &["8166-4.5-d", "8267-6.4.2-c"],
        sent: "ERR_CHUNK in place of the Reply",
        expected: "the Call does not come again",
        run: |client| {
            let call = client.call()?;
            client.ends_for_good(&call, &words([call.fixed.xid, VERSION, GRANT, procedure::ERROR], &[2]))
        },
    },
    ClientCheck {
        name: "client-error-vers",
        rules: &["8166-4.5.1-b", "8166-4.5-d"],
        sent: "ERR_VERS with versions 7 to 9 in place of the Reply",
        expected: "the Call does not come again",
        run: |client| {
            let call = client.call()?;
            client
                .ends_for_good(&call, &words([call.fixed.xid, VERSION, GRANT, procedure::ERROR], &[1, 7, 9]))
        },
    },
];
