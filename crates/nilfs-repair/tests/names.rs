//! Directories with damage keep the names that can be read, and a file that has lost its last name is
//! found in lost+found, or by the name that it had.

mod support;

use std::sync::Arc;

use nilfs_check::Severity;
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::{Cno, FileType, NewInode, Volume};
use nilfs_ondisk::inode::{S_IFDIR, S_IFREG};
use nilfs_ondisk::{BlockNr, Ino, dirent};
use nilfs_repair::{Plan, Risk};
use support::{
    BLOCK_SIZES, Content, File, Image, Patient, content, content_of, formatted, heals, mount, read,
    write,
};

const I_LINKS: usize = 50;
/// Where an entry of the DAT has its end.
const END: usize = 16;

/// Damages the volumes that Linux has filled, and demands that nothing is missing, in the present or in
/// a snapshot.
#[track_caller]
fn is_whole(damage: impl Fn(&mut Image)) {
    compare(damage, |_, _| {}, |_| true);
}

/// The same, but for what is expected to change in the present. A snapshot that shares the block has
/// no other way to its files, and nothing can be put into it.
#[track_caller]
fn repaired(damage: impl Fn(&mut Image), expected: impl Fn(&Image, &mut Content)) {
    compare(damage, expected, |path| !path.starts_with("snapshot"));
}

#[track_caller]
fn compare(
    damage: impl Fn(&mut Image),
    expected: impl Fn(&Image, &mut Content),
    needed: impl Fn(&String) -> bool,
) {
    for block_size in BLOCK_SIZES {
        let sound = Image::by_linux(block_size);
        let mut damaged = sound.clone();
        damage(&mut damaged);
        let patient = Patient::new(damaged);
        let plan = patient.heal_but_for(Severity::Warning);
        let mut wanted = content(&sound.bytes);
        expected(&sound, &mut wanted);
        let found = content(&patient.bytes());
        // Where a name is missing, a file has fewer links.
        let differ = |(path, file): &(&String, &File)| match wanted.get(*path) {
            Some(expected) if !needed(path) => expected.3 != file.3,
            expected => expected != Some(file),
        };
        let others: Vec<_> = found.iter().filter(differ).map(|it| it.0).collect();
        let missing = wanted.keys().filter(|it| needed(it) && !found.contains_key(*it));
        let missing: Vec<_> = missing.collect();
        assert!(
            others.is_empty() && missing.is_empty(),
            "block size {block_size}: other {others:?}, missing {missing:?}, {:?}",
            plan.repairs
        );
    }
}

/// Where the files of the present are then, that were at a path or below it.
fn moved(content: &mut Content, from: &str, to: &str) {
    let inside = format!("{from}/");
    let below = |path: &String| *path == from || path.starts_with(&inside);
    let paths: Vec<_> = content.keys().filter(|path| below(path)).cloned().collect();
    assert!(!paths.is_empty(), "{from} is there");
    for path in paths {
        let file = content.remove(&path).unwrap();
        content.insert(format!("{to}{}", &path[from.len()..]), file);
    }
}

fn into_lost_and_found(image: &Image, content: &mut Content, name: &str) {
    adopted(image, content, &format!("/{name}"), image.named(name));
}

fn adopted(image: &Image, content: &mut Content, from: &str, ino: Ino) {
    let links = 2 + u16::from(content[from].0 == FileType::Directory);
    let size = image.block_size() as u64;
    content.insert("/lost+found".to_owned(), (FileType::Directory, links, size, Vec::new()));
    moved(content, from, &format!("/lost+found/#{ino}"));
}

/// The name stays on the volume only as unused bytes, so nothing says that it was there.
#[test]
fn a_file_without_a_name_goes_to_lost_and_found() {
    for name in ["direct", "many", "deep", "symlink"] {
        repaired(
            |image| image.edit_record(Ino::ROOT, name, |record| write(record, 0, 0)),
            |image, content| into_lost_and_found(image, content, name),
        );
    }
}

/// The name went, or the repair was no longer one without a loss, though an older version of the block says
/// where it led, and a file there lacks one.
#[test]
fn a_name_that_leads_nowhere_leads_to_its_file_again() {
    for wrong in [10, 3000, 20_000] {
        heals(|image| image.edit_record(Ino::ROOT, "fifo", |record| write(record, 0, wrong)));
    }
}

/// Of a directory without a name, ".." says which directory had that: it came into lost+found.
#[test]
fn a_name_that_leads_elsewhere_leads_to_its_directory_again() {
    for wrong in [10, 3000] {
        heals(|image| {
            let deep = image.named("deep");
            image.edit_record(deep, "er", |record| write(record, 0, wrong));
        });
    }
    heals(|image| {
        let deep = image.named("deep");
        image.edit_record(deep, "er", |record| write(record, 0, deep.0));
    });
    heals(|image| {
        let deep = image.named("deep");
        image.edit_record(deep, "er", |record| write(record, 0, Ino::ROOT.0));
    });
}

#[test]
fn a_name_of_a_reserved_inode_goes_and_its_file_is_kept() {
    for reserved in [3, 10] {
        repaired(
            |image| image.edit_record(Ino::ROOT, "direct", |record| write(record, 0, reserved)),
            |image, content| into_lost_and_found(image, content, "direct"),
        );
    }
}

#[test]
fn a_deleted_file_that_was_open_is_freed() {
    repaired(
        |image| {
            let ino = image.named("direct");
            image.edit_record(Ino::ROOT, "direct", |record| write(record, 0, 0));
            image.edit_inode(ino, |inode| inode[I_LINKS..I_LINKS + 2].fill(0));
        },
        |_, content| _ = content.remove("/direct"),
    );
}

#[test]
fn a_record_that_is_nonsense_costs_no_other_name() {
    for (at, value) in [(8, 7), (10, 255)] {
        is_whole(|image| image.edit_record(Ino::ROOT, "sparse", |record| record[at] = value));
    }
}

/// An older version of the block says what the names were, but for the one that has come last.
#[test]
fn a_block_of_garbage_gets_its_names_back() {
    for garbage in [0, 0x5a] {
        repaired(
            |image| {
                let first = image.data(image.named("many"), 0);
                image.edit(first, |block| block.fill(garbage));
            },
            |image, content| {
                let late = ["cleaned 3", "late 6"];
                let last = late.into_iter().find(|it| content.contains_key(&format!("/many/{it}")));
                let last = last.unwrap();
                let ino = inode_in(image, image.named("many"), last);
                adopted(image, content, &format!("/many/{last}"), ino);
            },
        );
    }
}

/// However few versions of the block are left: every file is there, under whatever name.
#[test]
fn a_root_directory_of_garbage_costs_no_file() {
    let files = |content: &Content| {
        let present = content.iter().filter(|(path, _)| !path.starts_with("snapshot"));
        let others = present.filter(|(path, _)| *path != "/lost+found");
        let mut files: Vec<_> =
            others.map(|(_, file)| format!("{:?} {:?}", file.0, file.3)).collect();
        files.sort();
        files
    };
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let mut expected = files(&content(&image.bytes));
        let first = image.data(Ino::ROOT, 0);
        image.edit(first, |block| block.fill(0x5a));
        let patient = Patient::new(image);
        patient.heal_but_for(Severity::Warning);
        let mut found = files(&content(&patient.bytes()));
        // One that has two names may be left with one.
        expected.dedup();
        found.dedup();
        assert!(found == expected, "block size {block_size}");
    }
}

#[test]
fn dots_that_are_missing() {
    for at in [0, 16] {
        for name in ["deep", "moved"] {
            is_whole(|image| {
                let ino = image.named(name);
                let first = image.data(ino, 0);
                image.edit(first, |block| block[at + 12] = b'x');
            });
        }
    }
}

#[test]
fn a_directory_has_one_name() {
    repaired(
        |image| {
            let deep = image.named("deep").0;
            image.edit_record(Ino::ROOT, "fifo", |record| {
                write(record, 0, deep);
                record[11] = 2;
            });
        },
        |_, _| {},
    );
}

/// Neither can be reached, and one leads to the other.
#[test]
fn directories_that_lead_to_each_other_only() {
    repaired(
        |image| {
            let deep = image.named("deep");
            let er = image.data(inode_in(image, deep, "er"), 0);
            image.edit(er, |block| {
                dirent::insert(block, deep, b"up", FileType::Directory).unwrap().unwrap();
            });
            image.edit_record(Ino::ROOT, "deep", |record| write(record, 0, 0));
        },
        |image, content| into_lost_and_found(image, content, "deep"),
    );
}

fn inode_in(image: &Image, directory: Ino, name: &str) -> Ino {
    let block = image.data(directory, 0).block;
    let mut records = dirent::records(image.block(block)).map(Result::unwrap);
    records.find(|it| it.name == name.as_bytes()).expect("there is such a name").ino
}

#[test]
fn the_plan_names_the_files() {
    let mut image = Image::by_linux(4096);
    let ino = image.named("direct");
    image.edit_record(Ino::ROOT, "direct", |record| write(record, 0, 0));
    let plan: Plan = Patient::new(image).heal_but_for(Severity::Warning);
    let says = plan.repairs.iter().map(ToString::to_string).collect::<Vec<_>>();
    let wanted = format!(
        "inode {ino}: no name leads to it: lost+found/#{ino}: put it into lost+found, as #{ino}"
    );
    assert!(says.contains(&wanted), "{says:?}");
}

/// A name that leads to no file was taken out without a loss, though the count of links of another file says
/// that one of its names is missing.
#[test]
fn a_name_is_not_given_up_without_a_loss() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        image.edit_record(Ino::ROOT, "direct", |record| write(record, 0, 20_000));
        let plan = Patient::new(image).plan();
        let given_up = plan.repairs.iter().find(|it| it.fault.contains("names inode 20000"));
        assert_eq!(given_up.map(|it| it.risk), Some(Risk::Loses), "{:?}", plan.repairs);
    }
}

/// A name that leads nowhere in the past leads to its file in the present, if both have its block.
#[test]
fn what_the_past_has_lost_is_not_taken_from_the_present() {
    let device = formatted(16 << 20, 1024, 64);
    let fs = mount(&device);
    let new = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    let root = fs.root().unwrap().inode;
    let create = |dir, name: &str| fs.create(dir, name.as_bytes(), &new).unwrap().inode;
    let dir = fs.create(&root, b"dir", &NewInode { mode: S_IFDIR | 0o755, ..new }).unwrap().inode;
    fs.commit().unwrap();
    // These inodes share a block with one that has been there before.
    let files: Vec<_> = (0..4).map(|nth| create(&root, &format!("file {nth}"))).collect();
    let past = fs.commit().unwrap();
    for file in &files {
        fs.write(file, 0, b"content").unwrap();
    }
    // The bitmap of inodes becomes another one, too, and the root directory does not.
    create(&dir, "one more");
    fs.unmount().unwrap();
    let mut image = Image::from(device.snapshot());
    let files = content_now(&image);
    lose_ifile_of(&mut image, past);
    let patient = Patient::new(image);
    patient.plan().apply(&*patient.device, &mut |_| {}).unwrap();
    assert_eq!(content_now(&Image::from(patient.bytes())), files);
}

/// Fills with zeros what only a checkpoint of the past has of its ifile, and the summary of its log.
fn lose_ifile_of(image: &mut Image, past: Cno) {
    let size = image.block_size();
    let logs = image.logs().into_iter().filter(|log| log.header.cno == past);
    for log in logs.collect::<Vec<_>>() {
        let first = log.block.plus(log.header.summary_blocks(image.geometry().block_size));
        let infos = log.files.iter().flat_map(|it| it.blocks.iter().map(|info| (it.ino, info)));
        let mut lost = Vec::new();
        for (at, (ino, info)) in (first.0..).map(BlockNr).zip(infos) {
            let is_over = info.vblock().is_some_and(|vblock| {
                let (entry, offset) = image.dat_entry(vblock);
                read(&image.block(entry.block)[offset..], END) != u64::MAX
            });
            if ino == Ino::IFILE && is_over {
                lost.extend([at, log.block]);
            }
        }
        for block in lost {
            image.bytes[block.0 as usize * size..][..size].fill(0);
        }
    }
}

/// The files of the newest checkpoint.
fn content_now(image: &Image) -> Content {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(image.bytes.clone()));
    content_of(&Volume::open(device).unwrap(), None)
}
