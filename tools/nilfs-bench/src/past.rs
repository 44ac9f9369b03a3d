//! What the past costs: looking into it, compared with looking at the present and with git; and the
//! present, with a door to the past in every directory and without. All in one run, in turns.

mod present;
mod tree;
mod versions;

use anyhow::Result;
use clap::Args;

use crate::site::{self, Site, print};

/// What to measure.
#[derive(Args)]
pub struct Options {
    /// Files of the tree of which two checkpoints are compared.
    #[arg(long, default_value_t = 70_000)]
    files: u64,
    /// Its directories.
    #[arg(long, default_value_t = 5_000)]
    dirs: u64,
    /// Checkpoints in each of which a file has changed; several numbers are measured one after the other.
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 100_000])]
    checkpoints: Vec<u64>,
    #[command(flatten)]
    site: site::Options,
}

/// Measures and prints.
pub fn run(options: &Options) -> Result<()> {
    let site = Site::new(&options.site)?;
    let mut lines = Vec::new();
    tree::measure(&site, options.dirs, options.files, &mut lines)?;
    for count in &options.checkpoints {
        versions::measure(&site, *count, &mut lines)?;
    }
    present::measure(&site, options.files / 7, &mut lines)?;
    print(&site, &lines);
    Ok(())
}
