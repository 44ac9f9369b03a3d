//! The life of a mount: how it begins, what refuses it, how it ends. The superuser and `/dev/fuse`
//! are needed.

mod common;

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};

use common::{CommandOutput, Volume, nilfs};

const NOBODY: u32 = 65534;

/// One test at a time: a process that another test starts would inherit our open files for a
/// moment, and a volume with an open file cannot be unmounted.
static ALONE: Mutex<()> = Mutex::new(());

/// A directory next to an image. If a test ends early, its mount goes with it.
struct Place {
    dir: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

impl Place {
    fn new(volume: &Volume) -> Self {
        Self::called("mnt", volume)
    }

    fn called(name: &str, volume: &Volume) -> Self {
        let dir = directory_beside(volume, name);
        Self { dir, _alone: ALONE.lock().unwrap_or_else(PoisonError::into_inner) }
    }

    fn is_mounted(&self) -> bool {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.contains(&format!(" {} ", self.dir.display()))
    }

    fn umount(&self) -> CommandOutput {
        nilfs([Path::new("umount"), &self.dir])
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
    }
}

/// A new directory next to the image.
fn directory_beside(volume: &Volume, name: &str) -> PathBuf {
    let dir = volume.beside(name);
    fs::create_dir(&dir).unwrap();
    dir
}

/// Runs `nilfs mount` with these options.
fn mount(options: &str, volume: &Volume, place: &Place) -> CommandOutput {
    mount_on(&place.dir, options, volume)
}

/// Runs `nilfs mount` with these options on another directory.
fn mount_on(dir: &Path, options: &str, volume: &Volume) -> CommandOutput {
    nilfs([Path::new("mount"), Path::new("-o"), Path::new(options), &volume.image, dir])
}

/// Runs `nilfs mount --foreground` until the volume can be used.
fn serve(volume: &Volume, place: &Place) -> Child {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nilfs"))
        .args([Path::new("mount"), Path::new("--foreground"), &volume.image, &place.dir])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let stderr = child.stderr.as_mut().unwrap();
    BufReader::new(stderr).read_line(&mut line).unwrap();
    assert!(line.contains("is mounted on"), "{line}");
    child
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// The volume is unmounted, closed cleanly, not held by anybody, and has the file.
fn is_clean_with(volume: &Volume, path: &str, content: &str) {
    let info = volume.nilfs("info IMAGE").output();
    assert!(info.contains("clean\n") && !info.contains("not clean"), "{info}");
    assert_eq!(volume.nilfs(&format!("cat IMAGE {path}")).output(), content);
    volume.nilfs("check IMAGE").output();
}

#[test]
fn mount_returns_with_a_volume_to_use_and_umount_with_a_clean_one() {
    let volume = common::volume();
    let place = Place::new(&volume);
    assert_eq!(mount("rw", &volume, &place).output(), "");
    assert_eq!(fs::read_to_string(place.dir.join("directory/file")).unwrap(), "content\n");
    fs::write(place.dir.join("new"), "written\n").unwrap();
    assert_eq!(place.umount().output(), "");
    assert!(!place.is_mounted());
    is_clean_with(&volume, "/new", "written\n");
}

#[test]
fn it_can_be_mounted_again_at_once_however_it_was_unmounted() {
    let volume = common::volume();
    let place = Place::new(&volume);
    for round in 0..3 {
        mount("rw", &volume, &place).output();
        fs::write(place.dir.join("round"), round.to_string()).unwrap();
        rustix::mount::unmount(&place.dir, UnmountFlags::empty()).unwrap();
    }
    mount("ro", &volume, &place).output();
    assert_eq!(fs::read_to_string(place.dir.join("round")).unwrap(), "2");
    place.umount().output();
    mount("rw", &volume, &place).output();
    place.umount().output();
}

#[test]
fn a_signal_commits_and_ends_the_process_with_success() {
    for which in [Signal::TERM, Signal::INT, Signal::HUP] {
        let volume = common::volume();
        let place = Place::new(&volume);
        let mut child = serve(&volume, &place);
        fs::write(place.dir.join("new"), "written\n").unwrap();
        signal(&child, which);
        assert_eq!(child.wait().unwrap().code(), Some(0));
        assert!(!place.is_mounted());
        is_clean_with(&volume, "/new", "written\n");
    }
}

/// As nilfs_cleanerd does. The file is named from where the user is, and the process goes away.
#[test]
fn the_signal_hup_lets_a_mount_in_the_background_read_the_cleaner_s_settings_again() {
    let volume = common::volume();
    let place = Place::new(&volume);
    let config = volume.beside("cleaner.conf");
    fs::write(&config, "protection_period 60\n").unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_nilfs"))
        .args(["mount", "--background", "-o", "cleaner-config=cleaner.conf,policy=greedy"])
        .args([&volume.image, &place.dir])
        .current_dir(volume.directory.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.take().unwrap().read_exact(&mut [0; 5]).unwrap();
    let cleaner = || {
        let status = nilfs([Path::new("status"), Path::new("--json"), &place.dir]).output();
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let (period, policy) =
            (&status["cleaner"]["protection_seconds"], &status["cleaner"]["policy"]);
        (period.as_f64().unwrap(), policy.as_str().unwrap().to_owned())
    };
    assert_eq!(cleaner(), (60.0, "greedy".into()));
    fs::write(&config, "protection_period 7\nselection_policy cost-benefit\n").unwrap();
    signal(&child, Signal::HUP);
    while cleaner().0 == 60.0 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(cleaner(), (7.0, "greedy".into()), "what -o says wins");
    // A file that is gone changes nothing.
    fs::remove_file(&config).unwrap();
    signal(&child, Signal::HUP);
    place.umount().output();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    is_clean_with(&volume, "/directory/file", "content\n");
}

#[test]
fn a_signal_ends_it_also_while_a_file_is_open() {
    let volume = common::volume();
    let place = Place::new(&volume);
    let mut child = serve(&volume, &place);
    fs::write(place.dir.join("new"), "written\n").unwrap();
    let open = File::open(place.dir.join("directory")).unwrap();
    signal(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!place.is_mounted());
    drop(open);
    is_clean_with(&volume, "/new", "written\n");
}

#[test]
fn unmounting_ends_the_process_with_success() {
    let volume = common::volume();
    let place = Place::new(&volume);
    let mut child = serve(&volume, &place);
    fs::write(place.dir.join("new"), "written\n").unwrap();
    rustix::mount::unmount(&place.dir, UnmountFlags::empty()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    is_clean_with(&volume, "/new", "written\n");
}

#[test]
fn a_killed_process_loses_nothing_that_was_synced() {
    let volume = common::volume();
    let place = Place::new(&volume);
    let mut child = serve(&volume, &place);
    fs::write(place.dir.join("new"), "written\n").unwrap();
    File::open(place.dir.join("new")).unwrap().sync_all().unwrap();
    signal(&child, Signal::KILL);
    child.wait().unwrap();
    let sentence = mount("rw", &volume, &place).sentence(7);
    assert!(sentence.contains("a FUSE mount whose process is gone is in the way"), "{sentence}");
    place.umount().output();
    mount("rw", &volume, &place).output();
    assert_eq!(fs::read_to_string(place.dir.join("new")).unwrap(), "written\n");
    place.umount().output();
    is_clean_with(&volume, "/new", "written\n");
}

#[test]
fn a_volume_in_use_is_not_unmounted_by_umount() {
    let volume = common::volume();
    let place = Place::new(&volume);
    mount("rw", &volume, &place).output();
    let open = File::open(place.dir.join("directory")).unwrap();
    let sentence = place.umount().sentence(5);
    assert!(sentence.contains("is in use"), "{sentence}");
    drop(open);
    place.umount().output();
}

#[test]
fn the_second_of_two_mounts_is_told_who_has_the_volume() {
    let volume = common::volume();
    let place = Place::new(&volume);
    let mut child = serve(&volume, &place);
    let other = directory_beside(&volume, "other");
    let sentence = mount_on(&other, "rw", &volume).sentence(5);
    let (dir, second) = (place.dir.display(), other.display());
    let holder = format!(
        "in use by process {} (nilfs); it is mounted on {dir}; to have it on {second} as well, type: \
         mount --bind {dir} {second}",
        child.id(),
    );
    assert!(sentence.ends_with(&holder), "{sentence}");
    let sentence = mount_on(&other, "ro", &volume).sentence(5);
    assert!(sentence.ends_with(&format!("type: mount -o bind,ro {dir} {second}")), "{sentence}");
    // The directory means the same volume.
    for command in ["check", "segments"] {
        let of = |operand: &Path| nilfs([Path::new(command), operand]).output();
        assert_eq!(of(&place.dir), of(&volume.image));
    }
    let sentence = mount("rw", &volume, &place).sentence(7);
    assert!(sentence.contains("is mounted on it already"), "{sentence}");
    place.umount().output();
    child.wait().unwrap();
}

/// Types the end of a message.
fn obey(sentence: &str) {
    let (_, typed) = sentence.rsplit_once(", type: ").expect(sentence);
    assert!(Command::new("sh").args(["-c", typed]).status().unwrap().success(), "{typed}");
}

/// `nilfs umount` of one waited for the other to be unmounted, and a signal left the other dead.
#[test]
fn a_second_directory_shows_the_same_mount_and_each_can_be_unmounted_first() {
    let volume = common::volume();
    let place = Place::new(&volume);
    let other = directory_beside(&volume, "other");
    let (first, second) = (&place.dir, &other);
    for (gone, left) in [(first, second), (second, first)] {
        mount("rw", &volume, &place).output();
        obey(&mount_on(&other, "rw", &volume).sentence(5));
        fs::write(gone.join("new"), "written\n").unwrap();
        assert_eq!(fs::read_to_string(left.join("new")).unwrap(), "written\n");
        let list = nilfs(["list"]).output();
        for dir in [gone, left] {
            assert!(list.contains(&dir.display().to_string()), "{list}");
        }
        let of_both = volume.nilfs("umount IMAGE").sentence(2);
        assert!(of_both.contains(&other.display().to_string()), "{of_both}");
        let outcome = nilfs([Path::new("umount"), gone]);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let stays = format!("the volume stays mounted on {}", left.display());
        assert!(outcome.stderr.contains(&stays), "{outcome:?}");
        assert!(!gone.join("new").exists());
        fs::remove_file(left.join("new")).unwrap();
        fs::write(left.join("last"), "written\n").unwrap();
        nilfs([Path::new("umount"), left]).output();
        is_clean_with(&volume, "/last", "written\n");
    }
    let mut child = serve(&volume, &place);
    obey(&mount_on(&other, "ro", &volume).sentence(5));
    assert!(fs::write(other.join("new"), "").is_err());
    signal(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!place.is_mounted() && fs::read_dir(&other).unwrap().next().is_none());
    is_clean_with(&volume, "/last", "written\n");
}

#[test]
fn several_read_only_mounts_share_a_volume() {
    let volume = common::volume();
    let place = Place::new(&volume);
    mount("ro", &volume, &place).output();
    let other = directory_beside(&volume, "other");
    mount_on(&other, "ro", &volume).output();
    for dir in [&place.dir, &other] {
        assert_eq!(fs::read_to_string(dir.join("directory/file")).unwrap(), "content\n");
        nilfs([Path::new("umount"), dir]).output();
    }
}

#[test]
fn a_read_only_mount_leaves_every_byte_as_it_was() {
    let volume = common::volume();
    let place = Place::new(&volume);
    let before = fs::read(&volume.image).unwrap();
    mount("ro", &volume, &place).output();
    assert!(fs::write(place.dir.join("new"), "").is_err());
    assert_eq!(fs::read_dir(&place.dir).unwrap().count(), 5);
    place.umount().output();
    assert!(fs::read(&volume.image).unwrap() == before);
}

#[test]
fn a_checkpoint_of_the_past_can_be_mounted() {
    let volume = common::volume();
    let place = Place::new(&volume);
    let options = format!("ro,cp={}", volume.before_deletion);
    mount(&options, &volume, &place).output();
    assert_eq!(fs::read_to_string(place.dir.join("gone")).unwrap(), "it was here\n");
    assert!(!place.dir.join("directory").exists());
    place.umount().output();
    let sentence = mount("ro,cp=999", &volume, &place).sentence(1);
    assert!(sentence.contains("there is no checkpoint 999"), "{sentence}");
    assert!(!place.is_mounted());
}

/// Writes far more than there is room for unless the past is given up, which must fail.
fn overwrite_until_full(place: &Place) {
    let mut full = false;
    for round in 0..8 {
        let written = fs::write(place.dir.join("large"), vec![round; 500_000])
            .and_then(|()| File::open(place.dir.join("large"))?.sync_all());
        full |= written.is_err();
    }
    assert!(full, "nothing that the past may need is written again");
}

/// A mount of the past kept the cleaner from working, so that a busy volume ended in ENOSPC.
#[test]
fn the_past_is_mounted_through_the_present_whose_cleaner_works_on() {
    let volume = common::volume();
    let place = Place::new(&volume);
    mount("rw,pp=0", &volume, &place).output();
    let past = directory_beside(&volume, "past");
    let before = volume.before_deletion;
    mount_on(&past, &format!("ro,cp={before}"), &volume).output();
    for round in 0..8 {
        fs::write(place.dir.join("large"), vec![round; 500_000]).unwrap();
        File::open(place.dir.join("large")).unwrap().sync_all().unwrap();
        assert_eq!(fs::read_to_string(past.join("gone")).unwrap(), "it was here\n");
    }
    nilfs([Path::new("clean"), &place.dir]).output();
    assert_eq!(fs::read_to_string(past.join("gone")).unwrap(), "it was here\n");
    assert!(fs::write(past.join("new"), "").is_err());
    let status = nilfs([Path::new("status"), &past]).output();
    assert!(status.contains(&format!("checkpoint shown      {before}\n")), "{status}");
    let refused = nilfs([Path::new("snapshot"), Path::new("create"), &past]).sentence(1);
    assert!(refused.contains("a checkpoint of the past is mounted here"), "{refused}");
    // The present ends after its past.
    assert!(nilfs([Path::new("umount"), &place.dir]).sentence(5).contains("is in use"));
    nilfs([Path::new("umount"), &past]).output();
    place.umount().output();
    volume.nilfs("check IMAGE").output();
}

/// Where the door to the past is shut, it is read from the device.
#[test]
fn the_past_can_be_mounted_next_to_a_writer_and_stays_whatever_that_does() {
    let volume = common::volume();
    let place = Place::new(&volume);
    mount("rw,pp=0,past=off", &volume, &place).output();
    let past = directory_beside(&volume, "past");
    let before = volume.before_deletion;
    mount_on(&past, &format!("ro,cp={before}"), &volume).output();
    overwrite_until_full(&place);
    let cleaned = nilfs([Path::new("clean"), &place.dir]).sentence(1);
    assert!(cleaned.contains("while another process reads the volume"), "{cleaned}");
    let resized = nilfs([Path::new("resize"), &place.dir, Path::new("1M")]).sentence(1);
    assert!(resized.contains("another process reads the volume"), "{resized}");
    assert_eq!(fs::read_to_string(past.join("gone")).unwrap(), "it was here\n");
    assert!(fs::write(past.join("new"), "").is_err());
    // Orders go to the writer, whichever mount is younger.
    nilfs([Path::new("snapshot"), Path::new("list"), &volume.image]).output();
    nilfs([Path::new("clean"), Path::new("--suspend"), &volume.image]).output();
    nilfs([Path::new("umount"), &past]).output();
    fs::write(place.dir.join("large"), vec![9; 500_000]).unwrap();
    place.umount().output();
    volume.nilfs("check IMAGE").output();
}

/// A reader of the past kept the next writer out, so that any user who could read an image could
/// keep its owner from mounting it.
#[test]
fn the_next_writer_is_let_in_and_leaves_the_past_where_it_is() {
    let volume = common::volume();
    let place = Place::new(&volume);
    mount("rw,pp=0,past=off", &volume, &place).output();
    let past = directory_beside(&volume, "past");
    let options = format!("ro,cp={}", volume.before_deletion);
    mount_on(&past, &options, &volume).output();
    fs::write(place.dir.join("large"), vec![1; 300_000]).unwrap();
    place.umount().output();

    mount("rw,pp=0,past=off", &volume, &place).output();
    overwrite_until_full(&place);
    assert_eq!(fs::read_to_string(past.join("gone")).unwrap(), "it was here\n");
    nilfs([Path::new("umount"), &past]).output();
    fs::write(place.dir.join("large"), vec![9; 500_000]).unwrap();
    place.umount().output();
    volume.nilfs("check IMAGE").output();
}

#[test]
fn a_read_only_mount_goes_on_next_to_a_writer_that_comes_later() {
    let volume = common::volume();
    let place = Place::new(&volume);
    mount("ro", &volume, &place).output();
    let other = directory_beside(&volume, "other");
    mount_on(&other, "rw", &volume).output();
    fs::write(other.join("directory/file"), "changed\n").unwrap();
    nilfs([Path::new("umount"), &other]).output();
    assert_eq!(fs::read_to_string(place.dir.join("directory/file")).unwrap(), "content\n");
    place.umount().output();
    is_clean_with(&volume, "/directory/file", "changed\n");
}

#[test]
fn only_a_checkpoint_that_is_named_is_mounted_next_to_a_writer() {
    let volume = common::volume();
    let place = Place::new(&volume);
    mount("rw", &volume, &place).output();
    let past = directory_beside(&volume, "past");
    let sentence = mount_on(&past, "ro", &volume).sentence(5);
    assert!(sentence.contains("is in use by process"), "{sentence}");
    let sentence = mount_on(&past, "ro,cp=999", &volume).sentence(1);
    assert!(sentence.contains("there is no checkpoint 999"), "{sentence}");
    place.umount().output();
}

fn remount(options: &str, place: &Place) -> CommandOutput {
    nilfs([Path::new("mount"), Path::new("-o"), Path::new(options), &place.dir])
}

#[test]
fn a_mount_becomes_read_only_and_clean_and_writable_again() {
    let volume = common::volume();
    let place = Place::new(&volume);
    let file = place.dir.join("new");
    mount("rw,nosuid,pp=60", &volume, &place).output();
    fs::write(&file, "written\n").unwrap();
    remount("remount,ro", &place).output();
    assert!(!volume.nilfs("info IMAGE").output().contains("not clean"));
    assert_eq!(volume.nilfs("cat IMAGE new").output(), "written\n");
    let before = fs::read(&volume.image).unwrap();
    assert!(fs::write(&file, "").is_err());
    assert_eq!(fs::read_to_string(&file).unwrap(), "written\n");
    assert!(
        nilfs([Path::new("snapshot"), Path::new("create"), &place.dir])
            .sentence(1)
            .contains("it is mounted read-only")
    );
    nilfs([Path::new("df"), &place.dir]).output();
    assert!(fs::read(&volume.image).unwrap() == before);
    remount("remount,rw", &place).output();
    fs::write(&file, "again\n").unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    assert!(volume.nilfs("info IMAGE").output().contains("not clean"));
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(place.dir.to_str().unwrap())).unwrap();
    assert!(line.contains(" rw,nosuid,noatime "), "{line}");
    remount("remount,ro", &place).output();
    place.umount().output();
    is_clean_with(&volume, "/new", "again\n");
}

#[test]
fn a_remount_that_cannot_be_leaves_everything_as_it_was() {
    let volume = common::volume();
    let place = Place::new(&volume);
    let sentence = remount("remount,ro", &place).sentence(1);
    assert!(sentence.contains("is not mounted"), "{sentence}");
    mount("rw", &volume, &place).output();
    let sentence = remount("remount,ro,pp=60", &place).sentence(2);
    assert!(sentence.contains("a remount cannot change pp=60, only ro and rw"), "{sentence}");
    let open = File::create(place.dir.join("new")).unwrap();
    let sentence = remount("remount,ro", &place).sentence(5);
    assert!(sentence.contains("has a file open there for writing"), "{sentence}");
    drop(open);
    fs::write(place.dir.join("new"), "written\n").unwrap();
    place.umount().output();
    is_clean_with(&volume, "/new", "written\n");
    mount("ro", &volume, &place).output();
    remount("remount,ro", &place).output();
    let sentence = remount("remount,rw", &place).sentence(1);
    assert!(sentence.contains("it was mounted read-only; unmount it"), "{sentence}");
    place.umount().output();
}

/// Access times are not kept, and durable names were not to be had.
#[test]
fn words_of_mount_8_are_obeyed_or_refused_and_one_is_warned_of() {
    let volume = common::volume();
    let place = Place::new(&volume);
    for word in ["atime", "diratime", "strictatime", "lazytime", "mand", "nosymfollow", "iversion"]
    {
        let sentence = mount(word, &volume, &place).sentence(2);
        assert!(sentence.contains(&format!("option {word}")), "{sentence}");
        assert!(!place.is_mounted());
    }
    let warned = mount("rw,relatime", &volume, &place);
    let said = "nilfs: option relatime has no effect: NILFS2 keeps no access times; ";
    assert!(warned.code == Some(0) && warned.stderr.starts_with(said), "{warned:?}");
    let sentence = remount("remount,norelatime", &place).sentence(2);
    assert!(sentence.contains("cannot change norelatime"), "{sentence}");
    remount("remount,ro,relatime,noatime,relatime", &place).output();
    place.umount().output();
    let words =
        "noatime,nodiratime,norelatime,nostrictatime,nolazytime,sync,dirsync,nosuid,nodev,noexec";
    mount(words, &volume, &place).output();
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(&place.dir.display().to_string())).unwrap();
    for word in ["noatime", "nosuid", "nodev", "noexec", "sync", "dirsync"] {
        let is_there = line.split([' ', ',']).any(|shown| shown == word);
        assert!(is_there, "{word} is not in {line}");
    }
    place.umount().output();
}

#[test]
fn an_unfit_directory_is_named_before_the_volume_is_touched() {
    let volume = common::volume();
    let before = fs::read(&volume.image).unwrap();
    let missing = volume.beside("missing");
    for (dir, words) in
        [(&missing, "there is no such directory"), (&volume.image, "it is not a directory")]
    {
        let sentence = nilfs([Path::new("mount"), &volume.image, dir]).sentence(7);
        assert!(sentence.contains(words), "{sentence}");
    }
    assert!(fs::read(&volume.image).unwrap() == before);
}

/// It was refused, though every other file system is mounted over what a directory has in it.
#[test]
fn a_directory_that_is_not_empty_is_mounted_over() {
    let volume = common::volume();
    let full = Place::called("full", &volume);
    fs::write(full.dir.join("file"), "").unwrap();
    for options in ["ro", "ro,nonempty", "rw"] {
        mount(options, &volume, &full).output();
        assert!(full.dir.join("directory/file").exists() && !full.dir.join("file").exists());
        full.umount().output();
        assert!(full.dir.join("file").exists());
    }
}

#[test]
fn a_failure_leaves_no_mount_behind() {
    let volume = common::volume();
    let place = Place::new(&volume);
    fs::write(&volume.image, [0; 100_000]).unwrap();
    let sentence = mount("rw", &volume, &place).sentence(3);
    assert!(sentence.contains("not a NILFS2 volume"), "{sentence}");
    assert!(!place.is_mounted());
}

/// Where our helper is not installed, mount(8) comes by mount.fuse3(8) with these words, of which the
/// first was an unknown subcommand.
#[test]
fn words_without_a_subcommand_as_from_mount_fuse3_mount_the_volume() {
    let volume = common::volume();
    let place = Place::new(&volume);
    let options = ["-o", "ro,dev,suid"].map(OsStr::new);
    nilfs([volume.image.as_os_str(), place.dir.as_os_str()].into_iter().chain(options)).output();
    assert!(place.is_mounted());
    place.umount().output();
    let said = nilfs([&volume.image]).sentence(2);
    assert_eq!(said, "the directory is missing; see nilfs mount --help");
}

#[test]
fn umount_refuses_what_is_not_ours() {
    let volume = common::volume();
    let place = Place::new(&volume);
    let sentence = place.umount().sentence(1);
    assert!(sentence.contains("is not mounted"), "{sentence}");
    let sentence = nilfs(["umount", "/proc"]).sentence(1);
    assert!(sentence.contains("is a mount of proc"), "{sentence}");
}

#[test]
fn mount_8_finds_a_helper_that_takes_its_words() {
    let volume = common::volume();
    let place = Place::new(&volume);
    let helper = volume.beside("mount.fuse.nilfs");
    symlink(env!("CARGO_BIN_EXE_nilfs"), &helper).unwrap();
    let status = Command::new(&helper)
        .args([&volume.image, &place.dir])
        .args(["-n", "-o", "rw,noexec,nosuid,nodev,user,x-systemd.automount", "-t", "fuse.nilfs"])
        .status()
        .unwrap();
    assert!(status.success());
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(&place.dir.display().to_string())).unwrap();
    assert!(line.contains("nosuid,nodev,noexec"), "{line}");
    assert!(line.contains(" fuseblk.nilfs /dev/loop"), "{line}");
    // One line, and not in the words of nilfs-utils, which are those of the type nilfs2.
    let other = tempfile::tempdir().unwrap();
    let again = Command::new(&helper).arg(&volume.image).arg(other.path()).output();
    let said = String::from_utf8(again.unwrap().stderr).unwrap();
    assert!(said.contains(" (nilfs); it is mounted on ") && said.lines().count() == 1, "{said}");
    place.umount().output();
}

#[test]
fn messages_go_to_the_log_that_is_asked_for() {
    let volume = common::volume();
    let place = Place::new(&volume);
    let log = volume.beside("log");
    let words = [Path::new("mount"), Path::new("--log"), &log, &volume.image, &place.dir];
    nilfs(words).output();
    place.umount().output();
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("is mounted on") && log.contains("is unmounted"), "{log}");
}

/// It used to be answered in the words of fusermount3, about an entry in /etc/mtab, with code 7.
#[test]
fn a_mount_of_another_user_is_not_unmounted() {
    let volume = common::volume();
    let place = Place::new(&volume);
    fs::set_permissions(volume.directory.path(), Permissions::from_mode(0o755)).unwrap();
    mount("ro", &volume, &place).output();
    // The build directory need not be open to everybody.
    let program = volume.beside("nilfs");
    fs::copy(env!("CARGO_BIN_EXE_nilfs"), &program).unwrap();
    let mut umount = Command::new(&program);
    let output = umount.arg("umount").arg(&place.dir).uid(NOBODY).gid(NOBODY).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("mount of another user; only the superuser can"), "{said}");
    assert_eq!(output.status.code(), Some(1));
    assert!(place.is_mounted());
    place.umount().output();
}

#[test]
fn an_ordinary_user_mounts_an_own_image() {
    let open_to_all = fs::metadata("/dev/fuse").unwrap().permissions().mode() & 0o006 == 0o006;
    if !open_to_all || Command::new("fusermount3").arg("-V").output().is_err() {
        eprintln!("skipped: fusermount3 is missing, or /dev/fuse is for the superuser alone");
        return;
    }
    let volume = common::volume();
    let place = Place::new(&volume);
    fs::set_permissions(volume.directory.path(), Permissions::from_mode(0o777)).unwrap();
    for path in [&volume.image, &place.dir] {
        std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    // The build directory need not be open to everybody.
    let program = volume.beside("nilfs");
    fs::copy(env!("CARGO_BIN_EXE_nilfs"), &program).unwrap();
    let run = |words: &[&Path]| {
        let mut command = Command::new(&program);
        let output = command.args(words).uid(NOBODY).gid(NOBODY).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    fs::write(place.dir.join("beneath"), "").unwrap();
    let mount = [Path::new("mount"), &volume.image, &place.dir];
    assert_eq!(run(&mount), (Some(0), String::new()));
    let read = Command::new("cat").arg(place.dir.join("directory/file")).uid(NOBODY).output();
    // The file belongs to user 1000 and is for its group.
    assert!(!read.unwrap().status.success());
    let other = directory_beside(&volume, "other");
    let (code, said) = run(&[Path::new("mount"), &volume.image, &other]);
    let (dir, second) = (place.dir.display(), other.display());
    let link =
        format!("to find it by {second} as well, type: rmdir {second} && ln -s {dir} {second}");
    assert!(code == Some(5) && said.trim_end().ends_with(&link), "{said}");
    obey(said.trim_end());
    assert_eq!(run(&[Path::new("ls"), &other]), (Some(0), String::new()));
    assert_eq!(run(&[Path::new("umount"), &place.dir]), (Some(0), String::new()));
    assert!(!place.is_mounted());
    let mut magic = [0; 2];
    let mut image = File::open(&volume.image).unwrap();
    std::io::Seek::seek(&mut image, std::io::SeekFrom::Start(1024 + 6)).unwrap();
    image.read_exact(&mut magic).unwrap();
    assert_eq!(magic, [0x34, 0x34]);
}
