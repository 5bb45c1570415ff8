//! Takes COMPOUNDs apart and puts them together again.

use std::collections::BTreeMap;

use stag_dump::Rpc;
use stag_wire::nfs4::attributes::AttributeList;
use stag_wire::nfs4::callback::OffloadOutcome;
use stag_wire::nfs4::compound::{
    CbCompoundCall, CbCompoundReply, CompoundCall, CompoundReply, OperationsWriter, locate_write,
};
use stag_wire::nfs4::operation::{Argument4, CbArgument, CbOutcome, Outcome4};
use stag_wire::nfs4::{self};
use stag_wire::xdr::{Reader, Writer};

/// How often each operation occurs.
pub(crate) type Operations = BTreeMap<&'static str, usize>;

/// Decodes the arguments or results of a COMPOUND or CB_COMPOUND, and encodes them again. `None` if it is neither.
pub(crate) fn same_compound(rpc: &Rpc, reader: Reader<'_>, counts: &mut Operations) -> Option<()> {
    let target = rpc.target()?;
    let is_callback = target.program_name() == Some("NFS-CB");
    let is_forward = (target.program, target.version) == (nfs4::PROGRAM, nfs4::VERSION);
    if target.procedure != nfs4::COMPOUND || !(is_callback || is_forward) {
        return None;
    }
    let octets = reader.rest();
    let mut buf = vec![0xff; octets.len()];
    let mut writer = Writer::new(&mut buf);
    match (rpc, is_callback) {
        (Rpc::Call(_), false) => call(reader, &mut writer, counts),
        (Rpc::Reply(..), false) => reply(reader, &mut writer, counts),
        (Rpc::Call(_), true) => callback(reader, &mut writer, counts),
        (Rpc::Reply(..), true) => callback_reply(reader, &mut writer, counts),
    }
    assert!(writer.written() == octets, "{rpc:?} differs when it is encoded again");
    Some(())
}

fn call(reader: Reader<'_>, writer: &mut Writer<'_>, counts: &mut Operations) {
    let place = locate_write(reader.clone());
    let mut found = None;
    let CompoundCall { tag, minor_version, mut operations } = CompoundCall::parse(reader).unwrap();
    let mut again = OperationsWriter::begin_call(writer, &tag, minor_version).unwrap();
    while let Some(item) = operations.next_item() {
        let item: Argument4<'_> = item.unwrap();
        if let (Argument4::Write(write), None) = (&item, found) {
            found = Some(write.data.0.len());
        }
        item.attributes().into_iter().for_each(same_attributes);
        again.push(&item).unwrap();
        *counts.entry(item.operation().name()).or_default() += 1;
    }
    operations.finish().unwrap();
    again.finish();
    assert_eq!(place.map(|place| place.len as usize), found, "the data of the first WRITE");
}

fn reply(reader: Reader<'_>, writer: &mut Writer<'_>, counts: &mut Operations) {
    let CompoundReply { status, tag, mut operations } = CompoundReply::parse(reader).unwrap();
    let mut again = OperationsWriter::begin_reply(writer, &tag).unwrap();
    let mut last = status;
    while let Some(item) = operations.next_item() {
        let item: Outcome4<'_> = item.unwrap();
        item.attributes().for_each(same_attributes);
        last = item.status();
        again.push_result(&item).unwrap();
        *counts.entry(item.operation().name()).or_default() += 1;
    }
    operations.finish().unwrap();
    again.finish();
    assert_eq!(last, status);
}

fn callback(reader: Reader<'_>, writer: &mut Writer<'_>, counts: &mut Operations) {
    let CbCompoundCall { tag, minor_version, callback_ident, mut operations } =
        CbCompoundCall::parse(reader).unwrap();
    let mut again = OperationsWriter::begin_callback(writer, &tag, minor_version, callback_ident).unwrap();
    while let Some(item) = operations.next_item() {
        let item: CbArgument<'_> = item.unwrap();
        if let CbArgument::Offload(offload) = &item {
            assert!(matches!(offload.outcome, OffloadOutcome::Done(_)));
        }
        again.push(&item).unwrap();
        *counts.entry(item.operation().name()).or_default() += 1;
    }
    operations.finish().unwrap();
    again.finish();
}

fn callback_reply(reader: Reader<'_>, writer: &mut Writer<'_>, counts: &mut Operations) {
    let CbCompoundReply { tag, mut operations, .. } = CbCompoundReply::parse(reader).unwrap();
    let mut again = OperationsWriter::begin_reply(writer, &tag).unwrap();
    while let Some(item) = operations.next_item() {
        let item: CbOutcome<'_> = item.unwrap();
        again.push_callback_result(&item).unwrap();
        *counts.entry(item.operation().name()).or_default() += 1;
    }
    operations.finish().unwrap();
    again.finish();
}

/// Decodes each attribute, and encodes all again.
fn same_attributes(list: AttributeList<'_>) {
    let values: Vec<_> = list.values().collect::<Result<_, _>>().unwrap();
    let mut left = values.iter();
    let mut buf = vec![0xff; list.values.len() + 64];
    let mut writer = Writer::new(&mut buf);
    AttributeList::encode_with(&mut writer, &list.mask, |attribute| {
        let (next, value) = left.next().unwrap();
        assert_eq!(*next, attribute);
        *value
    })
    .unwrap();
    let again: AttributeList<'_> = Reader::new(writer.written()).value().unwrap();
    assert_eq!((again, left.len()), (list, 0));
}
