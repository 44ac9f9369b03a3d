//! Layers of modules: each may import from those below it, and not from those above.

use serde::Deserialize;

use crate::source::{Module, Source};

/// Modules at the top of a crate that make a layer.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// The name of the layer.
    #[allow(dead_code, reason = "for those who read the limits")]
    pub name: String,
    /// Modules of the layer, without those in them.
    pub modules: Vec<String>,
}

/// The imports of modules from a layer above their own.
pub fn upward(source: &Source, layers: &[Layer]) -> Vec<String> {
    let layer = |module: &Module| {
        let top = module.first()?;
        layers.iter().position(|layer| layer.modules.contains(top))
    };
    let imports = source.imports.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
    let upward = imports.filter(|(from, to)| match (layer(from), layer(to)) {
        (Some(from), Some(to)) => from < to,
        _ => false,
    });
    upward.map(|(from, to)| format!("{} imports {}", from.join("/"), to.join("/"))).collect()
}
