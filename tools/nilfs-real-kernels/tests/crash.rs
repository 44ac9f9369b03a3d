//! The crash workload's log is true at every moment, whenever the workload is stopped.

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use nilfs_real_kernels::{Tools, count_synced, verify_synced};

/// Stops the workload after some events, on a file system that loses nothing.
fn stopped_after(events: usize, seed: u64, options: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let (work, log) = (directory.path().join("work"), directory.path().join("log"));
    std::fs::create_dir(&work).unwrap();
    let mut workload = Tools::get()
        .unwrap()
        .fill()
        .args(["crash", "--seed", &seed.to_string(), "--log"])
        .arg(&log)
        .args(options)
        .arg(&work)
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    while count_synced(&log) < events {
        let ended = workload.try_wait().unwrap();
        assert!(ended.is_none(), "seed {seed}: the workload ended by itself");
        thread::sleep(Duration::from_millis(1));
    }
    workload.kill().unwrap();
    workload.wait().unwrap();
    let report = verify_synced(&log, &work).unwrap();
    assert!(report.failures.is_empty(), "seed {seed}: {:#?}", report.failures);
    assert!(report.checked > events / 20, "seed {seed}: only {} paths checked", report.checked);
}

#[test]
fn what_linux_keeps_is_logged_truly() {
    for seed in 0..4 {
        stopped_after(100 + 77 * seed as usize, seed, &[]);
    }
}

#[test]
fn what_we_keep_as_well_is_logged_truly() {
    for seed in 0..4 {
        stopped_after(100 + 77 * seed as usize, seed, &["--strict"]);
    }
}
