//! Circles of files that import each other.

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

use crate::source::Source;

/// The modules of the largest circle, by their paths.
pub fn largest(source: &Source) -> Vec<String> {
    let names: Vec<_> = source.imports.keys().collect();
    let number = |module| names.binary_search(&module).ok();
    let mut graph = DiGraphMap::<usize, ()>::new();
    for (module, imports) in &source.imports {
        let imports = imports.iter().filter_map(number);
        imports.for_each(|to| _ = number(module).map(|from| graph.add_edge(from, to, ())));
    }
    let largest = tarjan_scc(&graph).into_iter().max_by_key(Vec::len).unwrap_or_default();
    let mut paths: Vec<_> = largest.into_iter().map(|nth| names[nth].join("/")).collect();
    paths.sort_unstable();
    if paths.len() > 1 { paths } else { Vec::new() }
}

/// The imports of modules in a circle from each other, a line for each module.
pub fn within(source: &Source, circle: &[String]) -> String {
    let lines = source.imports.iter().filter_map(|(module, imports)| {
        let module = circle.iter().find(|it| **it == module.join("/"))?;
        let imports = imports.iter().map(|it| it.join("/")).filter(|it| circle.contains(it));
        Some(format!("  {module} imports {}\n", imports.collect::<Vec<_>>().join(", ")))
    });
    lines.collect()
}
