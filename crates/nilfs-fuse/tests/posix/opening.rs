//! Files that the kernel asks us to open, and then refuses to open itself. OPEN used to empty them,
//! because `O_TRUNC` came with it: the program that ran was gone, although open(2) had failed.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use landlock::{AccessFs, Ruleset, RulesetAttr, RulesetStatus};
use nilfs_fuse::PastSettings;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::support::{Settings, World};

/// Runs a test with each way in which the kernel opens and writes files.
fn each(test: impl Fn(&World)) {
    let plain = Settings::default();
    let asked = Settings { past: Some(PastSettings::default()), ..Settings::default() };
    let cached = Settings { writeback: true, ..asked.clone() };
    for settings in [plain, asked, cached] {
        test(&World::with_settings(settings));
    }
}

/// Says with which error a file is not opened and emptied.
fn refusal(path: &Path, access: OFlags) -> Option<Errno> {
    rustix::fs::open(path, access | OFlags::TRUNC, Mode::empty()).err()
}

#[test]
fn a_program_that_runs_is_not_emptied() {
    each(|world| {
        let program = world.path("program");
        fs::copy("/bin/sleep", &program).unwrap();
        let content = fs::read(&program).unwrap();
        let mut running = Command::new(&program).arg("1000").spawn().unwrap();
        for access in [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR] {
            assert_eq!(refusal(&program, access), Some(Errno::TXTBSY), "{access:?}");
            assert!(fs::read(&program).unwrap() == content, "{access:?} has changed the program");
        }
        running.kill().unwrap();
        running.wait().unwrap();
        assert_eq!(refusal(&program, OFlags::RDONLY), None);
        assert_eq!(fs::read(&program).unwrap(), b"");
    });
}

/// Drops this thread's right to make files shorter. Returns whether Linux can do that.
fn give_up_truncation() -> bool {
    let rules = Ruleset::default().handle_access(AccessFs::Truncate).unwrap().create().unwrap();
    rules.restrict_self().unwrap().ruleset == RulesetStatus::FullyEnforced
}

#[test]
fn a_file_that_a_security_module_guards_is_not_emptied() {
    each(|world| {
        let file = world.file("file", "content");
        let refuse = || {
            if !give_up_truncation() {
                return eprintln!("skipped: Linux has no Landlock here");
            }
            for access in [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR] {
                assert_eq!(refusal(&file, access), Some(Errno::ACCESS), "{access:?}");
                assert_eq!(fs::read(&file).unwrap(), b"content", "{access:?}");
            }
        };
        thread::scope(|scope| scope.spawn(refuse).join().unwrap());
    });
}
