//! Prints what a directory tree looks like, one line per entry.

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use nilfs_real_kernels::Manifest;

/// Prints the manifest of a directory tree: one sorted line per entry.
#[derive(Parser)]
struct Arguments {
    /// The root of the tree.
    directory: PathBuf,
}

fn main() -> anyhow::Result<()> {
    let Arguments { directory } = Arguments::parse();
    let manifest = Manifest::of(&directory).context("cannot make a manifest")?;
    print!("{manifest}");
    Ok(())
}
