//! The second phase: changes what the first one made.

use std::io;
use std::path::{Path, PathBuf};

use rand::rngs::StdRng;
use rand::{Rng, RngCore};
use rustix::fs::FileType;

use super::{Fill, Tree};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

pub(super) fn modify(tree: &mut Tree, fill: &Fill) -> io::Result<()> {
    move_trees(tree)?;
    churn_large_directory(tree, &mut fill.randomness("churn"))?;
    rewrite_files(tree, &mut fill.randomness("rewrite"))?;
    reshape_sparse_files(tree)?;
    thin_out_maps(tree, &mut fill.randomness("thin out"))?;
    replace(tree)?;
    relink(tree)?;
    change_attributes(tree)
}

/// Moves and removes whole subtrees.
fn move_trees(tree: &mut Tree) -> io::Result<()> {
    let chain = |from: u32, to: u32| -> PathBuf {
        (from..to).map(|level| format!("level{level}")).collect()
    };
    let deep = Path::new("deep");
    tree.rename(deep.join(chain(0, 50)), "moved")?;
    tree.rename(Path::new("moved").join(chain(50, 70)), deep.join("also-moved"))?;
    tree.remove_dir_all(deep.join("also-moved").join(chain(70, 90)))?;
    for (index, path) in tree.list("wide")?.into_iter().enumerate() {
        match index % 3 {
            0 => tree.remove_dir_all(path)?,
            1 => tree.rename(&path, path.with_extension("renamed"))?,
            _ => {}
        }
    }
    Ok(())
}

/// Removes, renames, and adds entries all over the large directory.
fn churn_large_directory(tree: &mut Tree, random: &mut StdRng) -> io::Result<()> {
    tree.mkdir("away")?;
    for (index, path) in tree.list("large")?.into_iter().enumerate() {
        match random.random_range(0..8) {
            0..2 if tree.metadata(&path)?.is_dir() => tree.remove_dir_all(path)?,
            0..2 => tree.remove_file(path)?,
            2 => tree.rename(path, format!("large/renamed{index}{}", "y".repeat(index % 100)))?,
            3 => tree.rename(path, format!("away/{index}"))?,
            4 => tree.create(format!("large/added{index}"), index.to_string().as_bytes())?,
            _ => {}
        }
    }
    Ok(())
}

/// Overwrites, appends to and truncates files of all sizes.
fn rewrite_files(tree: &mut Tree, random: &mut StdRng) -> io::Result<()> {
    for (index, path) in tree.list("sizes")?.into_iter().enumerate() {
        let size = tree.metadata(&path)?.len();
        let mut piece = vec![0; random.random_range(1..5000)];
        random.fill_bytes(&mut piece);
        match index % 7 {
            0 => tree.append(path, &piece)?,
            1 => tree.write(path, [(size / 2, &piece[..])])?,
            2 => tree.set_len(path, size / 2)?,
            3 => tree.set_len(path, size * 3 + 1)?,
            4 => {
                tree.set_len(&path, size / 3)?;
                tree.set_len(&path, size)?;
                tree.append(path, &piece)?;
            }
            5 => tree.remove_file(path)?,
            _ => {}
        }
    }
    Ok(())
}

/// Moves the ends of sparse files, and puts data into their holes.
fn reshape_sparse_files(tree: &mut Tree) -> io::Result<()> {
    tree.write("sparse/nothing-but-hole", [(4 * GIB, &b"middle"[..])])?;
    tree.set_len("sparse/at-the-end", 2 * GIB)?;
    tree.append("sparse/at-the-front", b"end")?;
    tree.set_len("sparse/far", 3)?;
    let filling = [b'f'; 1500];
    tree.write("sparse/every-second-kib", (0..32).map(|n| (n * 4096 + 500, &filling[..])))?;
    tree.remove_file("sparse/backwards")
}

/// Takes most of a map away, and writes into what stays.
fn thin_out_maps(tree: &mut Tree, random: &mut StdRng) -> io::Result<()> {
    tree.set_len("maps/scattered", 128 * MIB + 12_345)?;
    let offsets: Vec<u64> = (0..200).map(|_| random.random_range(0..384 * MIB)).collect();
    tree.write("maps/scattered", offsets.iter().map(|&offset| (offset, &b"again"[..])))?;
    let size = tree.metadata("maps/dense")?.len();
    let offsets: Vec<u64> = (0..100).map(|_| random.random_range(0..size)).collect();
    tree.write("maps/dense", offsets.iter().map(|&offset| (offset, &b"overwritten"[..])))
}

/// Puts one type of file where another was, by removal and by rename.
fn replace(tree: &mut Tree) -> io::Result<()> {
    tree.remove_file("types/fifo")?;
    tree.create("types/fifo", b"no longer one")?;
    tree.remove_file("types/symlink-of-1")?;
    tree.mkdir("types/symlink-of-1")?;
    tree.create("types/new", b"takes the place of a socket")?;
    tree.rename("types/new", "types/socket")?;
    tree.mkdir("types/new-directory")?;
    tree.create("types/new-directory/file", b"inside")?;
    tree.rename("types/new-directory", "types/symlink-of-1")?;
    tree.mknod("types/new-fifo", FileType::Fifo, (0, 0))?;
    tree.rename("types/new-fifo", "types/symlink-of-1000")
}

/// Takes names from inodes and gives them others.
fn relink(tree: &mut Tree) -> io::Result<()> {
    tree.append("links/3/name7", b"said through another name\n")?;
    tree.remove_file("links/first")?;
    for directory in 0..5 {
        tree.remove_dir_all(format!("links/{directory}"))?;
    }
    for name in 0..5 {
        tree.link("links/7/name0", format!("links/again{name}"))?;
    }
    // Two names of one inode: rename must do nothing.
    tree.rename("links/again0", "links/again1")?;
    tree.remove_file("links/fifo")
}

/// Changes modes and owners; a change of owner takes the set-id bits away.
fn change_attributes(tree: &mut Tree) -> io::Result<()> {
    tree.chmod("attributes/file0000", 0o640)?;
    tree.chmod("attributes/directory0777", 0o3775)?;
    tree.chown("attributes/file7777", 1, 2)?;
    tree.chown("attributes/file4755", 1, 2)?;
    tree.chown("attributes/directory7777", 1, 2)?;
    tree.chown("attributes/of0-1", 3, 4)
}
