//! Large lists of READDIR with attributes: each entry is read once, and each file looked at once, however the list goes.

use stag_rpc::Chunks;
use stag_wire::nfs4::attributes::Attribute;
use stag_wire::nfs4::directory::ReaddirArguments4;
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::{Opaque, Verifier4};

use super::client::{Client, Compound, FORE};
use super::counted::{NAMES, name, pair};
use super::files::{ROOT, request};

#[test]
fn each_entry_of_a_list_with_attributes_is_looked_at_once() {
    let (pair, asked) = pair();
    let mut client = Client::of(pair, b"client", FORE);
    let wanted =
        [Attribute::Type, Attribute::Size, Attribute::FileId, Attribute::Mode, Attribute::FileHandle];
    // All names by one Reply chunk, and by several: octets of a list, and Replies at most.
    for (maxcount, replies_max) in [(1 << 20, 1), (32 << 10, 4)] {
        asked.forget();
        let (mut cookie, mut verifier, mut names, mut replies) = (0, Verifier4 { 0: [0; 8] }, 0, 0);
        let mut is_over = false;
        while !is_over {
            let (dircount, request) = (maxcount, request(&wanted));
            let arguments = ReaddirArguments4 { cookie, verifier, dircount, maxcount, request };
            let operations = [ROOT, Argument4::Lookup(Opaque(b"data")), Argument4::Readdir(arguments)];
            let finished = client.finished(&operations, Chunks::default(), maxcount + 1024);
            let answer = finished.reply::<Compound<'_>>().unwrap();
            let Some(Outcome4::Readdir(Ok(list))) = answer.outcomes.last() else { panic!("{answer:?}") };
            for entry in list.entries.into_iter() {
                assert_eq!(entry.name.0, name(names).as_bytes());
                (cookie, names) = (entry.cookie, names + 1);
            }
            (verifier, is_over) = (list.verifier, list.eof);
            replies += 1;
        }
        assert_eq!(names, NAMES);
        assert!(replies <= replies_max, "{replies} Replies of {maxcount} octets");
        asked.assert_once(true, replies);
    }
}
