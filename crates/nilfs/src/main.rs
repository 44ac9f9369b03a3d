//! The `nilfs` command: makes, mounts and looks into NILFS2 volumes.
//!
//! Only arguments and printing live here; what a volume is, the libraries know. One file in
//! `commands/` per subcommand, each with its clap arguments and a `run` function.

mod administration;
mod cli;
mod commands;
mod config;
mod control;
mod drop_in;
mod exit;
mod image;
mod metrics;
mod output;
mod progress;
mod record;
mod signature;
mod size;

use std::env;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let mut arguments = env::args_os().peekable();
    match arguments.peek().and_then(|program| drop_in::Tool::named(program)) {
        Some(tool) => tool.run(arguments.skip(1)),
        None => cli::main(arguments),
    }
}
