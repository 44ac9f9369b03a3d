//! Volumes that a real Linux has made are read, written and left in order.

mod common;

use common::{LINUX_IMAGES, check, linux_image, make, mount, pattern};
use nilfs_engine::{FileType, Filesystem, InodeRef};

/// Reads every file below a directory; returns their number.
fn read_all(fs: &Filesystem, dir: &InodeRef) -> usize {
    let mut names = Vec::new();
    fs.read_dir(dir, 0, &mut |entry| {
        names.push(entry.name.to_vec());
        true
    })
    .unwrap();
    let names = names.iter().filter(|name| !matches!(&name[..], b"." | b".."));
    let mut count = 0;
    for name in names {
        let entry = fs.lookup(dir, name).unwrap();
        count += 1;
        match entry.attr.file_type {
            FileType::Directory => count += read_all(fs, &entry.inode),
            FileType::Symlink => assert!(!fs.read_link(&entry.inode).unwrap().is_empty()),
            FileType::Regular => {
                let mut buffer = vec![0; entry.attr.size.min(1 << 20) as usize];
                assert_eq!(fs.read(&entry.inode, 0, &mut buffer).unwrap(), buffer.len());
            }
            _ => {}
        }
    }
    count
}

#[test]
fn volumes_of_linux_are_read_and_written() {
    for name in LINUX_IMAGES {
        let device = linux_image(name);
        let fs = mount(&device);
        let root = fs.root().unwrap().inode;
        let before = read_all(&fs, &root);
        assert!(before > 0, "{name} has files");
        for nth in 0..50 {
            let file = make(&fs, &root, &format!("ours {nth}"));
            fs.write(&file, 0, &pattern(nth, nth * 100)).unwrap();
            if nth % 10 == 0 {
                fs.commit().unwrap();
            }
        }
        fs.unmount().unwrap();
        check(&*device);
        let fs = mount(&device);
        assert_eq!(read_all(&fs, &fs.root().unwrap().inode), before + 50, "{name}");
        fs.unmount().unwrap();
        check(&*device);
    }
}
