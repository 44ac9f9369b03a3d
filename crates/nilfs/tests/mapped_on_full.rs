//! Mappings of files on a full volume: the kernel does not ask us when a program writes into one, so what
//! finds no room is lost; but that is said. The superuser and `/dev/fuse` are needed.

mod common {
    pub mod ours;
}

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;

use common::ours::Image;
use memmap2::MmapMut;

const MAPPED: u64 = 20 << 20;
const PAGE: usize = 4096;

/// A full volume took 20 MiB from a mapping without a word; msync(2) alone had an error.
#[test]
fn bytes_that_are_lost_are_counted_in_the_log() {
    let image = Image::ours("--size 64M -B 256");
    let mounted = image.mount("nogc,cleaner-config=/dev/null");
    let path = mounted.join("mapped");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(MAPPED).unwrap();
    let mut filler = File::create(mounted.join("filler")).unwrap();
    for size in [1 << 20, PAGE] {
        while filler.write_all(&vec![1; size]).is_ok() {}
    }
    drop(filler);
    // SAFETY: no other program changes the file.
    let mut mapping = unsafe { MmapMut::map_mut(&file).unwrap() };
    mapping.chunks_mut(PAGE).for_each(|page| page[0] = 7);
    mapping.flush().expect_err("a full volume has no room for this");
    drop((mapping, file));
    let ino = fs::metadata(&path).unwrap().ino();
    let said = mounted.unmount_after_words();
    let again = image.mount("ro");
    let stored = fs::read(again.join("mapped")).unwrap();
    let stored = stored.chunks(PAGE).filter(|page| page[0] == 7).count() * PAGE;
    again.unmount();
    let of_file = format!(" bytes of the file with inode number {ino} are lost");
    let lines: Vec<&str> = said.lines().filter(|line| line.contains(&of_file)).collect();
    let bytes = |line: &&str| {
        let before = line.split(&of_file).next().unwrap();
        before.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(lines.iter().map(bytes).sum::<u64>(), MAPPED - stored as u64, "{said}");
    assert!(said.contains("No space left on device") && lines.len() < 60, "{said}");
    image.check();
}
