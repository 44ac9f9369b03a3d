//! Fields and methods of types, and functions that return a result.

use syn::visit::{self, Visit};
use syn::{Fields, ImplItem, Item, ItemMod, ReturnType, Signature, Type};

use crate::source::{Source, is_of_tests};

/// The size of a type.
#[derive(Default)]
pub struct Counted {
    pub fields: usize,
    /// In all blocks of the crate, also those of traits.
    pub methods: usize,
}

/// Counts what a type has.
pub fn count(source: &Source, name: &str) -> Counted {
    let mut counter = Counter { name, counted: Counted::default() };
    source.files.values().for_each(|file| counter.visit_file(file));
    counter.counted
}

struct Counter<'a> {
    name: &'a str,
    counted: Counted,
}

impl<'ast> Visit<'ast> for Counter<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Struct(it) if it.ident == self.name => {
                self.counted.fields += match &it.fields {
                    Fields::Named(fields) => fields.named.len(),
                    Fields::Unnamed(fields) => fields.unnamed.len(),
                    Fields::Unit => 0,
                };
            }
            Item::Impl(it) if is_named(&it.self_ty, self.name) && !is_of_tests(&it.attrs) => {
                let methods = it.items.iter().filter(|item| matches!(item, ImplItem::Fn(_)));
                self.counted.methods += methods.count();
            }
            Item::Mod(module) => self.visit_item_mod(module),
            _ => {}
        }
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_of_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }
}

fn is_named(type_: &Type, name: &str) -> bool {
    let Type::Path(path) = type_ else { return false };
    path.path.segments.last().is_some_and(|it| it.ident == name)
}

/// The functions whose name begins like this and that return a `Result`.
pub fn fallible(source: &Source, begin: &str) -> Vec<String> {
    let mut finder = Fallible { begin, module: String::new(), found: Vec::new() };
    for (module, file) in &source.files {
        finder.module = module.join("/");
        finder.visit_file(file);
    }
    finder.found
}

struct Fallible<'a> {
    begin: &'a str,
    module: String,
    found: Vec<String>,
}

impl<'ast> Visit<'ast> for Fallible<'_> {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_of_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_signature(&mut self, signature: &'ast Signature) {
        let name = signature.ident.to_string();
        let is_result =
            matches!(&signature.output, ReturnType::Type(_, type_) if is_named(type_, "Result"));
        if name.starts_with(self.begin) && is_result {
            self.found.push(format!("{} in {}", name, self.module));
        }
    }
}
