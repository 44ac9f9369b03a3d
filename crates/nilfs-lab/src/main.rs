//! `nilfs-lab`: file systems and workloads side by side on modelled flash.
//!
//! [`cli`] is the command line; all the rest is the library.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
