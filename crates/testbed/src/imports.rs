//! Checks that the files of a crate have no import cycles. A module that only re-exports items of another one does not
//! count.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use syn::{
    Attribute, Item, ItemMod, ItemUse, UseTree, Visibility,
    visit::{self, Visit},
};

/// The path of a module or an item from the root of its crate.
type Route = Vec<String>;

/// The imports of one file.
#[derive(Default)]
struct Found {
    /// The current module.
    module: Route,
    /// The paths that it names, each with the module that names it.
    names: Vec<(Route, Route)>,
    /// Its re-exports: module, name, and path as written.
    hands_on: Vec<(Route, String, Route)>,
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    let is_test = |one: &&Attribute| {
        one.path().is_ident("cfg") && one.parse_args::<syn::Path>().is_ok_and(|condition| condition.is_ident("test"))
    };
    attributes.iter().any(|one| is_test(&one))
}

impl<'a> Visit<'a> for Found {
    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        if !is_for_tests(&item.attrs) {
            self.module.push(item.ident.to_string());
            visit::visit_item_mod(self, item);
            self.module.pop();
        }
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        let is_private = matches!(item.vis, Visibility::Inherited);
        for (route, name) in leaves(&item.tree, &[]) {
            if is_private {
                self.names.push((self.module.clone(), route));
            } else {
                self.hands_on.push((self.module.clone(), name, route));
            }
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let route: Route = path.segments.iter().map(|one| one.ident.to_string()).collect();
        // Paths that begin with another crate or an item do not count.
        if route.len() > 1 {
            self.names.push((self.module.clone(), route));
        }
        visit::visit_path(self, path);
    }

    /// The arguments of a macro are no syntax tree, so paths are searched in their tokens.
    fn visit_macro(&mut self, item: &'a syn::Macro) {
        let text = item.tokens.to_string();
        let is_name = |word: &&str| word.starts_with(|first: char| first.is_alphabetic() || first == '_');
        let words: Vec<&str> = text.split_whitespace().collect();
        for (index, word) in words.iter().enumerate() {
            let is_first = is_name(word) && (index == 0 || words[index - 1] != "::");
            let is_route = |pair: &[&str]| pair[0] == "::" && pair.get(1).is_some_and(is_name);
            let rest = words[index + 1..].chunks(2).take_while(|pair| is_route(pair)).map(|pair| pair[1]);
            let route: Route = [*word].into_iter().chain(rest).map(str::to_owned).collect();
            if is_first && route.len() > 1 {
                self.names.push((self.module.clone(), route));
            }
        }
    }
}

/// The paths of a `use`, each with the name that it introduces.
fn leaves(tree: &UseTree, before: &[String]) -> Vec<(Route, String)> {
    let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
    match tree {
        UseTree::Path(path) => leaves(&path.tree, &with(&path.ident)),
        UseTree::Name(name) if name.ident == "self" => {
            vec![(before.to_vec(), before.last().cloned().unwrap_or_default())]
        }
        UseTree::Name(name) => vec![(with(&name.ident), name.ident.to_string())],
        UseTree::Rename(name) => vec![(with(&name.ident), name.rename.to_string())],
        UseTree::Glob(_) => vec![(before.to_vec(), "*".to_owned())],
        UseTree::Group(group) => group.items.iter().flat_map(|item| leaves(item, before)).collect(),
    }
}

/// The files of a crate, as modules.
struct Crate {
    modules: BTreeSet<Route>,
    hands_on: BTreeMap<(Route, String), Route>,
    names: Vec<(Route, Route)>,
}

impl Crate {
    fn read(sources: &BTreeMap<Route, String>) -> Self {
        let modules: BTreeSet<Route> = sources.keys().cloned().collect();
        let mut read = Self { modules, hands_on: BTreeMap::new(), names: Vec::new() };
        for (module, text) in sources {
            let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{}: {error}", module.join("::")));
            let mut found = Found { module: module.clone(), ..Found::default() };
            let for_tests = |item: &&Item| matches!(item, Item::Use(item) if is_for_tests(&item.attrs));
            file.items.iter().filter(|item| !for_tests(item)).for_each(|item| found.visit_item(item));
            for (module, name, route) in found.hands_on {
                assert_ne!(
                    name,
                    "*",
                    "{} re-exports everything of {}: name the items",
                    module.join("::"),
                    route.join("::")
                );
                let route = Self::absolute(&read.modules, &module, &route);
                read.hands_on.extend(route.map(|route| ((module, name), route)));
            }
            let names = found.names.into_iter();
            read.names.extend(names.filter_map(|(module, route)| {
                let route = Self::absolute(&read.modules, &module, &route)?;
                Some((module, route))
            }));
        }
        read
    }

    /// A path from the root of the crate; none if it leads into another crate.
    fn absolute(modules: &BTreeSet<Route>, module: &Route, route: &Route) -> Option<Route> {
        let (first, rest) = route.split_first()?;
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([module.as_slice(), rest].concat()),
            "super" => {
                let above = rest.iter().take_while(|one| *one == "super").count();
                let kept = module.len().checked_sub(above + 1)?;
                Some([&module[..kept], &rest[above..]].concat())
            }
            _ => {
                let child = [module.as_slice(), std::slice::from_ref(first)].concat();
                modules.contains(&child).then(|| [module.as_slice(), route].concat())
            }
        }
    }

    /// The file that defines the item of a path, through re-exports.
    fn file_of(&self, route: &Route) -> Option<Route> {
        let mut route = route.clone();
        // A name is re-exported a few times at most; a re-export of itself is not a cycle of files.
        for _ in 0..16 {
            let length = (0..=route.len()).rev().find(|length| self.modules.contains(&route[..*length]))?;
            let (module, rest) = route.split_at(length);
            let next = rest.first().and_then(|name| self.hands_on.get(&(module.to_vec(), name.clone())));
            match next {
                Some(next) => route = [next.as_slice(), &rest[1..]].concat(),
                None => return Some(module.to_vec()),
            }
        }
        None
    }

    /// The files that each file imports.
    fn imports(&self) -> BTreeMap<Route, BTreeSet<Route>> {
        let mut imports: BTreeMap<Route, BTreeSet<Route>> = BTreeMap::new();
        for (module, route) in &self.names {
            let (Some(from), Some(to)) = (self.file_of(module), self.file_of(route)) else { continue };
            if from != to {
                imports.entry(from).or_default().insert(to);
            }
        }
        imports
    }

    /// The shortest import cycle.
    fn cycle(&self) -> Option<Vec<Route>> {
        let imports = self.imports();
        let way = |start: &Route| {
            let mut ways = vec![vec![start.clone()]];
            let mut seen = BTreeSet::new();
            while let Some(next) = (!ways.is_empty()).then(|| ways.remove(0)) {
                for import in next.last().and_then(|last| imports.get(last)).into_iter().flatten() {
                    let longer = [next.clone(), vec![import.clone()]].concat();
                    if import == start {
                        return Some(longer);
                    }
                    if seen.insert(import.clone()) {
                        ways.push(longer);
                    }
                }
            }
            None
        };
        imports.keys().filter_map(way).min_by_key(Vec::len)
    }
}

/// The sources of a crate, without its tests.
fn sources(root: &Path) -> BTreeMap<Route, String> {
    let (mut folders, mut sources) = (vec![(root.to_owned(), Route::new())], BTreeMap::new());
    while let Some((folder, module)) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let own = [module.as_slice(), std::slice::from_ref(&name)].concat();
            if path.is_dir() {
                folders.push((path, own));
            } else if path.extension().is_some_and(|extension| extension == "rs") && name != "tests" {
                let own = if ["mod", "lib"].contains(&name.as_str()) { module.clone() } else { own };
                sources.insert(own, fs::read_to_string(path).unwrap());
            }
        }
    }
    sources
}

fn crate_of(files: &[(&str, &str)]) -> Crate {
    let route = |name: &str| name.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
    Crate::read(&files.iter().map(|(name, text)| (route(name), (*text).to_owned())).collect())
}

fn shown(cycle: Option<Vec<Route>>) -> String {
    cycle
        .map_or_else(String::new, |cycle| cycle.iter().map(|module| module.join("::")).collect::<Vec<_>>().join(" -> "))
}

#[test]
fn inner_crates_have_no_import_cycles() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for name in ["plan", "runtime", "clients"] {
        let read = Crate::read(&sources(&crates.join(name).join("src")));
        assert!(read.modules.len() > 10 && read.imports().len() > 5, "{name} has {} files", read.modules.len());
        assert_eq!(shown(read.cycle()), "", "files of {name} import each other");
    }
}

#[test]
fn import_cycles_are_found() {
    for (files, expected) in [
        (vec![("", "mod a; mod b;"), ("a", "use crate::b::B;"), ("b", "pub struct B;")], ""),
        (vec![("", "mod a; mod b;"), ("a", "use super::b::B;"), ("b", "fn b() { crate::a::a() }")], "a -> b -> a"),
        (vec![("", "mod a;"), ("a", "mod c; use c::C;"), ("a::c", "use super::A;")], "a -> a::c -> a"),
        (vec![("", "mod a;"), ("a", "mod c; fn a() { c::c() }"), ("a::c", "use super::A;")], "a -> a::c -> a"),
        // Arguments of macros count, too.
        (vec![("", "mod a; mod b;"), ("a", "fn a() { x!(crate::b::b()) }"), ("b", "use crate::a::A;")], "a -> b -> a"),
        // A re-export does not count as an import of the parent.
        (
            vec![
                ("", "mod a; pub use a::b::B;"),
                ("a", "pub mod b; pub mod c;"),
                ("a::b", ""),
                ("a::c", "use crate::B;"),
            ],
            "",
        ),
        (
            vec![
                ("", "mod a;"),
                ("a", "mod b; mod c; pub use b::B;"),
                ("a::b", "use super::c::C;"),
                ("a::c", "use super::B;"),
            ],
            "a::b -> a::c -> a::b",
        ),
        // Imports of tests do not count.
        (
            vec![
                ("", "mod a; mod b;"),
                ("a", "use crate::b::B;"),
                ("b", "#[cfg(test)] mod tests { use crate::a::A; }"),
            ],
            "",
        ),
    ] {
        assert_eq!(shown(crate_of(&files).cycle()), expected, "{files:?}");
    }
}
