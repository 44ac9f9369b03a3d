//! The `nilfs` command: makes, mounts and looks into NILFS2 volumes.
//!
//! Only arguments and printing live here; what a volume is, the libraries know. One file in
//! `commands/` per subcommand, each with its clap arguments and a `run` function.

mod cli;
mod commands;
mod drop_in;
mod exit;
mod image;
mod output;
mod progress;
mod record;
mod signature;
mod size;

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = drop_in::translate(std::env::args_os().collect());
    match cli::Cli::try_parse_from(arguments) {
        Ok(cli) => cli.command.run().map_or_else(|e| exit::report(&e), |()| ExitCode::SUCCESS),
        Err(error) => exit::report_usage(&error),
    }
}
