//! What was synced survives: Linux's power failures in our hands, and our killed processes in
//! Linux's and in our own.

mod common {
    pub mod ours;
}

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;

use common::ours::{GLANCE, Image, assert_same, scale};
use nilfs_real_kernels::{
    CrashWorkload, LinuxImage, Manifest, Tools, Uml, count_synced, linux, verify_synced,
};

/// Block size and seed of each crash. `NILFS_TEST_SCALE` multiplies the number of seeds.
fn crashes(seeds: u64) -> impl Iterator<Item = (u32, u64)> {
    let seeds = 1..=seeds * u64::from(scale());
    seeds.flat_map(|seed| [4096, 2048, 1024].map(|block_size| (block_size, seed)))
}

/// How many events of its log a workload lives to see: from early to late, for each seed its own.
fn lifetime(block_size: u32, seed: u64) -> usize {
    30 + (seed as usize * 7919 + block_size as usize / 1024 * 101) % 300
}

/// Fails unless everything that the log says was synced is below `work`.
#[track_caller]
fn assert_synced(what: &str, log: &Path, work: &Path) {
    let report = verify_synced(log, work).unwrap();
    assert!(report.failures.is_empty(), "{what}: {:#?}", report.failures);
    assert!(report.checked > 0, "{what}: the log is empty");
}

/// What Linux makes of the volume, which we have left in good order.
#[track_caller]
fn seen_by_linux(image: &Image) -> Manifest {
    let uml = Uml::new(image.path()).script("mount_nilfs; manifest $MNT/work; umount_nilfs");
    uml.run().unwrap().without_complaint().unwrap().stdout.parse().unwrap()
}

/// What Linux's recovery makes of the volume.
#[track_caller]
fn recovered_by_linux(image: &Image) -> Manifest {
    let uml = Uml::new(image.path()).script("mount_nilfs; manifest $MNT/work; umount_nilfs");
    let verdict = uml.run().unwrap().without_complaint_besides_recovery().unwrap();
    verdict.stdout.parse().unwrap()
}

/// We recover the volume, and leave it in good order. Gives what is to be seen then.
#[track_caller]
fn recovered_by_us(what: &str, image: &Image, log: &Path) -> Manifest {
    let mounted = image.mount("rw");
    assert_synced(what, log, &mounted.join("work"));
    let seen = mounted.manifest("work");
    mounted.unmount();
    image.check();
    seen
}

#[test]
fn linux_loses_its_power_and_we_recover() {
    for (block_size, seed) in crashes(2) {
        let what = format!("blocks of {block_size}, seed {seed}");
        println!("{what}");
        let made = LinuxImage::of_size(2 << 30).block_size(block_size).blocks_per_segment(512);
        let image = Image::of_linux(&made);
        let log = image.beside("synced");
        let workload = CrashWorkload { seed, strict: false };
        linux::crash(&image.path(), workload, &log, lifetime(block_size, seed)).unwrap();
        let theirs = image.copy();

        let before = image.last_change();
        let mounted = image.mount("ro");
        assert_synced(&what, &log, &mounted.join("work"));
        let read_only = mounted.manifest("work");
        mounted.unmount();
        assert_eq!(image.last_change(), before, "{what}: a read-only mount has written");

        let ours = recovered_by_us(&what, &image, &log);
        assert_same(&what, &read_only, &ours);
        assert_same(&what, &recovered_by_linux(&theirs), &ours);
        assert_same(&what, &ours, &seen_by_linux(&image));
        image.check();
    }
}

/// A workload of the crash kind on the host, which ends when its file system fails.
fn start_workload(seed: u64, log: &Path, work: &Path) -> Child {
    let mut fill = Tools::get().unwrap().fill();
    fill.args(["crash", "--strict", "--seed", &seed.to_string(), "--log"]).args([log, work]);
    // That it cannot go on is all that it has to say.
    fill.stderr(Stdio::null()).spawn().unwrap()
}

/// Our process is killed while a workload works. Gives the volume as it was left.
fn killed(block_size: u32, seed: u64) -> Image {
    let image = Image::ours("2G", block_size);
    let log = image.beside("synced");
    let mounted = image.mount("rw");
    let work = mounted.join("work");
    std::fs::create_dir(&work).unwrap();
    assert!(Command::new("sync").arg("--file-system").arg(&work).status().unwrap().success());
    let mut workload = start_workload(seed, &log, &work);
    while count_synced(&log) < lifetime(block_size, seed) {
        let ended = workload.try_wait().unwrap();
        assert!(ended.is_none(), "blocks of {block_size}, seed {seed}: the workload ended");
        thread::sleep(GLANCE);
    }
    mounted.kill();
    assert!(!workload.wait().unwrap().success());
    image
}

#[test]
fn we_are_killed_and_recover() {
    for (block_size, seed) in crashes(4) {
        let what = format!("blocks of {block_size}, seed {seed}");
        println!("{what}");
        let image = killed(block_size, seed);
        let log = image.beside("synced");
        let theirs = image.copy();
        let ours = recovered_by_us(&what, &image, &log);
        assert_same(&what, &recovered_by_linux(&theirs), &ours);
        assert_same(&what, &ours, &seen_by_linux(&image));
    }
}
