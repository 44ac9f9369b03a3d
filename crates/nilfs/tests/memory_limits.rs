//! A mount lives, and loses nothing, in a control group with little memory, whatever is done to it;
//! and when that is over it gives memory back.
//!
//! What broke once: the memory for changes followed the machine alone, so that in a small container
//! the kernel killed the process; it did so through io_uring, whose entries followed nothing; and each
//! file that was read took kilobytes for as long as the kernel knew of it.

mod common {
    pub mod ours;
}
#[path = "../../nilfs-fuse/tests/posix/switch.rs"]
mod switch;

use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use common::ours::{Image, Mounted, scale};
use switch::Switch;

/// A control group with a limit for memory, which goes away with the value.
struct Group(PathBuf);

impl Group {
    /// `None`, with the reason on stderr, if this machine lets nobody make one.
    fn with_memory(bytes: u64) -> Option<Self> {
        // Of version 2 and of version 1, where they usually are.
        let places = [
            ("/sys/fs/cgroup", "memory.max", "memory.swap.max"),
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
        ];
        for (place, limit, with_swap) in places {
            static GROUPS: AtomicU32 = AtomicU32::new(0);
            let nth = GROUPS.fetch_add(1, Ordering::Relaxed);
            let name = format!("nilfs-test-{}-{nth}", std::process::id());
            let group = Self(Path::new(place).join(name));
            if fs::create_dir(&group.0).is_err() {
                continue;
            }
            // Where there are no control groups, a file must not be made instead.
            let set = |name: &str, value: u64| {
                let mut file = File::options().write(true).open(group.0.join(name))?;
                file.write_all(value.to_string().as_bytes())
            };
            if set(limit, bytes).is_ok() {
                // There may be no swap.
                let _ = set(with_swap, if limit == "memory.max" { 0 } else { bytes });
                return Some(group);
            }
        }
        eprintln!("skipped: no control group with a limit for memory can be made here");
        None
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last process may just be leaving it.
        for _ in 0..500 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

const BLOCK: usize = 4096;

fn block(seed: usize) -> Vec<u8> {
    (0..BLOCK).map(|at| (at * 31 + seed * 7 + seed / 251 + at / 253) as u8).collect()
}

/// More than the limit in one file, as a copy writes it.
fn write_large(path: &Path, seed: usize, megabytes: usize) {
    let file = File::create(path).unwrap();
    for megabyte in 0..megabytes {
        let content: Vec<u8> =
            (0..256).flat_map(|nth| block(seed + megabyte * 256 + nth)).collect();
        file.write_all_at(&content, (megabyte << 20) as u64).unwrap();
    }
}

fn is_large(path: &Path, seed: usize, megabytes: Range<usize>) {
    let file = File::open(path).unwrap();
    let mut found = vec![0; BLOCK];
    for nth in megabytes.start * 256..megabytes.end * 256 {
        file.read_exact_at(&mut found, (nth * BLOCK) as u64).unwrap();
        assert!(found == block(seed + nth), "block {nth} of {}", path.display());
    }
}

/// The order in which blocks are overwritten, all of them once.
fn scattered(count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |nth| nth * 7919 % count)
}

/// Overwrites every block of a file, each far from the one before, with some fsyncs.
fn overwrite(path: &Path, seed: usize, megabytes: usize) {
    let file = File::options().write(true).open(path).unwrap();
    for (round, nth) in scattered(megabytes * 256).enumerate() {
        file.write_all_at(&block(seed + nth), (nth * BLOCK) as u64).unwrap();
        if round % 1000 == 999 {
            file.sync_data().unwrap();
        }
    }
}

fn small_name(dir: &Path, nth: usize) -> PathBuf {
    dir.join((nth / 500).to_string()).join(format!("a small file with number {nth}"))
}

fn make_small(dir: &Path, count: usize) {
    for nth in 0..count {
        let name = small_name(dir, nth);
        if nth % 500 == 0 {
            fs::create_dir_all(name.parent().unwrap()).unwrap();
        }
        fs::write(name, nth.to_string()).unwrap();
    }
}

fn read_small(dir: &Path, numbers: impl Iterator<Item = usize>) {
    for nth in numbers {
        assert_eq!(fs::read_to_string(small_name(dir, nth)).unwrap(), nth.to_string());
    }
}

/// Calls `test` with the words that mount a volume by each transport that is to be had, and with which
/// nothing is protected, so that the cleaner has something to do when the volume gets full.
fn each(test: impl Fn(&str)) {
    /// One test at a time, because the switch is one for all.
    static ALONE: Mutex<()> = Mutex::new(());
    test("pp=0,transport=dev");
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(_on) = Switch::on() {
        test("pp=0,transport=uring");
    }
}

fn live_with(megabytes: u64, options: &str) {
    let Some(group) = Group::with_memory(megabytes << 20) else { return };
    let image = Image::ours("--size 800M -b 4096");
    let mounted = image.mount_in(&group.0, options);
    let large = 160 * scale() as usize;
    let small = 6000 * scale() as usize;
    let root = mounted.root();
    let dirs = ["one", "other"].map(|name| root.join(name));
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    thread::scope(|scope| {
        for (seed, dir) in dirs.iter().enumerate() {
            scope.spawn(move || {
                write_large(&dir.join("large"), seed, large);
                overwrite(&dir.join("large"), seed + 1000, large / 2);
            });
            scope.spawn(move || {
                make_small(dir, small);
                read_small(dir, 0..small);
                for nth in (0..small).step_by(2) {
                    fs::remove_file(small_name(dir, nth)).unwrap();
                }
            });
        }
    });
    // What the kernel has in its cache is not what the process has written.
    mounted.unmount();
    image.check();
    let mounted = image.mount_in(&group.0, options);
    let dirs = ["one", "other"].map(|name| mounted.join(name));
    for (seed, dir) in dirs.iter().enumerate() {
        is_large(&dir.join("large"), seed + 1000, 0..large / 2);
        is_large(&dir.join("large"), seed, large / 2..large);
        read_small(dir, (1..small).step_by(2));
        assert!(!small_name(dir, 0).exists());
        fs::remove_file(dir.join("large")).unwrap();
    }
    mounted.unmount();
    image.check();
}

#[test]
fn heavy_load_in_64_mib() {
    each(|options| live_with(64, options));
}

#[test]
fn heavy_load_in_128_mib() {
    each(|options| live_with(128, options));
}

/// Each of many programs has a request of a MiB under way, and another one when that is answered.
#[test]
fn many_large_requests_at_once_in_64_mib() {
    const PROGRAMS: usize = 48;
    const MEGABYTES: usize = 2;
    each(|options| {
        let Some(group) = Group::with_memory(64 << 20) else { return };
        let image = Image::ours("--size 800M -b 4096");
        let mounted = image.mount_in(&group.0, options);
        let root = mounted.root();
        thread::scope(|scope| {
            for program in 0..PROGRAMS {
                scope.spawn(move || {
                    let (file, copy) =
                        (root.join(format!("{program}")), root.join(format!("copy {program}")));
                    for round in 0..3 * scale() as usize {
                        let content =
                            [block(program), block(round)].concat().repeat(MEGABYTES << 7);
                        fs::write(&file, &content).unwrap();
                        fs::copy(&file, &copy).unwrap();
                        fs::remove_file(&file).unwrap();
                        assert!(fs::read(&copy).unwrap() == content);
                    }
                });
            }
        });
        mounted.unmount();
        image.check();
    });
}

/// What a volume has that is looked after: more than the memory there is.
const SMALL_FILES: usize = 5000;
const LARGE_MEGABYTES: usize = 80;

/// A volume with many files, a large one, and a past of it.
fn full_image() -> Image {
    let image = Image::ours("--size 800M -b 1024");
    let mounted = image.mount("");
    make_small(mounted.root(), SMALL_FILES);
    write_large(&mounted.join("large"), 1, LARGE_MEGABYTES);
    mounted.checkpoint();
    for round in 0..10 {
        overwrite(&mounted.join("large"), round, 1);
        mounted.checkpoint();
    }
    mounted.unmount();
    image
}

/// What looks after a volume does so on a machine with little memory, too.
#[test]
fn a_volume_is_checked_scrubbed_and_salvaged_in_64_mib() {
    let Some(group) = Group::with_memory(64 << 20) else { return };
    let image = full_image();
    image.nilfs_in(&group.0, &["fsck", "-n"]);
    image.nilfs_in(&group.0, &["scrub"]);
    let saved = image.beside("saved");
    image.nilfs_in(&group.0, &["salvage", "--to", saved.to_str().unwrap()]);
    is_large(&saved.join("large"), 1, 1..LARGE_MEGABYTES);
    read_small(&saved, 0..SMALL_FILES);
}

/// Bytes of memory of the process that serves a volume, without the files that it maps.
fn memory_of(mounted: &Mounted) -> usize {
    let status = fs::read_to_string(format!("/proc/{}/status", mounted.process())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// An idle process gives memory back after a few seconds; how many is not what this is about.
fn settles_below(mounted: &Mounted, bound: usize) -> bool {
    (0..600).any(|_| {
        thread::sleep(Duration::from_millis(100));
        memory_of(mounted) <= bound
    })
}

#[test]
fn an_idle_mount_gives_back_what_many_files_took() {
    const FILES: usize = 30_000;
    const CACHE: usize = 8 << 20;
    let image = Image::ours("--size 400M -b 1024");
    let mounted = image.mount("dirty=16M,cache=8M");
    // Buffers, and what the allocator keeps for each thread, are there from the first requests on.
    let first = mounted.join("first");
    make_small(&first, FILES / 10);
    read_small(&first, 0..FILES / 10);
    let before = memory_of(&mounted);
    make_small(mounted.root(), FILES);
    read_small(mounted.root(), 0..FILES);
    // The kernel holds all of them now.
    let bound = before + CACHE + FILES * 300;
    assert!(settles_below(&mounted, bound), "{} bytes, not {bound}", memory_of(&mounted));
    mounted.unmount();
    image.check();
}
