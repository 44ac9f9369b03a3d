//! `nilfs help`: the help of the command, or of one of its subcommands.

use std::ffi::{OsStr, OsString};

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate};

use crate::cli;

/// Print the help of nilfs, or of a subcommand
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs help
  nilfs help mount
  nilfs help snapshot create")]
pub struct Args {
    /// The subcommand
    #[arg(value_name = "COMMAND", add = ArgValueCompleter::new(subcommands))]
    command: Vec<OsString>,
}

impl Args {
    /// The command line that prints it.
    pub fn asked(self) -> Vec<OsString> {
        let mut words = vec![OsString::from("nilfs")];
        words.extend(self.command);
        words.push("--help".into());
        words
    }
}

fn subcommands(start: &OsStr) -> Vec<CompletionCandidate> {
    let start = start.to_string_lossy();
    let command = cli::definition();
    let visible = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    let names = visible.map(clap::Command::get_name).filter(|name| name.starts_with(&*start));
    names.map(CompletionCandidate::new).collect()
}
