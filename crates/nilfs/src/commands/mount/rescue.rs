//! Losses in what a rescue mount shows, which are said once, when it begins.

use std::path::Path;

use nilfs_engine::ReadOnlyVolume;
use nilfs_repair::{AsRepaired, Losses};

use crate::output::printable;

/// Losses that are said; of more, how many there are.
const SAID: usize = 10;

/// Returns what is lost, or older, in what a mount shows of the volume on a device, in the words of fsck,
/// which would leave it so; and where the files are that have lost nothing but their names.
pub fn losses(repaired: &AsRepaired, volume: &ReadOnlyVolume, device: &Path) -> Vec<String> {
    let device = device.display();
    let Losses { repairs, omitted, adopted } = repaired.losses(volume.shown());
    let in_words =
        |text: String| format!("{device}: lost, or older: {}", printable(text.as_bytes()));
    let mut said: Vec<String> =
        repairs.iter().take(SAID).map(|repair| in_words(repair.to_string())).collect();
    match repairs.len().saturating_sub(SAID) as u64 + omitted {
        0 => {}
        more => said.push(format!(
            "{device}: {more} more losses of that kind; nilfs fsck -n -v {device} lists all"
        )),
    }
    said.extend(volume.newer().map(|newer| {
        format!(
            "{device}: lost, or older: checkpoint {newer} is known, but cannot be used, and what was written \
             after checkpoint {} is not shown",
            volume.shown().cno()
        )
    }));
    said.extend(volume.unrecovered().map(|why| {
        format!(
            "{device}: lost, or older: what was fsynced after checkpoint {} is not shown: {why}",
            volume.shown().cno()
        )
    }));
    said.extend(adopted.first().and_then(|path| path.rsplit_once('/')).map(|(dir, _)| {
        let files = match adopted.len() {
            1 => "1 file or directory, which is".to_owned(),
            count => format!("{count} files or directories, which are"),
        };
        format!("{device}: not lost: no name leads to {files} in {}", printable(dir.as_bytes()))
    }));
    said
}
