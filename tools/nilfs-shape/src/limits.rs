//! The limits, and what is found beside each.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::circles;
use crate::layers::{self, Layer};
use crate::source::Source;
use crate::types;

/// The limits of each crate, by its name.
#[derive(Deserialize)]
pub struct Limits {
    #[serde(flatten)]
    pub crates: BTreeMap<String, OfCrate>,
}

/// The limits of a crate.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct OfCrate {
    /// Files in the largest circle of imports.
    circle: Limit,
    /// Functions whose name begins with `apply` and that return a `Result`.
    fallible_apply: Option<Limit>,
    /// Fields and methods of types, by name.
    #[serde(default)]
    types: BTreeMap<String, OfType>,
    /// Modules, the lowest layer first.
    #[serde(default)]
    layers: Vec<Layer>,
    /// Imports from a layer by one below it.
    upward: Option<Limit>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfType {
    fields: Limit,
    methods: Limit,
}

/// The most that may be found.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Limit {
    /// The most that may be there today.
    pub at_most: usize,
    /// The most that should be there in the end.
    pub goal: Option<usize>,
}

/// A count, and its limit.
pub struct Measured {
    /// Subject of the count, in words.
    pub what: String,
    /// Count in the source.
    pub found: usize,
    /// Limit that it is held to.
    pub limit: Limit,
}

impl Limits {
    /// Reads the limits from a file.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{} is no table of limits", path.display()))
    }
}

impl OfCrate {
    /// Counts everything in the source of a crate for which there is a limit.
    pub fn measure(&self, name: &str, source: &Source, verbose: bool) -> Vec<Measured> {
        let circle = circles::largest(source);
        let upward = layers::upward(source, &self.layers);
        let fallible = types::fallible(source, "apply");
        if verbose {
            println!("{name}: the largest circle:\n{}", circles::within(source, &circle));
            println!("{name}: against the layers: {}", upward.join(", "));
            println!("{name}: apply that can fail: {}", fallible.join(", "));
        }
        let measured =
            |what: String, found, limit| Measured { what: format!("{name}: {what}"), found, limit };
        let mut all = Vec::new();
        for (type_, limits) in &self.types {
            let counted = types::count(source, type_);
            all.push(measured(format!("{type_}, fields"), counted.fields, limits.fields));
            all.push(measured(format!("{type_}, methods"), counted.methods, limits.methods));
        }
        all.push(measured("files in the largest circle".into(), circle.len(), self.circle));
        all.extend(
            self.upward.map(|it| measured("imports against the layers".into(), upward.len(), it)),
        );
        all.extend(
            self.fallible_apply
                .map(|it| measured("apply that can fail".into(), fallible.len(), it)),
        );
        all
    }
}

impl Measured {
    /// Returns why a count is not to be left as it is.
    pub fn fault(&self) -> Option<String> {
        let Self { what, found, limit: Limit { at_most, .. } } = self;
        match found.cmp(at_most) {
            std::cmp::Ordering::Greater => {
                Some(format!("{what}: {found}, which is more than the {at_most} that are allowed"))
            }
            std::cmp::Ordering::Less => {
                Some(format!("{what}: {found}; write that down as the limit, which is {at_most}"))
            }
            std::cmp::Ordering::Equal => None,
        }
    }
}
