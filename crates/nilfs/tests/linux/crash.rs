//! What was synced survives: Linux's power failures in our hands, and our killed processes in
//! Linux's and in our own. Both make the same of what they find.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;

use nilfs_real_kernels::{
    CrashWorkload, LinuxImage, Manifest, ScriptResult, Tools, Uml, count_synced, linux,
    verify_synced,
};

use crate::ours::{GLANCE, Image, Mounted, assert_same, assert_same_but_for_times, scale};

/// Block size and seed of each crash. `NILFS_TEST_SCALE` multiplies the number of seeds.
fn crashes(seeds: u64) -> impl Iterator<Item = (u32, u64)> {
    let seeds = 1..=seeds * u64::from(scale());
    seeds.flat_map(|seed| [4096, 2048, 1024].map(|block_size| (block_size, seed)))
}

/// How many events of its log a workload lives to see: from early to late, each seed its own.
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

/// Linux mounts the volume and lists it.
#[track_caller]
fn listed_by_linux(image: &Image) -> ScriptResult {
    let uml = Uml::new(image.path()).script("mount_nilfs; manifest $MNT; umount_nilfs");
    uml.run().unwrap()
}

/// Linux's recovery of what we have just recovered was the same.
#[track_caller]
fn assert_linux_recovers(
    what: &str,
    unrecovered: &Image,
    ours: &Manifest,
    assert_recovered: fn(&str, &Manifest, &Manifest),
) {
    let theirs = listed_by_linux(unrecovered).without_complaint_besides_recovery().unwrap();
    let what_linux_made = theirs.stdout.parse().unwrap();
    assert_recovered(&format!("{what}: recovered by Linux"), ours, &what_linux_made);
}

/// Linux has nothing to say against the order in which we have left the volume.
#[track_caller]
fn assert_linux_agrees(what: &str, recovered: &Image, ours: &Manifest) {
    let theirs = listed_by_linux(recovered).without_complaint().unwrap();
    assert_same(&format!("{what}: seen by Linux"), ours, &theirs.stdout.parse().unwrap());
}

#[test]
fn linux_loses_its_power_and_we_recover() {
    for (block_size, seed) in crashes(2) {
        let what = format!("blocks of {block_size}, seed {seed}");
        println!("{what}");
        let made = LinuxImage::of_size(2 << 30).block_size(block_size).blocks_per_segment(64);
        let image = Image::of_linux(&made);
        let log = image.beside("synced");
        let workload = CrashWorkload { seed, strict: false };
        linux::crash(&image.path(), workload, &log, lifetime(block_size, seed)).unwrap();
        let unrecovered = image.copy();

        let before = image.last_change();
        let mounted = image.mount("ro");
        assert_synced(&what, &log, &mounted.join("work"));
        let read_only = mounted.manifest("");
        mounted.unmount();
        assert_eq!(image.last_change(), before, "{what}: a read-only mount has written");

        let mounted = image.mount("rw");
        assert_synced(&what, &log, &mounted.join("work"));
        let recovered = mounted.manifest("");
        mounted.unmount();
        image.check();
        assert_same(&what, &read_only, &recovered);
        assert_linux_recovers(&what, &unrecovered, &recovered, assert_same);
        assert_linux_agrees(&what, &image, &recovered);
        image.check();
    }
}

/// A process that works on the volume until this fails.
struct Workload {
    process: Child,
    log: PathBuf,
    directory: String,
}

impl Workload {
    /// Relies on everything that POSIX promises.
    fn start(image: &Image, mounted: &Mounted, directory: String, seed: u64) -> Self {
        let log = image.beside(&format!("{directory}.log"));
        let work = mounted.join(&directory);
        fs::create_dir(&work).unwrap();
        File::open(&work).unwrap().sync_all().unwrap();
        let mut fill = Tools::get().unwrap().fill();
        fill.args(["crash", "--strict", "--seed", &seed.to_string(), "--log"]).args([&log, &work]);
        // In the end it says that it cannot go on.
        let process = fill.stderr(Stdio::null()).spawn().unwrap();
        Self { process, log, directory }
    }

    fn has_logged(&mut self, events: usize) -> bool {
        let ended = self.process.try_wait().unwrap();
        assert!(ended.is_none(), "the workload in {} has ended by itself", self.directory);
        count_synced(&self.log) >= events
    }
}

/// Our process is killed while two workloads make their work durable and a third program doesn't
/// care. Returns the volume as it was left, and the workloads.
fn killed(block_size: u32, seed: u64, options: &str) -> (Image, Vec<Workload>) {
    let image = Image::ours(&format!("--size 2G -b {block_size} -B 64"));
    let mounted = image.mount(options);
    let tree = mounted.join("careless");
    fs::create_dir(&tree).unwrap();
    let mut fill = Tools::get().unwrap().fill();
    fill.args(["populate", "--seed", &seed.to_string()]).arg(tree).stderr(Stdio::null());
    let mut careless = fill.spawn().unwrap();
    let start = |nth| Workload::start(&image, &mounted, format!("work{nth}"), seed * 2 + nth);
    let mut workloads: Vec<Workload> = (0..2).map(start).collect();
    let events = lifetime(block_size, seed);
    while !workloads.iter_mut().all(|workload| workload.has_logged(events)) {
        thread::sleep(GLANCE);
    }
    mounted.kill();
    careless.wait().unwrap();
    for workload in &mut workloads {
        assert!(!workload.process.wait().unwrap().success());
    }
    (image, workloads)
}

/// Mounts what a killed process has left. Returns what is there then.
#[track_caller]
fn recovered_by_us(what: &str, image: &Image, workloads: &[Workload]) -> Manifest {
    let mounted = image.mount("rw");
    for Workload { log, directory, .. } in workloads {
        assert_synced(what, log, &mounted.join(directory));
    }
    let recovered = mounted.manifest("");
    mounted.unmount();
    image.check();
    recovered
}

#[test]
fn we_are_killed_and_recover() {
    for (block_size, seed) in crashes(4) {
        let what = format!("blocks of {block_size}, seed {seed}");
        println!("{what}");
        let (image, workloads) = killed(block_size, seed, "rw");
        let recovered = recovered_by_us(&what, &image, &workloads);
        assert_linux_agrees(&what, &image, &recovered);
    }
}

#[test]
fn we_are_killed_and_linux_recovers_what_has_no_records() {
    for (block_size, seed) in crashes(2) {
        let what = format!("fsync=checkpoint, blocks of {block_size}, seed {seed}");
        println!("{what}");
        let (image, workloads) = killed(block_size, seed, "rw,fsync=checkpoint");
        let unrecovered = image.copy();
        let recovered = recovered_by_us(&what, &image, &workloads);
        assert_linux_recovers(&what, &unrecovered, &recovered, assert_same_but_for_times);
        assert_linux_agrees(&what, &image, &recovered);
    }
}

/// An fsync of overwritten blocks makes no checkpoint. What it writes instead, Linux knows as well.
#[test]
fn linux_rolls_forward_what_we_have_overwritten_and_synced() {
    for block_size in [4096, 1024] {
        let image = Image::ours(&format!("--size 128M -b {block_size} -B 1024"));
        image.nilfs(&["tune", "--interval", "3600"]);
        let mounted = image.mount("rw");
        let path = mounted.join("file");
        fs::write(&path, vec![1; 100_000]).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        mounted.checkpoint();
        let before = image.nilfs(&["checkpoints", "--json"]);
        for nth in 0..20_u8 {
            file.write_all_at(&[nth; 5000], u64::from(nth) * 4500).unwrap();
            file.sync_all().unwrap();
        }
        let content = fs::read(&path).unwrap();
        // An open file keeps the device of a mount in use, also when the process is gone.
        drop(file);
        mounted.kill();
        assert_eq!(image.nilfs(&["checkpoints", "--json"]), before, "an fsync made a checkpoint");
        let unrecovered = image.copy();
        let script = "mount_nilfs; od -An -v -tu1 $MNT/file; umount_nilfs";
        let result = Uml::new(unrecovered.path()).script(script).run().unwrap();
        let result = result.without_complaint_besides_recovery().unwrap();
        let theirs = result.stdout.split_ascii_whitespace();
        let same = theirs.eq(content.iter().map(u8::to_string));
        assert!(same, "blocks of {block_size}: recovered by Linux");
        let mounted = image.mount("rw");
        assert_eq!(fs::read(mounted.join("file")).unwrap(), content, "recovered by us");
        mounted.unmount();
        image.check();
    }
}
