//! A guest does what its script says and tells how it went; whatever goes wrong is said.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nilfs_real_kernels::{Error, LinuxImage, Uml};
use tempfile::TempDir;

/// A small volume in a directory that goes away with the test.
fn volume() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("volume.img");
    LinuxImage::of_size(64 << 20).blocks_per_segment(64).make(&path).unwrap();
    (directory, path)
}

#[test]
fn output_status_and_kernel_log_come_back() {
    let (_directory, image) = volume();
    let result = Uml::new(image)
        .env("ODD", "it's \"odd\" $HOME")
        .script("mount_nilfs; echo \"$ODD\"; echo err >&2; umount_nilfs; exit 7")
        .run()
        .unwrap();
    assert_eq!(result.status, 7, "{result}");
    assert_eq!(result.stdout, "it's \"odd\" $HOME\n");
    assert_eq!(result.stderr, "err\n");
    assert!(result.kernel_log.lines().iter().any(|line| line.contains("segctord starting")));
    assert_eq!(result.nilfs_complaints(), [""; 0]);
}

#[test]
fn what_a_script_wrote_is_there_for_the_next() {
    let (_directory, image) = volume();
    let run = |script: &str| {
        Uml::new(&image).script(script).run().unwrap().without_complaint().unwrap().stdout
    };
    run("mount_nilfs; echo content >$MNT/file; umount_nilfs");
    assert_eq!(run("mount_nilfs ro; cat $MNT/file; umount_nilfs"), "content\n");
}

#[test]
fn the_first_failing_command_ends_the_script() {
    let (_directory, image) = volume();
    let result = Uml::new(image).script("cat /no/such/file | cat\necho after").run().unwrap();
    assert_eq!(result.stdout, "");
    let Err(Error::ScriptFailed(result)) = result.succeeded() else {
        panic!("a failed script passed")
    };
    assert!(result.to_string().contains("/no/such/file"), "{result}");
}

#[test]
fn a_damaged_volume_is_complained_of() {
    let (_directory, image) = volume();
    // The first log, and with it the super root, begins at block 1 of 4 KiB.
    let file = File::options().write(true).open(&image).unwrap();
    file.write_all_at(&[0xa5; 60 * 4096], 4096).unwrap();
    let result = Uml::new(&image).script("mount_nilfs || true").run().unwrap();
    assert!(!result.nilfs_complaints().is_empty(), "{result}");
    assert!(matches!(result.without_complaint(), Err(Error::Complaints(_))));
}

#[test]
fn a_guest_that_hangs_or_stops_by_itself_is_reported() {
    let (_directory, image) = volume();
    let run = |script: &str, seconds| {
        let timeout = Duration::from_secs(seconds);
        match Uml::new(&image).script(script).timeout(timeout).run() {
            Err(Error::Unfinished { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(run("sleep infinity", 3), "killed after 3 s");
    assert_eq!(run("echo o >/proc/sysrq-trigger; sleep infinity", 60), "it stopped by itself");
}

#[test]
fn a_killed_guest_leaves_the_image_to_the_next() {
    let (directory, image) = volume();
    let started = directory.path().join("started");
    Uml::new(&image)
        .env("STARTED", &started)
        .script(
            "mount_nilfs; echo kept >$MNT/kept; sync; touch $STARTED; sync $STARTED
             while true; do echo more >>$MNT/more; sync; done",
        )
        .start()
        .unwrap()
        .kill_when(|| started.exists())
        .unwrap();
    let before = fs::read(&image).unwrap();
    let result = Uml::new(&image).script("mount_nilfs ro,norecovery").run().unwrap();
    assert_eq!(result.status, 0, "{result}");
    assert!(fs::read(&image).unwrap() == before, "somebody still wrote to the image");
    let result = Uml::new(&image).script("mount_nilfs; cat $MNT/kept; umount_nilfs").run().unwrap();
    assert_eq!(result.stdout, "kept\n", "{result}");
    assert!(!result.kernel_log.recovery().is_empty(), "{result}");
    result.without_complaint_besides_recovery().unwrap();
}

#[test]
fn a_script_that_ends_before_it_is_killed_is_an_error() {
    let (_directory, image) = volume();
    let killed = Uml::new(&image).script("true").start().unwrap().kill_when(|| false);
    assert!(matches!(killed, Err(Error::Unfinished { .. })), "{killed:?}");
}

#[test]
fn what_mkfs_refuses_is_said() {
    let directory = tempfile::tempdir().unwrap();
    let refused = LinuxImage::of_size(4096).make(&directory.path().join("volume.img"));
    let Err(Error::Program { command, stderr }) = refused else { panic!("{refused:?}") };
    assert!(command.contains("mkfs.nilfs2") && stderr.contains("too small"), "{stderr}");
}

#[test]
fn an_image_that_is_not_there_is_named() {
    let missing = Uml::new(Path::new("/no/such.img")).script("true").run();
    assert!(missing.unwrap_err().to_string().contains("/no/such.img"));
}
