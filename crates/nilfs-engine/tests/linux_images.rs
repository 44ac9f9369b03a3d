//! Volumes that a real Linux has made are read, written and left in order. The images, and the
//! scripts that made them, are the checker's (`nilfs-check/tests/images`).

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use common::{check, make, mount, pattern};
use nilfs_device::MemoryDevice;
use nilfs_engine::{FileType, Filesystem, InodeRef};

fn image(name: &str) -> Arc<MemoryDevice> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nilfs-check/tests/images").join(name);
    let output = Command::new("gzip").arg("-dc").arg(&path).output().unwrap();
    assert!(output.status.success(), "gzip cannot read {}", path.display());
    Arc::new(MemoryDevice::from(output.stdout))
}

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
    for name in
        ["linux-1024.img.gz", "linux-2048.img.gz", "linux-4096.img.gz", "last-group-1024.img.gz"]
    {
        let device = image(name);
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
