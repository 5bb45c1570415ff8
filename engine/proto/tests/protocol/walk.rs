//! Walks a state machine exhaustively: every event at every state that a driver can tell apart.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;

/// A machine, and what its driver knows.
pub(crate) trait Walk: Sized {
    type Event: Copy + Debug + PartialEq + 'static;

    /// Every event that there is.
    const EVENTS: &'static [Self::Event];

    /// A new machine.
    fn start() -> Self;

    /// Feeds `event` to the machine, whatever its state.
    fn step(&mut self, event: Self::Event);

    /// The state, with all that can be told of it from outside.
    fn name(self) -> String;
}

/// The state at the end of `path`. `None`: its last event panics there.
fn name<W: Walk>(path: &[W::Event]) -> Option<String> {
    let mut walk = W::start();
    let (last, before) = path.split_last()?;
    before.iter().for_each(|event| walk.step(*event));
    quietly(|| walk.step(*last))?;
    Some(walk.name())
}

/// Runs `step`. `None`: it panicked, which the picture shows; the message is suppressed.
fn quietly(step: impl FnOnce()) -> Option<()> {
    thread_local!(static IS_QUIET: Cell<bool> = const { Cell::new(false) });
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_QUIET.get() {
                others(panic);
            }
        }));
    });
    IS_QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(step));
    IS_QUIET.set(false);
    result.ok()
}

/// Where each event leads from the end of `path`.
fn row<W: Walk>(path: &[W::Event]) -> Vec<Option<String>> {
    let next = |event: &W::Event| [path, &[*event]].concat();
    W::EVENTS.iter().map(|event| name::<W>(&next(event))).collect()
}

/// All states and the edges between them. An event that is not in it changes nothing, and one that panics is a mistake of
/// the driver.
///
/// # Panics
///
/// When a state is in truth two: the same event leads to different states, by how it was reached.
pub(crate) fn picture<W: Walk>() -> String {
    let start = W::start().name();
    let mut numbers = BTreeMap::from([(start.clone(), 0)]);
    let (mut names, mut rows) = (vec![start], vec![row::<W>(&[])]);
    let mut edges = String::new();
    let mut waiting = VecDeque::from([Vec::new()]);
    let mut from = 0;
    while let Some(path) = waiting.pop_front() {
        for (place, &event) in W::EVENTS.iter().enumerate() {
            let Some(to) = rows[from][place].clone() else { continue };
            let next = [&path[..], &[event]].concat();
            let found = row::<W>(&next);
            let count = numbers.len();
            let number = *numbers.entry(to.clone()).or_insert(count);
            if number == count {
                names.push(to);
                rows.push(found);
                waiting.push_back(next);
            } else {
                assert!(found == rows[number], "{next:?} leads to a second state that is called {to}");
            }
            if number != from {
                edges.push_str(&format!("{from} -{event:?}-> {number}\n"));
            }
        }
        from += 1;
    }
    let states: String = (0..).zip(&names).map(|(number, name)| format!("{number}: {name}\n")).collect();
    let mut limits = String::new();
    for (place, event) in W::EVENTS.iter().enumerate() {
        let at: Vec<_> = (0..names.len()).filter(|state| rows[*state][place].is_some()).collect();
        if at.len() < names.len() {
            let at: String = at.iter().map(|state| format!(" {state}")).collect();
            limits.push_str(&format!("{event:?} panics but at{at}\n"));
        }
    }
    states + &edges + &limits
}

/// Asserts that each public method of `source` which takes `&mut self` is among `walked`, and the other way round.
pub(crate) fn assert_all_walked(source: &str, walked: impl Iterator<Item = &'static str>) {
    let mut methods: Vec<&str> = source
        .split("\n    pub fn ")
        .skip(1)
        .filter(|method| method.split('{').next().is_some_and(|signature| signature.contains("&mut self")))
        .filter_map(|method| method.split(['(', '<']).next())
        .collect();
    let mut walked: Vec<&str> = walked.collect();
    methods.sort_unstable();
    walked.sort_unstable();
    walked.dedup();
    assert_eq!(
        methods, walked,
        "left: the methods that change the machine; right: those that the walk calls"
    );
}

/// The events of a walk: their names, and the method of the machine that each calls.
macro_rules! events {
    ($($(#[$doc:meta])* $event:ident => $method:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Event {
            $($(#[$doc])* $event,)*
        }

        impl Event {
            const ALL: &'static [Event] = &[$(Event::$event,)*];

            fn method(self) -> &'static str {
                match self {
                    $(Event::$event => $method,)*
                }
            }
        }
    };
}
pub(crate) use events;
