//! From an operand to a volume: a device or image, any file or directory on a volume that we
//! serve, or nothing, which means the volume of the current directory, or else the only one that we
//! serve.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use nilfs_engine::{Error, Volume};
use rustix::fs::{StatVfsMountFlags, statvfs};

use crate::administration::{self, Administration, Purpose, Target};
use crate::exit;
use crate::image::open_volume;

/// How often a volume is looked at before what is found there is taken for damage.
const MOST_LOOKS: u32 = 5;

/// Lets `work` look at the volume, while others may write to it.
pub fn look<T>(
    operand: Option<&OsStr>,
    work: impl Fn(&Volume) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let target = path(operand).and_then(|path| Target::find(&path));
    let target = target.map_err(|error| cannot(operand, &error))?;
    let is_served = matches!(target, Target::Mounted { .. });
    let mut looks = 1;
    loop {
        let opened = open_volume(target.device()).map_err(|error| (cannot(operand, &error), error));
        let found =
            opened.and_then(|volume| work(&volume).map_err(|error| (anyhow!(why(&error)), error)));
        match found {
            // The cleaner may have taken a segment away that was just being read.
            Err((_, error)) if is_served && looks < MOST_LOOKS && is_fault(&error) => looks += 1,
            found => return found.map_err(|(complaint, _)| complaint),
        }
    }
}

fn is_fault(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| cause.downcast_ref().is_some_and(Error::is_fault))
}

/// Lets `work` administer the volume, mounted or not.
pub fn administer<T>(
    operand: Option<&OsStr>,
    work: impl FnOnce(&dyn Administration) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let path = path(operand).map_err(|error| cannot(operand, &error))?;
    target_to_change(&path).map_err(|error| cannot(operand, &error))?;
    let mut started = false;
    let done = administration::on(&path, Purpose::Change, |volume| {
        started = true;
        work(volume)
    });
    done.map_err(|error| if started { anyhow!(why(&error)) } else { cannot(operand, &error) })
}

/// The volume that a path means, unless it is mounted read-only: the programs of nilfs-utils say so
/// before they look at anything else that was asked for.
pub fn target_to_change(path: &Path) -> anyhow::Result<Target> {
    let target = Target::find(path)?;
    if let Target::Mounted { node, .. } = &target
        && statvfs(node).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::RDONLY))
    {
        bail!("it is mounted read-only");
    }
    Ok(target)
}

/// The path that leads to the volume that an operand names, or to the one that is meant without.
pub fn path(operand: Option<&OsStr>) -> anyhow::Result<PathBuf> {
    operand.map_or_else(administration::unnamed, |operand| Ok(operand.into()))
}

/// The sentence of nilfs-utils about a volume that cannot be used.
fn cannot(operand: Option<&OsStr>, error: &anyhow::Error) -> anyhow::Error {
    let name = operand.map_or(Path::new("device"), Path::new);
    let why = why(error);
    // Some errors begin with the name as well.
    let why = why.strip_prefix(&format!("{}: ", name.display())).unwrap_or(&why);
    anyhow!("cannot open NILFS on {}: {why}", name.display())
}

/// The reason alone, without the name of the volume before it: what the system said, if it did.
pub fn why(error: &anyhow::Error) -> String {
    let root = error.root_cause();
    let said = match root.downcast_ref::<io::Error>() {
        Some(said) => said.to_string(),
        None => error.chain().nth(1).unwrap_or(root).to_string(),
    };
    exit::without_error_numbers(&said)
}
