//! What a source file imports, as far as text tells: its `use` declarations and the paths in its code.

/// A path, and the name by which it is known where it is imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) path: Vec<String>,
    pub(crate) name: String,
    /// `pub use`: the file hands the name on, and does not need it itself.
    pub(crate) is_handed_on: bool,
}

/// A file without comments, strings and tests.
pub(crate) struct Source {
    pub(crate) code: String,
    pub(crate) imports: Vec<Import>,
    /// Paths of two segments and more outside of imports.
    pub(crate) paths: Vec<Vec<String>>,
    /// Modules of tests that have files of their own.
    pub(crate) test_modules: Vec<String>,
}

impl Source {
    pub(crate) fn new(text: &str) -> Source {
        let (code, test_modules) = without_tests(&without_comments(text));
        let (mut imports, mut rest) = (Vec::new(), String::new());
        let mut left = code.as_str();
        while let Some(at) = find_word(left, "use") {
            let end = left[at..].find(';').map_or(left.len(), |end| at + end);
            let is_handed_on = left[..at].trim_end().ends_with("pub") || left[..at].trim_end().ends_with(')');
            rest.push_str(&left[..at]);
            expand(&left[at + 3..end], &[], is_handed_on, &mut imports);
            left = &left[end..];
        }
        rest.push_str(left);
        let paths = paths(&rest);
        Source { code: rest, imports, paths, test_modules }
    }

    /// Whether an item of this name is defined in the file.
    pub(crate) fn defines(&self, name: &str) -> bool {
        let kinds = ["struct", "enum", "fn", "const", "type", "trait", "static", "macro_rules!"];
        kinds.iter().any(|kind| {
            self.code.match_indices(kind).any(|(at, _)| {
                let behind = self.code[at + kind.len()..].trim_start();
                behind.strip_prefix(name).is_some_and(|rest| !rest.starts_with(is_of_a_name))
            })
        })
    }
}

fn is_of_a_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where this word stands for the first time.
fn find_word(text: &str, word: &str) -> Option<usize> {
    text.match_indices(word).map(|(at, _)| at).find(|&at| {
        !text[..at].ends_with(is_of_a_name) && text[at + word.len()..].starts_with(char::is_whitespace)
    })
}

/// Blanks out comments, strings and characters.
fn without_comments(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut left = text;
    while let Some(c) = left.chars().next() {
        let raw = ["r\"", "br\"", "r#\"", "br#\"", "r##\""].iter().find(|start| left.starts_with(*start));
        let is_inside_of_a_name = code.ends_with(is_of_a_name);
        let len = if left.starts_with("//") {
            left.find('\n').unwrap_or(left.len())
        } else if left.starts_with("/*") {
            left.find("*/").map_or(left.len(), |end| end + 2)
        } else if let Some(start) = raw.filter(|_| !is_inside_of_a_name) {
            let end = format!("\"{}", "#".repeat(start.matches('#').count()));
            left[start.len()..].find(&end).map_or(left.len(), |at| start.len() + at + end.len())
        } else if c == '"' {
            quoted(left, '"')
        } else if c == '\'' && (left[1..].starts_with('\\') || left.chars().nth(2) == Some('\'')) {
            quoted(left, '\'')
        } else {
            code.push(c);
            left = &left[c.len_utf8()..];
            continue;
        };
        code.push(' ');
        left = &left[len..];
    }
    code
}

/// Octets of a string or a character that begins here, with its quotes.
fn quoted(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        if !is_escaped && c == quote {
            return at + 1;
        }
        is_escaped = !is_escaped && c == '\\';
    }
    text.len()
}

/// Takes out modules that are compiled for tests alone, and names those with files of their own.
fn without_tests(text: &str) -> (String, Vec<String>) {
    let (mut code, mut modules) = (String::new(), Vec::new());
    let mut left = text;
    while let Some(at) = left.find("#[cfg(") {
        let end = left[at..].find(']').map_or(left.len(), |end| at + end + 1);
        let is_for_tests = {
            let condition = &left[at + "#[cfg(".len()..end];
            condition.split(|c| !is_of_a_name(c)).any(|word| word == "test")
                && !condition.contains("not(test")
        };
        code.push_str(&left[..at]);
        left = &left[end..];
        let mut item = left.trim_start();
        while item.starts_with("#[") {
            item = item[item.find(']').map_or(item.len(), |end| end + 1)..].trim_start();
        }
        let item = item.strip_prefix("pub(crate) ").or(item.strip_prefix("pub ")).unwrap_or(item);
        let Some(item) = item.strip_prefix("mod ").filter(|_| is_for_tests) else { continue };
        let name_len = item.find(|c| !is_of_a_name(c)).unwrap_or(item.len());
        let (name, body) = item.split_at(name_len);
        left = if body.trim_start().starts_with('{') {
            &body[block_len(body)..]
        } else {
            modules.push(name.to_owned());
            body
        };
    }
    code.push_str(left);
    (code, modules)
}

/// Octets up to the end of the first block.
fn block_len(text: &str) -> usize {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        depth += i32::from(c == '{') - i32::from(c == '}');
        if c == '}' && depth == 0 {
            return at + 1;
        }
    }
    text.len()
}

/// Adds what a tree of imports names: `a::{b, c::{self, d as e}}`.
fn expand(tree: &str, before: &[String], is_handed_on: bool, imports: &mut Vec<Import>) {
    let tree = tree.trim();
    let segments = |text: &str| -> Vec<String> {
        before
            .iter()
            .cloned()
            .chain(text.split("::").map(|s| s.trim().to_owned()).filter(|s| !s.is_empty()))
            .collect()
    };
    if let Some(open) = tree.find('{') {
        let before = segments(&tree[..open]);
        let inside = tree[open + 1..].trim_end().strip_suffix('}').unwrap_or(&tree[open + 1..]);
        let (mut depth, mut start) = (0, 0);
        for (at, c) in inside.char_indices().chain([(inside.len(), ',')]) {
            depth += i32::from(c == '{') - i32::from(c == '}');
            if c == ',' && depth == 0 {
                if !inside[start..at].trim().is_empty() {
                    expand(&inside[start..at], &before, is_handed_on, imports);
                }
                start = at + 1;
            }
        }
        return;
    }
    let (path, name) = tree.split_once(" as ").unwrap_or((tree, ""));
    let mut path = segments(path);
    if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
        path.pop();
    }
    let last = path.last().cloned().unwrap_or_default();
    let name = if name.is_empty() { last } else { name.trim().to_owned() };
    imports.push(Import { path, name, is_handed_on });
}

/// All paths of two segments and more.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found: Vec<Vec<String>> = Vec::new();
    // Whether the name that is next goes on with the last path.
    let mut goes_on = false;
    // A visibility is no import.
    let code = code.replace("pub(in ", "pub(in ::");
    let mut left = code.as_str();
    while let Some(start) = left.find(is_of_a_name) {
        goes_on = goes_on && start == 0;
        let name = &left[start..];
        let len = name.find(|c| !is_of_a_name(c)).unwrap_or(name.len());
        match found.last_mut().filter(|_| goes_on) {
            Some(path) => path.push(name[..len].to_owned()),
            // One that begins with `::`, and one of a generic type, is of no module of ours; that of a macro is its user's.
            None if left[..start].ends_with("::") || left[..start].ends_with('$') => {
                found.push(vec![String::new(), name[..len].to_owned()])
            }
            None => found.push(vec![name[..len].to_owned()]),
        }
        left = &name[len..];
        goes_on = left.starts_with("::");
        if goes_on {
            left = &left[2..];
        }
    }
    found.retain(|path| path.len() > 1 && !path[0].is_empty());
    found
}

#[test]
fn imports_and_paths_are_read() {
    let source = Source::new(
        "//! use crate::not;\nuse crate::a::{self, b::{C, D as E}};\npub(crate) use self::f::*;\n\
         pub(in super::super) fn g<'a>(x: &'a str) { crate::h::i(\"super::no\", 'x', '\\''); j::k::<super::L>() }\n\
         #[cfg(test)]\n#[path = \"x.rs\"]\nmod tests;\n#[cfg(all(loom, test))]\nmod more { use crate::z; }\nfn last() { m::n() }",
    );
    let named = |name: &str| source.imports.iter().find(|import| import.name == name);
    let path = |name: &str| named(name).map(|import| import.path.join("::"));
    assert_eq!(path("a").as_deref(), Some("crate::a"));
    assert_eq!(path("C").as_deref(), Some("crate::a::b::C"));
    assert_eq!(path("E").as_deref(), Some("crate::a::b::D"));
    assert_eq!(named("*").map(|import| import.is_handed_on), Some(true));
    assert!(!named("C").unwrap().is_handed_on && named("z").is_none() && named("not").is_none());
    let paths: Vec<String> = source.paths.iter().map(|path| path.join("::")).collect();
    assert_eq!(paths, ["crate::h::i", "j::k", "super::L", "m::n"]);
    assert_eq!(source.test_modules, ["tests"]);
    assert!(source.defines("last") && !source.defines("las") && !source.defines("k"));
}
