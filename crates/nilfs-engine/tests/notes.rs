//! Names and notes of snapshots: they are where they were put, whatever happens to the volume, and
//! nothing depends on them.

mod common;

use std::io::IoSlice;
use std::sync::Arc;

use common::{check, in_the_past, make, mount, parameters};
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::mkfs::format;
use nilfs_engine::{
    Amount, CleanerOptions, Cno, Error, Filesystem, Ino, MadeBy, ManualRun, MountOptions, Note,
    SnapshotChange, Verify, Volume,
};
use nilfs_ondisk::notes::encode;

const BLOCK: usize = 1024;

/// The seed of the checksums of every volume here.
const SEED: u32 = 0x1234_5678;

fn volume() -> Arc<MemoryDevice> {
    common::volume(BLOCK as u64, 16)
}

fn keep(cno: Cno, name: &str, text: &str) -> SnapshotChange {
    let name = (!name.is_empty()).then(|| name.parse().unwrap());
    let text = (!text.is_empty()).then(|| text.parse().unwrap());
    SnapshotChange::Keep { cno, made_by: MadeBy::User, name, text }
}

fn keep_by_retention(cno: Cno) -> SnapshotChange {
    SnapshotChange::Keep { cno, made_by: MadeBy::Retention, name: None, text: None }
}

fn release(cno: Cno, made_by: MadeBy) -> SnapshotChange {
    SnapshotChange::Release { cno, made_by }
}

/// Number, name and text of each note.
fn told(notes: &[Note]) -> Vec<(u64, String, String)> {
    let name = |note: &Note| note.name.as_ref().map_or(String::new(), ToString::to_string);
    notes.iter().map(|note| (note.cno.0, name(note), note.text.to_string())).collect()
}

/// A volume as it is: tests put notes on it by hand.
fn unchecked(device: &Arc<MemoryDevice>) -> Volume {
    Volume::open_with(Arc::clone(device) as _, Verify::None).unwrap()
}

fn notes_on(device: &Arc<MemoryDevice>) -> Vec<(u64, String, String)> {
    told(&unchecked(device).notes().unwrap())
}

fn snapshots(fs: &Filesystem) -> Vec<Cno> {
    let all = fs.checkpoints(Cno::MIN, usize::MAX).unwrap();
    all.iter().filter(|checkpoint| checkpoint.snapshot).map(|checkpoint| checkpoint.cno).collect()
}

fn noted(cno: Cno, name: &str, text: &str) -> (u64, String, String) {
    (cno.0, name.to_owned(), text.to_owned())
}

#[test]
fn a_name_comes_with_its_snapshot_and_goes_with_it() {
    let device = volume();
    let fs = mount(&device);
    let (a, b) = (fs.checkpoint_now().unwrap(), fs.checkpoint_now().unwrap());
    let before = Volume::open(Arc::clone(&device) as _).unwrap().checkpoint_totals().unwrap();
    fs.change_snapshots(&[keep(b, "second", ""), keep(a, "first", "of all")]).unwrap();
    let after = Volume::open(Arc::clone(&device) as _).unwrap().checkpoint_totals().unwrap();
    assert_eq!(after.checkpoints, before.checkpoints + 1, "all in one checkpoint");
    assert_eq!(notes_on(&device), [noted(a, "first", "of all"), noted(b, "second", "")]);
    // What is not said stays.
    fs.change_snapshots(&[keep(a, "", "text"), keep(b, "renamed", "")]).unwrap();
    fs.unmount().unwrap();
    check(&*device);
    let fs = mount(&device);
    let expected = [noted(a, "text", "text"), noted(b, "renamed", "")];
    assert_eq!(told(&fs.notes().unwrap())[1], expected[1]);
    assert_eq!(told(&fs.notes().unwrap())[0], noted(a, "first", "text"));
    fs.set_snapshot(a, false).unwrap();
    assert_eq!(told(&fs.notes().unwrap()), [noted(b, "renamed", "")]);
    fs.set_snapshot(a, true).unwrap();
    assert_eq!(told(&fs.notes().unwrap()), [noted(b, "renamed", "")], "it is a new snapshot");
    fs.unmount().unwrap();
    check(&*device);
}

#[test]
fn two_snapshots_have_two_names() {
    let device = volume();
    let fs = mount(&device);
    let (a, b) = (fs.checkpoint_now().unwrap(), fs.checkpoint_now().unwrap());
    fs.change_snapshots(&[keep(a, "name", "")]).unwrap();
    let refused = fs.change_snapshots(&[keep(b, "name", "")]);
    assert!(matches!(&refused, Err(Error::NameTaken { cno, .. }) if *cno == a), "{refused:?}");
    assert_eq!(snapshots(&fs), [a], "what was refused has not happened");
    fs.change_snapshots(&[keep(a, "name", "again")]).unwrap();
    // A name is free with its snapshot, also in one go.
    fs.change_snapshots(&[release(a, MadeBy::User), keep(b, "name", "")]).unwrap();
    assert_eq!(told(&fs.notes().unwrap()), [noted(b, "name", "")]);
    let missing = fs.change_snapshots(&[keep(Cno(999), "other", "")]);
    assert!(matches!(missing, Err(Error::NoCheckpoint(Cno(999)))));
}

#[test]
fn retention_lets_go_of_nothing_but_what_it_made() {
    let device = volume();
    let fs = mount(&device);
    let made: Vec<Cno> = (0..4).map(|_| fs.checkpoint_now().unwrap()).collect();
    let [users, own, taken_over, named] = made[..] else { unreachable!() };
    fs.set_snapshot(users, true).unwrap();
    fs.change_snapshots(&made.iter().copied().map(keep_by_retention).collect::<Vec<_>>()).unwrap();
    fs.set_snapshot(taken_over, true).unwrap();
    fs.change_snapshots(&[keep(named, "named", "")]).unwrap();
    let release_all: Vec<_> = made.iter().map(|cno| release(*cno, MadeBy::Retention)).collect();
    fs.change_snapshots(&release_all).unwrap();
    assert_eq!(snapshots(&fs), [users, taken_over, named]);
    fs.set_snapshot(own, true).unwrap();
    fs.change_snapshots(&release_all).unwrap();
    assert_eq!(snapshots(&fs), [users, own, taken_over, named], "who made it before is forgotten");
}

/// After a crash, a number can come to belong to another checkpoint. And Linux lets go of snapshots
/// without knowing of their names.
#[test]
fn a_note_about_a_checkpoint_of_another_time_does_not_count() {
    let device = volume();
    let cno = named(&device, "name");
    let mut notes = Volume::open(Arc::clone(&device) as _).unwrap().notes().unwrap();
    notes[0].created -= 1;
    overwrite(&device, b"NfNo", &encode(&notes, SEED).unwrap());
    assert!(notes_on(&device).is_empty());
    let options = MountOptions { verify: Verify::None, ..MountOptions::default() };
    let fs = Filesystem::mount(Arc::clone(&device) as _, options).unwrap();
    assert_eq!((fs.notes().unwrap(), snapshots(&fs)), (Vec::new(), vec![cno]));
    fs.change_snapshots(&[keep(cno, "name", "")]).unwrap();
    assert_eq!(told(&fs.notes().unwrap()), [noted(cno, "name", "")], "the name was free");
}

/// A volume with a snapshot of this name, and a checkpoint after it.
fn named(device: &Arc<MemoryDevice>, name: &str) -> Cno {
    let fs = mount(device);
    let cno = fs.checkpoint_now().unwrap();
    fs.change_snapshots(&[keep(cno, name, "")]).unwrap();
    // A mount verifies the newest log, which is not to be overwritten.
    fs.checkpoint_now().unwrap();
    fs.unmount().unwrap();
    cno
}

/// Writes over what begins with these bytes, wherever it is.
fn overwrite(device: &MemoryDevice, start: &[u8], new: &[u8]) {
    let bytes = device.snapshot();
    let places = bytes.windows(start.len()).enumerate().filter(|(_, it)| *it == start);
    places.for_each(|(at, _)| device.write_at(at as u64, &[IoSlice::new(new)]).unwrap());
}

#[test]
fn nobody_sees_the_file_and_it_makes_no_checkpoint_different() {
    let device = volume();
    let fs = mount(&device);
    make(&fs, &fs.root().unwrap().inode, "file");
    let (cno, files) = (fs.checkpoint_now().unwrap(), fs.stat_fs().unwrap().files_free);
    fs.change_snapshots(&[keep(cno, "name", "text")]).unwrap();
    assert!(matches!(fs.by_number(Ino::XATTR), Err(Error::Stale)));
    let (old, new) = (fs.tree(Some(cno)).unwrap(), fs.tree(None).unwrap());
    assert!(matches!(new.file(Ino::XATTR), Err(Error::Stale)));
    new.changed_files(&old, &mut |file| panic!("{file:?}")).unwrap();
    assert_eq!((new.inodes(), fs.stat_fs().unwrap().files_free), (old.inodes(), files));
    let newest = fs.checkpoints(new.cno(), 1).unwrap()[0];
    assert!(newest.minor, "no file has changed");
}

#[test]
fn thousands_of_notes_live_through_cleaning() {
    let mut parameters = parameters(BLOCK as u64);
    parameters.blocks_per_segment = 64;
    let device = Arc::new(MemoryDevice::new(32 << 20));
    format(&*device, &parameters).unwrap();
    let cleaner = CleanerOptions { protection: Default::default(), ..CleanerOptions::default() };
    let options = MountOptions { cleaner, ..MountOptions::default() };
    let fs = Filesystem::mount(Arc::clone(&device) as _, options).unwrap();
    let file = make(&fs, &fs.root().unwrap().inode, "file");
    let (mut expected, mut changes) = (Vec::new(), Vec::new());
    for nth in 0..1000 {
        fs.write(&file, 0, format!("{nth:4}").as_bytes()).unwrap();
        let cno = fs.commit().unwrap();
        let (name, text) = (format!("number-{nth}"), "x".repeat(nth % 300));
        changes.push(keep(cno, &name, &text));
        expected.push(noted(cno, &name, &text));
    }
    fs.change_snapshots(&changes).unwrap();
    let everything = ManualRun { min_reclaimable: Some(Amount::Count(1)), ..ManualRun::default() };
    for nth in 0..20 {
        fs.write(&file, 0, &vec![nth; 200 * BLOCK]).unwrap();
        fs.commit().unwrap();
        fs.clean(&everything).unwrap();
    }
    assert_eq!(told(&fs.notes().unwrap()), expected);
    // A few of many: the file becomes shorter.
    let few = expected.split_off(990);
    let gone: Vec<_> = expected.iter().map(|note| release(Cno(note.0), MadeBy::User)).collect();
    fs.change_snapshots(&gone).unwrap();
    fs.clean(&everything).unwrap();
    fs.unmount().unwrap();
    check(&*device);
    assert_eq!(notes_on(&device), few);
    assert_eq!(in_the_past(&device, Cno(few[0].0), "file"), b" 990");
}

/// Damage costs the names and nothing else.
#[test]
fn damaged_notes_are_an_error_to_read_and_can_be_written_anew() {
    let device = volume();
    let cno = named(&device, "unmistakable");
    overwrite(&device, b"unmistakable", b"X");
    let report = nilfs_check::check(&*device, &nilfs_check::Options::default()).unwrap();
    assert!(report.errors().any(|it| it.rule == nilfs_check::Rule::XattrFile));
    let error = unchecked(&device).notes().unwrap_err();
    assert!(error.to_string().contains("xattr file"), "{error}");
    let fs = mount(&device);
    let error = fs.notes().unwrap_err();
    assert!(error.to_string().contains("the notes of snapshots"), "{error}");
    assert_eq!(snapshots(&fs), [cno]);
    fs.change_snapshots(&[keep(cno, "again", "")]).unwrap();
    assert_eq!(told(&fs.notes().unwrap()), [noted(cno, "again", "")]);
    make(&fs, &fs.root().unwrap().inode, "file");
    fs.unmount().unwrap();
}
