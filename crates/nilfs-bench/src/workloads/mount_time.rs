//! How long a user waits for a large old volume to be mounted.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

use crate::stage::{Sample, Stage};

#[derive(Clone, Copy)]
enum End {
    Unmounted,
    Killed,
}

/// A volume that was unmounted.
pub fn clean(stage: &mut Stage<'_>) -> Result<Sample> {
    time_mount(stage, "aged-clean.img", End::Unmounted)
}

/// A volume whose daemon was killed.
pub fn crashed(stage: &mut Stage<'_>) -> Result<Sample> {
    time_mount(stage, "aged-crashed.img", End::Killed)
}

fn time_mount(stage: &mut Stage<'_>, name: &str, end: End) -> Result<Sample> {
    let aged = stage.fixtures.get(name, |image| age(stage, image, end))?;
    stage.time_mount_of(&aged)
}

/// Makes a volume with a checkpoint for each of many small files.
fn age(stage: &Stage<'_>, image: &Path, end: End) -> Result<()> {
    stage.system.format(image, stage.sizes.aged_volume_bytes)?;
    let root = stage.root();
    let mount = stage.system.mount_killable(image, root)?;
    for number in 0..stage.sizes.checkpoints {
        let path = root.join(format!("file-{number}"));
        File::create(&path)
            .and_then(|mut file| {
                file.write_all(b"a small file")?;
                file.sync_all()
            })
            .with_context(|| format!("cannot write {} durably", path.display()))?;
    }
    match end {
        End::Unmounted => mount.unmount(),
        End::Killed => mount.kill(),
    }
}
