//! A sync log that is lost costs what was fsynced in it, and not what was fsynced later.

mod support;

use std::sync::Arc;

use nilfs_check::Severity;
use nilfs_device::MemoryDevice;
use nilfs_engine::{Filesystem, InodeRef, NewInode};
use nilfs_ondisk::BlockNr;
use nilfs_ondisk::inode::{FileType, S_IFDIR, S_IFREG};
use nilfs_repair::Risk;
use support::{Content, Image, Patient, formatted, mount, present};

/// Bytes that leave no room for copies of other summaries in that of their log.
const TAIL: usize = 3300;

/// A crashed volume after fsyncs, each in a log of its own.
struct Crashed {
    image: Image,
    logs: Vec<BlockNr>,
    files: Content,
}

fn new(mode: u16) -> NewInode {
    NewInode { mode, uid: 0, gid: 0, rdev: Default::default() }
}

/// Makes a file with content, and fsyncs it.
fn file(fs: &Filesystem, dir: &InodeRef, name: &str) -> InodeRef {
    let file = fs.create(dir, name.as_bytes(), &new(S_IFREG | 0o644)).unwrap().inode;
    append(fs, &file, name);
    file
}

/// Appends to a file, and fsyncs it.
fn append(fs: &Filesystem, file: &InodeRef, what: &str) {
    let end = fs.attr(file).unwrap().size;
    let bytes: Vec<u8> = what.bytes().cycle().take(TAIL).collect();
    fs.write(file, end, &bytes).unwrap();
    fs.sync_file(file).unwrap();
}

/// The volume on which this was done after a checkpoint.
fn crashed(fsyncs: impl FnOnce(&Filesystem, &InodeRef)) -> Crashed {
    let device = formatted(16 << 20, 4096, 64);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let dir = fs.create(&root, b"dir", &new(S_IFDIR | 0o755)).unwrap().inode;
    fs.commit().unwrap();
    let checkpoint = Image::from(device.snapshot()).logs().last().unwrap().block;
    fsyncs(&fs, &dir);
    let (image, files) = (Image::from(device.snapshot()), present(&*fs));
    let logs = image.logs().into_iter().map(|log| log.block);
    let logs = logs.filter(|log| *log > checkpoint).collect();
    Crashed { image, logs, files }
}

impl Crashed {
    /// Repairs the volume without the summaries of these logs. Returns what is said of the loss, and the files then.
    fn without(&self, lost: impl IntoIterator<Item = usize>) -> (String, Content) {
        let mut image = self.image.clone();
        let size = image.block_size();
        for nth in lost {
            let at = self.logs[nth].0 as usize * size;
            image.bytes[at..at + size].iter_mut().for_each(|byte| *byte ^= 0x5a);
        }
        let patient = Patient::new(image);
        // The checkpoint that recovers these fsyncs is warned of, if it has a directory without a name.
        let plan = patient.heal_but_for(Severity::Warning);
        let losses = plan.repairs.iter().filter(|it| it.risk == Risk::Loses);
        let said = losses.map(|it| it.action_by_path() + "\n").collect();
        let device = Arc::new(MemoryDevice::from(patient.bytes()));
        (said, present(&*mount(&device)))
    }
}

/// Returns the paths of files that are not what they were.
fn differing(now: &Content, then: &Content) -> Vec<String> {
    let files = then.iter().filter(|(_, (kind, ..))| *kind == FileType::Regular);
    let is_other = |path: &String, then: &[u8]| now.get(path).is_none_or(|(.., now)| now != then);
    files.filter(|(path, (.., then))| is_other(path, then)).map(|(path, _)| path.clone()).collect()
}

#[test]
fn a_lost_sync_log_costs_no_later_one() {
    let names = ["one", "two", "three", "four", "five", "six"];
    let crashed = crashed(|fs, dir| names.iter().for_each(|name| _ = file(fs, dir, name)));
    assert_eq!(crashed.logs.len(), names.len());
    for (nth, name) in names[..names.len() - 1].iter().enumerate() {
        let (said, files) = crashed.without([nth]);
        assert_eq!(differing(&files, &crashed.files), [format!("/dir/{name}")]);
        let block = crashed.logs[nth];
        assert!(
            said.contains(&format!("the log in block {block}, which cannot be told")),
            "{said}"
        );
        assert!(said.contains("dir/six"), "what may lack something is named: {said}");
    }
    let (_, files) = crashed.without([0, 2, 3]);
    assert_eq!(differing(&files, &crashed.files), ["/dir/four", "/dir/one", "/dir/three"]);
}

/// What goes on from something that is lost is lost with it, and nothing else.
#[test]
fn a_log_that_builds_on_a_lost_one_is_given_up_and_named() {
    let crashed = crashed(|fs, dir| {
        let lost = file(fs, dir, "lost");
        let other = file(fs, dir, "other");
        append(fs, &lost, "more");
        append(fs, &other, "more");
    });
    let (said, files) = crashed.without([0]);
    assert_eq!(differing(&files, &crashed.files), ["/dir/lost"]);
    let block = crashed.logs[2];
    assert!(said.contains(&format!("the log in block {block}, which builds on that")), "{said}");
}

/// A file whose directory is lost has lost its path, and counts of links follow the names that there are.
#[test]
fn what_was_put_into_a_lost_directory_is_in_lost_and_found() {
    let crashed = crashed(|fs, dir| {
        let sub = fs.create(dir, b"sub", &new(S_IFDIR | 0o755)).unwrap().inode;
        file(fs, &sub, "first");
        let second = file(fs, &sub, "second");
        fs.link(&second, dir, b"link").unwrap();
        append(fs, &second, "more");
        file(fs, dir, "last");
    });
    let (_, files) = crashed.without([0]);
    let found: Vec<_> = files.keys().filter(|path| path.ends_with("/second")).collect();
    assert!(matches!(&found[..], [path] if path.starts_with("/lost+found/")), "{:?}", files.keys());
    let whole = &crashed.files["/dir/sub/second"].3;
    for path in [found[0].as_str(), "/dir/link"] {
        assert!(files[path].3 == *whole, "{path}");
    }
    assert!(files.contains_key("/dir/last"));
}

/// A run of blocks over the ends of logs whose summaries are there takes the content that was in it, and the logs of
/// which nothing is left.
#[test]
fn a_damaged_run_over_many_sync_logs_costs_what_was_in_it() {
    let names: Vec<String> = (0..24).map(|nth| format!("file {nth:02}")).collect();
    let crashed = crashed(|fs, dir| names.iter().for_each(|name| _ = file(fs, dir, name)));
    let (_, files) = crashed.without(4..20);
    let lost: Vec<String> = names[4..20].iter().map(|name| format!("/dir/{name}")).collect();
    assert_eq!(differing(&files, &crashed.files), lost);
}
