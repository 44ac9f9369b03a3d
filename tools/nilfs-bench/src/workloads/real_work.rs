//! What people do with trees of small files.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, anyhow};

use super::{Skip, tree};
use crate::command;
use crate::fixtures::warm;
use crate::stage::{Sample, Stage, settle};

/// What is done with a repository of the tree.
const GIT: [&str; 6] = [
    "init -q",
    "add -A",
    "commit -q -m all",
    // Over the protocol, so that a clone on the same volume is no hard links.
    "clone -q --no-local . ../clone",
    "status -s",
    "gc -q",
];

/// A repository of the tree: everything is added, committed, cloned, looked at and packed.
pub fn git(stage: &mut Stage<'_>) -> Result<Sample> {
    let repository = copied_tree(stage)?;
    stage.timed(1, || {
        for words in GIT {
            let mut git = Command::new("git");
            // Nothing depends on who types it.
            git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
            git.args(["-c", "user.name=bench", "-c", "user.email=bench@localhost"]);
            git.args(["-c", "gc.autoDetach=false"]).args(words.split(' '));
            command::run(git.current_dir(&repository))?;
        }
        settle(&repository)
    })
}

/// A second run of rsync, which finds nothing to do.
pub fn rsync(stage: &mut Stage<'_>) -> Result<Sample> {
    let copy = copied_tree(stage)?;
    let tree = tree::source(stage)?;
    stage.timed(tree::entries(stage.sizes), || sync_trees(&tree, &copy))
}

/// A fresh volume with the tree, as rsync copies it.
fn copied_tree(stage: &mut Stage<'_>) -> Result<std::path::PathBuf> {
    if !stage.system.persistent() {
        return Err(anyhow!(Skip("it keeps no content".to_owned())));
    }
    let copy = stage.mount_fresh()?.join("copy");
    let tree = tree::source(stage)?;
    warm(&tree)?;
    sync_trees(&tree, &copy).context("the first copy")?;
    settle(&copy)?;
    Ok(copy)
}

fn sync_trees(from: &Path, to: &Path) -> Result<()> {
    // With a slash at the end, what is in it is meant.
    command::run(Command::new("rsync").arg("-a").arg(from.join("")).arg(to))
}
