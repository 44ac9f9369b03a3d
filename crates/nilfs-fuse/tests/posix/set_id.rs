//! Set-user-ID and set-group-ID bits: a file that somebody has changed must not run with the rights
//! of somebody else. We clear them, but the kernel goes by what it has been told of a file before.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::thread;

use nilfs_fuse::PastSettings;
use rustix::fs::{XattrFlags, copy_file_range};
use rustix::io::Errno;
use rustix::process::Uid;

use crate::support::{NOBODY, Settings, World, as_nobody, chmod, mode};

/// A program that may be made longer without harm, and says whose rights it has.
const WHOSE: &str = "/usr/bin/id";

/// Runs a test with each way in which the kernel opens and writes files.
fn each(test: impl Fn(&World)) {
    let plain = Settings::default();
    let asked = Settings { past: Some(PastSettings::default()), ..Settings::default() };
    let cached = Settings { writeback: true, ..Settings::default() };
    for settings in [plain, asked, cached] {
        test(&World::with_settings(settings));
    }
}

/// The output of a script that somebody without privileges runs.
fn output(dir: &Path, script: &str) -> String {
    let output = as_nobody(dir, script);
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_change_by_somebody_else_clears_set_id_bits() {
    each(|world| {
        let dir = world.open_directory("dir");
        let file = world.file("dir/file", "content");
        for script in [
            "echo x >> file",
            "echo x | dd of=file conv=notrunc status=none",
            "echo x > file",
            "truncate -s 100000 file",
            "truncate -s 0 file",
        ] {
            for owner in [0, NOBODY] {
                chown(&file, Some(owner), None).unwrap();
                chmod(&file, 0o6777);
                assert_eq!(mode(&file), 0o6777);
                output(&dir, script);
                assert_eq!(mode(&file), 0o777, "{script}");
                // Without the right to execute, the group bit means locking and stays.
                chmod(&file, 0o2766);
                output(&dir, script);
                assert_eq!(mode(&file), 0o2766, "{script}");
            }
        }
    });
}

#[test]
fn a_copy_by_somebody_else_clears_set_id_bits() {
    each(|world| {
        let (source, target) = (world.file("source", "other"), world.file("target", "content"));
        chmod(&target, 0o6777);
        thread::scope(|scope| {
            scope.spawn(|| {
                let (nobody, root) = (Uid::from_raw(NOBODY), Uid::ROOT);
                // A thread has rights of its own.
                rustix::thread::set_thread_res_uid(nobody, nobody, root).unwrap();
                let from = File::open(source).unwrap();
                let to = File::options().write(true).open(&target).unwrap();
                assert_eq!(copy_file_range(&from, None, &to, None, 5), Ok(5));
            });
        });
        assert_eq!(mode(&target), 0o777);
    });
}

#[test]
fn what_somebody_else_has_changed_runs_without_the_rights_of_its_owner() {
    each(|world| {
        let dir = world.open_directory("dir");
        let program = world.path("dir/program");
        fs::copy(WHOSE, &program).unwrap();
        chmod(&program, 0o6777);
        assert_eq!(output(&dir, "./program -u"), "0", "set-id bits count");
        assert_eq!(output(&dir, "echo >> program; ./program -u"), NOBODY.to_string());
        chmod(&program, 0o6777);
        let rewrite = "cat program > /dev/shm/$$; cat /dev/shm/$$ > program; rm /dev/shm/$$; \
                       ./program -u";
        assert_eq!(output(&dir, rewrite), NOBODY.to_string());
    });
}

#[test]
fn set_id_bits_that_were_cleared_do_not_come_back() {
    let mut world = World::new();
    let dir = world.open_directory("dir");
    let file = world.file("dir/file", "x");
    chmod(&file, 0o6777);
    output(&dir, "echo x >> file");
    world.remount();
    assert_eq!(mode(&file), 0o777);
}

#[test]
fn a_change_by_the_superuser_keeps_set_id_bits() {
    each(|world| {
        let file = world.file("file", "x");
        chmod(&file, 0o6755);
        fs::write(&file, "y").unwrap();
        File::options().write(true).open(&file).unwrap().set_len(100).unwrap();
        assert_eq!(mode(&file), 0o6755);
    });
}

#[test]
fn a_change_of_owner_clears_set_id_bits() {
    each(|world| {
        let file = world.file("file", "x");
        for (owner, group) in [(Some(NOBODY), None), (None, Some(7)), (Some(NOBODY), Some(NOBODY))]
        {
            chmod(&file, 0o6755);
            chown(&file, owner, group).unwrap();
            assert_eq!(mode(&file), 0o755);
        }
        chmod(&file, 0o6755);
        output(&world.path(""), "chgrp 65534 file");
        assert_eq!(mode(&file), 0o755, "the superuser or not");
        chmod(&file, 0o2745);
        chown(&file, None, Some(7)).unwrap();
        assert_eq!(mode(&file), 0o2745, "the group may not execute it");
        let directory = world.directory("directory");
        chmod(&directory, 0o2755);
        chown(&directory, None, Some(7)).unwrap();
        assert_eq!((mode(&directory), fs::metadata(&directory).unwrap().gid()), (0o2755, 7));
    });
}

#[test]
fn a_file_can_have_no_capabilities_that_would_have_to_be_cleared() {
    let world = World::new();
    let file = world.file("file", "x");
    // Revision 2, as setcap(8) sets it.
    let capability = [[0, 0, 0, 2], [1, 0, 0, 0], [0; 4], [0; 4], [0; 4]].concat();
    let set = rustix::fs::setxattr(&file, "security.capability", &capability, XattrFlags::empty());
    assert_eq!(set, Err(Errno::OPNOTSUPP));
}
