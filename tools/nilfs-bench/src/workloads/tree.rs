//! A tree of small files, as source trees and home directories are: copied, and copied again.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::large_file::random_bytes;
use crate::command;
use crate::fixtures::warm;
use crate::sizes::{SEED, Sizes};
use crate::stage::{Sample, Stage, settle};

/// File sizes are spread evenly over the powers of two from 2^MIN to 2^MAX bytes.
const MIN_SIZE_LOG2: f64 = 5.0;
const MAX_SIZE_LOG2: f64 = 16.0;

/// The first copy.
pub fn copy(stage: &mut Stage<'_>) -> Result<Sample> {
    let root = stage.mount_fresh()?;
    let tree = source(stage)?;
    warm(&tree)?;
    stage.timed(entries(stage.sizes), || copy_tree(&tree, &root))
}

/// The second copy, over the first.
pub fn recopy(stage: &mut Stage<'_>) -> Result<Sample> {
    let root = stage.mount_fresh()?;
    let tree = source(stage)?;
    copy_tree(&tree, &root)?;
    warm(&tree)?;
    stage.timed(entries(stage.sizes), || copy_tree(&tree, &root))
}

/// How many files and directories it has.
pub fn entries(sizes: &Sizes) -> u64 {
    sizes.tree_dirs + sizes.tree_files
}

/// The tree, made once.
pub fn source(stage: &Stage<'_>) -> Result<PathBuf> {
    stage.fixtures.get("tree", |path| generate(path, stage.sizes.tree_dirs, stage.sizes.tree_files))
}

/// The root of the tree is one of the directories that are copied.
fn copy_tree(tree: &Path, root: &Path) -> Result<()> {
    command::run(Command::new("cp").arg("-a").arg(tree).arg(root))?;
    settle(root)
}

/// Makes a tree of `dir_count` directories, its root included, and `file_count` files. Each
/// directory hangs below a random earlier one, each file lies in a random directory.
pub fn generate(root: &Path, dir_count: u64, file_count: u64) -> Result<()> {
    let mut random = StdRng::seed_from_u64(SEED);
    let mut dirs = vec![root.to_owned()];
    for number in 1..dir_count {
        let parent = &dirs[random.random_range(0..dirs.len())];
        dirs.push(parent.join(format!("d{number}")));
    }
    for dir in &dirs {
        std::fs::create_dir(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    let data = random_bytes(1 << MAX_SIZE_LOG2 as u32);
    for number in 0..file_count {
        let path = dirs[random.random_range(0..dirs.len())].join(format!("f{number}"));
        let size = random.random_range(MIN_SIZE_LOG2..MAX_SIZE_LOG2).exp2() as usize;
        std::fs::write(&path, &data[..size])
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(dir: &Path, root: &Path, into: &mut Vec<(PathBuf, Option<u64>)>) {
        for entry in dir.read_dir().unwrap() {
            let entry = entry.unwrap();
            let name = entry.path().strip_prefix(root).unwrap().to_owned();
            if entry.file_type().unwrap().is_dir() {
                into.push((name, None));
                listing(&entry.path(), root, into);
            } else {
                into.push((name, Some(entry.metadata().unwrap().len())));
            }
        }
    }

    /// Figures of two executions can be compared because both copied the same tree.
    #[test]
    fn the_tree_has_the_promised_size_and_is_the_same_each_time() {
        let scratch = tempfile::tempdir().unwrap();
        let mut listings = [const { Vec::new() }; 2];
        for (number, entries) in listings.iter_mut().enumerate() {
            let root = scratch.path().join(number.to_string());
            generate(&root, 101, 450).unwrap();
            listing(&root, &root, entries);
            entries.sort();
        }
        let dirs = listings[0].iter().filter(|(_, size)| size.is_none()).count();
        assert_eq!(dirs, 101 - 1, "the root is not in the listing");
        assert_eq!(listings[0].len() - dirs, 450);
        assert_eq!(listings[0], listings[1]);
    }
}
