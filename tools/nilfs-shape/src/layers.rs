//! Layers of modules: each may import from those below it, and not from those above.

use serde::Deserialize;

use crate::source::{Module, Source};

/// Modules at the top of a crate that make a layer.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// Name of the layer, in words.
    pub name: String,
    /// Modules of the layer, without those in them.
    pub modules: Vec<String>,
}

/// The imports of modules from a layer above their own, and the modules that are in no layer.
pub fn upward(source: &Source, layers: &[Layer]) -> Vec<String> {
    if layers.is_empty() {
        return Vec::new();
    }
    let layer = |module: &Module| {
        let top = module.first()?;
        layers.iter().position(|layer| layer.modules.contains(top))
    };
    let mut found = Vec::new();
    for (from, imports) in source.imports.iter().filter(|(module, _)| !module.is_empty()) {
        let Some(own) = layer(from) else {
            found.push(format!("{} is in no layer", from.join("/")));
            continue;
        };
        for to in imports {
            if let Some(above) = layer(to).filter(|it| *it > own) {
                let name = &layers[above].name;
                found.push(format!("{} imports {} ({name})", from.join("/"), to.join("/")));
            }
        }
    }
    found
}
