//! Rpcbind: the examples of the specification, and everything read and written again.

use stag_wire::rpcbind::{
    Binding, Bindings, Mapping, Mappings, PROGRAM, TEXT_LEN_MAX, Text, UniversalAddress, encode_bindings,
    encode_mappings, netid, protocol,
};
use stag_wire::xdr::{Encode, Overflow, Reader, Writer, XdrError};

mod support;
use support::vector;

fn written(encode: impl FnOnce(&mut Writer<'_>) -> Result<(), Overflow>) -> Vec<u8> {
    let mut buf = [0xff; 1024];
    let mut writer = Writer::new(&mut buf);
    encode(&mut writer).unwrap();
    writer.written().to_vec()
}

fn encoded(value: &impl Encode) -> Vec<u8> {
    written(|writer| writer.value(value))
}

#[test]
fn getport_asks_for_a_mapping() {
    let wire = vector!("portmap-getport");
    let mapping = Mapping { program: 100_003, version: 3, protocol: protocol::TCP, port: 0 };
    assert_eq!(Reader::new(&wire).value(), Ok(mapping));
    assert_eq!(encoded(&mapping), wire);
}

/// 8267-4.2-a: NFS/RDMA registers under the netid `rdma`, at any port or 20049.
#[test]
fn getaddr_asks_for_a_binding_and_gets_an_address() {
    let wire = vector!("rpcb-getaddr");
    let nothing = Text(b"");
    let binding =
        Binding { program: 100_003, version: 3, netid: Text(netid::RDMA), address: nothing, owner: nothing };
    assert_eq!(Reader::new(&wire).value(), Ok(binding));
    assert_eq!(encoded(&binding), wire);

    let wire = vector!("rpcb-uaddr");
    let address = "192.0.2.1:20049".parse().unwrap();
    let text: Text<'_> = Reader::new(&wire).value().unwrap();
    assert_eq!(UniversalAddress::parse(text.0), Some(address));
    assert_eq!(encoded(&UniversalAddress::new(address).text()), wire);
}

#[test]
fn dumps_are_lists() {
    let mappings = [1, 2].map(|version| Mapping { program: PROGRAM, version, protocol: 6, port: 111 });
    let wire = written(|writer| encode_mappings(writer, mappings));
    assert_eq!(wire.len(), 2 * 20 + 4);
    let read: Mappings<'_> = Reader::new(&wire).value().unwrap();
    assert!(read.into_iter().eq(mappings));
    assert_eq!(encoded(&read), wire);

    let bindings = [netid::TCP, netid::TCP6].map(|netid| Binding {
        program: PROGRAM,
        version: 4,
        netid: Text(netid),
        address: Text(b"::.0.111"),
        owner: Text(b"superuser"),
    });
    let wire = written(|writer| encode_bindings(writer, bindings));
    let read: Bindings<'_> = Reader::new(&wire).value().unwrap();
    assert!(read.into_iter().eq(bindings));
    assert_eq!(encoded(&read), wire);
    assert_eq!(Reader::new(&wire[..wire.len() - 4]).value::<Bindings<'_>>(), Err(XdrError::Truncated));
}

/// XDR-f: a string says its length, and it is not believed.
#[test]
fn texts_are_capped() {
    for found in [TEXT_LEN_MAX + 1, u32::MAX] {
        let wire = found.to_be_bytes();
        let error = XdrError::TooLong { limit: TEXT_LEN_MAX, found };
        assert_eq!(Reader::new(&wire).value::<Text<'_>>(), Err(error));
    }
}
