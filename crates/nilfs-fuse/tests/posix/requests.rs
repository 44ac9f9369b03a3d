//! How many requests of the kernel a kind of work takes, and that all of them are counted. What it
//! cannot do with less is in ARCHITECTURE.md.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::sync::Arc;
use std::time::SystemTime;

use nilfs_fuse::{Metrics, PastSettings};

use crate::support::{PATIENCE, Settings, World, chmod};

/// How many requests of each kind have come.
fn counts(metrics: &Metrics) -> BTreeMap<&'static str, u64> {
    let counts = metrics.operations();
    counts.iter().filter(|one| one.count > 0).map(|one| (one.operation, one.count)).collect()
}

/// The requests that `work` takes, besides those that nobody waits for.
fn requests(metrics: &Metrics, work: impl FnOnce()) -> BTreeMap<&'static str, u64> {
    let before = counts(metrics);
    work();
    let mut taken = counts(metrics);
    taken.iter_mut().for_each(|(kind, count)| *count -= before.get(kind).unwrap_or(&0));
    taken.retain(|kind, count| *count > 0 && !matches!(*kind, "release" | "forget"));
    taken
}

fn world(settings: Settings) -> (World, Arc<Metrics>) {
    let metrics = Arc::clone(&settings.metrics);
    (World::with_settings(settings), metrics)
}

#[test]
fn unpacking_a_file_takes_a_request_for_each_system_call_and_two_more() {
    let (world, metrics) = world(Settings::default());
    let unpack = |name| {
        let path = world.file(name, "content");
        chown(&path, Some(7), Some(7)).unwrap();
        chmod(&path, 0o640);
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    };
    unpack("first");
    let taken = requests(&metrics, || unpack("second"));
    // The name was asked for, and the directory's mode, because names in it have changed.
    let expected =
        [("create", 1), ("getattr", 1), ("lookup", 1), ("open", 1), ("setattr", 3), ("write", 1)];
    assert_eq!(taken, BTreeMap::from(expected));
}

/// With doors or without: only we know which files are immutable.
#[test]
fn opening_a_file_that_is_in_the_cache_takes_one_request_that_is_waited_for() {
    for past in [None, Some(PastSettings::default())] {
        let (world, metrics) = world(Settings { past, ..Settings::default() });
        let file = world.file("file", "content");
        // The attributes are out of date after a write.
        File::open(&file).unwrap();
        let taken = requests(&metrics, || drop(File::open(&file).unwrap()));
        assert_eq!(taken, BTreeMap::from([("open", 1)]));
    }
}

#[test]
fn a_file_is_opened_and_then_emptied() {
    let past = Some(PastSettings::default());
    let (world, metrics) = world(Settings { past, ..Settings::default() });
    let file = world.file("file", "content");
    fs::write(&file, "content").unwrap();
    let taken = requests(&metrics, || fs::write(&file, "new").unwrap());
    assert_eq!(taken, BTreeMap::from([("open", 1), ("setattr", 1), ("write", 1)]));
    assert_eq!(fs::read(&file).unwrap(), b"new");
    File::options().write(true).truncate(true).open(&file).unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"");
}

#[test]
fn names_that_are_known_to_be_absent_are_not_asked_for_again() {
    let (world, metrics) = world(Settings::default());
    let look = || assert!(fs::metadata(world.path("missing")).is_err());
    assert_eq!(requests(&metrics, look)["lookup"], 1);
    assert_eq!(requests(&metrics, look), BTreeMap::new());
    fs::write(world.path("missing"), "").unwrap();
    assert!(fs::metadata(world.path("missing")).is_ok());
}

#[test]
fn requests_that_nobody_waits_for_and_that_we_do_not_know_are_counted() {
    let past = Some(PastSettings::default());
    let (world, metrics) = world(Settings { past, ..Settings::default() });
    world.directory("directory");
    let file = world.file("directory/file", "");
    fs::read_dir(world.path("directory")).unwrap().count();
    fs::remove_file(file).unwrap();
    let list = || assert!(rustix::fs::listxattr(world.path(""), &mut [0; 8]).is_err());
    assert_eq!(requests(&metrics, list), BTreeMap::from([("unsupported", 1)]));
    assert!(counts(&metrics)["readdirplus"] >= 1);
    let begin = std::time::Instant::now();
    while !["release", "forget"].iter().all(|kind| counts(&metrics).contains_key(kind)) {
        assert!(begin.elapsed() < PATIENCE, "{:?}", counts(&metrics));
        std::thread::yield_now();
    }
}

#[test]
fn requests_are_counted_by_kind() {
    let settings = Settings::default();
    let metrics = Arc::clone(&settings.metrics);
    let world = World::with_settings(settings);
    let file = world.file("file", "content");
    File::open(&file).unwrap().sync_all().unwrap();
    let not_empty = world.directory("directory");
    world.file("directory/file", "");
    assert!(fs::remove_dir(&not_empty).is_err());
    assert!(fs::metadata(world.path("missing")).is_err());
    let counts = metrics.operations();
    let of = |operation: &str| counts.iter().find(|counts| counts.operation == operation).unwrap();
    assert_eq!((of("create").count, of("create").errors), (2, 0));
    assert_eq!((of("mkdir").count, of("mkdir").errors), (1, 0));
    assert_eq!((of("write").count, of("fsync").count), (1, 1));
    assert_eq!((of("rmdir").count, of("rmdir").errors), (1, 1));
    // A name that is not there is an answer.
    assert_eq!(of("lookup").errors, 0);
}
