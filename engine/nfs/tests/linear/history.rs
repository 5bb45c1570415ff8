//! Histories of one object, and whether some order of their steps explains them.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

/// A Call on an object, and what was answered.
pub(crate) trait Step: Debug {
    type State: Clone + Debug + Eq + Hash;

    /// The state after the step. `None`: in this state it would have been answered otherwise.
    fn follow(&self, state: &Self::State) -> Option<Self::State>;

    /// Whether it leaves every state as it is.
    fn only_looks(&self) -> bool;
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Begin(usize),
    End(usize),
}

/// The steps of one object, with the order of their beginnings and ends.
#[derive(Debug)]
pub(crate) struct History<S> {
    events: Vec<Event>,
    /// By number; `None`: it is under way, or was not executed.
    steps: Vec<Option<S>>,
}

impl<S: Step> History<S> {
    pub(crate) fn new() -> History<S> {
        History { events: Vec::new(), steps: Vec::new() }
    }

    /// A step begins. Returns its number.
    pub(crate) fn begin(&mut self) -> usize {
        self.steps.push(None);
        self.events.push(Event::Begin(self.steps.len() - 1));
        self.steps.len() - 1
    }

    /// A step ends with an answer.
    pub(crate) fn end(&mut self, number: usize, step: S) {
        self.steps[number] = Some(step);
        self.events.push(Event::End(number));
    }

    /// A step ends that was not executed.
    pub(crate) fn forget(&mut self, number: usize) {
        let is_it = |event: &Event| matches!(event, Event::Begin(begun) if *begun == number);
        self.events.retain(|event| !is_it(event));
    }

    /// Looks for an order that begins with this state: after each end, all states that the object may be in, each with those
    /// steps under way that have had their effect already.
    ///
    /// # Panics
    ///
    /// When there is no such order.
    #[track_caller]
    pub(crate) fn check(&self, first: S::State, what: &str) {
        let mut under_way: Vec<usize> = Vec::new();
        let mut found = HashSet::from([(first, Vec::<usize>::new())]);
        for (at, event) in self.events.iter().enumerate() {
            match *event {
                Event::Begin(number) => under_way.push(number),
                Event::End(ended) => {
                    found = self.explain(found, &under_way, ended);
                    under_way.retain(|number| *number != ended);
                    assert!(!found.is_empty(), "{what}: nothing explains it: {}", self.told(at));
                }
            }
        }
    }

    /// What there may be when this step has ended.
    fn explain(
        &self,
        before: HashSet<(S::State, Vec<usize>)>,
        under_way: &[usize],
        ended: usize,
    ) -> HashSet<(S::State, Vec<usize>)> {
        let mut after = HashSet::new();
        let mut seen = before.clone();
        let mut open: Vec<_> = before.into_iter().collect();
        while let Some((state, mut done)) = open.pop() {
            // A step that only looks stands in no other's way: it has its place as soon as it may.
            let looks = |number: &usize| {
                let step = self.step(*number);
                step.only_looks() && step.follow(&state).is_some()
            };
            let early: Vec<_> = under_way.iter().filter(|at| !done.contains(at) && looks(at)).collect();
            done.extend(early);
            done.sort_unstable();
            if done.contains(&ended) {
                let rest = done.into_iter().filter(|number| *number != ended).collect();
                after.insert((state, rest));
                continue;
            }
            for &number in under_way.iter().filter(|number| !done.contains(number)) {
                let Some(state) = self.step(number).follow(&state) else { continue };
                let mut done = done.clone();
                done.push(number);
                done.sort_unstable();
                if seen.insert((state.clone(), done.clone())) {
                    open.push((state, done));
                }
            }
        }
        after
    }

    fn step(&self, number: usize) -> &S {
        self.steps[number].as_ref().expect("all steps have ended when a history is checked")
    }

    /// The events up to this one, one a line.
    fn told(&self, at: usize) -> String {
        let line = |event: &Event| match *event {
            Event::Begin(number) => format!("\n{number} begins"),
            Event::End(number) => format!("\n{number} ends: {:?}", self.steps[number]),
        };
        self.events[..=at].iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    /// A word: what is written, and what is read.
    #[derive(Clone, Copy, Debug)]
    enum Word {
        Write(u8),
        Read(u8),
    }

    impl Step for Word {
        type State = u8;

        fn follow(&self, state: &u8) -> Option<u8> {
            match *self {
                Word::Write(value) => Some(value),
                Word::Read(value) => (value == *state).then_some(value),
            }
        }

        fn only_looks(&self) -> bool {
            matches!(self, Word::Read(_))
        }
    }

    /// Letters begin and end the steps: small ones begin, large ones end.
    fn is_explained(events: &str, steps: &[Word]) -> bool {
        let mut history = History::new();
        let mut numbers = Vec::new();
        for letter in events.chars() {
            match letter {
                'a'..='z' => numbers.push(history.begin()),
                _ => {
                    let at = letter as usize - 'A' as usize;
                    history.end(numbers[at], steps[at]);
                }
            }
        }
        catch_unwind(|| history.check(0, "a word")).is_ok()
    }

    #[test]
    fn what_can_be_explained_and_what_cannot() {
        use Word::{Read, Write};
        assert!(is_explained("aAbB", &[Write(1), Read(1)]));
        assert!(
            !is_explained("aAbB", &[Write(1), Read(0)]),
            "an old value after the new one was acknowledged"
        );
        assert!(is_explained("abAB", &[Write(1), Read(0)]), "at once: either");
        assert!(is_explained("abAB", &[Write(1), Read(1)]));
        assert!(!is_explained("abBcCA", &[Write(1), Read(1), Read(0)]), "it was seen, and then it was not");
        assert!(is_explained("abBcCA", &[Write(1), Read(0), Read(1)]));
        assert!(!is_explained("abABcC", &[Write(1), Write(2), Read(3)]), "a value that was never written");
        assert!(is_explained("abABcCdD", &[Write(1), Write(2), Read(1), Read(1)]));
        assert!(!is_explained("abABcCdD", &[Write(1), Write(2), Read(1), Read(2)]));
    }

    #[test]
    fn a_step_that_was_not_executed_explains_nothing() {
        let mut history = History::new();
        let (write, read) = (history.begin(), history.begin());
        history.forget(write);
        history.end(read, Word::Read(1));
        assert!(catch_unwind(|| history.check(0, "a word")).is_err());
    }
}
