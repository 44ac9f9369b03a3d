//! Many small files: created, looked at, removed.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use super::large_file::random_bytes;
use crate::sizes::SEED;
use crate::stage::{Sample, Stage, settle};

const FILE_BYTES: usize = 1024;
const FILES_PER_DIR: u64 = 500;

/// Creates them and makes them durable.
pub fn create(stage: &mut Stage<'_>) -> Result<Sample> {
    let root = stage.mount_fresh()?;
    let paths = make_dirs(&root, stage.sizes.small_files)?;
    stage.timed(stage.sizes.small_files, || create_all(&root, &paths))
}

/// Stats them all in random order, with nothing in memory.
pub fn stat(stage: &mut Stage<'_>) -> Result<Sample> {
    let root = stage.mount_fresh()?;
    let mut paths = make_dirs(&root, stage.sizes.small_files)?;
    create_all(&root, &paths)?;
    stage.cool_down()?;
    paths.shuffle(&mut StdRng::seed_from_u64(SEED));
    stage.timed(stage.sizes.small_files, || {
        for path in &paths {
            let metadata =
                path.metadata().with_context(|| format!("cannot stat {}", path.display()))?;
            ensure!(metadata.len() == FILE_BYTES as u64, "wrong size of {}", path.display());
        }
        Ok(())
    })
}

/// Removes them, and makes that durable.
pub fn unlink(stage: &mut Stage<'_>) -> Result<Sample> {
    let root = stage.mount_fresh()?;
    let paths = make_dirs(&root, stage.sizes.small_files)?;
    create_all(&root, &paths)?;
    stage.timed(stage.sizes.small_files, || {
        for path in &paths {
            std::fs::remove_file(path)
                .with_context(|| format!("cannot remove {}", path.display()))?;
        }
        settle(&root)
    })
}

/// Makes the directories for `count` files, and returns the paths of these files.
fn make_dirs(root: &Path, count: u64) -> Result<Vec<PathBuf>> {
    for dir in 0..count.div_ceil(FILES_PER_DIR) {
        let path = root.join(format!("dir-{dir:04}"));
        std::fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
    }
    settle(root)?;
    Ok((0..count)
        .map(|file| root.join(format!("dir-{:04}/file-{file:06}", file / FILES_PER_DIR)))
        .collect())
}

fn create_all(root: &Path, paths: &[PathBuf]) -> Result<()> {
    let data = random_bytes(FILE_BYTES);
    for path in paths {
        std::fs::write(path, &data).with_context(|| format!("cannot write {}", path.display()))?;
    }
    settle(root)
}
