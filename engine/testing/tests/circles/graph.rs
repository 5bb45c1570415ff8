//! Which file of a crate imports which.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::source::Source;

/// From each file to those that it imports, and by what names.
pub(crate) type Arrows = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

type Module = Vec<String>;

/// The modules of a crate that have files.
pub(crate) struct Crate {
    modules: BTreeMap<Module, (String, Source)>,
}

impl Crate {
    /// Reads the files of a `src` folder.
    pub(crate) fn read(folder: &Path) -> Crate {
        let mut files = Vec::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(at) = folders.pop() {
            for entry in fs::read_dir(&at).expect("a folder of a crate").flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    let name = path
                        .strip_prefix(folder)
                        .expect("it is in there")
                        .to_str()
                        .expect("UTF-8")
                        .to_owned();
                    files.push((name, fs::read_to_string(&path).expect("a source file")));
                }
            }
        }
        Crate::of(files)
    }

    /// Of these files: names from `src` on, and texts.
    pub(crate) fn of(files: Vec<(String, String)>) -> Crate {
        let mut modules = BTreeMap::new();
        for (name, text) in files {
            let mut module: Module = name.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
            if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
                module.pop();
            }
            modules.insert(module, (name, Source::new(&text)));
        }
        let tests: Vec<Module> = modules
            .iter()
            .flat_map(|(module, (_, source))| source.test_modules.iter().map(|name| child(module, name)))
            .collect();
        modules.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
        Crate { modules }
    }

    pub(crate) fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (module, (file, source)) in &self.modules {
            let mut add = |to: Option<Module>, name: &str| {
                let to = to.filter(|to| to != module).and_then(|to| self.modules.get(&to));
                if let Some((to, _)) = to {
                    arrows
                        .entry(file.clone())
                        .or_default()
                        .entry(to.clone())
                        .or_default()
                        .insert(name.to_owned());
                }
            };
            for import in source.imports.iter().filter(|import| !import.is_handed_on) {
                add(self.definer(module, &import.path, 0), &import.name);
            }
            for path in &source.paths {
                let first = source.imports.iter().find(|import| import.name == path[0]);
                // Through a module that was imported, or from here.
                let whole = match first {
                    Some(import) if self.is_module(module, &import.path) => {
                        [&import.path[..], &path[1..]].concat()
                    }
                    _ => path.clone(),
                };
                add(self.definer(module, &whole, 0), path.last().expect("a path has names"));
            }
        }
        arrows
    }

    /// The module from which a path goes on, and the rest of it. `None`: it is another crate's.
    fn begin<'p>(&self, module: &Module, path: &'p [String]) -> Option<(Module, &'p [String])> {
        let mut base = module.clone();
        match path.first().map(String::as_str) {
            Some("crate") => Some((Module::new(), &path[1..])),
            Some("self") => Some((base, &path[1..])),
            Some("super") => {
                let ups = path.iter().take_while(|segment| *segment == "super").count();
                base.truncate(base.len().saturating_sub(ups));
                Some((base, &path[ups..]))
            }
            Some(first) if self.modules.contains_key(&child(module, first)) => Some((base, path)),
            _ => None,
        }
    }

    fn is_module(&self, module: &Module, path: &[String]) -> bool {
        let Some((base, rest)) = self.begin(module, path) else { return false };
        self.modules.contains_key(&[&base[..], rest].concat())
    }

    /// The module that defines what a path names, through those that hand it on. `None`: it is another crate's.
    fn definer(&self, module: &Module, path: &[String], depth: usize) -> Option<Module> {
        let (mut at, rest) = self.begin(module, path)?;
        for (index, segment) in rest.iter().enumerate() {
            let next = child(&at, segment);
            if self.modules.contains_key(&next) {
                at = next;
                continue;
            }
            let (_, source) = self.modules.get(&at)?;
            // As deep as names are handed on; deeper, they are handed round.
            if depth > 8 || source.defines(segment) {
                return Some(at);
            }
            if let Some(import) = source.imports.iter().find(|import| import.name == *segment) {
                return self.definer(&at, &[&import.path[..], &rest[index + 1..]].concat(), depth + 1);
            }
            let all = source.imports.iter().filter(|import| import.name == "*");
            let through = all.filter_map(|import| {
                let path = &import.path[..import.path.len() - 1];
                let (base, rest) = self.begin(&at, path)?;
                let module = [&base[..], rest].concat();
                self.modules.get(&module).filter(|(_, source)| source.defines(segment)).map(|_| module)
            });
            return Some(through.into_iter().next().unwrap_or(at));
        }
        Some(at)
    }
}

fn child(module: &[String], name: &str) -> Module {
    [module, &[name.to_owned()]].concat()
}

/// Files that reach each other, in the order of their names.
pub(crate) fn circles(arrows: &Arrows) -> BTreeSet<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> = arrows
        .keys()
        .map(|from| {
            let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
            while let Some(at) = next.pop() {
                next.extend(
                    arrows.get(at).into_iter().flat_map(BTreeMap::keys).filter(|to| reached.insert(*to)),
                );
            }
            (from, reached)
        })
        .collect();
    let reaches = |from: &String, to: &String| reached.get(from).is_some_and(|reached| reached.contains(to));
    reached
        .keys()
        .filter(|file| reaches(file, file))
        .map(|file| {
            reached
                .keys()
                .filter(|other| reaches(file, other) && reaches(other, file))
                .map(|s| (*s).clone())
                .collect()
        })
        .collect()
}

#[test]
fn a_circle_is_found_through_what_a_module_hands_on() {
    let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let read = Crate::of(vec![
        file("lib.rs", "mod a; mod b; mod c; pub use b::B;"),
        file("a.rs", "use crate::B; pub struct A; fn f() { crate::c::inner::deep() }"),
        file("b/mod.rs", "pub use self::more::B; mod more;"),
        file("b/more.rs", "pub struct B(super::super::a::A);"),
        file("c.rs", "pub mod inner { pub fn deep() {} }"),
    ]);
    let arrows = read.arrows();
    assert_eq!(circles(&arrows), BTreeSet::from([vec!["a.rs".to_owned(), "b/more.rs".to_owned()]]));
    assert!(arrows["a.rs"].contains_key("c.rs") && !arrows.contains_key("lib.rs"));
}
