//! What is written is there again after commit, unmount and mount, and the checker agrees with
//! every state on the device.

mod common;

use common::{check, content, make, mount, new, pattern, volume};
use nilfs_device::MemoryDevice;
use nilfs_engine::{RenameMode, SetAttr};
use nilfs_ondisk::inode::S_IFDIR;

#[test]
fn an_empty_volume_is_mounted_and_unmounted() {
    for block_size in [1024, 2048, 4096] {
        let device = volume(block_size, 32);
        check(&*device);
        mount(&device).unmount().unwrap();
        check(&*device);
    }
}

#[test]
fn files_survive_commit_unmount_and_mount() {
    for block_size in [1024, 2048, 4096] {
        let device = volume(block_size, 64);
        let fs = mount(&device);
        let root = fs.root().unwrap().inode;
        let dir = fs.create(&root, b"dir", &new(S_IFDIR | 0o755)).unwrap().inode;
        for (nth, len) in [0, 1, 4095, 4096, 4097, 100_000, 3_000_000].into_iter().enumerate() {
            let file = make(&fs, &dir, &format!("file {nth}"));
            fs.write(&file, 0, &pattern(nth, len)).unwrap();
            fs.commit().unwrap();
            check(&*device);
        }
        let file = fs.lookup(&dir, b"file 6").unwrap().inode;
        for at in (0..3_000_000).step_by(70_000) {
            fs.write(&file, at, b"changed").unwrap();
        }
        fs.commit().unwrap();
        fs.set_attr(&file, &SetAttr { size: Some(1_000_001), ..SetAttr::default() }).unwrap();
        let expected = content(&fs, &file);
        fs.unmount().unwrap();
        check(&*device);

        let fs = mount(&device);
        let root = fs.root().unwrap().inode;
        let dir = fs.lookup(&root, b"dir").unwrap().inode;
        for (nth, len) in [0, 1, 4095, 4096, 4097, 100_000].into_iter().enumerate() {
            let file = fs.lookup(&dir, format!("file {nth}").as_bytes()).unwrap().inode;
            assert_eq!(content(&fs, &file), pattern(nth, len), "file {nth}");
        }
        let file = fs.lookup(&dir, b"file 6").unwrap().inode;
        assert_eq!(content(&fs, &file), expected);
        fs.unlink(&dir, b"file 6").unwrap();
        drop(file);
        fs.unmount().unwrap();
        check(&*device);
    }
}

#[test]
fn an_fsync_of_the_root_makes_everything_durable() {
    let device = volume(1024, 64);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let file = make(&fs, &root, "file");
    fs.sync().unwrap();
    fs.write(&file, 0, b"content").unwrap();
    fs.sync_file(&root).unwrap();
    let cut = std::sync::Arc::new(MemoryDevice::from(device.snapshot()));
    let after = mount(&cut);
    let file = after.lookup(&after.root().unwrap().inode, b"file").unwrap().inode;
    assert_eq!(content(&after, &file), b"content");
}

#[test]
fn sparse_files_reach_far_and_shrink_back() {
    let device = volume(1024, 32);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let file = make(&fs, &root, "sparse");
    for shift in [10, 14, 20, 25, 30, 36, 42, 50, 60, 62] {
        fs.write(&file, 1 << shift, &pattern(shift, 3000)).unwrap();
        fs.commit().unwrap();
        check(&*device);
    }
    for shift in [62, 60, 50, 42, 36, 30, 25, 20, 14, 10] {
        let mut bytes = vec![0; 3000];
        fs.read(&file, 1 << shift, &mut bytes).unwrap();
        assert_eq!(bytes, pattern(shift, 3000));
        fs.set_attr(&file, &SetAttr { size: Some(1 << shift), ..SetAttr::default() }).unwrap();
        fs.commit().unwrap();
        check(&*device);
    }
    assert_eq!(content(&fs, &file), vec![0; 1024]);
    fs.unmount().unwrap();
    check(&*device);
}

#[test]
fn a_large_directory_is_filled_and_emptied() {
    let device = volume(4096, 64);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    for nth in 0..5000 {
        make(&fs, &root, &format!("a file with number {nth}"));
        if nth % 1500 == 0 {
            fs.commit().unwrap();
        }
    }
    fs.commit().unwrap();
    check(&*device);
    let mut count = 0;
    fs.read_dir(&root, 0, &mut |_| {
        count += 1;
        true
    })
    .unwrap();
    assert_eq!(count, 5002);
    for nth in (0..5000).filter(|nth| nth % 7 != 0) {
        fs.unlink(&root, format!("a file with number {nth}").as_bytes()).unwrap();
    }
    fs.rename(&root, b"a file with number 0", &root, b"renamed", RenameMode::Replace).unwrap();
    fs.unmount().unwrap();
    check(&*device);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    assert!(fs.lookup(&root, b"renamed").is_ok());
    assert!(fs.lookup(&root, b"a file with number 7").is_ok());
    assert!(fs.lookup(&root, b"a file with number 8").is_err());
}

/// What is deleted before its last changes are committed leaves nothing behind.
#[test]
fn changed_and_deleted_in_one_checkpoint() {
    let device = volume(4096, 32);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let dir = fs.create(&root, b"dir", &new(S_IFDIR | 0o755)).unwrap().inode;
    let file = make(&fs, &dir, "file");
    fs.write(&file, 0, &pattern(1, 100_000)).unwrap();
    fs.commit().unwrap();
    fs.write(&file, 50_000, &pattern(2, 100_000)).unwrap();
    fs.sync_file(&file).unwrap();
    fs.write(&file, 0, &pattern(3, 100_000)).unwrap();
    fs.unlink(&dir, b"file").unwrap();
    fs.rmdir(&root, b"dir").unwrap();
    drop((dir, file));
    fs.unmount().unwrap();
    check(&*device);
}

/// Data-sync logs can fill a segment to its end; the checkpoint that takes them over then has no
/// log of its own there.
#[test]
fn data_sync_logs_fill_a_segment_to_its_end() {
    let device = volume(4096, 32);
    let fs = mount(&device);
    let root = fs.root().unwrap().inode;
    let file = make(&fs, &root, "file");
    fs.write(&file, 0, &pattern(1, 40_960)).unwrap();
    fs.sync().unwrap();
    for nth in 0..700 {
        fs.write(&file, nth % 10 * 4096, &pattern(nth as usize, 4096)).unwrap();
        fs.sync_file(&file).unwrap();
        if nth % 127 == 126 || nth > 600 && nth % 3 == 0 {
            fs.commit().unwrap();
            check(&*device);
        }
    }
    fs.unmount().unwrap();
    check(&*device);
}

/// A process that ends with such a file open leaves it to the next mount, which looks for it only
/// if it has to.
#[test]
fn a_file_without_a_name_that_was_open_to_the_end_is_deleted_by_the_next_mount() {
    let device = volume(4096, 64);
    let fs = mount(&device);
    let open = make(&fs, &fs.root().unwrap().inode, "file");
    fs.unlink(&fs.root().unwrap().inode, b"file").unwrap();
    fs.unmount().unwrap();
    drop(open);
    for left in [1, 0] {
        let fs = mount(&device);
        assert_eq!(fs.release_orphans().unwrap(), left);
        fs.unmount().unwrap();
    }
}
