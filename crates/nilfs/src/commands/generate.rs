//! `nilfs generate`: man pages and completions, for packagers and `make install`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Command, CommandFactory, ValueEnum};
use clap_complete::Shell;

use crate::cli::Cli;

/// Write man pages or shell completions into a directory
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
    /// A page for the command and one for each subcommand
    Man,
    /// Files for bash, fish and zsh
    Completions,
}

/// Writes them.
pub fn run(args: Args) -> anyhow::Result<()> {
    let directory = &args.directory;
    let context = || directory.display().to_string();
    fs::create_dir_all(directory).with_context(context)?;
    match args.what {
        What::Man => man(directory).with_context(context),
        What::Completions => completions(directory).with_context(context),
    }
}

fn man(directory: &Path) -> anyhow::Result<()> {
    // Pages have no width of their own.
    let command = Cli::command().term_width(0).disable_help_subcommand(true);
    Ok(clap_mangen::generate_to(command, directory)?)
}

fn completions(directory: &Path) -> anyhow::Result<()> {
    let mut command: Command = Cli::command();
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        clap_complete::generate_to(shell, &mut command, "nilfs", directory)?;
    }
    Ok(())
}
