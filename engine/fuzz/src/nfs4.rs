//! Targets for NFS version 4: COMPOUND and CB_COMPOUND, arguments and results, and attributes.
//!
//! As for version 3, an input begins with five octets that say which chunk there is beside the stream.

use std::fmt::Debug;

use stag_wire::nfs4::Bitmap;
use stag_wire::nfs4::attributes::{Attribute, AttributeList, AttributeValue};
use stag_wire::nfs4::compound::{
    CbCompoundCall, CbCompoundReply, CompoundCall, CompoundReply, OperationError, Operations,
    OperationsWriter, locate_write,
};
use stag_wire::nfs4::operation::{Argument4, OperationItem, Outcome4};
use stag_wire::xdr::{Encode, Reader, Reduced, Writer};

use crate::nfs::{HEADER_LEN, split_chunk};

/// Reads all operations of a message, as far as they can be read, with what was wrong behind them.
fn items<'a, I: OperationItem<'a> + Debug>(
    mut operations: Operations<'a, I>,
) -> (Vec<I>, Option<OperationError>) {
    let mut items = Vec::new();
    let mut left = operations.left();
    while let Some(item) = operations.next_item() {
        left -= 1;
        assert_eq!(operations.left(), left);
        match item {
            Ok(item) => items.push(item),
            Err(error) => return (items, Some(error)),
        }
    }
    assert_eq!(left, 0);
    (items, operations.finish().err().map(OperationError::Malformed))
}

/// Writes operations again and reads what was written: the same ones.
fn again<'w, 'b: 'w, I: Encode + PartialEq + Debug>(
    buf: &'b mut [u8],
    chunks: &'w [Reduced],
    items: &[I],
    begin: impl FnOnce(&mut Writer<'_>, &[I]),
    read: impl FnOnce(Reader<'w>) -> Vec<I>,
) {
    let len = {
        let mut writer = Writer::new(buf);
        begin(&mut writer, items);
        writer.position()
    };
    let written = &buf[..len];
    assert_eq!(read(Reader::with_reduced_at(written, HEADER_LEN, chunks)), items);
    // What people see of it ends, too.
    for item in items {
        assert!(!format!("{item:?}").is_empty());
    }
}

/// Values of attributes decode, encode to the same, and end.
fn check_attributes(list: &AttributeList<'_>) {
    let values: Vec<_> = list.values().collect();
    assert!(values.len() <= list.mask.iter().count() + 1);
    let Ok(values) = values.into_iter().collect::<Result<Vec<(Attribute, AttributeValue<'_>)>, _>>() else {
        return;
    };
    let mut buf = vec![0xff; list.values.len() + 512];
    let mut writer = Writer::new(&mut buf);
    let mut left = values.iter();
    AttributeList::encode_with(&mut writer, &list.mask, |attribute| {
        let (next, value) = left.next().expect("one for each");
        assert_eq!(*next, attribute);
        *value
    })
    .expect("as many octets as it was read from");
    let again: AttributeList<'_> = Reader::new(writer.written()).value().expect("as it was written");
    assert!(again.values().map(|value| value.expect("as it was read")).eq(values.iter().copied()));
    assert!(!format!("{list:?}").is_empty());
}

/// Octets that are enough to write again what was read from `stream`.
fn room(stream: &[u8]) -> Vec<u8> {
    vec![0xff; stream.len()]
}

/// Arguments of COMPOUND.
pub fn nfs4_call(input: &[u8]) {
    let Some((chunk, stream)) = split_chunk(input) else { return };
    let chunks = chunk.as_slice();
    let reader = || Reader::with_reduced_at(stream, HEADER_LEN, chunks);
    let place = locate_write(reader());
    let Ok(CompoundCall { tag, minor_version, operations }) = CompoundCall::parse(reader()) else {
        assert_eq!(place, None);
        return;
    };
    let (items, error) = items::<Argument4<'_>>(operations);
    items.iter().filter_map(Argument4::attributes).for_each(|list| check_attributes(&list));
    let write = items.iter().find_map(|item| match item {
        Argument4::Write(write) => Some(write.data.0.len()),
        _ => None,
    });
    if let Some(len) = write {
        assert_eq!(place.map(|place| place.len as usize), Some(len));
    }
    // An item that is not the chunk's leaves the chunk for those behind it, which may not come.
    if error.is_some() {
        return;
    }
    let mut buf = room(stream);
    again(
        &mut buf,
        chunks,
        &items,
        |writer, items| {
            let mut operations = OperationsWriter::begin_call(writer, &tag, minor_version).expect("room");
            items.iter().for_each(|item| operations.push(item).expect("as many octets as it was read from"));
            operations.finish();
        },
        |reader| self::items(CompoundCall::parse(reader).expect("as it was written").operations).0,
    );
}

/// Results of COMPOUND.
pub fn nfs4_reply(input: &[u8]) {
    let Some((chunk, stream)) = split_chunk(input) else { return };
    let chunks = chunk.as_slice();
    let reader = Reader::with_reduced_at(stream, HEADER_LEN, chunks);
    let Ok(CompoundReply { tag, operations, .. }) = CompoundReply::parse(reader) else { return };
    let (items, error) = items::<Outcome4<'_>>(operations);
    items.iter().flat_map(Outcome4::attributes).for_each(|list| check_attributes(&list));
    if error.is_some() {
        return;
    }
    let mut buf = room(stream);
    again(
        &mut buf,
        chunks,
        &items,
        |writer, items| {
            let mut operations = OperationsWriter::begin_reply(writer, &tag).expect("room");
            items
                .iter()
                .for_each(|item| operations.push_result(item).expect("as many octets as it was read from"));
            operations.finish();
        },
        |reader| {
            let reply = CompoundReply::parse(reader).expect("as it was written");
            let (again, _) = self::items(reply.operations);
            if let Some(last) = again.last() {
                assert_eq!(last.status(), reply.status);
            }
            again
        },
    );
}

/// Arguments and results of CB_COMPOUND, which has no chunks.
pub fn nfs4_callback(stream: &[u8]) {
    if let Ok(CbCompoundCall { tag, minor_version, callback_ident, operations }) =
        CbCompoundCall::parse(Reader::new(stream))
        && let (items, None) = items(operations)
    {
        let mut buf = room(stream);
        again(
            &mut buf,
            &[],
            &items,
            |writer, items| {
                let mut operations =
                    OperationsWriter::begin_callback(writer, &tag, minor_version, callback_ident)
                        .expect("room");
                items
                    .iter()
                    .for_each(|item| operations.push(item).expect("as many octets as it was read from"));
                operations.finish();
            },
            |reader| self::items(CbCompoundCall::parse(reader).expect("as it was written").operations).0,
        );
    }
    if let Ok(CbCompoundReply { tag, operations, .. }) = CbCompoundReply::parse(Reader::new(stream))
        && let (items, None) = items(operations)
    {
        let mut buf = room(stream);
        again(
            &mut buf,
            &[],
            &items,
            |writer, items| {
                let mut operations = OperationsWriter::begin_reply(writer, &tag).expect("room");
                let written = items.iter().try_for_each(|item| operations.push_callback_result(item));
                written.expect("as many octets as it was read from");
                operations.finish();
            },
            |reader| self::items(CbCompoundReply::parse(reader).expect("as it was written").operations).0,
        );
    }
}

/// Attributes: three words of a bitmap and values; and the same octets as a list.
pub fn nfs4_attributes(input: &[u8]) {
    if let Ok(list) = Reader::new(input).value::<AttributeList<'_>>() {
        check_attributes(&list);
    }
    if let Some((words, values)) = input.split_first_chunk::<12>() {
        let word = |at: usize| u32::from_be_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
        let mask = Bitmap::from_words([word(0), word(4), word(8)]);
        check_attributes(&AttributeList { mask, values });
    }
}
