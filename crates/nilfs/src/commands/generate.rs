//! `nilfs generate`: man pages and completions, for packagers and `make install`, and tables for
//! the documentation.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::ValueEnum;

use super::mount_options;
use crate::config::SETTINGS;
use crate::{completions, definition, manual};

/// Write man pages, shell completions or tables of the documentation into a directory
#[derive(Debug, clap::Args)]
#[command(hide = true)]
pub struct Args {
    /// What to write
    what: What,
    /// Where to write it; made if it is not there
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum What {
    /// Pages for the command, its subcommands, its other names and its files
    Man,
    /// Files for bash, fish and zsh
    Completions,
    /// The table of mount options in docs/mounting.md and that of settings in docs/cleaning.md
    Tables,
}

/// Writes them.
pub fn run(args: Args) -> anyhow::Result<()> {
    let directory = &args.directory;
    let context = || directory.display().to_string();
    fs::create_dir_all(directory).with_context(context)?;
    match args.what {
        What::Man => man(directory).with_context(context),
        What::Completions => completions(directory).with_context(context),
        What::Tables => tables(directory).with_context(context),
    }
}

fn man(directory: &Path) -> anyhow::Result<()> {
    let date = date()?;
    for page in manual::pages() {
        fs::write(directory.join(page.file_name()), page.to_roff(&date))?;
    }
    Ok(())
}

/// The date of the pages: today, unless a packager says otherwise so that packages can be made
/// again byte for byte.
fn date() -> anyhow::Result<String> {
    let now = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(seconds) => jiff::Timestamp::from_second(seconds.parse().context("SOURCE_DATE_EPOCH")?)?,
        Err(_) => jiff::Timestamp::now(),
    };
    Ok(now.strftime("%F").to_string())
}

fn completions(directory: &Path) -> anyhow::Result<()> {
    for (name, script) in completions::scripts()? {
        fs::write(directory.join(name), script)?;
    }
    Ok(())
}

/// The tables of the documentation, under the names of their pages.
fn tables(directory: &Path) -> anyhow::Result<()> {
    fs::write(directory.join("mounting.md"), mount_options::table())?;
    fs::write(directory.join("cleaning.md"), definition::setting_table(SETTINGS))?;
    Ok(())
}
