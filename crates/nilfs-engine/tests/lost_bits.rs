//! The bitmap of the ifile has lost bits: files in use have numbers that it calls free. A name and an inode
//! with links stand against a bit.

mod common;

use std::sync::Arc;

use common::{content, linux_image, make, mount, place};
use nilfs_check::Options;
use nilfs_device::{Device, IoSlice, MemoryDevice};
use nilfs_engine::{
    Checkpoints, Error, Files, Filesystem, Ino, MountOptions, ReadOnlyOptions, ReadOnlyVolume,
    Verify, Volume,
};

const BLOCK: u64 = 1024;
/// Numbers of files begin with this.
const FIRST: u64 = 11;

/// Changes the bitmap of the ifile, of whose blocks Linux has left no checksums.
fn edit_bitmap(device: &Arc<MemoryDevice>, edit: impl FnOnce(&mut [u8])) {
    let at = place(device, Ino::IFILE, 1).0 * BLOCK;
    let mut bitmap = [0; BLOCK as usize];
    device.read_at(at, &mut bitmap).unwrap();
    edit(&mut bitmap);
    device.write_at(at, &[IoSlice::new(&bitmap)]).unwrap();
}

fn lose(device: &Arc<MemoryDevice>, ino: Ino) {
    edit_bitmap(device, |bitmap| bitmap[ino.0 as usize / 8] &= !(1 << (ino.0 % 8)));
}

fn number(device: &Arc<MemoryDevice>, name: &[u8]) -> Ino {
    let tree = Volume::open(Arc::clone(device) as _).unwrap().tree(None).unwrap();
    tree.lookup(&tree.root().unwrap(), name).unwrap().ino()
}

/// The removal of such a file made the volume read-only, and what was written before it was lost.
#[test]
fn a_file_that_is_missing_in_the_bitmap_can_be_removed() {
    for held in [false, true] {
        let device = linux_image("linux-1024");
        let ino = number(&device, b"tree");
        lose(&device, ino);
        let fs = mount(&device);
        let first = fs.status().cno;
        let root = fs.root().unwrap().inode;
        let new = make(&fs, &root, "new");
        fs.write(&new, 0, b"written before").unwrap();
        // A file that is open loses its number later than its name.
        let open = held.then(|| fs.lookup(&root, b"tree").unwrap().inode);
        fs.unlink(&root, b"tree").unwrap();
        fs.commit().unwrap();
        drop(open);
        fs.commit().unwrap();
        assert!(!fs.is_read_only());
        assert!(matches!(fs.inode(ino), Err(Error::Stale)));
        assert_eq!(content(&fs, &new), b"written before");
        drop((root, new));
        fs.unmount().unwrap();
        // The log and the checkpoints in which the bit is lost stay as they are.
        let newest = Volume::open(Arc::clone(&device) as _).unwrap().last_log().cno;
        let old = (first.0..newest.0).map(|cno| format!("checkpoint {cno}, "));
        let old: Vec<_> = old.chain(["ss_datasum".to_owned()]).collect();
        let report = nilfs_check::check(&*device, &Options::default()).unwrap();
        let errors = report.errors().map(ToString::to_string);
        let new = errors.filter(|it| !old.iter().any(|old| it.contains(old)));
        assert_eq!(new.collect::<Vec<_>>(), [""; 0]);
    }
}

/// Views that only read asked the bitmap, and had no file at all where it had lost all bits.
#[test]
fn files_that_are_missing_in_the_bitmap_are_shown_and_deleted_ones_are_not() {
    let device = linux_image("linux-1024");
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let deleted = make(&fs, &root, "deleted").ino();
    fs.commit().unwrap();
    fs.unlink(&root, b"deleted").unwrap();
    drop(root);
    fs.unmount().unwrap();
    let names = names(&look(&device));
    let files = |files: &dyn Files| -> Vec<Ino> {
        let number = |name| files.lookup(Ino::ROOT, name).map(|found| found.ino);
        let names =
            names.iter().map(|name| number(name).unwrap_or_else(|it| panic!("{name:?}: {it}")));
        names.collect()
    };
    let sound = files(&look(&device));
    assert!(sound.len() > 3);
    let with_bitmap = Arc::new(MemoryDevice::from(device.snapshot()));
    edit_bitmap(&device, |bitmap| bitmap.fill(0));
    // The bitmap is what it is, or known to be damaged.
    for verify in [Verify::None, Verify::Metadata] {
        let options = MountOptions { verify, ..MountOptions::default() };
        let fs = Filesystem::mount(Arc::clone(&device) as _, options).unwrap();
        let past = Checkpoints::tree(&*fs, None).unwrap();
        let options = ReadOnlyOptions { verify, ..ReadOnlyOptions::default() };
        let read_only = ReadOnlyVolume::mount(Arc::clone(&device) as _, options).unwrap();
        for view in [&look(&with_bitmap) as &dyn Files, &past, &read_only, &*fs] {
            assert_eq!(files(view), sound);
            for ino in sound.iter().filter(|ino| ino.0 >= FIRST) {
                assert_eq!(view.hold(*ino).unwrap().ino, *ino);
            }
            // Linux and we leave an inode without links, and there is nothing where no file ever was.
            for ino in [deleted, Ino(500), Ino(1_000_000)] {
                assert!(matches!(view.hold(ino), Err(Error::Stale)), "inode {ino}");
            }
        }
    }
}

fn look(device: &Arc<MemoryDevice>) -> ReadOnlyVolume {
    ReadOnlyVolume::mount(Arc::clone(device) as _, ReadOnlyOptions::default()).unwrap()
}

fn names(files: &dyn Files) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    files
        .read_dir(Ino::ROOT, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })
        .unwrap();
    names
}
