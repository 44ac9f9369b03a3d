//! What came out of a guest that ended its script.

use std::fmt;

use crate::error::{Error, Result};
use crate::kernel_log::KernelLog;

/// How a script ended in the guest, and what the guest said.
#[derive(Debug, Clone)]
pub struct ScriptResult {
    /// The script's exit status.
    pub status: i32,
    /// What the script wrote to its standard output.
    pub stdout: String,
    /// What the script wrote to its standard error.
    pub stderr: String,
    /// What the guest's kernel printed.
    pub kernel_log: KernelLog,
}

impl ScriptResult {
    /// Passes a script on that ended with status 0.
    pub fn succeeded(self) -> Result<Self> {
        if self.status == 0 { Ok(self) } else { Err(Error::ScriptFailed(Box::new(self))) }
    }

    /// Passes a script on that ended with status 0 without a word of complaint from the kernel.
    pub fn without_complaint(self) -> Result<Self> {
        let result = self.succeeded()?;
        none(result.kernel_log.complaints())?;
        Ok(result)
    }

    /// As [`ScriptResult::without_complaint`], but the volume may have needed recovery.
    pub fn without_complaint_besides_recovery(self) -> Result<Self> {
        let result = self.succeeded()?;
        none(result.kernel_log.complaints_besides_recovery())?;
        Ok(result)
    }

    /// The lines of the kernel's log that nobody wants to see about a volume in good order.
    pub fn nilfs_complaints(&self) -> Vec<String> {
        self.kernel_log.complaints()
    }
}

fn none(complaints: Vec<String>) -> Result<()> {
    if complaints.is_empty() { Ok(()) } else { Err(Error::Complaints(complaints)) }
}

impl fmt::Display for ScriptResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "exit status {}", self.status)?;
        writeln!(f, "--- standard output\n{}", self.stdout.trim_end())?;
        writeln!(f, "--- standard error\n{}", self.stderr.trim_end())?;
        write!(f, "--- kernel log\n{}", self.kernel_log.lines().join("\n"))
    }
}
