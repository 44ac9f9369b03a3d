//! Damage that users of NILFS2 have reported: fsck names it and repairs it, or the next mount recovers
//! from it. Then the files are there that the case says, Linux shows the same ones without a
//! complaint, and every one of them can be deleted. What can be salvaged without a repair is said, too.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nilfs_check::{Options, Rule};
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::rescue::Rescue;
use nilfs_engine::{
    Cno, Error, FileType, Files, Filesystem, FsyncBy, InodeRef, MountOptions, NewInode, Volume,
};
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_ondisk::inode::S_IFREG;
use nilfs_ondisk::superblock::RawSuperblock;
use nilfs_ondisk::{BlockNr, BlockSize, Ino};
use nilfs_real_kernels::Uml;
use nilfs_repair::Risk;
use support::{
    BLOCK_SIZES, Content, File, Image, UUID, bad_sectors, content_of, present, read_file, vblock,
    write,
};

const I_LINKS: usize = 50;

/// What a user has reported.
struct Case {
    name: &'static str,
    /// What a check says.
    named: Named,
    mended: Mended,
    damage: fn(u64) -> Damaged,
}

enum Named {
    /// There is a finding about this rule.
    By(Rule),
    /// The volume cannot be checked.
    Unusable,
    /// Nothing is wrong.
    Not,
}

enum Mended {
    /// By fsck's plan, which may lose something.
    Fsck(Risk),
    /// By the recovery of a mount: fsck has nothing to do.
    Mount,
}

/// A damaged volume, and what is to become of it.
struct Damaged {
    image: Image,
    unreadable: Vec<BlockNr>,
    /// The files that are there when it is mended.
    files: Content,
    /// Those of them that cannot be salvaged before.
    unsalvageable: BTreeSet<String>,
}

impl Damaged {
    fn new(image: Image, files: Content) -> Self {
        Self { image, unreadable: Vec::new(), files, unsalvageable: BTreeSet::new() }
    }

    /// A volume that Linux has filled, of which no file is lost.
    fn linux(block_size: u64, damage: impl FnOnce(&mut Image)) -> Self {
        let mut image = Image::by_linux(block_size);
        let files = files_of(&image, None);
        damage(&mut image);
        Self::new(image, files)
    }

    /// A volume that Linux has filled, of which the last checkpoint is lost.
    fn linux_but_for_the_last(block_size: u64, damage: impl FnOnce(&mut Image)) -> Self {
        let mut image = Image::by_linux(block_size);
        let files = files_of(&image, Some(last_but_one(&image)));
        damage(&mut image);
        Self::new(image, files)
    }

    /// A file is in lost+found then.
    fn adopted(mut self, path: &str) -> Self {
        let block_size = self.image.block_size() as u64;
        let device = Arc::new(MemoryDevice::from(Image::by_linux(block_size).bytes));
        let whole = Volume::open(device).unwrap().tree(None).unwrap();
        let file = self.files.remove(path).expect("the file is there");
        let lost_and_found = (FileType::Directory, 2, block_size, Vec::new());
        self.files.insert("/lost+found".to_owned(), lost_and_found);
        self.files.insert(format!("/lost+found/#{}", number(&whole, path)), file);
        self
    }

    /// Only older versions of these files can be salvaged, if any.
    fn unsalvageable<const N: usize>(mut self, paths: [&str; N]) -> Self {
        self.unsalvageable = paths.map(str::to_owned).into();
        self
    }

    /// The file that the last checkpoint has brought cannot be salvaged: the one before is used.
    fn newest_is_unsalvageable(self) -> Self {
        let newest = newest_file(self.image.block_size() as u64);
        self.unsalvageable([&newest])
    }

    fn without(mut self, path: &str) -> Self {
        self.files.remove(path).expect("the file is there");
        self
    }
}

/// The cases. Each is made of a sound volume, and is the same each time.
const CASES: &[Case] = &[
    Case {
        name: "the cursors of both superblocks lead to no log",
        named: Named::Unusable,
        mended: Mended::Fsck(Risk::Safe),
        damage: |block_size| {
            Damaged::linux(block_size, |image| {
                image.edit_superblocks(|raw| raw.s_last_pseg.set(raw.s_last_pseg.get() + 1));
            })
        },
    },
    Case {
        name: "an I/O error inside the last log",
        named: Named::By(Rule::SuperRoot),
        mended: Mended::Fsck(Risk::Safe),
        damage: |block_size| {
            let mut damaged = Damaged::linux(block_size, |_| {}).newest_is_unsalvageable();
            damaged.unreadable.push(damaged.image.super_root().block);
            damaged
        },
    },
    Case {
        name: "the last checkpoint is missing",
        named: Named::By(Rule::Checkpoint),
        mended: Mended::Fsck(Risk::Safe),
        damage: |block_size| {
            Damaged::linux(block_size, |image| {
                image.edit_checkpoint(image.newest(), |entry| entry[0] |= 2);
            })
            .newest_is_unsalvageable()
        },
    },
    Case {
        name: "a B-tree node of a file is garbage, so that it cannot be deleted",
        named: Named::By(Rule::BlockMap),
        mended: Mended::Fsck(Risk::Safe),
        damage: |block_size| {
            Damaged::linux(block_size, |image| garbage_node(image, image.named("tree")))
                .unsalvageable(["/tree"])
        },
    },
    Case {
        name: "a B-tree node of the ifile is garbage",
        named: Named::By(Rule::BlockMap),
        mended: Mended::Fsck(Risk::Safe),
        damage: |block_size| grown(block_size, |image| garbage_node(image, Ino::IFILE)),
    },
    Case {
        name: "a B-tree node of the DAT is garbage",
        named: Named::By(Rule::BlockMap),
        mended: Mended::Fsck(Risk::Safe),
        damage: |block_size| {
            Damaged::linux(block_size, |image| garbage_node(image, Ino::DAT))
                .newest_is_unsalvageable()
        },
    },
    Case {
        name: "a B-tree node of the cpfile is garbage",
        named: Named::By(Rule::BlockMap),
        mended: Mended::Fsck(Risk::Safe),
        damage: |block_size| grown(block_size, |image| garbage_node(image, Ino::CPFILE)),
    },
    Case {
        name: "a record of a directory has no length",
        named: Named::By(Rule::Directory),
        mended: Mended::Fsck(Risk::Loses),
        damage: |block_size| {
            Damaged::linux(block_size, |image| {
                image.edit_record(Ino::ROOT, "sparse", |record| record[8..10].fill(0));
            })
        },
    },
    Case {
        name: "a block of a directory is garbage",
        named: Named::By(Rule::Directory),
        mended: Mended::Fsck(Risk::Loses),
        damage: |block_size| {
            let garbage = Damaged::linux(block_size, |image| {
                let first = image.data(image.named("many"), 0);
                image.edit(first, |block| block.fill(0x5a));
            });
            // No older version of the block names it.
            garbage.adopted(&newest_file(block_size))
        },
    },
    Case {
        name: "the superblocks are marked with an error",
        named: Named::By(Rule::Superblock),
        mended: Mended::Fsck(Risk::Safe),
        damage: |block_size| {
            Damaged::linux(block_size, |image| {
                image.edit_superblocks(|raw| raw.s_state.set(raw.s_state.get() | 2));
            })
        },
    },
    Case {
        name: "superblocks with a right checksum and nonsense in them",
        named: Named::By(Rule::SegmentUsage),
        mended: Mended::Fsck(Risk::Loses),
        damage: |block_size| {
            Damaged::linux(block_size, |image| {
                image.edit_superblocks(|raw| {
                    raw.s_blocks_per_segment.set(raw.s_blocks_per_segment.get() * 2);
                    raw.s_nsegments.set(raw.s_nsegments.get() / 2);
                });
            })
        },
    },
    Case {
        name: "a block size of two to the power of nonsense",
        named: Named::Unusable,
        mended: Mended::Fsck(Risk::Loses),
        damage: |block_size| {
            Damaged::linux(block_size, |image| {
                set_superblocks_unseen(image, |raw| raw.s_log_block_size.set(0xffff_fff0));
            })
        },
    },
    Case {
        name: "the second superblock is where the device once ended",
        named: Named::By(Rule::Superblock),
        mended: Mended::Fsck(Risk::Safe),
        damage: |block_size| {
            Damaged::linux(block_size, |image| image.bytes.resize(image.bytes.len() + (1 << 20), 0))
        },
    },
    Case {
        name: "the last log has not arrived, and the superblocks that name it have",
        named: Named::By(Rule::SuperRoot),
        mended: Mended::Fsck(Risk::Loses),
        damage: |block_size| {
            Damaged::linux_but_for_the_last(block_size, |image| {
                let log = image.newest_log();
                let size = image.block_size();
                let start = log.block.0 as usize * size;
                image.bytes[start..start + log.header.nblocks as usize * size].fill(0);
            })
        },
    },
    Case {
        name: "the summary of an older log is garbage",
        named: Named::By(Rule::Log),
        mended: Mended::Fsck(Risk::Safe),
        damage: |block_size| {
            Damaged::linux(block_size, |image| {
                let log = image.data(Ino::ROOT, 0).log;
                let start = log.0 as usize * block_size as usize;
                image.bytes[start..start + block_size as usize].fill(0x5a);
            })
        },
    },
    Case {
        name: "the summary of an older log cannot be read",
        named: Named::By(Rule::Log),
        mended: Mended::Fsck(Risk::Safe),
        damage: |block_size| {
            let mut damaged = Damaged::linux(block_size, |_| {});
            let image = &damaged.image;
            damaged.unreadable.push(image.data(image.named("tree"), 0).log);
            damaged
        },
    },
    Case {
        name: "a crash when no space is left",
        named: Named::Not,
        mended: Mended::Mount,
        damage: full_and_cut,
    },
    Case {
        name: "entries of the DAT are freed that are in use",
        named: Named::By(Rule::Allocation),
        mended: Mended::Fsck(Risk::Safe),
        damage: |block_size| {
            Damaged::linux(block_size, |image| {
                let used = vblock(image.data(image.named("tree"), 0)).0;
                let bitmap = image.data(Ino::DAT, 1);
                image.edit(bitmap, |block| block[used as usize / 8] &= !(1 << (used % 8)));
            })
        },
    },
    Case {
        name: "a file that was deleted while it was open",
        named: Named::By(Rule::Orphan),
        mended: Mended::Fsck(Risk::Safe),
        damage: |block_size| {
            let orphaned = Damaged::linux(block_size, |image| {
                let ino = image.named("direct");
                image.edit_record(Ino::ROOT, "direct", |record| write(record, 0, 0));
                image.edit_inode(ino, |inode| inode[I_LINKS..I_LINKS + 2].fill(0));
            });
            orphaned.without("/direct")
        },
    },
    Case {
        name: "a directory names a reserved inode",
        named: Named::By(Rule::Directory),
        mended: Mended::Fsck(Risk::Loses),
        damage: |block_size| {
            let renamed = Damaged::linux(block_size, |image| {
                image.edit_record(Ino::ROOT, "direct", |record| write(record, 0, 3));
            });
            renamed.adopted("/direct")
        },
    },
    Case {
        name: "a crash after the content of a file was synced",
        named: Named::By(Rule::RollForward),
        mended: Mended::Mount,
        damage: synced_and_cut,
    },
];

/// The files of a checkpoint; of the newest if none is named.
fn files_of(image: &Image, cno: Option<Cno>) -> Content {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(image.bytes.clone()));
    content_of(&Volume::open(device).unwrap(), cno)
}

/// The file that the last checkpoint has brought of a volume that Linux has filled.
fn newest_file(block_size: u64) -> String {
    let whole = Image::by_linux(block_size);
    let before = files_of(&whole, Some(last_but_one(&whole)));
    let mut newer = files_of(&whole, None).into_keys().filter(|path| !before.contains_key(path));
    newer.next().expect("there is a new file")
}

/// The inode number of a file.
fn number(files: &dyn Files, path: &str) -> Ino {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.fold(Ino::ROOT, |directory, name| files.lookup(directory, name.as_bytes()).unwrap().ino)
}

fn last_but_one(image: &Image) -> Cno {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(image.bytes.clone()));
    let all = Volume::open(device).unwrap().checkpoints(Cno(1), usize::MAX).unwrap();
    all.iter().rev().find(|it| it.cno < image.newest()).unwrap().cno
}

fn garbage_node(image: &mut Image, ino: Ino) {
    let node = image.node(ino);
    image.edit(node, |block| block.fill(0x5a));
}

/// Writes both superblocks with a right checksum, however little sense they make.
fn set_superblocks_unseen(image: &mut Image, change: impl FnOnce(&mut RawSuperblock)) {
    let mut superblock = image.superblock;
    change(superblock.raw_mut());
    let secondary = secondary_superblock(image.bytes.len() as u64).unwrap();
    for at in [PRIMARY_SUPERBLOCK as usize, secondary as usize] {
        image.bytes[at..at + 1024].copy_from_slice(&superblock.encode());
    }
}

fn mounted(device: &Arc<dyn Device>) -> Arc<Filesystem> {
    // Linux recovers from nothing else.
    let options = MountOptions { fsync: FsyncBy::Checkpoint, ..MountOptions::default() };
    Filesystem::mount(Arc::clone(device), options).unwrap()
}

fn create(fs: &Filesystem, name: &str) -> InodeRef {
    let file = NewInode { mode: S_IFREG | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    fs.create(&fs.root().unwrap().inode, name.as_bytes(), &file).unwrap().inode
}

/// A new volume with segments that are long enough for sync logs after a checkpoint.
fn formatted(block_size: u64) -> (Arc<MemoryDevice>, Arc<Filesystem>) {
    let mut parameters = Parameters::new([7; 16], 0x1234_5678, 1_700_000_000);
    parameters.block_size = BlockSize::from_bytes(block_size).unwrap();
    parameters.blocks_per_segment = 256;
    let memory = Arc::new(MemoryDevice::new(32 << 20));
    format(&*memory, &parameters).unwrap();
    let device: Arc<dyn Device> = Arc::clone(&memory) as _;
    (memory, mounted(&device))
}

/// Damages a volume whose cpfile and ifile are large enough to have nodes.
fn grown(block_size: u64, damage: impl FnOnce(&mut Image)) -> Damaged {
    let (device, fs) = formatted(block_size);
    let count = 10 * block_size / 192;
    for nth in 0..=count {
        let name = if nth == count { "last".to_owned() } else { format!("file {nth}") };
        fs.write(&create(&fs, &name), 0, name.as_bytes()).unwrap();
        fs.commit().unwrap();
    }
    fs.unmount().unwrap();
    let mut image = Image::from(device.snapshot());
    let files = files_of(&image, None);
    damage(&mut image);
    Damaged::new(image, files).unsalvageable(["/last"])
}

/// Power fails after a write for which there is no room. What was there at the last sync is there.
fn full_and_cut(block_size: u64) -> Damaged {
    let memory = Arc::new(MemoryDevice::from(Image::by_linux(block_size).bytes));
    let device: Arc<dyn Device> = Arc::clone(&memory) as _;
    let fs = mounted(&device);
    let file = create(&fs, "filler");
    let mut synced = present(&*fs);
    for nth in 0.. {
        let piece = [nth as u8; 1 << 14];
        let written = fs.write(&file, nth * piece.len() as u64, &piece).and_then(|()| fs.sync());
        match written {
            Ok(()) => synced = present(&*fs),
            Err(Error::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    Damaged::new(Image::from(memory.snapshot()), synced)
}

/// Power fails after an fsync of content that replaces other content: parts of blocks, and parts of
/// pages of Linux.
fn synced_and_cut(block_size: u64) -> Damaged {
    let (device, fs) = formatted(block_size);
    let files = ["one", "other"].map(|name| create(&fs, name));
    for file in &files {
        fs.write(file, 0, &[b'.'; 20_000]).unwrap();
    }
    fs.commit().unwrap();
    for (file, offset) in [(0, 5000), (1, 1500), (0, 16_000)] {
        fs.write(&files[file], offset, &[b'#'; 3000]).unwrap();
        fs.sync_file(&files[file]).unwrap();
    }
    Damaged::new(Image::from(device.snapshot()), present(&*fs))
}

/// A case, mended, as it is handed to Linux.
struct Mends {
    what: String,
    bytes: Vec<u8>,
    files: Content,
}

impl Case {
    /// Checks and mends the damage, and compares what is said and what is there then.
    fn mends(&self, block_size: u64) -> Mends {
        let what = format!("{}, block size {block_size}", self.name);
        let Damaged { image, unreadable, files, unsalvageable } = (self.damage)(block_size);
        let before: Arc<dyn Device> = Arc::new(bad_sectors(image.clone(), &unreadable));
        let bad = Arc::new(bad_sectors(image, &unreadable));
        let device: Arc<dyn Device> = bad.clone();
        let plan = nilfs_repair::plan(&device, &Options::default(), UUID)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        match (&plan.before, &self.named) {
            (Ok(report), Named::By(rule)) => {
                assert!(report.findings.iter().any(|it| it.rule == *rule), "{what}: {report}");
            }
            (Ok(report), Named::Not) => assert!(report.findings.is_empty(), "{what}: {report}"),
            (Err(_), Named::Unusable) => {}
            (Ok(report), Named::Unusable) => panic!("{what}: it can be checked: {report}"),
            (Err(error), _) => panic!("{what}: {error}"),
        }
        let mut bytes = bad.below().snapshot();
        match &self.mended {
            Mended::Fsck(risk) => {
                assert!(plan.obstacle.is_none(), "{what}: {:?}", plan.obstacle);
                assert_eq!(plan.risk(), *risk, "{what}: {:?}", plan.repairs);
                plan.apply(&*device, &mut |_| {}).unwrap();
                bytes = bad.below().snapshot();
            }
            // Linux recovers what is there before our mount does.
            Mended::Mount => {
                assert!(plan.repairs.is_empty(), "{what}: {:?}", plan.repairs);
                mounted(&device).unmount().unwrap();
            }
        }
        let report = nilfs_check::check(&*device, &Options::default()).unwrap();
        assert!(report.is_consistent(), "{what}: {report}");
        let again = nilfs_repair::plan(&device, &Options::default(), UUID).unwrap();
        assert!(again.repairs.is_empty(), "{what}: {:?}", again.repairs);
        let found = files_of(&Image::from(bad.below().snapshot()), None);
        assert_same(&what, &found, &files);
        let not_salvaged = not_salvaged(before, device, &files);
        assert_eq!(not_salvaged, unsalvageable, "{what}: what is not salvaged");
        Mends { what, bytes, files }
    }
}

/// The regular files of a mended volume whose content was in no checkpoint that could be used before, by
/// whatever name.
fn not_salvaged(
    before: Arc<dyn Device>,
    mended: Arc<dyn Device>,
    files: &Content,
) -> BTreeSet<String> {
    let volume = Volume::open(mended).unwrap().tree(None).unwrap();
    let regular = files.iter().filter(|(_, file)| file.0 == FileType::Regular);
    let mut left: Vec<_> =
        regular.map(|(path, file)| (path, number(&volume, path), &file.3)).collect();
    let mut rescue = Rescue::open(before, Box::new(|_| {})).expect("it is a volume");
    for nth in 0.. {
        let Some(seen) = rescue.tree(nth).filter(|_| !left.is_empty()) else { break };
        left.retain(|(_, ino, content)| match read_file(&*seen.files, *ino) {
            Ok(found) => found.3 != **content,
            Err(_) => true,
        });
    }
    left.into_iter().map(|(path, ..)| path.clone()).collect()
}

/// Fails with what differs, but not with kilobytes of content.
#[track_caller]
fn assert_same(what: &str, found: &Content, expected: &Content) {
    for path in found.keys().chain(expected.keys()) {
        let brief = |files: &Content| files.get(path).map(|file| (file.0, file.1, file.2));
        assert_eq!(brief(found), brief(expected), "{what}: {path}");
        assert!(found[path].3 == expected[path].3, "{what}: the content of {path}");
    }
}

/// Many volumes are mounted twice, in a guest whose system calls are slow.
const MOST_TIME: Duration = Duration::from_secs(900);

/// What Linux copies out of volumes, which it has to mount; then it deletes everything in them.
const COPY_AND_DELETE: &str = r#"
    copy_and_delete() {
        mount_nilfs
        mkdir "${IMAGE%.img}"
        cp -a --sparse=always "$MNT/." "${IMAGE%.img}"
        find "$MNT" -mindepth 1 -delete
        umount_nilfs
        mount_nilfs
        find "$MNT" -mindepth 1
        umount_nilfs
    }
    each_image "$IMAGES" copy_and_delete"#;

/// The files below a directory of the host. What a directory takes there is not compared.
fn copied(directory: &Path, path: &str, found: &mut Content) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{path}/{}", entry.file_name().to_str().unwrap());
        let metadata = entry.metadata().unwrap();
        let kind = metadata.file_type();
        let file_type = match () {
            () if kind.is_dir() => FileType::Directory,
            () if kind.is_file() => FileType::Regular,
            () if kind.is_symlink() => FileType::Symlink,
            () if kind.is_fifo() => FileType::Fifo,
            () => FileType::CharDevice,
        };
        let (mut links, mut size, mut content) = (1, 0, Vec::new());
        if kind.is_dir() {
            copied(&entry.path(), &path, found);
        } else if kind.is_file() {
            content = fs::read(entry.path()).unwrap();
            (links, size) = (metadata.nlink() as u16, metadata.len());
        }
        found.insert(path, (file_type, links, size, content));
    }
}

/// Files as [`copied`] returns them.
fn comparable(files: &Content) -> Content {
    let of_content = |(path, file): (&String, &File)| {
        let file = match file.0 {
            FileType::Regular => file.clone(),
            file_type => (file_type, 1, 0, Vec::new()),
        };
        (path.clone(), file)
    };
    files.iter().map(of_content).collect()
}

#[test]
fn known_damage_is_named_and_mended_and_linux_agrees() {
    let directory = tempfile::tempdir().unwrap();
    let all = CASES.iter().flat_map(|case| BLOCK_SIZES.map(|block_size| case.mends(block_size)));
    let place = |nth: usize| directory.path().join(nth.to_string());
    let mut mended = Vec::new();
    for (nth, case) in all.enumerate() {
        fs::write(place(nth).with_extension("img"), &case.bytes).unwrap();
        mended.push((case.what, case.files));
    }
    // The names of the kernel's log are those of the images.
    let names = || mended.iter().enumerate().map(|(nth, (what, _))| format!("{nth}: {what}\n"));
    let guest =
        Uml::new(place(0).with_extension("img")).env("IMAGES", directory.path()).timeout(MOST_TIME);
    let ended = guest.script(COPY_AND_DELETE).run().unwrap();
    let complaints = ended.kernel_log.complaints_besides_recovery();
    let ended = ended.succeeded().unwrap();
    assert!(complaints.is_empty(), "{complaints:#?}, {}", names().collect::<String>());
    assert_eq!(ended.stdout, "", "{}", names().collect::<String>());
    for (nth, (what, files)) in mended.iter().enumerate() {
        let mut found = Content::new();
        copied(&place(nth), "", &mut found);
        assert_same(&format!("Linux, {what}"), &found, &comparable(files));
    }
}
