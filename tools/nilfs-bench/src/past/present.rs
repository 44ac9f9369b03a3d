//! The present, with a door to the past in every directory and without.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::site::{Line, Site, timed, walk};
use crate::stage::{drop_caches, settle};
use crate::workloads::make_tree;

pub(super) fn measure(site: &Site, files: u64, lines: &mut Vec<Line>) -> Result<()> {
    let image = site.format("present.img", 8)?;
    // The first to write to an image waits for its blocks to be allocated.
    once(site, &image, "past=off", files)?;
    let mut rows: [[Vec<Duration>; 2]; 3] = Default::default();
    for run in 0..site.runs {
        for nth in 0..2 {
            // Neither of the two always comes first.
            let which = (nth + run as usize) % 2;
            let times = once(site, &image, ["past=all", "past=off"][which], files)?;
            for (row, time) in rows.iter_mut().zip(times) {
                row[which].push(time);
            }
        }
    }
    let names = ["create small files", "stat them, cold", "make a tree of files"];
    for (name, row) in names.into_iter().zip(rows) {
        let [with, without] = row.map(|mut times| {
            times.sort_unstable();
            times[times.len() / 2]
        });
        lines.push(Line {
            what: format!("{name}, past=all"),
            ours: with,
            than: "the same with past=off".to_owned(),
            theirs: without,
        });
    }
    Ok(())
}

/// The times of one run on a fresh volume.
fn once(site: &Site, image: &Path, options: &str, files: u64) -> Result<[Duration; 3]> {
    site.format_again(image)?;
    let (mount, root) = site.mount(image, options)?;
    let dir = root.join("small");
    std::fs::create_dir(&dir).context("cannot make a directory")?;
    let create = timed(|| {
        for nth in 0..files {
            std::fs::write(dir.join(format!("file {nth}")), [1; 1024])?;
        }
        settle(&root)
    })?;
    drop_caches()?;
    let stat = timed(|| walk(&dir))?;
    let tree = timed(|| {
        make_tree(&root.join("tree"), files / 14, files)?;
        settle(&root)
    })?;
    mount.unmount()?;
    Ok([create, stat, tree])
}
