//! The source of a crate: its modules, and which of them import which. Tests are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use syn::visit::{self, Visit};
use syn::{Attribute, File, Item, ItemUse, UseTree, Visibility};
use walkdir::WalkDir;

/// A path of a module, from the root of its crate on.
pub type Module = Vec<String>;

/// The modules of a crate that have a file of their own.
pub struct Source {
    pub files: BTreeMap<Module, File>,
    /// Modules that each module imports from.
    pub imports: BTreeMap<Module, BTreeSet<Module>>,
}

impl Source {
    /// Reads all files below a directory.
    pub fn read(directory: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        for entry in WalkDir::new(directory) {
            let entry = entry?;
            let path = entry.path();
            let inside = path.strip_prefix(directory)?;
            let Some(module) = module_of(inside).filter(|_| entry.file_type().is_file()) else {
                continue;
            };
            let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
            let file =
                syn::parse_file(&text).map_err(|error| anyhow!("{}: {error}", path.display()))?;
            files.insert(module, file);
        }
        let modules: BTreeSet<Module> = files.keys().cloned().collect();
        let imports = files.iter().map(|(module, file)| {
            let mut imports = Imports { module, modules: &modules, found: BTreeSet::new() };
            imports.visit_file(file);
            (module.clone(), imports.found)
        });
        Ok(Self { imports: imports.collect(), files })
    }
}

/// Returns the module of a file of Rust, unless it has tests.
fn module_of(path: &Path) -> Option<Module> {
    let stem = path.with_extension("");
    let mut module: Module = stem.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    let is_test = module.iter().any(|part| part == "tests" || part == "fixtures");
    if is_test || path.extension()? != "rs" {
        return None;
    }
    if matches!(module.last()?.as_str(), "lib" | "mod" | "main") {
        module.pop();
    }
    Some(module)
}

/// Whether an item is there for tests only.
pub fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|it| {
        it.path().is_ident("test")
            || it.path().is_ident("cfg")
                && it.parse_args::<syn::Ident>().is_ok_and(|flag| flag == "test")
    })
}

/// Finds out which modules a file imports from.
struct Imports<'a> {
    module: &'a Module,
    modules: &'a BTreeSet<Module>,
    found: BTreeSet<Module>,
}

impl Imports<'_> {
    /// Notes a path, if it leads into another module of the crate.
    fn note(&mut self, path: &[String]) {
        let mut whole = match path.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("self") => self.module.clone(),
            Some("super") => self.module[..self.module.len().saturating_sub(1)].to_vec(),
            Some(child) => {
                let child = [&self.module[..], &[child.to_owned()]].concat();
                if !self.modules.contains(&child) {
                    return;
                }
                child
            }
            None => return,
        };
        for part in &path[1..] {
            if part == "super" {
                whole.pop();
            } else {
                whole.push(part.clone());
            }
        }
        while !self.modules.contains(&whole) {
            if whole.pop().is_none() {
                return;
            }
        }
        // The root of a crate only names what others have.
        if whole != *self.module && !whole.is_empty() && !self.module.is_empty() {
            self.found.insert(whole);
        }
    }

    fn note_tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |ident: &syn::Ident| [before, &[ident.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.note_tree(&with(&path.ident), &path.tree),
            UseTree::Name(name) => self.note(&with(&name.ident)),
            UseTree::Rename(rename) => self.note(&with(&rename.ident)),
            UseTree::Glob(_) => self.note(before),
            UseTree::Group(group) => group.items.iter().for_each(|it| self.note_tree(before, it)),
        }
    }
}

impl<'ast> Visit<'ast> for Imports<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Fn(it) => &it.attrs,
            Item::Mod(it) => &it.attrs,
            Item::Use(it) => &it.attrs,
            Item::Impl(it) => &it.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_of_tests(attributes) {
            visit::visit_item(self, item);
        }
    }

    /// Who may see an item is nothing that its module imports.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.note_tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|it| it.ident.to_string()).collect();
        self.note(&parts);
        visit::visit_path(self, path);
    }
}
