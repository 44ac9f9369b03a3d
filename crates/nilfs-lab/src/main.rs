//! `nilfs-lab`: file systems and workloads side by side on modelled flash.
//!
//! [`cli`] is the command line; all the rest is the library.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::main() {
        Ok(code) => code,
        Err(error) => {
            cli::say(&format!("nilfs-lab: {error:#}"));
            ExitCode::from(2)
        }
    }
}
