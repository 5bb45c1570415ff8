//! Large lists: each entry is read once, and each file looked at once, however the list goes.

use stag_wire::nfs3::{Handle, ReaddirArguments, ReaddirplusArguments};

use super::counted::{NAMES, name, pair};

/// Octets of a list, and Replies at most that all names take: by one Reply chunk, and by several.
const BY_CHUNK: [(u32, u64); 2] = [(1 << 20, 1), (32 << 10, 4)];

/// The same of lists that fit inline.
const INLINE: (u32, u64) = (3500, 10);

#[test]
fn each_entry_of_readdirplus_is_looked_at_once() {
    let (mut pair, asked) = pair();
    let root = pair.root.clone();
    for (count, replies_max) in BY_CHUNK {
        asked.forget();
        let (mut cookie, mut verifier, mut names, mut replies) = (0, [0; 8], 0, 0);
        loop {
            let (directory, dircount, maxcount) = (Handle(&root), count, count);
            let arguments = ReaddirplusArguments { directory, cookie, verifier, dircount, maxcount };
            let eof = pair.ask(arguments, |reply| {
                let list = reply.unwrap();
                verifier = list.verifier;
                for entry in list.entries {
                    assert_eq!(entry.name.0, name(names).as_bytes());
                    (cookie, names) = (entry.cookie, names + 1);
                }
                list.eof
            });
            replies += 1;
            if eof {
                break;
            }
        }
        assert_eq!(names, NAMES);
        assert!(replies <= replies_max, "{replies} Replies of {count} octets");
        asked.assert_once(true, replies);
    }
}

#[test]
fn each_entry_of_readdir_is_read_once() {
    let (mut pair, asked) = pair();
    let root = pair.root.clone();
    for (count, replies_max) in BY_CHUNK.into_iter().chain([INLINE]) {
        asked.forget();
        let (mut cookie, mut verifier, mut names, mut replies) = (0, [0; 8], 0, 0);
        loop {
            let directory = Handle(&root);
            let eof = pair.ask(ReaddirArguments { directory, cookie, verifier, count }, |reply| {
                let list = reply.unwrap();
                verifier = list.verifier;
                for entry in list.entries {
                    assert_eq!(entry.name.0, name(names).as_bytes());
                    (cookie, names) = (entry.cookie, names + 1);
                }
                list.eof
            });
            replies += 1;
            if eof {
                break;
            }
        }
        assert_eq!(names, NAMES);
        assert!(replies <= replies_max, "{replies} Replies of {count} octets");
        asked.assert_once(false, replies);
    }
}
