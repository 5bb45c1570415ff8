//! Which processes may be at the other end: those of our own user, and those that the configuration admits.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::str::FromStr;

use super::rendezvous;
use crate::Peer;

/// Processes that are admitted besides those of our own user: written `uid:1000`, `gid:100` or `any`.
///
/// By their effective user and group and their supplementary groups, as the kernel tells them (SO_PEERCRED): a client's
/// when it connected, a listener's when it began to listen. In a user namespace, users of others who have no number in it all
/// have the number in `/proc/sys/kernel/overflowuid` (65534): do not admit that one there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// A user.
    User(u32),
    /// The members of a group.
    Group(u32),
    /// Any process that reaches the name.
    Anybody,
}

impl fmt::Display for Admit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Admit::User(uid) => write!(f, "uid:{uid}"),
            Admit::Group(gid) => write!(f, "gid:{gid}"),
            Admit::Anybody => f.write_str("any"),
        }
    }
}

/// Why a text names no user or group to admit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no user or group; write uid:NUMBER, gid:NUMBER or any")]
pub struct BadAdmit(String);

impl FromStr for Admit {
    type Err = BadAdmit;

    fn from_str(text: &str) -> Result<Admit, BadAdmit> {
        // The largest number stands for none, in all system calls.
        let number = |text: &str| {
            let is_plain = text.bytes().all(|octet| octet.is_ascii_digit());
            text.parse().ok().filter(|&id| is_plain && id != u32::MAX)
        };
        let admit = match text.split_once(':') {
            None if text == "any" => Some(Admit::Anybody),
            Some(("uid", uid)) => number(uid).map(Admit::User),
            Some(("gid", gid)) => number(gid).map(Admit::Group),
            _ => None,
        };
        admit.ok_or_else(|| BadAdmit(text.to_owned()))
    }
}

/// Our user, as peers see it.
pub(super) fn own_user() -> u32 {
    // SAFETY: no pointers; it cannot fail.
    unsafe { libc::geteuid() }
}

/// The user of a peer. An address has none, and no shared memory either.
pub(super) fn user(peer: &Peer) -> u32 {
    match *peer {
        Peer::Process { uid, .. } => uid,
        Peer::Address(_) => u32::MAX,
    }
}

/// Whether the process at the other end of `socket` is of our user, `own`, or one of `admitted`.
pub(super) fn is_admitted(admitted: &[Admit], own: u32, peer: &Peer, socket: BorrowedFd<'_>) -> bool {
    let Peer::Process { uid, .. } = *peer else { return false };
    let is_it = |admit: &Admit| match *admit {
        Admit::User(admitted) => uid == admitted,
        Admit::Group(gid) => rendezvous::is_in_group(socket, peer, gid),
        Admit::Anybody => true,
    };
    uid == own || admitted.iter().any(is_it)
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn texts_are_read_and_shown() {
        for (text, admit) in
            [("uid:0", Admit::User(0)), ("gid:100", Admit::Group(100)), ("any", Admit::Anybody)]
        {
            assert_eq!(text.parse(), Ok(admit));
            assert_eq!(admit.to_string(), text);
        }
        let bad = ["", "0", "uid", "uid:", "uid:-1", "uid:+1", "uid:4294967295", "uid:root", "any:1", "ANY"];
        for text in bad {
            assert_eq!(text.parse::<Admit>(), Err(BadAdmit(text.to_owned())));
        }
    }

    #[test]
    fn nobody_but_our_user_is_admitted_unless_we_are_told() {
        let (near, _far) = UnixStream::pair().unwrap();
        let socket = near.as_fd();
        let peer = |uid| Peer::Process { pid: 1, uid, gid: 7 };
        for own in [0, 1000] {
            assert!(is_admitted(&[], own, &peer(own), socket));
            for other in [0, 1000, 65534].into_iter().filter(|other| *other != own) {
                assert!(!is_admitted(&[], own, &peer(other), socket), "{other} by {own}");
                assert!(!is_admitted(&[Admit::User(other + 1)], own, &peer(other), socket));
                assert!(is_admitted(&[Admit::Group(8), Admit::User(other)], own, &peer(other), socket));
                assert!(is_admitted(&[Admit::Group(7)], own, &peer(other), socket));
                assert!(is_admitted(&[Admit::Anybody], own, &peer(other), socket));
            }
        }
        let address = Peer::Address(([127, 0, 0, 1], 1).into());
        assert!(!is_admitted(&[Admit::Anybody], 0, &address, socket));
    }

    /// The supplementary groups of the process at the other end, which is this one.
    #[test]
    fn a_group_is_asked_of_the_kernel() {
        let (near, _far) = UnixStream::pair().unwrap();
        let peer = Peer::Process { pid: 1, uid: 0, gid: u32::MAX };
        // SAFETY: no room asks for the number of groups.
        let count = unsafe { libc::getgroups(0, std::ptr::null_mut()) };
        let mut groups = vec![0; count as usize];
        // SAFETY: room for that many.
        unsafe { libc::getgroups(count, groups.as_mut_ptr()) };
        for gid in 0..200 {
            let is_ours = groups.contains(&gid);
            assert_eq!(rendezvous::is_in_group(near.as_fd(), &peer, gid), is_ours, "{gid}");
        }
    }
}
