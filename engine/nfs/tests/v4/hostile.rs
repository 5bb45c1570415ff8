//! COMPOUNDs that no client should send: each is answered, and nothing breaks.

use proptest::prelude::*;
use stag_nfs::client::Operation;
use stag_rpc::Chunks;
use stag_wire::nfs4::attributes::AttributeSet;
use stag_wire::nfs4::client_id::SecinfoStyle;
use stag_wire::nfs4::compound::OperationsWriter;
use stag_wire::nfs4::directory::ReaddirArguments4;
use stag_wire::nfs4::files::{AccessArguments4, CommitArguments4, GetattrArguments4, ReadArguments4};
use stag_wire::nfs4::open::CreateHow4;
use stag_wire::nfs4::operation::Argument4;
use stag_wire::nfs4::session::TestStateidArguments;
use stag_wire::nfs4::{Bitmap, Opaque, StateId, Status4, Verifier4};
use stag_wire::xdr::{Decode, Encode, Overflow, Reader, Writer, XdrError};

use super::client::{Answer, Client, RESULTS_MAX};
use super::files::{create, lookup, put};
use super::state::open_create;

/// Arguments of COMPOUND, whatever they are.
struct Octets<'a>(&'a [u8]);

impl Encode for Octets<'_> {
    fn encode(&self, writer: &mut Writer<'_>) -> Result<(), Overflow> {
        writer.opaque_fixed(self.0)
    }
}

/// Results of COMPOUND that are well-formed.
struct WellFormed(Status4);

impl<'r> Decode<'r> for WellFormed {
    fn decode(reader: &mut Reader<'r>) -> Result<Self, XdrError> {
        let answer: Answer<'_> = reader.value()?;
        if let Some(last) = answer.outcomes.last() {
            assert_eq!(last.status(), answer.status, "{answer:?}");
            let before = &answer.outcomes[..answer.outcomes.len() - 1];
            assert!(before.iter().all(|outcome| outcome.status() == Status4::Ok), "{answer:?}");
        }
        Ok(WellFormed(answer.status))
    }
}

impl Operation for Octets<'_> {
    const PROGRAM: u32 = stag_wire::nfs4::PROGRAM;
    const VERSION: u32 = 4;
    type Reply<'r> = WellFormed;

    fn procedure(&self) -> u32 {
        1
    }

    fn results_len_max(&self, _: bool) -> u32 {
        RESULTS_MAX
    }
}

/// All attributes that there are, and some more.
const EVERYTHING: AttributeSet<'static> = AttributeSet(Bitmap::from_words([!0; 3]));

/// The operation of a number.
fn operation<'a>(number: u8, root: &'a [u8], name: &'a [u8]) -> Argument4<'a> {
    let state = if number & 1 == 0 { StateId::CURRENT } else { StateId::ANONYMOUS };
    match number % 20 {
        0 => Argument4::Putrootfh(()),
        1 => put(root),
        2 => lookup(name),
        3 => Argument4::Lookupp(()),
        4 => Argument4::Getfh(()),
        5 => Argument4::Savefh(()),
        6 => Argument4::Restorefh(()),
        7 => Argument4::Access(AccessArguments4 { access: 0x3f }),
        8 => Argument4::Getattr(GetattrArguments4 { request: EVERYTHING }),
        9 => Argument4::Remove(Opaque(name)),
        10 => Argument4::Read(ReadArguments4 { stateid: state, offset: 0, count: 100 }),
        11 => Argument4::Commit(CommitArguments4 { offset: 0, count: 0 }),
        12 => open_create(name, CreateHow4::Unchecked(super::files::NO_ATTRIBUTES)),
        13 => Argument4::SecinfoNoName(SecinfoStyle::Parent),
        14 => Argument4::TestStateid(TestStateidArguments::new(&[StateId::CURRENT])),
        15 => Argument4::FreeStateid(state),
        16 => create(stag_wire::nfs4::files::CreateType::Directory, name, super::files::NO_ATTRIBUTES),
        17 => Argument4::Link(Opaque(name)),
        18 => Argument4::Readlink(()),
        _ => Argument4::Readdir(ReaddirArguments4 {
            cookie: 0,
            verifier: Verifier4::default(),
            dircount: 0,
            maxcount: 4096,
            request: EVERYTHING,
        }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Operations in any order, of which some octets are others.
    #[test]
    fn any_compound_is_answered(
        compounds in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..9), prop::collection::vec((any::<u16>(), any::<u8>()), 0..4)),
            1..24,
        ),
    ) {
        let mut client = Client::new(&["/data,root_squash=no", "/deep/more"]);
        let root = client.pair.root.clone();
        let names: [&[u8]; 4] = [b"data", b"a", b"b", b"deep"];
        for (numbers, changes) in compounds {
            let operations: Vec<_> =
                numbers.iter().map(|number| operation(*number, &root, names[usize::from(number >> 6)])).collect();
            let sequence = client.sequence(0);
            let mut octets = vec![0; 4096];
            let mut writer = Writer::new(&mut octets);
            let mut compound = OperationsWriter::begin_call(&mut writer, &Opaque(b""), 2).unwrap();
            compound.push(&sequence).unwrap();
            operations.iter().for_each(|operation| compound.push(operation).unwrap());
            compound.finish();
            let len = writer.position();
            octets.truncate(len);
            for (place, octet) in &changes {
                let place = usize::from(*place) % len;
                octets[place] = *octet;
            }
            let finished = client.pair.call(&Octets(&octets), Chunks::default());
            match finished.reply::<Octets<'_>>() {
                Ok(WellFormed(status)) => prop_assert!(!changes.is_empty() || status != Status4::BadXdr),
                // The arguments are none.
                Err(error) => prop_assert!(!changes.is_empty(), "{error}"),
            }
        }
        // Another client is served as if nothing had been.
        let other = Client::of(client.pair, b"another", super::client::FORE);
        drop(other);
    }
}
