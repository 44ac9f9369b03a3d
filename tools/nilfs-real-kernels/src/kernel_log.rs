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

/// Signs of trouble, from any part of the kernel.
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
        // The kernel goes on to list init's arguments and environment, indented.
        let since_init = console
            .lines()
            .map(str::trim_end)
            .skip_while(|line| !line.contains("as init process"))
            .skip(1)
            .skip_while(|line| line.starts_with("  "));
        Self { lines: since_init.map(str::to_owned).collect() }
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
        self.lines.iter().filter(|line| wanted(line)).cloned().collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: &str = "NET: Registered PF_PACKET protocol family\n\
        This architecture does not have kernel memory protection.\n\
        Run /tmp/uml-1/init.sh as init process\n  with arguments:\n    /tmp/uml-1/init.sh\n";
    const CLEAN: &str = "NILFS version 2 loaded\r\n\
        NILFS (ubda): segctord starting. Construction interval = 5 seconds\n";
    const RECOVERY: &str = "NILFS (ubda): mounting unchecked fs\n\
        NILFS (ubda): salvaged 4 blocks\nNILFS (ubda): recovery complete\n";

    fn log(parts: &[&str]) -> KernelLog {
        KernelLog::from_console(&parts.concat())
    }

    #[test]
    fn a_clean_mount_is_no_complaint() {
        let log = log(&[BOOT, CLEAN]);
        assert_eq!(log.lines().len(), 2);
        assert_eq!(log.complaints(), [""; 0]);
    }

    #[test]
    fn a_recovery_is_a_complaint_unless_it_was_due() {
        let log = log(&[BOOT, CLEAN, RECOVERY]);
        assert_eq!(log.complaints(), log.recovery());
        assert_eq!(log.recovery().len(), 3);
        assert_eq!(log.complaints_besides_recovery(), [""; 0]);
    }

    #[test]
    fn whatever_else_nilfs_says_is_a_complaint() {
        for line in [
            "NILFS error (device ubda): nilfs_bmap_lookup_contig: broken bmap (inode number=4)",
            "NILFS (ubda): error -5 truncating bmap (ino=12)",
            "BUG: kernel NULL pointer dereference, address: 0000000000000000",
            "Buffer I/O error on dev ubda, logical block 0, async page read",
        ] {
            let log = log(&[BOOT, CLEAN, line, "\n", RECOVERY]);
            assert_eq!(log.complaints_besides_recovery(), [line]);
        }
    }
}
