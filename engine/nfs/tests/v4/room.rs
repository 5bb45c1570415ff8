//! Results that have no room: the operation fails before it has an effect (RFC 8881 section 2.10.6.4).

use stag_rpc::Chunks;
use stag_wire::nfs4::attributes::{Attribute, AttributeValue};
use stag_wire::nfs4::files::{CreateType, RenameArguments4, SetattrArguments4};
use stag_wire::nfs4::open::CreateHow4;
use stag_wire::nfs4::operation::{Argument4, Outcome4};
use stag_wire::nfs4::session::ChannelAttributes;
use stag_wire::nfs4::{Opaque, StateId, Status4};

use super::Lab;
use super::client::{Compound, FORE, RESULTS_MAX, create_session};
use super::files::{Attributes, GETFH, NO_ATTRIBUTES, SAVEFH, create, put};
use super::state::{open_create, write};

/// Octets of a reply, and of one that is kept.
const RESPONSE_MAX: u32 = 600;
const KEPT_MAX: u32 = 400;

/// A client of a session with short replies.
fn lab() -> Lab {
    let mut lab = Lab::new(&["/data,root_squash=no"]);
    let fore = ChannelAttributes { response_max: RESPONSE_MAX, response_cached_max: KEPT_MAX, ..FORE };
    let short = [create_session(lab.clientid, 2, fore)];
    lab.session = lab.pair.compound(2, &short, |answer| {
        let [Outcome4::CreateSession(Ok(session))] = answer.outcomes[..] else { panic!("{answer:?}") };
        session
    });
    lab.sequence_ids = vec![0; lab.session.fore.requests_max as usize];
    lab
}

/// Tries these operations with ever more room, down to the octet, until they succeed: a tag that the reply repeats takes the rest.
/// Until then the one numbered `changing` must not have changed what `look` sees. Returns how often it had too little room.
fn refusals(
    lab: &mut Lab,
    operations: &[Argument4<'_>],
    changing: usize,
    look: impl Fn(&mut Lab) -> String,
) -> usize {
    let (keeps, mut refusals) = (lab.keeps, 0);
    let look = |lab: &mut Lab| {
        let keeps = std::mem::take(&mut lab.keeps);
        let seen = look(lab);
        lab.keeps = keeps;
        seen
    };
    let before = look(lab);
    let (most, too_big) = match keeps {
        true => (KEPT_MAX, Status4::RepTooBigToCache),
        false => (RESPONSE_MAX, Status4::RepTooBig),
    };
    for tag_len in (0..most as usize).rev() {
        let tag = vec![b't'; tag_len];
        let mut all = vec![lab.sequence(0)];
        all.extend_from_slice(operations);
        let compound = Compound { minor: 2, tag: &tag, operations: &all, results_max: RESULTS_MAX };
        let finished = lab.pair.call(&compound, Chunks::default());
        let answer = finished.reply::<Compound<'_>>().unwrap();
        if let [Outcome4::Sequence(Err(status))] = answer.outcomes[..] {
            assert_eq!(status, too_big);
            // Its slot is as it was.
            lab.sequence_ids[0] -= 1;
            continue;
        }
        let last = answer.outcomes.len() - 2;
        if answer.status == Status4::Ok {
            assert_ne!(look(lab), before, "it has its effect");
            return refusals;
        }
        assert_eq!(answer.status, too_big, "{:?}", answer.outcomes);
        assert!(last <= changing, "{:?}", answer.outcomes);
        assert_eq!(look(lab), before, "{:?}", answer.outcomes);
        refusals += usize::from(last == changing);
    }
    panic!("there is never room")
}

/// The same, for the first reason and for the other: the reply is too long to be kept.
fn changes_nothing_without_room<'a>(
    lab: &mut Lab,
    operations: impl Fn(bool) -> Vec<Argument4<'a>>,
    changing: usize,
    look: impl Fn(&mut Lab) -> String,
) {
    for keeps in [false, true] {
        lab.keeps = keeps;
        assert!(refusals(lab, &operations(keeps), changing, &look) > 0, "it had too little room once");
    }
    lab.keeps = false;
}

fn named(keeps: bool) -> &'static [u8] {
    if keeps { b"kept" } else { b"plain" }
}

fn directory(keeps: bool) -> Argument4<'static> {
    create(CreateType::Directory, named(keeps), NO_ATTRIBUTES)
}

fn new_file(keeps: bool) -> Argument4<'static> {
    open_create(named(keeps), CreateHow4::Guarded(NO_ATTRIBUTES))
}

/// What is in the first export's root.
fn names(lab: &mut Lab) -> String {
    let root = lab.root();
    format!("{:?}", lab.names(&root))
}

/// 8881-2.10.6.4: an object that is made.
#[test]
fn nothing_is_made_without_room() {
    let mut lab = lab();
    let root = lab.root();
    changes_nothing_without_room(&mut lab, |keeps| vec![put(&root), directory(keeps)], 1, names);
    lab.statuses(&root, &[false, true].map(|keeps| (Argument4::Remove(Opaque(named(keeps))), Status4::Ok)));
    changes_nothing_without_room(&mut lab, |keeps| vec![put(&root), new_file(keeps)], 1, names);
}

/// 8881-2.10.6.4: an object whose handle the GETFH behind could not tell is not made.
#[test]
fn nothing_is_made_whose_handle_has_no_room() {
    let mut lab = lab();
    let root = lab.root();
    changes_nothing_without_room(&mut lab, |keeps| vec![put(&root), directory(keeps), GETFH], 1, names);
    lab.statuses(&root, &[false, true].map(|keeps| (Argument4::Remove(Opaque(named(keeps))), Status4::Ok)));
    changes_nothing_without_room(&mut lab, |keeps| vec![put(&root), new_file(keeps), GETFH], 1, names);
}

/// 8881-2.10.6.4: names.
#[test]
fn no_name_changes_without_room() {
    let mut lab = lab();
    let (root, file) = (lab.root(), lab.make_file(b"file"));
    lab.make_directory(b"plain");
    lab.make_directory(b"kept");
    let link = |keeps| Argument4::Link(Opaque(if keeps { b"other" } else { b"another" }));
    changes_nothing_without_room(
        &mut lab,
        |keeps| vec![put(&file), SAVEFH, put(&root), link(keeps)],
        3,
        names,
    );
    let rename = |keeps| {
        let (from, to) = if keeps { (b"moved", b"again") } else { (b"other", b"moved") };
        Argument4::Rename(RenameArguments4 { from: Opaque(from), to: Opaque(to) })
    };
    changes_nothing_without_room(&mut lab, |keeps| vec![put(&root), SAVEFH, rename(keeps)], 2, names);
    let remove = |keeps| Argument4::Remove(Opaque(named(keeps)));
    changes_nothing_without_room(&mut lab, |keeps| vec![put(&root), remove(keeps)], 1, names);
}

/// 8881-2.10.6.4: attributes and data.
#[test]
fn no_file_changes_without_room() {
    let mut lab = lab();
    let file = lab.make_file(b"file");
    let modes = [0o640, 0o600].map(|mode| Attributes::of(&[(Attribute::Mode, AttributeValue::U32(mode))]));
    let set = |keeps| {
        let attributes = modes[usize::from(keeps)].list();
        Argument4::Setattr(SetattrArguments4 { stateid: StateId::ANONYMOUS, attributes })
    };
    let mode = |lab: &mut Lab| lab.attribute(&file, Attribute::Mode);
    changes_nothing_without_room(&mut lab, |keeps| vec![put(&file), set(keeps)], 1, mode);
    let data = |keeps| write(StateId::ANONYMOUS, if keeps { 3 } else { 0 }, b"abc");
    let size = |lab: &mut Lab| lab.attribute(&file, Attribute::Size);
    changes_nothing_without_room(&mut lab, |keeps| vec![put(&file), data(keeps)], 1, size);
}
