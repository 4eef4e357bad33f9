//! The module tree of a package, and the file that defines what a path names.
//!
//! The text of the files is the only source: macros, and items inside of inline modules, are unknown.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::source::{Import, Source, is_name, plain_paths};

/// How many re-exports are followed.
const DEEPEST: usize = 16;

/// The modules of one package that are not tests, by their path below the crate, `""` for its root.
pub(super) struct Modules<'a> {
    modules: BTreeMap<String, Module<'a>>,
}

/// A module in a file of its own.
struct Module<'a> {
    source: &'a Source,
    /// The items that the file defines at its top level.
    defined: HashSet<String>,
    imports: Vec<Import>,
}

impl<'a> Modules<'a> {
    /// The modules below a `src` folder, which ends with a slash.
    pub(super) fn new(folder: &str, sources: impl Iterator<Item = &'a Source>) -> Self {
        let modules = sources.filter(|source| !source.is_test).filter_map(|source| {
            let name = module_name(source.path.strip_prefix(folder)?.strip_suffix(".rs")?);
            Some((name, Module { source, defined: definitions(&source.code), imports: source.imports() }))
        });
        Self { modules: modules.collect() }
    }

    /// Each file, and the other files of the package whose items it names.
    pub(super) fn uses(&self) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
        let mut uses = BTreeMap::new();
        for (name, module) in &self.modules {
            let own = &*module.source.path;
            let used = self.named_by(name, module).into_iter().map(|used| &*self.modules[&used].source.path);
            uses.insert(own, used.filter(|path| *path != own).collect());
        }
        uses
    }

    /// The modules that define what a module names.
    fn named_by(&self, name: &str, module: &Module<'_>) -> HashSet<String> {
        let code = module.source.code_without_imports();
        let words: HashSet<&str> = code.split(|c| !is_name(c)).collect();
        // A face only passes on what it re-exports.
        let imports = module.imports.iter().filter(|import| !import.is_public || words.contains(&*import.name));
        let paths = imports.map(|import| import.path.clone());
        let paths = paths.chain(plain_paths(&code).into_iter().map(|(_, path)| path));
        paths.filter_map(|path| self.definer(name, &path)).collect()
    }

    /// The module that defines the item of a path. `None` if the path names a module or leaves the package.
    fn definer(&self, from: &str, path: &str) -> Option<String> {
        match self.resolve(from, path, DEEPEST)? {
            Target::Item(module) => Some(module),
            Target::Module(_) => None,
        }
    }

    fn resolve(&self, from: &str, path: &str, depth: usize) -> Option<Target> {
        let mut at = from.to_owned();
        let mut names = path.split("::").peekable();
        let mut is_anchored = false;
        while let Some(name) = names.peek() {
            match *name {
                "crate" => at.clear(),
                "self" => {}
                "super" => at = parent(&at)?.to_owned(),
                _ => break,
            }
            is_anchored = true;
            names.next();
        }
        for name in names {
            match self.member(&at, name, depth)? {
                Target::Module(module) => at = module,
                item => return Some(item),
            }
            is_anchored = true;
        }
        is_anchored.then_some(Target::Module(at))
    }

    /// What a name means in a module.
    fn member(&self, module: &str, name: &str, depth: usize) -> Option<Target> {
        let depth = depth.checked_sub(1)?;
        let child = if module.is_empty() { name.to_owned() } else { format!("{module}::{name}") };
        if self.modules.contains_key(&child) {
            return Some(Target::Module(child));
        }
        let here = self.modules.get(module)?;
        if here.defined.contains(name) {
            return Some(Target::Item(module.to_owned()));
        }
        let imported = here.imports.iter().filter(|import| import.name == name && import.path != name);
        imported.map(|import| &import.path).find_map(|path| self.resolve(module, path, depth)).or_else(|| {
            let all = here.imports.iter().filter_map(|import| import.path.strip_suffix("::*"));
            all.filter_map(|path| self.resolve(module, path, depth)).find_map(|target| match target {
                Target::Module(from) if from != module => self.member(&from, name, depth),
                _ => None,
            })
        })
    }
}

/// What a path names.
enum Target {
    Module(String),
    /// An item of this module.
    Item(String),
}

/// `a/b` and `a/b/mod` are `a::b`; `lib` and `main` are the root.
fn module_name(path: &str) -> String {
    let path = path.strip_suffix("/mod").unwrap_or(path);
    if matches!(path, "lib" | "main") { String::new() } else { path.replace('/', "::") }
}

fn parent(module: &str) -> Option<&str> {
    if module.is_empty() { None } else { Some(module.rsplit_once("::").map_or("", |(parent, _)| parent)) }
}

/// The names of the items at the top level of a file.
fn definitions(code: &str) -> HashSet<String> {
    let keywords = ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "mod", "macro_rules"];
    let (mut names, mut depth, mut defines) = (HashSet::new(), 0_usize, false);
    for token in code.split_inclusive(|c| !is_name(c)) {
        let word = token.trim_end_matches(|c| !is_name(c));
        if depth == 0 && !word.is_empty() {
            if defines && !keywords.contains(&word) && !matches!(word, "mut" | "unsafe" | "async" | "extern") {
                names.insert(word.to_owned());
            }
            defines = keywords.contains(&word) || defines && matches!(word, "mut" | "unsafe" | "async" | "extern");
        }
        match token.chars().next_back() {
            Some('{' | '(' | '[') => depth += 1,
            Some('}' | ')' | ']') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    names
}

/// The files of each circle: those that name each other's items, directly or through others.
pub(super) fn circles<'a>(uses: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<Vec<&'a str>> {
    let reached: HashMap<&str, HashSet<&str>> = uses.keys().map(|file| (*file, reachable(uses, file))).collect();
    let (mut circles, mut seen) = (Vec::new(), HashSet::new());
    for file in uses.keys().filter(|file| reached[**file].contains(**file)) {
        if seen.insert(*file) {
            let others = reached[*file].iter().filter(|other| reached[**other].contains(*file)).copied();
            let mut circle: Vec<&str> = others.collect();
            circle.sort_unstable();
            seen.extend(&circle);
            circles.push(circle);
        }
    }
    circles
}

/// All files to which the imports of one lead; the file itself only if they lead back.
fn reachable<'a>(uses: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &str) -> HashSet<&'a str> {
    let (mut found, mut next) = (HashSet::new(), vec![from]);
    while let Some(file) = next.pop() {
        for used in uses.get(file).into_iter().flatten() {
            if found.insert(*used) {
                next.push(used);
            }
        }
    }
    found
}
