//! A file that has another content in each of many checkpoints: its versions.

use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use nilfs_device::{Access, Device, FileDevice, RecordingDevice};
use nilfs_engine::{Filesystem, MountOptions, NewInode, Volume, tree};

use crate::site::{Line, Site, output, timed};

/// `S_IFREG`.
const REGULAR: u16 = 0o100_000;
const BLOCK: u64 = 4096;

pub(super) fn measure(site: &Site, count: u64, lines: &mut Vec<Line>) -> Result<()> {
    let image = site.format(&format!("versions-{count}.img"), 2 + count / 10_000)?;
    write(&image, count)?;
    let per_version = blocks_read(&image, count)? as f64 / count as f64;
    let repository = site.dir.join(format!("git-{count}"));
    commit(&repository, count)?;
    // What was made just now is as protected as it is in use.
    let (mount, root) = site.mount(&image, "pp=24h")?;
    let file = root.join("file");
    let door = root.join(".checkpoints");
    let follow = || {
        let mut git = Command::new("git");
        let format = "--format=%h %ad %s";
        output(git.arg("-C").arg(&repository).args(["log", "--follow", format, "--", "file"]))
    };
    let look = || -> Result<()> {
        let mut seen = 0;
        for entry in door.read_dir()? {
            seen += u64::from(entry?.path().join("file").symlink_metadata().is_ok());
        }
        ensure!(seen >= count, "the door shows {seen} of {count} versions");
        Ok(())
    };
    let [ours, git, loop_of_stat, list] = site.in_turns([
        &mut || timed(|| site.ask(&["log".as_ref(), file.as_os_str()])),
        &mut || timed(follow),
        &mut || timed(look),
        &mut || timed(|| Ok(door.read_dir()?.count())),
    ])?;
    let what = format!("log of a file, {count} versions; {per_version:.1} blocks for each");
    lines.push(Line { what: what.clone(), ours, than: "git log --follow".to_owned(), theirs: git });
    lines.push(Line {
        what,
        ours,
        than: "stat in each checkpoint".to_owned(),
        theirs: loop_of_stat,
    });
    lines.push(Line {
        what: format!("list of the {count} checkpoints in a door"),
        ours: list,
        than: "stat in each checkpoint".to_owned(),
        theirs: loop_of_stat,
    });
    mount.unmount()?;
    Ok(fs::remove_file(&image)?)
}

/// Makes a checkpoint of each content.
fn write(image: &Path, count: u64) -> Result<()> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(image, Access::ReadWrite)?);
    let fs = Filesystem::mount(device, MountOptions::default())?;
    let new = NewInode { mode: REGULAR | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    let file = fs.create(&fs.root()?.inode, b"file", &new)?.inode;
    for nth in 0..count {
        fs.write(&file, 0, format!("{nth:09}\n").as_bytes())?;
        fs.checkpoint_now()?;
    }
    drop(file);
    Ok(fs.unmount()?)
}

/// The blocks that are read for all versions, with nothing in memory.
fn blocks_read(image: &Path, count: u64) -> Result<u64> {
    let device = Arc::new(RecordingDevice::new(FileDevice::open(image, Access::Inspect)?));
    let volume = Volume::open(Arc::clone(&device) as _)?;
    let _ = device.take_bytes_read();
    let mut found = 0;
    tree::versions(&volume, b"file", None, &mut |_| {
        found += 1;
        ControlFlow::Continue(())
    })?;
    ensure!(found == count, "{found} versions were found of {count}");
    Ok(device.take_bytes_read() / BLOCK)
}

/// Makes a commit of each content.
fn commit(repository: &Path, count: u64) -> Result<()> {
    output(Command::new("git").args(["init", "--quiet", "--initial-branch=main"]).arg(repository))?;
    let mut import = Command::new("git")
        .arg("-C")
        .arg(repository)
        .args(["fast-import", "--quiet"])
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot run git")?;
    let mut stream = std::io::BufWriter::new(import.stdin.take().context("no input of git")?);
    for nth in 0..count {
        let time = 1_700_000_000 + nth;
        writeln!(stream, "commit refs/heads/main\ncommitter bench <bench@localhost> {time} +0000")?;
        writeln!(stream, "data 1\nx\nM 100644 inline file\ndata 10\n{nth:09}\n")?;
    }
    stream.flush()?;
    drop(stream);
    let status = import.wait()?;
    ensure!(status.success(), "git fast-import: {status}");
    Ok(())
}
