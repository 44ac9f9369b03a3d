//! A scrub of a volume on a device that this process has not mounted.

use std::sync::Arc;

use nilfs_device::{CopyOnWriteDevice, Device};
use nilfs_ondisk::Seq;

use crate::cleaner::options::CleanerOptions;
use crate::error::{Error, Result};
use crate::fs::{Filesystem, MountOptions};
use crate::log::reader;
use crate::recovery;
use crate::rescue::Rescue;
use crate::scrub::moment::Moment;
use crate::scrub::{self, Observe, Scrubbed, Selection, Unreached};
use crate::store::Verify;
use crate::superblocks;
use crate::volume::Volume;

/// Reads the logs of the volume on a device that this process has not mounted.
///
/// # Errors
/// [`NotAVolume`](crate::Error::NotAVolume), [`Feature`](crate::Error::Feature), or it cannot be told
/// which segments are in use.
pub fn scrub_device(
    device: &Arc<dyn Device>,
    selection: &Selection,
    observe: Observe<'_>,
) -> Result<Scrubbed> {
    let newest = || -> Result<_> {
        let (device, seq) = recovered(device);
        let (mut moment, unreached) = find(&device)?;
        moment.seq = seq.unwrap_or(moment.seq);
        Ok((moment, unreached))
    };
    let (at_first, unreached) = newest()?;
    let newest = || newest().map(|(moment, _)| moment);
    let mut found = scrub::read(at_first, &newest, selection, observe)?;
    found.unreached = unreached;
    Ok(found)
}

/// Returns a copy of a volume on which what fsyncs have written is recovered, as a mount does it: only the
/// checkpoint that this makes says which files need the blocks of these logs. With it comes the sequence number of
/// the last of them. Where there is nothing to recover, or no mount succeeds, it is the volume itself.
fn recovered(device: &Arc<dyn Device>) -> (Arc<dyn Device>, Option<Seq>) {
    let copy: Arc<dyn Device> =
        Arc::new(CopyOnWriteDevice::new(Arc::clone(device), Arc::default()));
    let recover = || -> Result<Option<Seq>> {
        let volume = Volume::open_with(Arc::clone(&copy), Verify::None)?;
        let found = recovery::roll_forward(&volume.store, &volume.found)?;
        let last = found.logs.last().and_then(|log| reader::log_at(&volume.store, log.start));
        let Some(last) = last else { return Ok(None) };
        let cleaner = CleanerOptions { enabled: false, ..CleanerOptions::default() };
        let options = MountOptions { cleaner, barrier: false, ..MountOptions::default() };
        let fs = Filesystem::mount(Arc::clone(&copy), options)?;
        let is_recovered = fs.unrecovered().is_none();
        fs.unmount()?;
        Ok(is_recovered.then_some(last.seq))
    };
    match recover() {
        Ok(Some(seq)) => (copy, Some(seq)),
        Ok(None) | Err(_) => (Arc::clone(device), None),
    }
}

/// The newest checkpoint that a device leads to, or of which a log can be found.
fn find(device: &Arc<dyn Device>) -> Result<(Moment, Option<Unreached>)> {
    let volume = match Volume::open_with(Arc::clone(device), Verify::None) {
        Ok(volume) => volume,
        Err(Error::Inconsistent(_) | Error::Corrupt { .. }) => {
            Rescue::open(Arc::clone(device), Box::new(|_| ()))?.into_volume(None)?.0
        }
        Err(error) => return Err(error),
    };
    let found = volume.last_log().cno;
    let named = superblocks::load(&**device).ok();
    let copies = named.iter().flat_map(|it| std::iter::once(&it.best).chain(&it.other));
    let named = copies.map(|copy| copy.last_log()).max_by_key(|log| log.cno);
    let unreached = match named.filter(|log| log.cno > found) {
        Some(log) => Some(Unreached { block: log.block, newest: Some(log.cno) }),
        None => match recovery::beyond(&volume.store, &volume.found)? {
            Some((block, newest)) => Some(Unreached { block, newest: Some(newest) }),
            None => recovery::roll_forward(&volume.store, &volume.found)?
                .stops_at
                .map(|block| Unreached { block, newest: None }),
        },
    };
    Ok((Moment::of_volume(&volume), unreached))
}
