//! A volume whose process is killed again and again under load: each time it is mounted again, and
//! every file is what somebody has written, not older than its last fsync. The superuser and
//! `/dev/fuse` are needed; io_uring is used by turns where the kernel offers it. `NILFS_KILLS=1000`
//! kills it that often, `NILFS_SEED=n` replays what is written and after how many steps the process
//! dies.

mod common {
    pub mod mapping;
    pub mod ours;
}

#[path = "../../nilfs-fuse/tests/posix/switch.rs"]
mod switch;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use common::mapping::Mapping;
use common::ours::{GLANCE, Image, Mounted};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use switch::Switch;

/// Programs that write at the same time, each in a directory of its own.
const WRITERS: usize = 3;

/// Files of each.
const FILES: usize = 6;

/// Bytes of a file, at most. The kernel passes on as much in one request.
const MOST_BYTES: usize = 60_000;

/// Steps of all writers before a kill, at most.
const MOST_STEPS: u64 = 60;

/// What may be found in a file.
#[derive(Default)]
struct Known {
    /// The version that an fsync has made durable, or that was found after a kill; none if empty.
    durable: Option<u64>,
    /// Those that were written since.
    later: Vec<u64>,
    /// It was made empty since, before something was written.
    emptied: bool,
}

/// A program, and its files by their names.
struct Writer {
    rng: StdRng,
    versions: u64,
    files: BTreeMap<String, Known>,
}

/// Every version of a file is different, and of one piece: it says its number all over.
fn content(version: u64, length: usize) -> Vec<u8> {
    version.to_le_bytes().into_iter().cycle().take(8 + length / 8 * 8).collect()
}

/// The version that a file has; none if it is empty.
fn version_in(bytes: &[u8]) -> Option<u64> {
    let first: [u8; 8] = bytes.get(..8)?.try_into().ok()?;
    let same = bytes.chunks(8).all(|word| word == first);
    assert!(same, "a mixture of versions, {} bytes", bytes.len());
    Some(u64::from_le_bytes(first))
}

impl Writer {
    fn new(seed: u64) -> Self {
        Self { rng: StdRng::seed_from_u64(seed), versions: 0, files: BTreeMap::new() }
    }

    /// Works until the file system is gone. Counts its `steps`.
    fn work(&mut self, dir: &Path, steps: &AtomicU64) {
        while self.step(dir).is_ok() {
            steps.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes a file anew, in one of three ways, of which one is without an fsync.
    fn step(&mut self, dir: &Path) -> io::Result<()> {
        self.versions += 1;
        let (version, length) = (self.versions, self.rng.random_range(0..MOST_BYTES));
        let bytes = content(version, length);
        let name = format!("file{}", self.rng.random_range(0..FILES));
        let (path, way) = (dir.join(&name), self.rng.random_range(0..3));
        let known = self.files.entry(name).or_default();
        known.later.push(version);
        if way == 0 {
            let aside = dir.join("aside");
            let mut file = File::create(&aside)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(aside, path)?;
            File::open(dir)?.sync_all()?;
        } else {
            known.emptied = true;
            let mut file = File::create(path)?;
            file.write_all(&bytes)?;
            if way == 2 {
                return Ok(());
            }
            file.sync_all()?;
        }
        *known = Known { durable: Some(version), ..Known::default() };
        Ok(())
    }

    /// Looks at what is left, and goes on from there. Returns how many files had to be there.
    fn look(&mut self, dir: &Path) -> usize {
        let durable = self.files.values().filter(|known| known.durable.is_some()).count();
        for (name, known) in &mut self.files {
            let bytes = match fs::read(dir.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    assert_eq!(known.durable, None, "{name} is gone");
                    Vec::new()
                }
                bytes => bytes.unwrap(),
            };
            let found = version_in(&bytes);
            let fits = match found {
                None => known.emptied || known.durable.is_none(),
                Some(version) => found == known.durable || known.later.contains(&version),
            };
            let (durable, later) = (known.durable, &known.later);
            assert!(fits, "{name} has {found:?}, expected {durable:?} or one of {later:?}");
            *known = Known { durable: found, ..Known::default() };
        }
        durable
    }
}

fn dir(mounted: &Mounted, nth: usize) -> std::path::PathBuf {
    mounted.join(&format!("writer{nth}"))
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

#[test]
fn nothing_that_was_synced_is_lost_however_often_the_process_is_killed() {
    let (kills, seed) = (number("NILFS_KILLS", 25), number("NILFS_SEED", 1));
    println!("seed {seed} (replay with NILFS_SEED={seed})");
    let image = Image::ours("--size 48M -B 128");
    let mut rng = StdRng::seed_from_u64(seed);
    let mut writers: Vec<Writer> = (0..WRITERS).map(|_| Writer::new(rng.random())).collect();
    let mut synced = 0;
    let switched = Switch::on();
    let transports: &[&str] = if switched.is_some() { &["dev", "uring"] } else { &["dev"] };
    for (_, transport) in (0..kills).zip(transports.iter().cycle()) {
        // Nothing is protected, so the cleaner has something to do.
        let mounted = image.mount(&format!("rw,pp=0,transport={transport}"));
        for (nth, writer) in writers.iter_mut().enumerate() {
            fs::create_dir_all(dir(&mounted, nth)).unwrap();
            synced += writer.look(&dir(&mounted, nth));
        }
        File::open(mounted.root()).unwrap().sync_all().unwrap();
        let (steps, enough) = (AtomicU64::new(0), rng.random_range(0..MOST_STEPS));
        thread::scope(|scope| {
            for (nth, writer) in writers.iter_mut().enumerate() {
                let (dir, steps) = (dir(&mounted, nth), &steps);
                scope.spawn(move || writer.work(&dir, steps));
            }
            while steps.load(Ordering::Relaxed) < enough {
                thread::sleep(GLANCE);
            }
            mounted.kill();
        });
        image.check();
    }
    let mounted = image.mount("rw");
    for (nth, writer) in writers.iter_mut().enumerate() {
        synced += writer.look(&dir(&mounted, nth));
    }
    mounted.unmount();
    image.check();
    println!("{kills} kills, {synced} times a file with content that was synced was there");
}

/// Which file this program, run again, is to write by a mapping: a page that cannot be had any more
/// ends it by a signal.
const MAPPED: &str = "NILFS_TEST_MAPPED";

/// Bytes of that file: ten pages, the last of them in part.
const MAPPED_BYTES: usize = 40_000;

/// Says each version that is durable, until the file system is gone.
fn write_by_a_mapping(path: &Path) {
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).open(path).unwrap();
    file.set_len(MAPPED_BYTES as u64).unwrap();
    let mapping = Mapping::new(&file, MAPPED_BYTES).unwrap();
    let mut before = [0; 8];
    mapping.read(0, &mut before);
    for version in u64::from_le_bytes(before) + 1.. {
        mapping.write(0, &content(version, MAPPED_BYTES)[..MAPPED_BYTES]);
        if mapping.sync().is_err() {
            return;
        }
        println!("synced {version}");
    }
}

#[test]
fn what_was_synced_by_msync_is_there_after_a_kill() {
    if let Some(path) = std::env::var_os(MAPPED) {
        return write_by_a_mapping(Path::new(&path));
    }
    let image = Image::ours("--size 48M -B 128");
    let mut durable = 0;
    for round in 0..6 {
        let mounted = image.mount("rw");
        let path = mounted.join("mapped");
        if round > 0 {
            let bytes = fs::read(&path).unwrap();
            assert_eq!(bytes.len(), MAPPED_BYTES);
            // What came after may be there, page by page.
            let versions =
                bytes.chunks_exact(8).map(|it| u64::from_le_bytes(it.try_into().unwrap()));
            let lost: BTreeSet<u64> =
                versions.filter(|it| !(durable..=durable + 1).contains(it)).collect();
            assert!(lost.is_empty(), "{durable} was synced, but there is {lost:?}");
        }
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "what_was_synced_by_msync_is_there_after_a_kill", "--nocapture"]);
        let mut writer = again.env(MAPPED, &path).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(writer.stdout.take().unwrap()).lines();
        let synced = lines
            .map_while(Result::ok)
            .filter_map(|line| line.strip_prefix("synced ")?.parse().ok());
        let mut mounted = Some(mounted);
        for (nth, version) in synced.enumerate() {
            durable = version;
            if nth == 4 * round {
                mounted.take().unwrap().kill();
            }
        }
        assert!(mounted.is_none(), "the writer ended by itself");
        writer.wait().unwrap();
        image.check();
    }
}
