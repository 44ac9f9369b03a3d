//! nilfs-utils as a judge: its tools read an image inside a guest, as far as they need it on the
//! volume that Linux has mounted read-only.

use std::path::Path;

use tempfile::TempDir;

use crate::error::{Result, host, read_text};
use crate::{KernelLog, Uml};

/// Runs each tool and keeps what it said in files of its own. `dumpseg` gets all segments in use,
/// some at a time, to keep its command line short.
const SCRIPT: &str = r#"
run() {
    name=$1; shift
    status=0
    "$@" >"$OUT/$name.stdout" 2>"$OUT/$name.stderr" || status=$?
    echo $status >"$OUT/$name.status"
    sync "$OUT/$name".*
}
dump_segments_in_use() {
    lssu "$DEV" | awk 'NR > 1 { print $1 }' | xargs -r -n 100 dumpseg "$DEV"
}
run nilfs-tune nilfs-tune -l "$DEV"
mount_nilfs ro
run lscp lscp -a "$DEV"
run lssu lssu -a "$DEV"
run dumpseg dump_segments_in_use
umount_nilfs
"#;

/// What one tool had to say.
#[derive(Debug, Clone)]
pub struct ToolOutput {
    /// The tool's name.
    pub tool: &'static str,
    /// Its exit status.
    pub status: i32,
    /// What it printed.
    pub stdout: String,
    /// What it complained of.
    pub stderr: String,
}

/// What nilfs-utils sees in an image.
#[derive(Debug, Clone)]
pub struct NilfsUtils {
    /// `nilfs-tune -l`: the superblock. Linux writes its two superblocks in turn, and this tool
    /// reads the first one only, so it may call a cleanly unmounted volume "invalid or mounted".
    pub nilfs_tune: ToolOutput,
    /// `lscp -a`: all checkpoints.
    pub lscp: ToolOutput,
    /// `lssu -a`: all segments.
    pub lssu: ToolOutput,
    /// `dumpseg` of every segment in use: the summaries of its logs.
    pub dumpseg: ToolOutput,
    /// What the kernel said to the mount.
    pub kernel_log: KernelLog,
}

impl NilfsUtils {
    /// Lets all tools read a cleanly unmounted image.
    pub fn read(image: &Path) -> Result<Self> {
        let out = TempDir::new().map_err(host("make a directory in", &std::env::temp_dir()))?;
        let result = Uml::new(image).env("OUT", out.path()).script(SCRIPT).run()?.succeeded()?;
        Ok(Self {
            nilfs_tune: ToolOutput::read("nilfs-tune", out.path())?,
            lscp: ToolOutput::read("lscp", out.path())?,
            lssu: ToolOutput::read("lssu", out.path())?,
            dumpseg: ToolOutput::read("dumpseg", out.path())?,
            kernel_log: result.kernel_log,
        })
    }

    /// Everything that a tool or the kernel was not content with; empty if all is well.
    pub fn complaints(&self) -> Vec<String> {
        [&self.nilfs_tune, &self.lscp, &self.lssu, &self.dumpseg]
            .into_iter()
            .flat_map(ToolOutput::complaints)
            .chain(self.kernel_log.complaints())
            .collect()
    }
}

impl ToolOutput {
    fn read(tool: &'static str, directory: &Path) -> Result<Self> {
        let file = |part: &str| read_text(&directory.join(format!("{tool}.{part}")));
        // A status that is no number stands for a tool that never ran.
        let status = file("status")?.trim().parse().unwrap_or(-1);
        Ok(Self { tool, status, stdout: file("stdout")?, stderr: file("stderr")? })
    }

    fn complaints(&self) -> Vec<String> {
        let tool = self.tool;
        let mut complaints: Vec<String> = self
            .stderr
            .lines()
            // nilfs-tune greets on its standard error.
            .filter(|line| !line.starts_with("nilfs-tune 2."))
            .map(|line| format!("{tool}: {line}"))
            .collect();
        if self.status != 0 {
            complaints.push(format!("{tool}: exit status {}", self.status));
        }
        complaints
    }
}
