//! Targets for the programs beside NFS: every parser of a program reads the same octets.

use stag_wire::rpcbind as rpcb;
use stag_wire::xdr::{Reader, Reduced, Writer};

use crate::nfs::{HEADER_LEN, check, read, write_again};

/// Arguments and results of every procedure of rpcbind, and universal addresses.
pub fn rpcbind(stream: &[u8]) {
    check!(u32, stream, &[]);
    check!(rpcb::Mapping, stream, &[]);
    check!(rpcb::Binding<'_>, stream, &[]);
    if let Some(text) = read!(rpcb::Text<'_>, stream, &[]) {
        assert!(text.0.len() <= rpcb::TEXT_LEN_MAX as usize);
        if let Some(address) = rpcb::UniversalAddress::parse(text.0) {
            let again = rpcb::UniversalAddress::new(address);
            assert_eq!(rpcb::UniversalAddress::parse(again.text().0), Some(address));
        }
    }
    if let Some(mappings) = read!(rpcb::Mappings<'_>, stream, &[]) {
        let mut buf = vec![0xff; stream.len()];
        let mut writer = Writer::new(&mut buf);
        rpcb::encode_mappings(&mut writer, mappings).expect("as many octets as it was read from");
        assert_eq!(writer.written(), &stream[..writer.position()]);
    }
    if let Some(bindings) = read!(rpcb::Bindings<'_>, stream, &[]) {
        let mut buf = vec![0xff; stream.len()];
        let mut writer = Writer::new(&mut buf);
        rpcb::encode_bindings(&mut writer, bindings).expect("as many octets as it was read from");
        let again: rpcb::Bindings<'_> = Reader::new(writer.written()).value().expect("as it was written");
        assert!(again.into_iter().eq(bindings));
    }
}
