//! How long a user waits for a large old volume to be mounted.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

use super::mount_reads::Reads;
use crate::stage::{Sample, Stage, forget};

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
    let reads = stage.fixtures.get(&format!("{name}.reads"), |file| {
        Reads::of_mounting(&stage.copy_of(&aged)?)?.save(file)
    })?;
    let reads = Reads::load(&reads)?;
    let image = stage.copy_of(&aged)?;
    forget(&image)?;
    let reading = reads.time(&image)?;
    Ok(Sample { reads: Some(reading), ..stage.time_mount_of(&image)? })
}

/// Makes a volume with a checkpoint for each of many small files.
fn age(stage: &Stage<'_>, image: &Path, end: End) -> Result<()> {
    // So large a volume may have holes: what is read of it has been written.
    File::create_new(image)
        .and_then(|file| file.set_len(stage.sizes.aged_volume_bytes))
        .with_context(|| format!("cannot create the image {}", image.display()))?;
    stage.system.format(image)?;
    let root = stage.root();
    let mount = stage.system.mount_by_child(image, root)?;
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
