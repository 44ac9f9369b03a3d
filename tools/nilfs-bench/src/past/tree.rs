//! A tree as large as the source of a kernel: what has changed in it, and how it was.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::site::{Line, Site, timed, walk};
use crate::stage::{drop_caches, forget};
use crate::workloads::make_tree;

/// Files that are changed between two checkpoints.
const CHANGED: usize = 10;

pub(super) fn measure(site: &Site, dirs: u64, files: u64, lines: &mut Vec<Line>) -> Result<()> {
    let image = site.format("tree.img", 8)?;
    let (mount, root) = site.mount(&image, "rw")?;
    make_tree(&root.join("tree"), dirs, files)?;
    let before = site.checkpoint(&root)?.to_string();
    change(&root.join("tree"), files)?;
    let after = site.checkpoint(&root)?.to_string();
    mount.unmount()?;

    let compare = || site.ask(&["diff", &before, &after, &root.to_string_lossy()]);
    let cold = |work: &mut dyn FnMut() -> Result<()>| -> Result<(Duration, u64)> {
        forget(&image)?;
        let (mount, root) = site.mount(&image, "rw")?;
        let at_first = site.blocks_read(&root)?;
        let time = timed(work)?;
        let blocks = site.blocks_read(&root)? - at_first;
        mount.unmount()?;
        Ok((time, blocks))
    };
    let (mut diff_blocks, mut walk_blocks) = (0, 0);
    let [cold_diff, cold_walk] = site.in_turns([
        &mut || {
            let (time, blocks) = cold(&mut || compare().map(drop))?;
            diff_blocks = blocks;
            Ok(time)
        },
        &mut || {
            let (time, blocks) = cold(&mut || walk(&root).map(drop))?;
            walk_blocks = blocks;
            Ok(time)
        },
    ])?;

    let (mount, root) = site.mount(&image, "rw")?;
    compare()?;
    walk(&root)?;
    let [start, warm_diff, warm_walk] = site.in_turns([
        &mut || timed(|| site.ask(&["sync", "--version"])),
        &mut || timed(compare),
        &mut || timed(|| walk(&root)),
    ])?;
    let what = format!("diff of {CHANGED} changed files among {files}");
    for (state, ours, theirs) in [
        ("warm".to_owned(), warm_diff, warm_walk),
        (
            "warm, without the start of a program".to_owned(),
            warm_diff - start.min(warm_diff),
            warm_walk,
        ),
        (format!("cold, {diff_blocks} and {walk_blocks} blocks"), cold_diff, cold_walk),
    ] {
        lines.push(Line {
            what: format!("{what}; {state}"),
            ours,
            than: "walk of the tree".to_owned(),
            theirs,
        });
    }

    let then = entry(&root, &before)?;
    let [of_then, of_now] = site.in_turns([
        &mut || {
            drop_caches()?;
            timed(|| walk(&then.join("tree")))
        },
        &mut || {
            drop_caches()?;
            timed(|| walk(&root.join("tree")))
        },
    ])?;
    lines.push(Line {
        what: "walk of the tree as it was".to_owned(),
        ours: of_then,
        than: "the same now".to_owned(),
        theirs: of_now,
    });
    mount.unmount()
}

/// The canonical entry of a checkpoint in the door of a directory.
fn entry(dir: &Path, cno: &str) -> Result<PathBuf> {
    let alias = dir.join(".checkpoints").join(format!("cp{cno}"));
    std::fs::canonicalize(&alias).with_context(|| alias.display().to_string())
}

/// Changes files that lie far from each other.
fn change(tree: &Path, files: u64) -> Result<()> {
    let step = (files as usize / CHANGED).max(1);
    let mut left: Vec<PathBuf> = vec![tree.to_owned()];
    let mut nth = 0;
    while let Some(dir) = left.pop() {
        for entry in dir.read_dir()? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                left.push(entry.path());
                continue;
            }
            if nth % step == 0 && nth / step < CHANGED {
                OpenOptions::new().append(true).open(entry.path())?.write_all(b"changed")?;
            }
            nth += 1;
        }
    }
    Ok(())
}
