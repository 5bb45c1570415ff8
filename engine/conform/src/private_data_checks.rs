//! Checks of the private data of connections (RFC 8797): ours in many forms, and the peer's.

use stag_wire::cm_private_data::{IDENTIFIER, LEN, PrivateData, VERSION};

use crate::check::CheckNeeds::Null;
use crate::check::{Check, CheckOutcome, ensure, not_applicable};
use crate::probe::{Probe, own_private_data};

/// A connection with this private data, on which NULL is answered.
fn accepts(probe: &mut Probe, private_data: &[u8]) -> CheckOutcome {
    probe.connect(private_data)?;
    probe.ask_null("that connection")?;
    Ok(match PrivateData::find(&probe.accepted) {
        Some(peer) => format!(
            "accepted; the peer says: sends {}, receives {}, R {}",
            peer.send_size.octets(),
            peer.receive_size.octets(),
            u8::from(peer.remote_invalidation)
        ),
        None => "accepted; the peer says nothing of itself".to_owned(),
    })
}

/// The peer's private data.
fn of_peer(probe: &mut Probe) -> CheckOutcome {
    let accepted = probe.accepted.clone();
    let Some(place) = accepted.windows(IDENTIFIER.len()).position(|window| *window == IDENTIFIER) else {
        return not_applicable("the peer sends none, which is its choice");
    };
    let block = &accepted[place..];
    ensure(block.len() >= LEN, || format!("{} octets from the identifier on", block.len()))?;
    ensure(block[4] == VERSION, || format!("version {}", block[4]))?;
    ensure(block[5] & !1 == 0, || format!("reserved flags are set: {:#04x}", block[5]))?;
    Ok(format!("version 1 at octet {place}, flags {}, sizes {} and {}", block[5], block[6], block[7]))
}

/// The checks.
pub static CHECKS: &[Check] = &[
    Check {
        name: "private-of-peer",
        rules: &["8797-4-a", "8797-4-d", "8797-4.2-a"],
        sent: "a connect request with private data",
        expected: "an accept with none, or with 8 octets: identifier, version 1, reserved flags 0, two sizes",
        needs: Null,
        run: of_peer,
    },
    Check {
        name: "private-absent",
        rules: &["8797-5.1-a", "8797-4-c"],
        sent: "a connect request without private data",
        expected: "a connection on which NULL is answered",
        needs: Null,
        run: |probe| accepts(probe, &[]),
    },
    Check {
        name: "private-version-2",
        rules: &["8797-5.2-b", "8797-6-a"],
        sent: "private data of version 2",
        expected: "a connection on which NULL is answered: what it says is not looked at",
        needs: Null,
        run: |probe| {
            let mut data = own_private_data(true).to_wire();
            data[4] = 2;
            accepts(probe, &data)
        },
    },
    Check {
        name: "private-cut",
        rules: &["8797-5.2-b"],
        sent: "the first 7 octets of private data",
        expected: "a connection on which NULL is answered",
        needs: Null,
        run: |probe| accepts(probe, &own_private_data(true).to_wire()[..LEN - 1]),
    },
    Check {
        name: "private-foreign",
        rules: &["8797-5.1-a"],
        sent: "private data of another protocol",
        expected: "a connection on which NULL is answered",
        needs: Null,
        run: |probe| accepts(probe, b"not RFC 8797 at all, 32 octets.."),
    },
    Check {
        name: "private-later",
        rules: &["8797-5.2-a"],
        sent: "private data at octet 5, behind another protocol's",
        expected: "a connection on which NULL is answered",
        needs: Null,
        run: |probe| accepts(probe, &[&b"other"[..], &own_private_data(false).to_wire()].concat()),
    },
    Check {
        name: "private-twice",
        rules: &["8797-X-1"],
        sent: "private data of version 9, and of version 1 behind it",
        expected: "a connection on which NULL is answered",
        needs: Null,
        run: |probe| {
            let mut first = own_private_data(true).to_wire();
            first[4] = 9;
            accepts(probe, &[first, own_private_data(false).to_wire()].concat())
        },
    },
    Check {
        name: "private-reserved-flags",
        rules: &["8797-6-a"],
        sent: "private data with all reserved flags set, and 16 octets behind it",
        expected: "a connection on which NULL is answered: they are ignored",
        needs: Null,
        run: |probe| {
            let mut data = own_private_data(false).to_wire().to_vec();
            data[5] = 0xfe;
            data.extend_from_slice(&[0xaa; 16]);
            accepts(probe, &data)
        },
    },
    Check {
        name: "private-changes",
        rules: &["8797-4-b"],
        sent: "three connections, one after the other, each with other sizes",
        expected: "NULL is answered on each",
        needs: Null,
        run: |probe| {
            for size in [0, 255, 3] {
                let mut data = own_private_data(false).to_wire();
                (data[6], data[7]) = (size, size);
                accepts(probe, &data)?;
            }
            Ok("three connections, and NULL answered on each".to_owned())
        },
    },
];
