//! Measures the shape of the source, and holds it to limits: how much the largest types have of their own, how many
//! files import each other in a circle, and which imports go against the layers.
//!
//! The limits (`shape.toml`) are what the source has today, and only go down: more is refused, and less is to be
//! written down.

mod circles;
mod layers;
mod limits;
mod source;
#[cfg(test)]
mod tests;
mod types;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use comfy_table::{Table, presets};

use crate::limits::{Limits, Measured};
use crate::source::Source;

#[derive(Parser)]
#[command(about = "Holds the shape of the source to its limits", version)]
struct Arguments {
    /// The workspace
    #[arg(default_value = ".")]
    workspace: PathBuf,
    /// Show each circle, and each import against the layers
    #[arg(short, long)]
    verbose: bool,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let at = arguments.workspace.join("tools/nilfs-shape/shape.toml");
    let limits = Limits::read(&at)?;
    let mut measured = Vec::new();
    for (name, of) in &limits.crates {
        let source = arguments.workspace.join("crates").join(name).join("src");
        let source = Source::read(&source).with_context(|| format!("{name} cannot be measured"))?;
        measured.extend(of.measure(name, &source, arguments.verbose));
    }
    println!("{}", table(&measured));
    let wrong: Vec<_> = measured.iter().filter_map(Measured::fault).collect();
    for fault in &wrong {
        eprintln!("error: {}: {fault}", at.display());
    }
    Ok(if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn table(measured: &[Measured]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["", "found", "limit", "goal"]);
    for it in measured {
        let goal = it.limit.goal.map_or(String::new(), |goal| goal.to_string());
        table.add_row([it.what.clone(), it.found.to_string(), it.limit.at_most.to_string(), goal]);
    }
    table
}
