//! What a run has found: the content of `results.json`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::draw::Picture;
use crate::failure::{Failure, Status};
use crate::model::{Limits, Wear};
use crate::place::Surroundings;
use crate::trace::Traffic;

/// The file with the results, in the directory of a run.
pub(crate) const FILE_NAME: &str = "results.json";

/// All that one run has found.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Results {
    /// Where it ran.
    pub surroundings: Surroundings,
    /// The suite: "published", "quick" or "full"; `None`: a selection of the user's own.
    pub suite: Option<String>,
    /// The part of the original sizes: 1.0 or less.
    pub scale: f64,
    /// The same for each workload: where so small a part would be something else, it was more.
    #[serde(default)]
    pub scales: BTreeMap<String, f64>,
    /// Which figures count.
    pub clock: Clock,
    /// Versions of mkfs programs and of others that took part, by name.
    pub versions: BTreeMap<String, String>,
    /// Devices, by name: what they can do at best.
    pub devices: BTreeMap<String, Limits>,
    /// Everything measured.
    pub cells: Vec<Cell>,
    /// Figures that were planned and not yet there when this was saved: some, after an interrupted
    /// run.
    #[serde(default)]
    pub missing: usize,
    /// What reached the devices, as small pictures.
    #[serde(default)]
    pub pictures: Vec<Drawn>,
}

impl Results {
    /// What a run has saved in its directory; `None` if nothing.
    ///
    /// # Errors
    /// The file cannot be read, or is not one of results.
    pub fn load(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join(FILE_NAME);
        if !path.exists() {
            return Ok(None);
        }
        Self::read(&path).map(Some)
    }

    /// The results in a file.
    ///
    /// # Errors
    /// As [`Results::load`], or there is no such file.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|error| {
            let why = format!("cannot read {}: {error}", path.display());
            Failure::new(Status::CannotOpen, why)
        })?;
        serde_json::from_str(&text)
            .with_context(|| format!("{} is not the results.json of a run", path.display()))
    }

    /// The part of the original sizes that a workload was done with.
    #[must_use]
    pub fn scale_of(&self, workload: &str) -> f64 {
        self.scales.get(workload).copied().unwrap_or(self.scale)
    }
}

/// A workload that came to its end, on a file system, on a device: what it took and looked like.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Drawn {
    /// Name of the device preset.
    pub device: String,
    /// Name of the workload.
    pub workload: String,
    /// Name of the file system with its options.
    pub file_system: String,
    /// Seconds of the last run on the wall, with all that was prepared for it: how long another one
    /// will take follows from that.
    #[serde(default)]
    pub seconds: f64,
    /// What reached the device in the last run.
    pub picture: Picture,
}

/// Which clock a figure is by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Clock {
    /// The exported device took as long as the model says; seconds on the wall.
    #[default]
    Paced,
    /// The exported device took as long as the model says; the sum of the times it was busy. So
    /// write-back and commit timers run as they do on hardware, but a slow processor costs nothing.
    Busy,
    /// The sum of the times the model was busy, while nobody waited for it.
    Device,
}

/// One figure: a step of a workload, on a file system, on a device.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cell {
    /// Name of the device preset.
    pub device: String,
    /// Name of the workload.
    pub workload: String,
    /// Name of its step.
    pub step: String,
    /// Description of what the step did, with the amounts that were done at the scale of the run.
    #[serde(default)]
    pub about: String,
    /// Name of the file system with its options.
    pub file_system: String,
    /// The unit of the figure.
    pub unit: Unit,
    /// What was found.
    pub outcome: CellResult,
}

/// The unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// 10^6 bytes per second.
    MegabytesPerSecond,
    /// Operations per second.
    PerSecond,
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// 10^6 bytes.
    Megabytes,
}

impl Unit {
    /// Whether a figure is larger where more is done: amounts are, rates are not, and neither are the
    /// times of single operations, which are given in milliseconds.
    #[must_use]
    pub fn grows_with_size(self) -> bool {
        matches!(self, Self::Seconds | Self::Megabytes)
    }

    /// Whether more is better.
    #[must_use]
    pub fn more_is_better(self) -> bool {
        matches!(self, Self::MegabytesPerSecond | Self::PerSecond)
    }
}

/// What came out.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CellResult {
    /// It was measured.
    Measured(Measured),
    /// It was not; why.
    Failed(String),
}

/// What was measured.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Measured {
    /// The figure of each run.
    pub runs: Vec<f64>,
    /// Their median.
    pub median: f64,
    /// The magic number the kernel gave for the mounted file system (statfs `f_type`).
    pub magic: u64,
    /// Seconds on the wall, of the median run.
    pub wall_seconds: f64,
    /// Seconds the device was busy, of the median run.
    pub device_seconds: f64,
    /// What reached the device, in the median run.
    pub traffic: Traffic,
    /// What the flash suffered, in the median run.
    pub wear: Wear,
    /// What the device could do at best in this step, in the unit of the figure, if that is known.
    pub limit: Option<f64>,
    /// The trace of the median run, if it was kept: a path relative to the results.
    pub trace: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run that goes on with what it has saved reports the very figures of before. This one was
    /// read as its neighbour, the next greater.
    #[test]
    fn a_figure_is_read_as_it_was_saved() {
        let scale = 1.886_117_103_478_314_2;
        let saved = serde_json::to_string(&Results { scale, ..Results::default() }).unwrap();
        let read: Results = serde_json::from_str(&saved).unwrap();
        assert_eq!(read.scale.to_bits(), scale.to_bits(), "saved as {saved}");
    }
}
