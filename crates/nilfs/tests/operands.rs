//! Something else in the place of a volume: whichever command meets it says what it is and what can be
//! done. Only fsck and mkfs did; a newcomer who had mounted a partition table, or named a compressed image,
//! was told of a magic number. The superuser and `/dev/fuse` are needed.

mod common {
    pub mod ours;
}

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::ours::Image;
use tempfile::TempDir;

/// The commands that take a volume; `V` stands for it, and `D` for an empty directory.
const OF_A_VOLUME: [&str; 33] = [
    "info V",
    "ls V",
    "cat V x",
    "stat V /",
    "cp V x D/out",
    "diff 1 V",
    "log V x",
    "rollback 1 V",
    "purge -y V x",
    "df V",
    "clean V",
    "sync V",
    "checkpoints V",
    "checkpoints delete V 1",
    "snapshot list V",
    "snapshot create V",
    "trim V",
    "resize V",
    "segments V",
    "dump V 0",
    "check V",
    "fsck -n V",
    "fsck -y V",
    "scrub V",
    "recover V",
    "salvage V --to D/out",
    "image V D/out",
    "tune -l V",
    "tune -L x V",
    "mount V D",
    "mount -o ro V D",
    "mount -o ro,norecovery V D",
    "mount -o ro,rescue V D",
];

/// Commands that ask the process that serves a volume.
const OF_A_SERVED_VOLUME: [&str; 2] = ["status V", "metrics V"];

/// Commands that need a file on a mount.
const OF_A_MOUNT: [&str; 4] = ["undelete -n V", "restore V@1", "defrag V", "umount V"];

/// Commands that take no volume, or make one.
const OF_NO_VOLUME: [&str; 3] = ["help", "list", "mkfs"];

/// Commands that get something out of a volume without superblocks, or cut short, or put it right.
const HELPERS: [&str; 7] = [
    "check V",
    "fsck -n V",
    "fsck.nilfs2 -n V",
    "fsck -y V",
    "salvage V --to D/out",
    "image V D/out",
    "mount -o ro,rescue V D",
];

/// Commands of nilfs-utils that take a volume.
const OF_NILFS_UTILS: [&str; 10] = [
    "lscp V",
    "lssu V",
    "dumpseg V 0",
    "mkcp V",
    "rmcp V 1",
    "chcp ss V 1",
    "nilfs-resize -y V",
    "nilfs-clean V",
    "fsck.nilfs2 -n V",
    "mount.nilfs2 V D",
];

/// Commands for which the superblock of a volume is enough, and such as go on after a warning.
const OF_A_SUPERBLOCK: [&str; 4] =
    ["tune -l V", "mount -o ro V D", "mount -o ro,norecovery V D", "mount -o ro,rescue V D"];

const SIZE: u64 = 20 << 20;

/// Something in the place of a volume.
struct Operand {
    path: PathBuf,
    /// Exit code for the operand.
    code: i32,
    /// Words that every command says of the operand.
    words: &'static [&'static str],
    /// Commands that are not tried on the operand, because they can do something with it.
    not: &'static [&'static str],
}

/// Things that are no volumes, in a directory.
struct Operands {
    directory: TempDir,
    all: Vec<Operand>,
}

impl Operands {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), all: Vec::new() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn add(&mut self, name: &str, code: i32, words: &'static [&'static str]) {
        self.all.push(Operand { path: self.path(name), code, words, not: &[] });
    }

    /// Adds a file with bytes at some places.
    fn file(
        &mut self,
        name: &str,
        size: u64,
        bytes: &[(u64, &[u8])],
        words: &'static [&'static str],
    ) {
        let file = File::create(self.path(name)).unwrap();
        file.set_len(size).unwrap();
        bytes.iter().for_each(|(at, bytes)| file.write_all_at(bytes, *at).unwrap());
        self.add(name, 3, words);
    }

    /// Adds a volume that `change` has damaged; commands that are `not` tried can do something with it.
    fn broken(
        &mut self,
        name: &str,
        change: impl FnOnce(&File),
        words: &'static [&'static str],
        not: &'static [&'static str],
    ) {
        let path = self.path(name);
        broken(&path, change);
        self.all.push(Operand { path, code: 3, words, not });
    }
}

/// Makes a volume that `change` damages.
fn broken(path: &Path, change: impl FnOnce(&File)) {
    fs::copy(Image::ours("--size 16M -B 64").path(), path).unwrap();
    change(&File::options().read(true).write(true).open(path).unwrap());
}

/// Overwrites all logs of a volume.
fn spoil_logs(volume: &File) {
    let noise = vec![0xa5; (16 << 20) - 8192];
    volume.write_all_at(&noise, 4096).unwrap();
}

const PARTITIONS: &str = "name one of the partitions";

/// Name of a file, bytes at places in it, and words that every command says of it.
type Mark = (&'static str, Vec<(u64, Vec<u8>)>, &'static [&'static str]);

/// Partition tables, parts of file systems, and so on: as little of each as wipefs takes for it.
fn marks() -> Vec<Mark> {
    let boot = (510, vec![0x55, 0xaa]);
    let dos = vec![0, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0x40, 0, 0];
    let guard = vec![0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0xff, 0x9f, 0, 0];
    let mut gpt =
        b"EFI PART\0\0\x01\0\x5c\0\0\0\xa1\x84\x28\x4f\0\0\0\0\x01\0\0\0\0\0\0\0".to_vec();
    for sector in [SIZE / 512 - 1, 34, SIZE / 512 - 34] {
        gpt.extend(sector.to_le_bytes());
    }
    gpt.extend([b'G'; 16]);
    for word in [2, 0, 128, 128, 0xab54_d286_u32] {
        gpt.extend(word.to_le_bytes());
    }
    let mut luks = b"LUKS\xba\xbe\0\x01".to_vec();
    luks.resize(168, 0);
    luks.extend(b"12345678-1234-1234-1234-123456789012");
    luks.resize(592, 0);
    let lvm = b"LABELONE\x01\0\0\0\0\0\0\0\xa5\xa8\xe7\x3d\x20\0\0\0LVM2 001\
                0123456789abcdefghijklmnopqrstuv";
    let fat = b"\xeb\x3c\x90mkfs.fat\0\x02\x04\x04\0\x02\0\x02\0\xa0\xf8\x28\0";
    let swap = [1, 5119, 0_u32].iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut f2fs = vec![0x10, 0x20, 0xf5, 0xf2];
    f2fs.extend([1, 0, 16, 0]);
    let boot_of = |at, bytes| vec![(at, bytes), boot.clone()];
    let with = |mut all: Vec<_>, more| {
        all.push(more);
        all
    };
    vec![
        ("disk", boot_of(446, dos), &["it holds a partition table (dos); ", PARTITIONS]),
        (
            "disk.gpt",
            with(boot_of(446, guard), (512, gpt)),
            &["it holds a partition table (gpt); ", PARTITIONS],
        ),
        (
            "vfat",
            with(boot_of(0, fat.to_vec()), (54, b"FAT16   ".to_vec())),
            &["it holds vfat data", "mount -t vfat"],
        ),
        ("xfs", vec![(0, xfs())], &["it holds xfs data", "mount -t xfs"]),
        (
            "btrfs",
            vec![(0x10040, b"_BHRfS_M".to_vec())],
            &["it holds btrfs data", "mount -t btrfs"],
        ),
        ("f2fs", vec![(1024, f2fs)], &["it holds f2fs data", "mount -t f2fs"]),
        (
            "swap",
            vec![(1024, swap), (4086, b"SWAPSPACE2".to_vec())],
            &["it holds swap data", "has no files"],
        ),
        ("luks", vec![(0, luks)], &["crypto_LUKS data", "cryptsetup open"]),
        ("lvm", vec![(512, lvm.to_vec())], &["LVM2_member data", "logical volumes", "lvs"]),
    ]
}

/// Superblock of XFS, as far as wipefs wants to see it.
fn xfs() -> Vec<u8> {
    let mut block = vec![0; 512];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"XFSB");
    let (block_size, blocks) = (4096_u32, (SIZE / 4096) as u32);
    put(4, &block_size.to_be_bytes());
    put(8, &u64::from(blocks).to_be_bytes());
    for (at, number) in [(80, 1), (84, blocks / 4), (88, 4), (96, 512_u32)] {
        put(at, &number.to_be_bytes());
    }
    for (at, number) in [(100, 4_u16), (102, 512), (104, 256), (106, 16)] {
        put(at, &number.to_be_bytes());
    }
    // Logarithms of the sizes of a block, a sector, an inode, of inodes in a block and of a group.
    put(120, &[12, 9, 8, 4, 11]);
    put(127, &[25]);
    block
}

fn operands() -> Operands {
    let mut them = Operands::new();
    them.add("missing", 4, &["cannot open", "No such file or directory"]);
    fs::create_dir(them.path("directory")).unwrap();
    them.add("directory", 4, &["is a directory, not a block device"]);
    them.file("empty", 0, &[], &["not a NILFS2 volume: it is empty", "nilfs mkfs"]);
    them.file("text", 5, &[(0, b"text\n")], &["not a NILFS2 volume: 5 B is too small for one"]);
    let text = b"a line of text\n".repeat(1 << 16);
    them.file("long text", 0, &[(0, &text)], &["not a NILFS2 volume: ", " superblock"]);
    them.file("blank", SIZE, &[], &["not a NILFS2 volume", "nilfs mkfs makes"]);
    let noise: Vec<u8> = (0..SIZE / 4).flat_map(|it| (it as u32 | 1 << 31).to_ne_bytes()).collect();
    them.file("noise", SIZE, &[(0, &noise)], &["not a NILFS2 volume: ", " superblock"]);
    for (name, at, magic, advice) in [
        ("gzip", 0, &b"\x1f\x8b\x08"[..], &["in the format gzip", "gunzip"]),
        ("xz", 0, b"\xfd7zXZ\0", &["in the format xz", "unxz"]),
        ("zstd", 0, b"\x28\xb5\x2f\xfd", &["in the format zstd", "unzstd"]),
        ("qcow2", 0, b"QFI\xfb", &["in the format qcow2", "qemu-img convert"]),
        ("tar", 257, b"ustar", &["in the format tar", "tar -x"]),
    ] {
        // Also one that is smaller than any volume.
        them.file(name, SIZE, &[(at, magic)], advice);
        them.file(&format!("small.{name}"), 600, &[(at, magic)], advice);
    }
    for (name, bytes, words) in marks() {
        let bytes: Vec<_> = bytes.iter().map(|(at, bytes)| (*at, &bytes[..])).collect();
        them.file(name, SIZE, &bytes, words);
    }
    them.file("ext4", SIZE, &[], &["it holds ext4 data", "mount -t ext4"]);
    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(them.path("ext4")).status();
    assert!(made.unwrap().success());
    let places = [1024, (16 << 20) - 4096];
    let without = |file: &File| {
        for at in places {
            file.write_all_at(&[0; 1024], at).unwrap();
        }
    };
    let garbage = |file: &File| {
        places.iter().for_each(|at| file.write_all_at(&[0xa5; 1024], *at).unwrap());
    };
    // In the checksum of the one, and in the magic number of the other.
    let bits = |file: &File| {
        for (at, field) in places.into_iter().zip([16, 6]) {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at + field).unwrap();
            file.write_all_at(&[byte[0] ^ 8], at + field).unwrap();
        }
    };
    let advice = &[
        "both superblocks of the NILFS2 volume are damaged",
        "nilfs fsck",
        "nilfs salvage",
        "rescue",
    ];
    them.broken("without superblocks", without, advice, &HELPERS);
    them.broken("with garbage for superblocks", garbage, advice, &HELPERS);
    them.broken("with a bit wrong in each superblock", bits, advice, &HELPERS);
    let short = |file: &File| file.set_len(8 << 20).unwrap();
    let advice = &["8 MiB shorter than the volume on it", "nilfs salvage"];
    them.broken("cut short", short, advice, &HELPERS);
    let ext4 = fs::read(them.path("ext4")).unwrap();
    let displaced = |file: &File| {
        spoil_logs(file);
        file.write_all_at(&ext4[..8192], 0).unwrap();
    };
    them.broken("displaced", displaced, &["ext4 data"], &OF_A_SUPERBLOCK);
    them
}

/// A command line, and who says it.
fn command(line: &str, volume: &Path, directory: &Path) -> Command {
    let mut words = line.split(' ');
    let mut nilfs = Command::new(env!("CARGO_BIN_EXE_nilfs"));
    if OF_NILFS_UTILS.contains(&line) {
        words.next().into_iter().for_each(|program| _ = nilfs.arg0(program));
    }
    nilfs.stdin(Stdio::null()).env("STATE_DIRECTORY", env!("CARGO_TARGET_TMPDIR"));
    let (volume, directory) = (volume.to_str().unwrap(), directory.to_str().unwrap());
    // The names of temporary files have such letters as well.
    let whole = |letter: char| match letter {
        'V' => volume.to_owned(),
        'D' => directory.to_owned(),
        other => other.to_string(),
    };
    nilfs.args(words.map(|word| word.chars().map(whole).collect::<String>()));
    nilfs
}

/// The one sentence of a command that must fail with this code and do nothing.
#[track_caller]
fn refused(command: &mut Command, code: i32) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{command:?}: {said}");
    assert_eq!(output.stdout, b"", "{command:?}");
    assert!(said.starts_with("nilfs: "), "{command:?}: {said}");
    said
}

#[test]
fn each_command_says_what_is_in_the_place_of_a_volume() {
    let them = operands();
    for Operand { path, code, words, not } in &them.all {
        let before = fs::read(path).ok();
        let of_a_volume = OF_A_VOLUME.iter().chain(&OF_A_SERVED_VOLUME);
        for line in of_a_volume.filter(|line| !not.contains(line)) {
            let directory = tempfile::tempdir().unwrap();
            let said = refused(&mut command(line, path, directory.path()), *code);
            assert!(said.contains(path.to_str().unwrap()), "{line}: {said}");
            assert!(words.iter().all(|it| said.contains(it)), "{line}: {said}");
            assert_eq!(said.lines().count(), 1, "{line}: {said}");
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "{line}: {said}");
        }
        let of_nilfs_utils = OF_NILFS_UTILS.iter().filter(|line| !not.contains(line));
        for line in of_nilfs_utils.filter(|_| path.is_file()) {
            let directory = tempfile::tempdir().unwrap();
            let output = command(line, path, directory.path()).output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(!output.status.success(), "{line}: {said}");
            assert!(said.contains(path.to_str().unwrap()), "{line}: {said}");
            assert!(words.iter().all(|it| said.contains(it)), "{line}: {said}");
        }
        for line in OF_A_MOUNT.iter().filter(|_| path.is_file()) {
            // What takes paths on a mount calls another file system what it is.
            let calls_it = line.starts_with("undelete") || line.starts_with("restore");
            let is_foreign = words[0].starts_with("it holds") || words[0].ends_with(" data");
            let code = if calls_it && is_foreign { 3 } else { 1 };
            let said = refused(&mut command(line, path, Path::new("")), code);
            let words = if code == 3 { words } else { &["mounted"][..] };
            assert!(said.contains(path.to_str().unwrap()), "{line}: {said}");
            assert!(words.iter().all(|it| said.contains(it)), "{line}: {said}");
        }
        assert!(fs::read(path).ok() == before, "{}", path.display());
    }
}

/// Of such a volume, fsck and salvage said that there was no superblock on it.
#[test]
fn a_volume_of_which_a_superblock_is_left_is_called_that() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    broken(&path, spoil_logs);
    for line in HELPERS.iter().chain(&["scrub V"]).filter(|line| !line.starts_with("image")) {
        let directory = tempfile::tempdir().unwrap();
        let output = command(line, &path, directory.path()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{line}: {said}");
        assert!(
            said.contains("a superblock is all that is left of the NILFS2 volume"),
            "{line}: {said}"
        );
    }
}

#[test]
fn who_may_not_read_a_volume_is_told_so_by_each_command() {
    let image = Image::ours("--size 16M -B 64");
    for path in [image.path().parent().unwrap(), Path::new(env!("CARGO_BIN_EXE_nilfs"))] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for line in OF_A_VOLUME {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let mut nilfs = command(line, &image.path(), directory.path());
        nilfs.uid(65534).gid(65534).env("STATE_DIRECTORY", directory.path());
        let said = refused(&mut nilfs, 4);
        let expected = format!("cannot open {}: Permission denied", image.path().display());
        assert!(said.contains(&expected), "{line}: {said}");
    }
}

/// A new command comes into one of the tables.
#[test]
fn no_command_is_left_out() {
    let help = Command::new(env!("CARGO_BIN_EXE_nilfs")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, commands) = help.split_once("\nCommands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\n").unwrap();
    let of_line = |line: &str| line.split_whitespace().next().unwrap().to_owned();
    let listed: BTreeSet<String> =
        commands.lines().filter(|line| !line.starts_with("   ")).map(of_line).collect();
    let of_a_volume = OF_A_VOLUME.iter().chain(&OF_A_SERVED_VOLUME);
    let tables = of_a_volume.chain(&OF_A_MOUNT).chain(&OF_NO_VOLUME);
    assert_eq!(tables.map(|line| of_line(line)).collect::<BTreeSet<_>>(), listed);
}

/// A volume in the place of the moment, which comes first, was taken for one, and the current directory,
/// which the user had not named, was said to be no volume.
#[test]
fn a_volume_in_the_place_of_a_moment_is_told_from_one() {
    let image = Image::ours("--size 16M -B 64");
    let directory = image.path().parent().unwrap().to_owned();
    for line in
        ["diff volume.img", "diff volume.img 1", "rollback volume.img", "rollback volume.img 1"]
    {
        let said = refused(command(line, Path::new(""), Path::new("")).current_dir(&directory), 2);
        assert!(said.contains("volume.img is a file here, and no moment"), "{line}: {said}");
        let usage = format!("nilfs {} WHEN volume.img", line.split(' ').next().unwrap());
        assert!(said.contains(&usage), "{line}: {said}");
    }
    for line in ["diff 1", "rollback 1", "diff 1 missing"] {
        let said = refused(command(line, Path::new(""), Path::new("")).current_dir(&directory), 4);
        assert!(said.contains("the current directory is not on a volume"), "{line}: {said}");
    }
    let said = refused(&mut command("checkpoints V other", &image.path(), Path::new("")), 2);
    assert!(said.contains("unexpected argument 'other' found"), "{said}");
}

/// Nothing told which mount it was that kept the present in use.
#[test]
fn a_mount_of_the_past_is_named_when_it_keeps_the_present_in_use() {
    let image = Image::ours("--size 16M -B 64");
    let present = image.mount("rw");
    let past = image.mount("ro,cp=1");
    let said = refused(&mut command("umount V", present.root(), Path::new("")), 5);
    let names = [present.root(), past.root()].map(|dir| said.contains(dir.to_str().unwrap()));
    assert!(names == [true; 2] && said.contains("checkpoint 1 of it is mounted"), "{said}");
    past.unmount();
    present.unmount();
}

/// A file that was named itself had a slash after it, and a directory two; and a directory full of files was
/// one file.
#[test]
fn what_was_deleted_is_shown_by_its_path_and_counted_as_what_it_is() {
    let image = Image::ours("--size 32M -B 64");
    let mounted = image.mount("rw");
    let (file, docs) = (mounted.join("taxes.txt"), mounted.join("docs"));
    fs::write(&file, "taxes").unwrap();
    fs::create_dir(&docs).unwrap();
    (0..27).for_each(|nth| fs::write(docs.join(nth.to_string()), "text").unwrap());
    mounted.checkpoint();
    fs::remove_file(&file).unwrap();
    fs::remove_dir_all(&docs).unwrap();
    let printed = |line: &str, path: &Path| {
        let output = command(line, path, Path::new("")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let with_slash = PathBuf::from(format!("{}/", docs.display()));
    for (path, shown) in
        [(&file, file.display().to_string()), (&docs, with_slash.display().to_string())]
    {
        for named in [path, &PathBuf::from(format!("{}/", path.display()))] {
            let listed = printed("undelete -n V", named);
            assert!(listed.ends_with(&format!("  {shown}\n")), "{listed}");
        }
    }
    let done = printed("undelete -f V", mounted.root());
    assert!(done.ends_with("28 files and 1 directory restored\n"), "{done}");
    assert_eq!(fs::read_dir(&docs).unwrap().count(), 27);
    mounted.unmount();
}
