//! Fills a directory with a rich tree, changes it, or works on it until the power fails.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
use nilfs_real_kernels::{CrashWorkload, Fill, verify_synced};

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
    /// Works in a directory until it is killed or something fails, and logs what it has made
    /// durable.
    Crash {
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Relies also on syncs that Linux's nilfs2 is known to lose.
        #[arg(long)]
        strict: bool,
        /// The log, which must be out of the failure's reach.
        #[arg(long)]
        log: PathBuf,
        directory: PathBuf,
    },
    /// Checks that everything that `crash` logged as durable is there, whole.
    VerifySynced { log: PathBuf, directory: PathBuf },
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
        Fill { seed: self.seed, scale: self.scale }
    }
}

fn verify(log: &Path, directory: &Path) -> anyhow::Result<()> {
    let report = verify_synced(log, directory).context("cannot check what was synced")?;
    println!("{} checked", report.checked);
    if report.failures.is_empty() {
        return Ok(());
    }
    bail!("lost or damaged although synced:\n{}", report.failures.join("\n"))
}

fn main() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Populate(tree) => {
            tree.fill().populate(&tree.directory).context("cannot populate the directory")
        }
        Command::Modify(tree) => {
            tree.fill().modify(&tree.directory).context("cannot modify the tree")
        }
        Command::Crash { seed, strict, log, directory } => {
            let Err(error) = CrashWorkload { seed, strict }.run(&directory, &log);
            Err(error).context("cannot go on working")
        }
        Command::VerifySynced { log, directory } => verify(&log, &directory),
    }
}
