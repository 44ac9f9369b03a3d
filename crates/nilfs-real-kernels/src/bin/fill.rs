//! Fills a directory with a rich tree, changes it, or works on it until the power fails.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, Subcommand};
use nilfs_real_kernels::Fill;

/// Makes work for a file system.
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Fills an empty directory; the same seed and scale give the same tree anywhere.
    Populate(Tree),
    /// Changes what `populate` made with the same seed and scale.
    Modify(Tree),
}

#[derive(clap::Args)]
struct Tree {
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Thousands of entries of the large directory.
    #[arg(long, default_value_t = 1)]
    scale: u32,
    directory: PathBuf,
}

impl Tree {
    fn fill(&self) -> Fill {
        Fill {
            seed: self.seed,
            scale: self.scale,
        }
    }
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Populate(tree) => tree
            .fill()
            .populate(&tree.directory)
            .context("cannot populate the directory"),
        Command::Modify(tree) => tree
            .fill()
            .modify(&tree.directory)
            .context("cannot modify the tree"),
    }
}
