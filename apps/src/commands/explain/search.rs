//! Finds the entries that a typed or pasted text may mean.

use stag_server::nearest::changes;

use super::table::{Entry, TERMINATE, Table};

/// An entry that was looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'t> {
    /// Where it stands.
    pub(super) table: &'t Table,
    /// What it is.
    pub(super) entry: &'t Entry,
    /// What its reader has to know about how it was found.
    pub(super) note: Option<&'static str>,
}

/// What a search comes to.
pub(super) enum Answer<'t> {
    /// Lists whole kinds.
    Kinds(Vec<&'t Table>),
    /// These, in the order of the tables.
    Found(Vec<Found<'t>>),
    /// None; these names are near.
    Nothing {
        /// The nearest first.
        near: Vec<&'t str>,
    },
}

/// Shortest part of a name, and of a message, that is looked for.
const PART_LEN_MIN: usize = 3;
const MESSAGE_LEN_MIN: usize = 6;

/// Names that are offered for one that is not known.
const NEAR_MAX: usize = 3;

/// Looks for `words`. The first may be a kind, which narrows the search.
pub(super) fn search<'t>(tables: &'t [Table], words: &[String]) -> Answer<'t> {
    let all: Vec<&Table> = tables.iter().collect();
    let Some((first, rest)) = words.split_first() else { return Answer::Kinds(all) };
    let narrowed: Vec<&Table> = tables.iter().filter(|table| is_kind(&table.kind, first)).collect();
    let is_narrow = !narrowed.is_empty();
    if is_narrow && rest.is_empty() {
        return Answer::Kinds(narrowed);
    }
    let (scope, words) = if is_narrow { (narrowed, rest) } else { (all, words) };
    let query = Query { scope: &scope, text: words.join(" ").trim().to_owned(), is_narrow };
    let steps = [Query::exact, Query::pasted, Query::beginning, Query::within];
    match steps.iter().map(|step| step(&query)).find(|found| !found.is_empty()) {
        Some(found) => Answer::Found(found),
        None => Answer::Nothing { near: query.near() },
    }
}

/// Whether `word` names the kind or a family of kinds: `cm` is `cm-event` and others, `nfs` is `nfs3`.
fn is_kind(kind: &str, word: &str) -> bool {
    let rest = kind.strip_prefix(word.to_ascii_lowercase().as_str());
    rest.is_some_and(|rest| {
        !word.is_empty() && rest.trim_start_matches(|c: char| c.is_ascii_digit()).is_empty()
    }) || rest.is_some_and(|rest| rest.starts_with('-'))
}

struct Query<'t, 'q> {
    scope: &'q [&'t Table],
    text: String,
    is_narrow: bool,
}

impl<'t> Query<'t, '_> {
    /// All entries of the scope that `is` says yes to.
    fn filter(&self, is: impl Fn(&Table, &Entry) -> bool) -> Vec<Found<'t>> {
        let entries =
            self.scope.iter().flat_map(|table| table.entries.iter().map(move |entry| (*table, entry)));
        let found = entries.filter(|(table, entry)| is(table, entry));
        found.map(|(table, entry)| Found { table, entry, note: None }).collect()
    }

    /// The number, or the whole name.
    fn exact(&self) -> Vec<Found<'t>> {
        let Some(number) = number(&self.text) else {
            let asked = |table: &Table| keys(table, &self.text);
            return self.filter(|table, entry| {
                keys(table, &entry.name).iter().any(|key| asked(table).contains(key))
            });
        };
        // Any small number is some layer's code: a Terminate is meant only by what is written like one.
        let causes = self.filter(|table, entry| table.kind == TERMINATE && is_cause(entry, number));
        if !causes.is_empty() && (self.is_narrow || self.text.len() == "0xLTCC".len()) {
            return causes;
        }
        let is_it = |own: i64| own == number || own < 0 && own == -number;
        self.filter(|table, entry| table.kind != TERMINATE && entry.number.is_some_and(is_it))
    }

    /// A message as programs print it, or one with names in it.
    fn pasted(&self) -> Vec<Found<'t>> {
        let text = self.text.to_lowercase();
        let is_part = |says: &str| text.len() >= MESSAGE_LEN_MIN && says.to_lowercase().contains(&text);
        // A word of English may be a name, too: one with an underscore is no accident.
        let is_word = |c: char| !c.is_ascii_alphanumeric() && c != '_';
        let names: Vec<&str> = self.text.split(is_word).filter(|word| word.contains('_')).collect();
        let mut found = self.filter(|table, entry| {
            let names = names.iter().flat_map(|name| keys(table, name));
            let own = keys(table, &entry.name);
            entry.says.iter().any(|says| matches(says, &text) || is_part(says))
                || names.into_iter().any(|name| own.contains(&name))
        });
        if let Some([layer, error_type, code]) = cause(&text) {
            let reading = |layer: i64, error_type: i64| layer << 12 | error_type << 8 | code;
            let causes =
                |number| self.filter(move |table, entry| table.kind == TERMINATE && is_cause(entry, number));
            found.extend(causes(reading(layer, error_type)));
            let exchanged = causes(reading(error_type, layer)).into_iter();
            let note =
                "if it was siw that printed this about a peer that is not siw: siw exchanges layer and type";
            let exchanged = exchanged.map(|found| Found { note: Some(note), ..found });
            found.extend(exchanged.filter(|_| layer != error_type));
        }
        found
    }

    /// Names that begin so.
    fn beginning(&self) -> Vec<Found<'t>> {
        self.names(|name, part| name.starts_with(part))
    }

    /// Names that have it somewhere.
    fn within(&self) -> Vec<Found<'t>> {
        self.names(|name, part| name.contains(part))
    }

    fn names(&self, is: impl Fn(&str, &str) -> bool) -> Vec<Found<'t>> {
        self.filter(|table, entry| {
            let parts = keys(table, &self.text).into_iter().filter(|part| part.len() >= PART_LEN_MIN);
            let own = keys(table, &entry.name);
            parts.into_iter().any(|part| own.iter().any(|name| is(name, &part)))
        })
    }

    /// The names that take the fewest changes to get to.
    fn near(&self) -> Vec<&'t str> {
        let mut names: Vec<(usize, &'t str)> = Vec::new();
        for (table, entry) in self.filter(|_, _| true).iter().map(|found| (found.table, found.entry)) {
            let own = keys(table, &entry.name);
            let asked = keys(table, &self.text);
            let pairs = own.iter().flat_map(|own| asked.iter().map(move |asked| (own, asked)));
            let near = pairs.map(|(own, asked)| (distance(asked, own), asked.len())).min();
            // More changes than a third of what was typed: it is another word.
            if let Some((changes, _)) = near.filter(|(changes, len)| 3 * changes <= *len) {
                names.push((changes, &entry.name));
            }
        }
        names.sort();
        names.into_iter().map(|(_, name)| name).take(NEAR_MAX).collect()
    }
}

/// A name as it is compared: without case and punctuation, in full and without the prefixes of its kind.
fn keys(table: &Table, name: &str) -> Vec<String> {
    let plain = |text: &str| -> String {
        text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_uppercase()).collect()
    };
    let full = plain(name);
    let short = table.prefixes.iter().filter_map(|prefix| full.strip_prefix(&plain(prefix)));
    let short: Vec<String> = short.filter(|rest| !rest.is_empty()).map(str::to_owned).collect();
    std::iter::once(full.clone()).chain(short).filter(|key| !key.is_empty()).collect()
}

/// A number, decimal or hexadecimal.
fn number(text: &str) -> Option<i64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Whether a Terminate's number is the entry's.
fn is_cause(entry: &Entry, number: i64) -> bool {
    let mask = if entry.any_code { 0xff00 } else { 0xffff };
    entry.number == Some(number & mask) && number <= 0xffff
}

/// Layer, error type and code of a Terminate: `1/1/0`, `layer 1, type 1, code 0`.
fn cause(text: &str) -> Option<[i64; 3]> {
    let after = |word: &str| {
        let rest = &text[text.rfind(word)? + word.len()..];
        rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?.parse::<i64>().ok()
    };
    let numbers = || {
        let numbers = text.split(['/', ',', ' ']).filter(|part| !part.is_empty());
        let numbers: Result<Vec<i64>, _> = numbers.map(str::parse).collect();
        <[i64; 3]>::try_from(numbers.ok()?).ok()
    };
    let named = after("layer").zip(after("type")).zip(after("code"));
    let [layer, error_type, code] =
        named.map(|((layer, kind), code)| [layer, kind, code]).or_else(numbers)?;
    let fits = (0..16).contains(&layer) && (0..16).contains(&error_type) && (0..256).contains(&code);
    fits.then_some([layer, error_type, code])
}

/// Whether the parts of `pattern` between its `*` are all in `text`, one behind the other.
fn matches(pattern: &str, text: &str) -> bool {
    let mut rest = text;
    pattern.to_lowercase().split('*').all(|part| match rest.split_once(part) {
        Some((_, behind)) => {
            rest = behind;
            true
        }
        None => false,
    })
}

/// Changes that make `asked` what `name` begins with: names are typed without their ends.
fn distance(asked: &str, name: &str) -> usize {
    // More changes than a third of what was typed make another word.
    let near = asked.len().saturating_sub(asked.len() / 3)..=asked.len() + asked.len() / 3;
    let beginnings = near.filter_map(|len| name.get(..len)).chain([name]);
    beginnings.map(|beginning| changes(asked, beginning)).min().unwrap_or(usize::MAX)
}
