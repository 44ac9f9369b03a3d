//! The `nilfs` command: makes, mounts and looks into NILFS2 volumes.
//!
//! Only arguments and printing live here; what a volume is, the libraries know. One file in
//! `commands/` per subcommand, each with its clap arguments and a `run` function.

// The standard macros panic when the output is full or closed; `output` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod administration;
mod beneath;
mod cli;
mod commands;
mod completions;
mod config;
mod control;
mod definition;
mod device;
mod drop_in;
mod exit;
mod image;
mod interrupt;
mod manual;
mod memory;
mod metrics;
mod names;
mod output;
mod past;
mod private;
mod progress;
mod reach;
mod record;
mod retention;
mod roll_forward;
mod scrubbing;
mod signature;
mod size;
mod threads;

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use signal_hook::consts::SIGXFSZ;

fn main() -> ExitCode {
    // With a handler, a write beyond `ulimit -f` is an error like that of a full disk, and does not
    // kill. What cannot be had is not worth failing for.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    let mut arguments = env::args_os().peekable();
    match arguments.peek().and_then(|program| drop_in::Tool::named(program)) {
        Some(tool) => tool.run(arguments.skip(1)),
        None => {
            completions::answer();
            cli::main(arguments)
        }
    }
}
