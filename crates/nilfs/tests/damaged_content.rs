//! Programs read a file that is not what was written, on a mount that checks it. The superuser and `/dev/fuse`
//! are needed.

mod common {
    pub mod ours;
}

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use common::ours::Image;

const BLOCK: usize = 4096;

/// The log had the number of the inode, from which no user gets to the file.
#[test]
fn the_log_has_the_path_and_the_place_of_what_is_not_what_was_written() {
    let image = Image::ours("--size 32M -B 64");
    let content: Vec<u8> = (0..5 * BLOCK as u32).map(|nth| ((nth * nth) >> 7) as u8).collect();
    let mounted = image.mount("cleaner-config=/dev/null");
    fs::create_dir(mounted.join("photos")).unwrap();
    fs::write(mounted.join("photos/one.jpg"), &content).unwrap();
    mounted.unmount();
    let bytes = fs::read(image.path()).unwrap();
    let third = &content[2 * BLOCK..3 * BLOCK];
    let places: Vec<usize> = bytes
        .chunks_exact(BLOCK)
        .enumerate()
        .filter_map(|(nth, block)| (block == third).then_some(nth * BLOCK))
        .collect();
    let [place] = places[..] else { panic!("{places:?}") };
    let file = File::options().write(true).open(image.path()).unwrap();
    file.write_all_at(&[!third[7]], place as u64 + 7).unwrap();
    let mounted = image.mount("verify=all,cleaner-config=/dev/null");
    let errors = [0, 1].map(|_| fs::read(mounted.join("photos/one.jpg")).unwrap_err());
    assert_eq!(errors.map(|it| it.raw_os_error()), [Some(5); 2]);
    let said = mounted.unmount_after_words();
    let place = format!("photos/one.jpg: block {}, bytes 8192 to 12287 of inode", place / BLOCK);
    assert_eq!(said.matches(&place).count(), 1, "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}
