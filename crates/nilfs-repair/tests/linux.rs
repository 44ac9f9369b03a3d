//! Linux mounts what was repaired without a complaint, and shows the same files as before the damage.

mod support;

use nilfs_ondisk::Ino;
use nilfs_ondisk::geometry::{PRIMARY_SUPERBLOCK, secondary_superblock};
use nilfs_real_kernels::Uml;
use support::{BLOCK_SIZES, Image, Patient, add};

/// Every name with its type, links and size, and the sums of all contents.
fn shown_by_linux(bytes: &[u8]) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let script = "
        mount_nilfs
        cd $MNT
        find . -printf '%p %y %n %s\\n' | sort
        find . -type f | sort | xargs -d '\\n' md5sum
        cd /
        umount_nilfs";
    let ended = Uml::new(file.path()).script(script).run().unwrap();
    ended.without_complaint().unwrap().stdout
}

#[test]
fn linux_shows_what_was_there_before_the_damage() {
    for block_size in BLOCK_SIZES {
        let whole = Image::by_linux(block_size);
        let expected = shown_by_linux(&whole.bytes);
        assert!(expected.contains("./direct f 1 "), "{expected}");
        let mut no_superblocks = whole.clone();
        let secondary = secondary_superblock(whole.bytes.len() as u64).unwrap();
        for at in [PRIMARY_SUPERBLOCK as usize, secondary as usize] {
            no_superblocks.bytes[at..at + 1024].fill(0);
        }
        let mut metadata = whole.clone();
        for file in [Ino::SUFILE, Ino::CPFILE, Ino::DAT, Ino::IFILE] {
            let first = metadata.data(file, 0);
            metadata.edit(first, |block| add(block, 0, 1));
        }
        let links = metadata.named("direct");
        metadata.edit_inode(links, |inode| inode[50] += 1);
        let mut maps = whole.clone();
        for ino in [whole.named("tree"), Ino::DAT] {
            let node = maps.node(ino);
            maps.edit(node, |block| block.fill(0x5a));
        }
        for damaged in [no_superblocks, metadata, maps] {
            let patient = Patient::new(damaged);
            patient.heal();
            let shown = shown_by_linux(&patient.bytes());
            assert_eq!(shown, expected, "block size {block_size}");
        }
    }
}

/// A directory that was made to hold what has no name, and names that were put back, are what Linux
/// expects of them.
#[test]
fn linux_shows_what_has_lost_its_name() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let (direct, many) = (image.named("direct"), image.named("many"));
        for name in ["direct", "many"] {
            image.edit_record(Ino::ROOT, name, |record| record[..8].fill(0));
        }
        let deep = image.data(image.named("deep"), 0);
        image.edit(deep, |block| block.fill(0));
        let patient = Patient::new(image);
        patient.heal_but_for(nilfs_check::Severity::Warning);
        let shown = shown_by_linux(&patient.bytes());
        for path in [format!("#{direct} f 1 9000"), format!("#{many} d 2 ")] {
            assert!(shown.contains(&format!("./lost+found/{path}")), "{shown}");
        }
        assert!(shown.contains(&format!("./lost+found/#{many}/late 6 f 1 2000")), "{shown}");
        // Nothing tells what was in it: it has no older version.
        assert!(shown.contains("./deep d 2 "), "{shown}");
    }
}
