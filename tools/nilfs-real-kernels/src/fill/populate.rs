//! The first phase: makes the tree.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, RngCore};
use rustix::fs::FileType;

use super::{Fill, Tree};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// The longest name of a directory entry, in bytes.
const LONGEST_NAME: usize = 255;

pub(super) fn populate(tree: &mut Tree, fill: &Fill) -> io::Result<()> {
    deep(tree)?;
    wide(tree, &mut fill.randomness("wide"), fill.scale)?;
    large_directory(tree, &mut fill.randomness("large"), fill.scale)?;
    sizes(tree, &mut fill.randomness("sizes"))?;
    sparse(tree, &mut fill.randomness("sparse"))?;
    maps(tree, &mut fill.randomness("maps"), fill.scale)?;
    types(tree)?;
    links(tree)?;
    names(tree)?;
    attributes(tree)
}

/// A chain of 100 directories with a file at each level, and one of the longest names.
fn deep(tree: &mut Tree) -> io::Result<()> {
    let mut path = PathBuf::from("deep");
    tree.mkdir(&path)?;
    for level in 0..100 {
        path.push(format!("level{level}"));
        tree.mkdir(&path)?;
        tree.create(path.join("file"), format!("on level {level}\n").as_bytes())?;
    }
    let mut path = PathBuf::from("deep").join("long");
    tree.mkdir(&path)?;
    for level in 0..10_u8 {
        path.push(OsStr::from_bytes(&[b'a' + level; LONGEST_NAME]));
        tree.mkdir(&path)?;
    }
    Ok(())
}

/// A tree of directories with a few small files in each, as programs' source trees are.
fn wide(tree: &mut Tree, random: &mut StdRng, scale: u32) -> io::Result<()> {
    tree.mkdir("wide")?;
    let mut directories = vec![PathBuf::from("wide")];
    for number in 0..50 * scale {
        let parent = &directories[random.random_range(0..directories.len())];
        let directory = parent.join(format!("directory{number}"));
        tree.mkdir(&directory)?;
        for file in 0..random.random_range(0..6) {
            let size = random.random_range(0..9000);
            tree.create(directory.join(format!("file{file}")), &bytes(random, size))?;
        }
        directories.push(directory);
    }
    Ok(())
}

/// One directory with 1000 entries per unit of scale, mostly empty files.
fn large_directory(tree: &mut Tree, random: &mut StdRng, scale: u32) -> io::Result<()> {
    tree.mkdir("large")?;
    let mut last_file: Option<PathBuf> = None;
    for number in 0..1000 * scale {
        let tail = "x".repeat(random.random_range(0..40));
        let path = PathBuf::from(format!("large/entry{number}{tail}"));
        match (random.random_range(0..40), &last_file) {
            (0, _) => tree.mkdir(&path)?,
            (1, _) => tree.symlink(format!("entry{}", number / 2), &path)?,
            (2, Some(file)) => tree.link(file, &path)?,
            (kind, _) => {
                let size = if kind < 8 { random.random_range(1..3000) } else { 0 };
                tree.create(&path, &bytes(random, size))?;
                last_file = Some(path);
            }
        }
    }
    Ok(())
}

/// Dense files of sizes around the borders of blocks, pages and maps.
fn sizes(tree: &mut Tree, random: &mut StdRng) -> io::Result<()> {
    tree.mkdir("sizes")?;
    let mut sizes = vec![0, 1, 2, 3, 511, 512, 513, 3 * MIB + 1];
    for block_size in [KIB, 2 * KIB, 4 * KIB] {
        // Six blocks fill a direct map, seven a root node of a B-tree.
        for blocks in [1, 2, 6, 7, 8, 63, 64, 127, 128, 255, 256, 441, 442] {
            let size = blocks * block_size;
            sizes.extend([size - 1, size, size + 1]);
        }
    }
    sizes.sort_unstable();
    sizes.dedup();
    for size in sizes {
        let content = bytes(random, size as usize);
        tree.create(format!("sizes/of{size}"), &content)?;
    }
    Ok(())
}

/// Files that are mostly holes.
fn sparse(tree: &mut Tree, random: &mut StdRng) -> io::Result<()> {
    tree.mkdir("sparse")?;
    tree.set_len("sparse/nothing-but-hole", 5 * GIB)?;
    tree.set_len("sparse/small-hole", 1)?;
    tree.write("sparse/at-the-end", [(3 * GIB - 1, &b"x"[..])])?;
    tree.write("sparse/at-the-front", [(0, &b"front"[..])])?;
    tree.set_len("sparse/at-the-front", 2 * GIB + 1)?;
    tree.write("sparse/far", [(TIB, &b"far"[..]), (0, &b"near"[..])])?;
    let block = bytes(random, 1024);
    let every_second = (0..64).map(|n| (n * 2 * KIB, &block[..]));
    tree.write("sparse/every-second-kib", every_second)?;
    let every_eighth = (0..64).rev().map(|n| (n * 8 * KIB + 100, &block[..700]));
    tree.write("sparse/backwards", every_eighth)
}

/// Files with maps of several levels: 2048 scattered blocks make three with any block size.
fn maps(tree: &mut Tree, random: &mut StdRng, scale: u32) -> io::Result<()> {
    const STRIDE: u64 = 128 * KIB;
    tree.mkdir("maps")?;
    let mut offsets: Vec<u64> =
        (0..2048).map(|n| n * STRIDE + random.random_range(0..STRIDE)).collect();
    offsets.shuffle(random);
    let content = bytes(random, 2048);
    tree.write(
        "maps/scattered",
        offsets.iter().zip(content.chunks(1)).map(|(&offset, byte)| (offset, byte)),
    )?;
    let dense = bytes(random, if scale < 10 { 4 * MIB } else { 32 * MIB } as usize);
    let mut pieces: Vec<(u64, &[u8])> = (0..).step_by(100_000).zip(dense.chunks(100_000)).collect();
    pieces.shuffle(random);
    tree.write("maps/dense", pieces)
}

/// Every type of file.
fn types(tree: &mut Tree) -> io::Result<()> {
    tree.mkdir("types")?;
    tree.mknod("types/fifo", FileType::Fifo, (0, 0))?;
    tree.mknod("types/socket", FileType::Socket, (0, 0))?;
    for (major, minor) in [(1, 3), (5, 255), (5, 256), (4095, 0), (4095, 1_048_575)] {
        let name = format!("types/{major}-{minor}");
        tree.mknod(format!("{name}-char"), FileType::CharacterDevice, (major, minor))?;
        tree.mknod(format!("{name}-block"), FileType::BlockDevice, (major, minor))?;
    }
    // The longest target that fits in a block of 1 KiB, with the zero byte that ends it on the
    // disk.
    for length in [1, 2, 56, 57, 60, 255, 256, 512, 1000, 1023] {
        tree.symlink("t".repeat(length), format!("types/symlink-of-{length}"))?;
    }
    tree.symlink("../sizes/of1", "types/symlink-to-file")?;
    tree.symlink("..", "types/symlink-to-directory")?;
    tree.symlink(OsStr::from_bytes(b"\xff\xfe\n "), "types/symlink-of-odd-bytes")
}

/// Inodes with many names.
fn links(tree: &mut Tree) -> io::Result<()> {
    tree.mkdir("links")?;
    tree.create("links/first", b"one of many names\n")?;
    for directory in 0..10 {
        tree.mkdir(format!("links/{directory}"))?;
        for name in 0..20 {
            tree.link("links/first", format!("links/{directory}/name{name}"))?;
        }
    }
    tree.mknod("links/fifo", FileType::Fifo, (0, 0))?;
    tree.link("links/fifo", "links/0/fifo")?;
    tree.symlink("first", "links/symlink")?;
    tree.link("links/symlink", "links/0/symlink")
}

/// Names of every length, and names with every byte that a name can have.
fn names(tree: &mut Tree) -> io::Result<()> {
    tree.mkdir("names")?;
    tree.mkdir("names/lengths")?;
    for length in 1..=LONGEST_NAME {
        tree.create(format!("names/lengths/{}", "n".repeat(length)), &[])?;
    }
    tree.mkdir("names/bytes")?;
    for byte in (1..=u8::MAX).filter(|byte| !b"/.".contains(byte)) {
        tree.create(Path::new("names/bytes").join(OsStr::from_bytes(&[byte])), &[byte])?;
    }
    for name in ["...", ". ", ".hidden", "-rf", "ends in a space ", "\u{fc}ml\u{e4}ut", "\\x20"] {
        tree.create(Path::new("names/bytes").join(name), name.as_bytes())?;
    }
    Ok(())
}

/// Modes and owners of all kinds.
fn attributes(tree: &mut Tree) -> io::Result<()> {
    tree.mkdir("attributes")?;
    for mode in [0, 0o1, 0o111, 0o444, 0o666, 0o777, 0o1777, 0o2755, 0o4755, 0o6711, 0o7777] {
        let (file, directory) =
            (format!("attributes/file{mode:04o}"), format!("attributes/directory{mode:04o}"));
        tree.create(&file, b"content")?;
        tree.chmod(&file, mode)?;
        tree.mkdir(&directory)?;
        tree.chmod(&directory, mode)?;
    }
    for (uid, gid) in [(0, 1), (1, 0), (1000, 1000), (65_534, 65_535), (65_536, 1 << 31)] {
        let (file, symlink) =
            (format!("attributes/of{uid}-{gid}"), format!("attributes/symlink-of{uid}-{gid}"));
        tree.create(&file, b"content")?;
        tree.chown(&file, uid, gid)?;
        tree.symlink("target", &symlink)?;
        tree.chown(&symlink, uid, gid)?;
    }
    Ok(())
}

/// Random bytes.
fn bytes(random: &mut StdRng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    random.fill_bytes(&mut bytes);
    bytes
}
