//! Which module of a crate imports which, read from the parsed source: grouped imports, paths in code and paths inside
//! macros alike. Code that only tests compile does not count.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, File, Item, ItemMod, UseTree,
    visit::{self, Visit},
};

/// A module as the names on the way to it from the crate's root.
pub(crate) type Module = Vec<String>;

/// Every import of a module below `folder`, as the importing module and the path imported.
pub(crate) fn imports(folder: &Path) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut found: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
    for (name, text) in super::sources(folder).into_iter().filter(|(name, _)| !super::is_test(name)) {
        let module = module_of(&name);
        let file: File = syn::parse_file(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut reader = Reader { module: module.clone(), paths: BTreeSet::new() };
        reader.visit_file(&file);
        found.entry(module).or_default().extend(reader.paths);
    }
    found
}

fn module_of(name: &str) -> Module {
    let mut parts: Module = name.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    parts
}

/// Collects absolute paths within the crate.
struct Reader {
    module: Module,
    paths: BTreeSet<Module>,
}

impl Reader {
    /// Adds a path that begins with `crate`, `self` or `super`; others lead out of the crate or to a name in scope.
    fn add(&mut self, path: &[String]) {
        let mut base = match path.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("self" | "super") => self.module.clone(),
            _ => return,
        };
        let mut rest = path;
        while let Some(first @ ("crate" | "self" | "super")) = rest.first().map(String::as_str) {
            if first == "super" {
                base.pop();
            }
            rest = &rest[1..];
        }
        base.extend(rest.iter().cloned());
        self.paths.insert(base);
    }

    fn add_tree(&mut self, path: &mut Vec<String>, tree: &UseTree) {
        match tree {
            UseTree::Path(step) => {
                path.push(step.ident.to_string());
                self.add_tree(path, &step.tree);
                path.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_tree(path, tree)),
            UseTree::Name(name) if name.ident == "self" => self.add(path),
            UseTree::Name(syn::UseName { ident }) | UseTree::Rename(syn::UseRename { ident, .. }) => {
                path.push(ident.to_string());
                self.add(path);
                path.pop();
            }
            UseTree::Glob(_) => self.add(path),
        }
    }

    /// The paths among the tokens of a macro, which `syn` does not parse.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut colons) = (Vec::new(), 0);
        for token in tokens {
            match token {
                TokenTree::Ident(ident) if path.is_empty() || colons == 2 => {
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' && colons < 2 => colons += 1,
                other => {
                    self.add(&path);
                    (path, colons) = (Vec::new(), 0);
                    match other {
                        TokenTree::Group(group) => self.add_tokens(group.stream()),
                        TokenTree::Ident(ident) => path.push(ident.to_string()),
                        TokenTree::Punct(_) | TokenTree::Literal(_) => {}
                    }
                }
            }
        }
        self.add(&path);
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        if !attributes(item).iter().any(is_for_tests) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        self.module.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.add_tree(&mut Vec::new(), &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let steps: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.add(&steps);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.add_tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// `#[cfg(test)]`, `#[cfg(any(test, feature = "failpoints"))]` and the like.
fn is_for_tests(attribute: &Attribute) -> bool {
    attribute.path().is_ident("cfg")
        && attribute.meta.require_list().is_ok_and(|list| {
            let condition = list.tokens.to_string();
            condition.starts_with("test") || condition.contains("(test") || condition.contains("failpoints")
        })
}
