//! Looking at whatever a volume shows.

use nilfs_engine::tree::File;
use nilfs_engine::{Seek, Tree};
use nilfs_ondisk::inode::FileType;

/// Files looked at in one tree, so that an input is quick.
const MAX_FILES: usize = 200;

/// Goes through the directories of a tree and reads some of each file.
pub fn walk(tree: &Tree) {
    let mut directories = Vec::from_iter(tree.root());
    let mut left = MAX_FILES;
    while let Some(directory) = directories.pop() {
        let mut names = Vec::new();
        let _ = tree.read_dir(&directory, 0, &mut |entry| {
            names.push(entry.name.to_vec());
            names.len() < MAX_FILES
        });
        for name in names {
            let Some(still) = left.checked_sub(1) else {
                return;
            };
            left = still;
            let Ok(found) = tree.lookup(&directory, &name) else {
                continue;
            };
            match found.file_type() {
                FileType::Directory if !matches!(&name[..], b"." | b"..") => {
                    directories.push(found);
                }
                FileType::Regular => read(tree, &found),
                FileType::Symlink => drop(tree.read_link(&found)),
                _ => {}
            }
        }
    }
}

fn read(tree: &Tree, file: &File) {
    let mut buffer = [0; 8192];
    let size = file.size();
    for offset in [0, size / 2, size.saturating_sub(1)] {
        let _ = tree.read(file, offset, &mut buffer);
        let _ = tree.seek(file, offset, Seek::Data);
        let _ = tree.seek(file, offset, Seek::Hole);
    }
}

/// Reads some of the files that have a number, whether or not a name leads to them.
pub fn walk_numbers(tree: &Tree) {
    let mut numbers = Vec::new();
    let _ = tree.files_by_number(&mut |ino| numbers.push(ino));
    for ino in numbers.into_iter().take(MAX_FILES) {
        if let Ok(file) = tree.file(ino) {
            read(tree, &file);
        }
    }
}
