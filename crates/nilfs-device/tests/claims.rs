//! A writer knows what others read of a device, and nobody begins to read what it has reserved.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nilfs_device::{Access, Device, FaultyDevice, FileDevice, RecordingDevice};
use tempfile::NamedTempFile;

/// The image that a child process claims a key of.
const CLAIMED_IMAGE: &str = "NILFS_TEST_CLAIMED_IMAGE";
const GLANCE: Duration = Duration::from_millis(2);

fn image() -> NamedTempFile {
    let image = NamedTempFile::new().unwrap();
    image.as_file().set_len(1 << 20).unwrap();
    image
}

fn open(image: &NamedTempFile, access: Access) -> FileDevice {
    FileDevice::open(image.path(), access).unwrap()
}

#[test]
fn a_writer_sees_what_readers_have_claimed() {
    let image = image();
    let writer = open(&image, Access::ReadWrite);
    let (one, other) = (open(&image, Access::Inspect), open(&image, Access::Inspect));
    let claims = [(&one, 7), (&one, 3), (&other, 8), (&one, 3), (&one, 20), (&one, 0)];
    let mut claims: Vec<_> = claims.iter().map(|(reader, key)| reader.claim(*key)).collect();
    assert_eq!(writer.reserve(0..20).unwrap().0, [0, 3, 7, 8]);
    assert_eq!(writer.reserve(4..7).unwrap().0, [] as [u64; 0]);
    assert_eq!(writer.reserve(9..9).unwrap().0, [] as [u64; 0]);
    drop(claims.remove(1));
    assert_eq!(writer.reserve(0..20).unwrap().0, [0, 3, 7, 8], "one of two claims of 3 is left");
    drop(claims);
    assert_eq!(writer.reserve(0..20).unwrap().0, [] as [u64; 0]);
}

#[test]
fn devices_in_between_pass_claims_on() {
    let image = image();
    let (writer, _) = FaultyDevice::new(open(&image, Access::ReadWrite));
    let reader = RecordingDevice::new(open(&image, Access::Inspect));
    let _claim = reader.claim(5).unwrap();
    assert_eq!(writer.reserve(0..10).unwrap().0, [5]);
}

/// Whether a lock on the image is being waited for.
fn is_waited_for(image: &Path) -> bool {
    let number = format!(":{} ", fs::metadata(image).unwrap().ino());
    let locks = fs::read_to_string("/proc/locks").unwrap();
    locks.lines().any(|line| line.contains("->") && line.contains(&number))
}

#[test]
fn a_claim_waits_until_the_key_is_not_reserved_any_more() {
    let image = image();
    let writer = open(&image, Access::ReadWrite);
    let reader = open(&image, Access::Inspect);
    let _claimed = reader.claim(4).unwrap();
    let (claimed, reserved) = writer.reserve(0..10).unwrap();
    assert_eq!(claimed, [4]);
    let _others = (reader.claim(4).unwrap(), reader.claim(10).unwrap());
    let given_back = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let claim = reader.claim(5);
            (claim.is_ok(), given_back.load(Ordering::SeqCst))
        });
        while !waiting.is_finished() && !is_waited_for(image.path()) {
            thread::sleep(GLANCE);
        }
        given_back.store(true, Ordering::SeqCst);
        drop(reserved);
        assert_eq!(waiting.join().unwrap(), (true, true), "claimed, and not too early");
    });
}

#[test]
fn a_range_is_reserved_once() {
    let image = image();
    let writer = open(&image, Access::ReadWrite);
    let _reserved = writer.reserve(0..10).unwrap();
    assert!(writer.reserve(10..20).is_ok());
    assert!(writer.reserve(5..15).is_err());
}

#[test]
fn keys_that_cannot_be_claimed_are_refused() {
    let image = image();
    let writer = open(&image, Access::ReadWrite);
    assert!(writer.claim((1 << 62) - 1).is_ok());
    assert!(writer.reserve(0..1 << 62).is_ok());
    assert!(writer.claim(1 << 62).is_err());
    assert!(writer.claim(u64::MAX).is_err());
    assert!(writer.reserve(0..u64::MAX).is_err());
}

/// This test program once more, with a claim of key 9 until it is killed.
fn claiming_process(image: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_claim_of_another_process_ends_with_it", "--nocapture"])
        .env(CLAIMED_IMAGE, image)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap()).lines();
    let claimed = said.map_while(Result::ok).any(|line| line.contains("claimed"));
    assert!(claimed, "{:?}", child.wait());
    child
}

#[test]
fn a_claim_of_another_process_ends_with_it() {
    if let Some(image) = std::env::var_os(CLAIMED_IMAGE) {
        let device = FileDevice::open(Path::new(&image), Access::Inspect).unwrap();
        let _claim = device.claim(9).unwrap();
        println!("claimed");
        std::io::stdin().lines().for_each(drop);
        return;
    }
    let image = image();
    let mut child = claiming_process(image.path());
    let writer = open(&image, Access::ReadWrite);
    assert_eq!(writer.reserve(0..20).unwrap().0, [9]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(writer.reserve(0..20).unwrap().0, [] as [u64; 0]);
}

#[test]
fn claims_hold_although_the_name_of_the_image_is_gone() {
    let image = image();
    let writer = open(&image, Access::ReadWrite);
    let reader = open(&image, Access::Inspect);
    fs::remove_file(image.path()).unwrap();
    File::create(image.path()).unwrap();
    let _claim = reader.claim(1).unwrap();
    assert_eq!(writer.reserve(0..20).unwrap().0, [1]);
}
