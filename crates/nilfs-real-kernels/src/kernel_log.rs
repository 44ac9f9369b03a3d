//! The guest kernel's log, and which of its lines are ordinary.
//!
//! Linux 6.1's nilfs2 says two things when all is well: that the module is loaded, and that the
//! log writer of a volume starts (at each writable mount). After a crash it adds that it mounts an
//! unchecked volume, how many blocks it salvaged (only if there were data-sync logs), and that
//! recovery is complete. Everything else from NILFS is a complaint.

/// Lines that a clean mount brings.
const ORDINARY: &[&str] = &["NILFS version 2 loaded", "segctord starting"];

/// Lines that the mount of a volume brings which was not cleanly unmounted.
const RECOVERY: &[&str] = &["mounting unchecked fs", "salvaged", "recovery complete"];

/// Signs of trouble whoever prints them.
const TROUBLE: &[&str] = &[
    "BUG:",
    "WARNING:",
    "Oops",
    "Kernel panic",
    "blocked for more than",
    "I/O error",
    "beyond end of device",
    "Call Trace",
    "segfault",
];

/// What the guest's kernel printed since its init started, oldest line first.
#[derive(Debug, Clone, Default)]
pub struct KernelLog {
    lines: Vec<String>,
}

impl KernelLog {
    /// Takes the log out of what appeared on the guest's console.
    pub fn from_console(console: &str) -> Self {
        let lines: Vec<String> = console
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect();
        let boot = lines
            .iter()
            .position(|line| line.contains("as init process"));
        Self {
            lines: lines
                .into_iter()
                .skip(boot.map_or(0, |at| at + 1))
                .collect(),
        }
    }

    /// All lines.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// The lines that nobody wants to see about a volume that was left in good order.
    pub fn complaints(&self) -> Vec<String> {
        self.select(|line| is_trouble(line) || (is_nilfs(line) && !any(ORDINARY, line)))
    }

    /// The lines that nobody wants to see even about a volume that lost its power.
    pub fn complaints_besides_recovery(&self) -> Vec<String> {
        let mut complaints = self.complaints();
        complaints.retain(|line| !any(RECOVERY, line));
        complaints
    }

    /// The lines that tell of a recovery; empty if every mounted volume was clean.
    pub fn recovery(&self) -> Vec<String> {
        self.select(|line| is_nilfs(line) && any(RECOVERY, line))
    }

    fn select(&self, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        self.lines
            .iter()
            .filter(|line| wanted(line))
            .cloned()
            .collect()
    }
}

fn any(patterns: &[&str], line: &str) -> bool {
    patterns.iter().any(|pattern| line.contains(pattern))
}

fn is_nilfs(line: &str) -> bool {
    line.contains("NILFS") || line.contains("nilfs")
}

fn is_trouble(line: &str) -> bool {
    any(TROUBLE, line)
}
