//! Targets for the programs beside NFS: every parser of a program reads the same octets.

use stag_wire::nfsacl as acl;
use stag_wire::nlm4 as nlm;
use stag_wire::rpcbind as rpcb;
use stag_wire::{
    nsm as monitor,
    xdr::{Reader, Reduced, Writer},
};

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

/// Arguments and results of every procedure of NFSACL.
pub fn nfsacl(stream: &[u8]) {
    check!(acl::GetaclArguments<'_>, stream, &[]);
    check!(acl::SetaclReply, stream, &[]);
    let list = |list: &acl::Acl<'_>| {
        assert!(list.entries.iter().len() <= acl::ENTRIES_MAX as usize);
        let mut buf = vec![0xff; 8 + list.entries.iter().len() * acl::ENTRY_LEN];
        acl::encode_acl(&mut Writer::new(&mut buf), list.entries.iter(), false)
            .expect("room for every entry");
        let again: acl::Acl<'_> = Reader::new(&buf).value().expect("as it was written");
        assert_eq!(again.entries, list.entries);
    };
    if let Some(arguments) = read!(acl::SetaclArguments<'_>, stream, &[]) {
        list(&arguments.access);
        list(&arguments.default);
    }
    if let Some(Ok(lists)) = read!(acl::GetaclReply<'_>, stream, &[]) {
        list(&lists.access);
        list(&lists.default);
    }
}

/// Arguments and results of every procedure of NLM.
pub fn nlm4(stream: &[u8]) {
    if let Some(arguments) = read!(nlm::LockArguments<'_>, stream, &[]) {
        assert!(arguments.cookie.0.len() <= nlm::OBJECT_LEN_MAX as usize);
        assert!(arguments.lock.caller.0.len() <= nlm::NAME_LEN_MAX as usize);
    }
    check!(nlm::TestArguments<'_>, stream, &[]);
    check!(nlm::CancelArguments<'_>, stream, &[]);
    check!(nlm::UnlockArguments<'_>, stream, &[]);
    check!(nlm::ShareArguments<'_>, stream, &[]);
    check!(nlm::FreeAllArguments<'_>, stream, &[]);
    check!(nlm::Results<'_>, stream, &[]);
    check!(nlm::ShareResults<'_>, stream, &[]);
    if let Some(results) = read!(nlm::TestResults<'_>, stream, &[]) {
        let denied = matches!(results.outcome, nlm::Tested::Denied(_));
        assert_eq!(denied, results.outcome.status() == nlm::Status::Denied);
    }
}

/// Arguments and results of every procedure of NSM.
pub fn nsm(stream: &[u8]) {
    check!(monitor::StatArguments<'_>, stream, &[]);
    check!(monitor::MonArguments<'_>, stream, &[]);
    check!(monitor::MonitorId<'_>, stream, &[]);
    check!(monitor::Requester<'_>, stream, &[]);
    check!(monitor::NotifyArguments<'_>, stream, &[]);
    check!(monitor::StatResults, stream, &[]);
    check!(monitor::State, stream, &[]);
}
