//! What a process of this machine uses.

use std::fs;

use anyhow::{Context, Result};

/// What a process uses at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Vitals {
    /// Memory that is its own and not the system's cache, in bytes.
    pub memory: u64,
    /// Open files.
    pub files: u64,
    /// Threads.
    pub threads: u64,
}

impl Vitals {
    /// Those of a process now.
    ///
    /// # Errors
    /// It has ended.
    pub fn of(process: u32) -> Result<Self> {
        let ended = || format!("the process {process} that serves the mount has ended");
        let status = fs::read_to_string(format!("/proc/{process}/status")).with_context(ended)?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|rest| rest.split_whitespace().next());
            number.and_then(|number| number.parse::<u64>().ok()).with_context(ended)
        };
        let files = fs::read_dir(format!("/proc/{process}/fd")).with_context(ended)?.count();
        Ok(Self {
            memory: field("RssAnon:")? << 10,
            files: files as u64,
            threads: field("Threads:")?,
        })
    }
}
