//! Jobs for another process.
//!
//! The kernel may write a mapping back while it holds the lock on the memory of the process that
//! had it. If that is the process that serves the file system, it waits for itself. So files are
//! mapped in a process of their own: this test program once more, which is told to run the test
//! below and finds its job in the environment.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{content, durability, flags, times};

const JOB: &str = "NILFS_TEST_JOB";
const FILE: &str = "NILFS_TEST_FILE";

/// A name, and what to do with the file.
type Job = (&'static str, fn(&Path));

const JOBS: &[Job] = &[
    ("map shared", content::map_shared),
    ("map privately", content::map_privately),
    ("write mapped", times::write_mapped),
    ("write mapped and make immutable", flags::write_mapped_and_make_immutable),
    ("write mapped and sync", durability::write_mapped_and_sync),
];

/// Does a job on a file.
pub fn run(job: &str, path: &Path) {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "client::job", "--ignored", "--nocapture", "--quiet"])
        .env(JOB, job)
        .env(FILE, path)
        .output()
        .unwrap();
    print!("{}", String::from_utf8_lossy(&status.stdout));
    eprint!("{}", String::from_utf8_lossy(&status.stderr));
    assert!(status.status.success(), "the job \"{job}\" failed");
}

#[test]
#[ignore = "a part of other tests"]
fn job() {
    let Ok(wanted) = std::env::var(JOB) else { return };
    let path = PathBuf::from(std::env::var_os(FILE).unwrap());
    let (_, job) = JOBS.iter().find(|(name, _)| *name == wanted).unwrap();
    job(&path);
}
