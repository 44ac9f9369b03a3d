//! Writers keep each other out and see readers; a user who may only read keeps nobody out.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nilfs_device::{Access, Device, FaultyDevice, FileDevice, OpenError, RecordingDevice};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{FlockOperation, flock};
use tempfile::TempDir;

/// The image that a child process reads.
const IMAGE_READ: &str = "NILFS_TEST_IMAGE_READ";
const GLANCE: Duration = Duration::from_millis(2);

/// An image that nobody has open.
struct Image {
    path: PathBuf,
    _directory: TempDir,
}

fn image() -> Image {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    Image { path, _directory: directory }
}

impl Image {
    fn open(&self, access: Access) -> FileDevice {
        FileDevice::open(&self.path, access).unwrap()
    }

    #[track_caller]
    fn refuses(&self, access: Access) {
        let refused = FileDevice::open(&self.path, access).unwrap_err();
        assert!(matches!(refused, OpenError::Busy { .. }), "{refused}");
    }
}

/// Locks `bytes` from `start` on as a user can who may only read; all if `bytes` is 0.
fn lock_for_reading(image: &Image, start: i64, bytes: i64) -> File {
    let file = File::open(&image.path).unwrap();
    let lock = libc::flock {
        l_type: libc::F_RDLCK as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: bytes,
        l_pid: 0,
    };
    fcntl(&file, FcntlArg::F_OFD_SETLK(&lock)).unwrap();
    file
}

#[test]
fn there_is_one_writer() {
    let image = image();
    let first = image.open(Access::ReadWrite);
    for access in [Access::ReadWrite, Access::Forced, Access::ReadOnly] {
        image.refuses(access);
    }
    image.open(Access::Inspect);
    drop(first);
    image.open(Access::ReadWrite);
}

#[test]
fn a_writer_sees_readers_and_is_not_kept_out_by_them() {
    let image = image();
    let readers = [Access::Inspect, Access::ReadOnly].map(|access| image.open(access));
    let writer = image.open(Access::ReadWrite);
    for reader in readers {
        assert!(writer.is_read());
        assert!(writer.keep_readers_out().is_none());
        drop(reader);
    }
    assert!(!writer.is_read());
    assert!(writer.keep_readers_out().is_some());
}

/// A user who may only read an image could keep its owner from mounting it, with a lock on the
/// whole file (flock), on one byte, or on all of them (fcntl).
#[test]
fn no_lock_of_a_reader_keeps_a_writer_out_or_lets_a_second_one_in() {
    let whole = |image: &Image, operation| {
        let file = File::open(&image.path).unwrap();
        flock(&file, operation).unwrap();
        file
    };
    let locks: [&dyn Fn(&Image) -> File; 6] = [
        &|image| whole(image, FlockOperation::LockShared),
        &|image| whole(image, FlockOperation::LockExclusive),
        &|image| lock_for_reading(image, 0, 1),
        &|image| lock_for_reading(image, 1 << 20, 0),
        &|image| lock_for_reading(image, 1 << 62, 1),
        &|image| lock_for_reading(image, 0, 0),
    ];
    for (number, lock) in locks.iter().enumerate() {
        let image = image();
        let locked = lock(&image);
        let writer = image.open(Access::ReadWrite);
        image.refuses(Access::ReadWrite);
        // Now the writer can be seen by everybody, however it began.
        drop(locked);
        writer.flush().unwrap();
        image.refuses(Access::ReadOnly);
        image.refuses(Access::ReadWrite);
        drop(writer);
        image.open(Access::ReadWrite);
        println!("lock {number} is no obstacle");
    }
}

#[test]
fn a_writer_that_could_not_be_seen_does_not_go_on_next_to_another() {
    let image = image();
    let locked = lock_for_reading(&image, 0, 0);
    let writer = image.open(Access::ReadWrite);
    drop(locked);
    let _other = image.open(Access::ReadWrite);
    assert!(writer.flush().is_err());
}

#[test]
fn devices_in_between_pass_claims_on() {
    let image = image();
    let (writer, _) = FaultyDevice::new(RecordingDevice::new(image.open(Access::ReadWrite)));
    assert!(!writer.is_read() && writer.keep_readers_out().is_some());
    let _reader = image.open(Access::Inspect);
    assert!(writer.is_read() && writer.keep_readers_out().is_none());
}

/// Whether a lock on the image is being waited for.
fn is_waited_for(image: &Path) -> bool {
    let number = format!(":{} ", fs::metadata(image).unwrap().ino());
    let locks = fs::read_to_string("/proc/locks").unwrap();
    locks.lines().any(|line| line.contains("->") && line.contains(&number))
}

#[test]
fn who_wants_to_read_waits_until_readers_are_not_kept_out_any_more() {
    let image = image();
    let writer = image.open(Access::ReadWrite);
    let alone = writer.keep_readers_out().unwrap();
    let let_in = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            image.open(Access::Inspect);
            let_in.load(Ordering::SeqCst)
        });
        while !waiting.is_finished() && !is_waited_for(&image.path) {
            thread::sleep(GLANCE);
        }
        let_in.store(true, Ordering::SeqCst);
        drop(alone);
        assert!(waiting.join().unwrap(), "too early");
    });
}

/// This test program once more, which reads the image until it is killed.
fn reading_process(image: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_reader_that_is_killed_reads_no_more", "--nocapture"])
        .env(IMAGE_READ, image)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap()).lines();
    let reads = said.map_while(Result::ok).any(|line| line.contains("reading"));
    assert!(reads, "{:?}", child.wait());
    child
}

#[test]
fn a_reader_that_is_killed_reads_no_more() {
    if let Some(image) = std::env::var_os(IMAGE_READ) {
        let _device = FileDevice::open(Path::new(&image), Access::Inspect).unwrap();
        println!("reading");
        std::io::stdin().lines().for_each(drop);
        return;
    }
    let image = image();
    let mut child = reading_process(&image.path);
    let writer = image.open(Access::ReadWrite);
    assert!(writer.is_read());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!writer.is_read());
}

#[test]
fn readers_are_seen_although_the_name_of_the_image_is_gone() {
    let image = image();
    let writer = image.open(Access::ReadWrite);
    let reader = image.open(Access::Inspect);
    fs::remove_file(&image.path).unwrap();
    File::create(&image.path).unwrap();
    assert!(writer.is_read());
    drop(reader);
    assert!(!writer.is_read());
}
