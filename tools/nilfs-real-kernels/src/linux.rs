//! What a test usually wants Linux's nilfs2 to do with an image of any origin: mount it
//! read-write, fill it, change it, list it, lose its power over it, recover it.
//!
//! The filler's tree is the volume's directory `tree`, the crash workload's is `work`. Each
//! function fails if the kernel complains.

use std::path::Path;

use crate::error::{Error, Result};
use crate::{CrashWorkload, Fill, KernelLog, Manifest, Uml, count_synced};

/// Makes the directory `tree` and fills it. Returns its manifest as it was before the unmount.
pub fn populate(image: &Path, fill: Fill) -> Result<Manifest> {
    let work = "mkdir $MNT/tree; fill populate --seed $SEED --scale $SCALE $MNT/tree";
    tree_after(work, with_fill(image, fill))
}

/// Changes the directory `tree`. Returns its manifest as it was before the unmount.
pub fn modify(image: &Path, fill: Fill) -> Result<Manifest> {
    tree_after("fill modify --seed $SEED --scale $SCALE $MNT/tree", with_fill(image, fill))
}

/// The manifest of the directory `tree`.
pub fn manifest(image: &Path) -> Result<Manifest> {
    tree_after("", Uml::new(image))
}

/// Starts a workload in a new directory `work`, and cuts the power when its log has `events`
/// events.
pub fn crash(
    image: &Path,
    workload: CrashWorkload,
    log: &Path,
    events: usize,
) -> Result<KernelLog> {
    let strict = if workload.strict { "--strict" } else { "" };
    Uml::new(image)
        .env("LOG", log)
        .env("SEED", workload.seed.to_string())
        .script(format!(
            "mount_nilfs; mkdir $MNT/work; sync
             fill crash {strict} --seed $SEED --log $LOG $MNT/work"
        ))
        .start()?
        .kill_when(|| count_synced(log) >= events)
}

/// What Linux made of a volume that lost its power.
#[derive(Debug, Clone)]
pub struct Recovered {
    /// How many paths were as the log of what was synced says.
    pub checked: usize,
    /// What the kernel said.
    pub kernel_log: KernelLog,
}

/// Mounts a volume that lost its power, which makes Linux recover it, and compares the directory
/// `work` with the log of what was synced. It is an error if anything synced is lost.
pub fn recover(image: &Path, log: &Path) -> Result<Recovered> {
    let result = Uml::new(image)
        .env("LOG", log)
        .script("mount_nilfs; fill verify-synced $LOG $MNT/work; umount_nilfs")
        .run()?
        .without_complaint_besides_recovery()?;
    let checked = result.stdout.split(' ').next().and_then(|count| count.parse().ok());
    Ok(Recovered { checked: checked.unwrap_or(0), kernel_log: result.kernel_log })
}

fn with_fill(image: &Path, fill: Fill) -> Uml {
    Uml::new(image).env("SEED", fill.seed.to_string()).env("SCALE", fill.scale.to_string())
}

fn tree_after(work: &str, uml: Uml) -> Result<Manifest> {
    let result = uml
        .script(format!("mount_nilfs\n{work}\nsync\nmanifest $MNT/tree\numount_nilfs\n"))
        .run()?
        .without_complaint()?;
    result.stdout.parse().map_err(Error::Manifest)
}
