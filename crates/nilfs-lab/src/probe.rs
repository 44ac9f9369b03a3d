//! What a device is like, found out from outside in the manner of flashbench: rates, latencies,
//! the size of allocation units and how many can be open. A device is a real one, or a model;
//! a model is probed in its own time, which shows what its preset amounts to.
//!
//! `target` is what requests are sent to, `reading` the part that changes nothing, `writing`
//! the part that overwrites the device and is done on explicit request only, `describe` what
//! people and presets are told.

mod describe;
mod reading;
mod target;
mod writing;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::model::Model;
pub use reading::{Crossing, Reading};
use target::{FileTarget, ModelTarget, Target};
pub use writing::{Turn, Units, Writing};

/// Less is no device.
const LEAST_BYTES: u64 = 8 << 20;

/// What may be done to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Reading only.
    ReadOnly,
    /// Writing too: everything on the device is lost.
    Destructive,
}

/// What has been found out.
#[derive(Debug, Clone)]
pub struct Findings {
    /// Size of the device in bytes.
    pub bytes: u64,
    /// By reading.
    pub reading: Reading,
    /// By writing, if that was allowed.
    pub writing: Option<Writing>,
}

/// The time that requests of one size took in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// The size in bytes.
    pub bytes: u64,
    /// The median.
    pub time: Duration,
}

/// Probes a model in its own time.
///
/// # Errors
/// The device is too small.
pub fn model(model: Box<dyn Model>, bytes: u64, extent: Extent) -> Result<Findings> {
    probe(&mut ModelTarget::new(model, bytes), extent)
}

/// Probes a block device or an image file. On a card, a destructive probe takes minutes.
///
/// # Errors
/// It cannot be read directly, past the page cache; it is to be written but is mounted or in use;
/// a request fails; it is too small.
pub fn device(path: &Path, extent: Extent) -> Result<Findings> {
    probe(&mut FileTarget::open(path, extent)?, extent)
}

fn probe(target: &mut dyn Target, extent: Extent) -> Result<Findings> {
    let bytes = target.bytes();
    ensure!(
        bytes >= LEAST_BYTES,
        "a device of {bytes} bytes is too small to be probed; it takes {LEAST_BYTES}"
    );
    let reading = reading::probe(target)?;
    let writing = match extent {
        Extent::ReadOnly => None,
        Extent::Destructive => Some(writing::probe(target)?),
    };
    Ok(Findings { bytes, reading, writing })
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn mean(times: &[Duration]) -> Duration {
    times.iter().sum::<Duration>() / times.len().max(1) as u32
}

/// Bytes per second, from what a large request takes longer than a small one.
fn rate(small: Timing, large: Timing) -> f64 {
    let time = large.time.saturating_sub(small.time).max(Duration::from_nanos(1));
    (large.bytes - small.bytes) as f64 / time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nilfs_device::{Access, FileDevice};

    use super::*;
    use crate::model::card::Card;
    use crate::model::preset;

    /// Equal within a hundredth.
    fn is_near(found: u64, real: u64) -> bool {
        found.abs_diff(real) * 100 <= real
    }

    /// What a probe cannot see: rates come out rounded, and how finely the file allocation table
    /// is mapped, whether discards help and whether the device was full before are not probed.
    fn but_for_what_is_not_seen(found: &Card, real: &Card) -> Card {
        assert!(is_near(found.read_bytes_per_second, real.read_bytes_per_second));
        assert!(is_near(found.write_bytes_per_second, real.write_bytes_per_second));
        assert!(is_near(found.copy_bytes_per_second, real.copy_bytes_per_second));
        Card {
            read_bytes_per_second: real.read_bytes_per_second,
            write_bytes_per_second: real.write_bytes_per_second,
            copy_bytes_per_second: real.copy_bytes_per_second,
            log_spare_bytes: real.log_spare_bytes,
            fat_page_bytes: real.fat_page_bytes,
            discard: real.discard,
            used: real.used,
            ..found.clone()
        }
    }

    #[test]
    fn a_probe_of_a_card_finds_the_parameters_of_its_preset() {
        let cards = preset::all().into_iter().filter_map(|p| Some((p.card.clone()?, p)));
        for (real, preset) in cards {
            let bytes = 2 << 30;
            let probed = model(preset.model(bytes).unwrap(), bytes, Extent::Destructive).unwrap();
            let text = probed.preset_toml("found").unwrap();
            let found = preset::parse("found", &text).unwrap().card.unwrap();
            assert_eq!(but_for_what_is_not_seen(&found, &real), real, "{}", preset.name);
        }
    }

    #[test]
    fn every_built_in_device_can_be_probed() {
        for preset in preset::all() {
            for bytes in [LEAST_BYTES, 1 << 30] {
                let model_of = || preset.model(bytes).unwrap();
                let read = model(model_of(), bytes, Extent::ReadOnly).unwrap();
                let error = read.preset("found").unwrap_err();
                assert!(error.to_string().contains("destructive"), "{error:#}");
                let written = model(model_of(), bytes, Extent::Destructive).unwrap();
                assert!(written.table().lines().count() > read.table().lines().count());
                written.preset_toml("found").unwrap();
            }
        }
    }

    #[test]
    fn a_device_is_written_only_on_request_and_only_if_nobody_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device");
        let content = vec![0x5A; LEAST_BYTES as usize];
        fs::write(&path, &content).unwrap();
        device(&path, Extent::ReadOnly).unwrap();
        let holder = FileDevice::open(&path, Access::ReadWrite).unwrap();
        let error = device(&path, Extent::Destructive).map(drop).unwrap_err();
        assert!(error.to_string().contains("in use"), "{error:#}");
        assert!(fs::read(&path).unwrap() == content, "nothing was written");
        drop(holder);
        device(&path, Extent::Destructive).unwrap().preset_toml("found").unwrap();
        assert!(fs::read(&path).unwrap() != content, "it was written");
        assert_eq!(path.metadata().unwrap().len(), LEAST_BYTES);
    }

    #[test]
    fn what_is_too_small_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device");
        fs::write(&path, [0; 4096]).unwrap();
        let error = device(&path, Extent::ReadOnly).map(drop).unwrap_err();
        assert!(error.to_string().contains("too small"), "{error:#}");
    }
}
