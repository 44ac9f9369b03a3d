//! `nilfs-bench`: our file system compared with its peers and with the limit of its transport.
//!
//! Every number it prints comes from one run of this program, on one machine, with all file
//! systems on images in the same directory, taken in turns. So the ratios mean something even
//! where the bare rates do not.
//!
//! The way through the source: [`workloads`] is the table of what is measured, [`file_systems`]
//! the table of whom, [`stage`] what a workload is handed, [`schedule`] the order of it all,
//! [`report`] what is printed. [`null_fs`] is the limit: a FUSE file system that does nothing.
//! [`past`] and [`checking`] have tables of their own, made at a [`site`]. [`soak`] measures how little
//! changes in hours.

mod checking;
mod cleaning_latency;
mod cli;
mod command;
mod file_systems;
mod fixtures;
mod machine;
mod mount;
mod null_fs;
mod past;
mod report;
mod schedule;
mod service;
mod site;
mod sizes;
mod soak;
mod stage;
mod workloads;
mod write_amplification;

use std::process::ExitCode;

fn main() -> ExitCode {
    let outcome = nilfs_lab::cleanup::on_signals(|| {}).and_then(|()| cli::run());
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("nilfs-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}
