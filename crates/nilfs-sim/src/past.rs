//! Looks back: every checkpoint on a volume is a state that the file system had, and they come in
//! the order in which it had them.

use std::sync::Arc;

use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::Volume;
use nilfs_ondisk::Cno;

use crate::history::Step;
use crate::subject::{Mounting, Subject};

/// The newest checkpoint on a volume.
///
/// # Errors
/// The engine's, in words.
pub fn newest_checkpoint(content: Vec<u8>) -> Result<Cno, String> {
    let volume = Volume::open(Arc::new(MemoryDevice::from(content)));
    volume.map(|volume| volume.last_log().cno).map_err(|error| error.to_string())
}

/// Compares every checkpoint of the volume behind `start` with the states that it went through
/// since.
///
/// # Errors
/// A checkpoint that cannot be shown, or that is no such state.
pub fn look_back(content: Vec<u8>, start: Cno, steps: &[Step]) -> Result<(), String> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::from(content));
    let volume = Volume::open(Arc::clone(&device)).map_err(|error| error.to_string())?;
    let checkpoints =
        volume.checkpoints(start.plus(1), usize::MAX).map_err(|error| error.to_string())?;
    let mut ahead = steps;
    for checkpoint in checkpoints {
        let cno = checkpoint.cno;
        let how = Mounting { checkpoint: Some(cno), ..Mounting::READ_ONLY };
        let past = Subject::mount(Arc::clone(&device), how)?;
        let found = past.tree().map_err(|what| format!("checkpoint {cno}: {what}"))?;
        let is_found = |step: &Step| step.state.tree().difference(&found).is_none();
        let Some(nth) = ahead.iter().position(is_found) else {
            return Err(format!("checkpoint {cno} is no state that the file system had by then"));
        };
        ahead = &ahead[nth..];
    }
    Ok(())
}
