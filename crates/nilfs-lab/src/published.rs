//! What others measured: facts and where they are from, kept as data files.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::results::Unit;

/// A figure somebody published.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// Name of the workload that reproduces it.
    pub workload: String,
    /// Name of its step.
    pub step: String,
    /// Names of the devices whose figures it stands next to; `*` if the device does not matter.
    pub devices: Vec<String>,
    /// Name of the file system with its options.
    pub file_system: String,
    /// The unit.
    pub unit: Unit,
    /// The figure, at the original size.
    pub figure: f64,
    /// What the same people got otherwise, such as "in a phone".
    pub others: Vec<(String, f64)>,
    /// What it is from, in words, with the year.
    pub source: String,
    /// Why figures of today are others, as far as that is known.
    pub why: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    source: String,
    /// For rows that do not say it themselves.
    why: Option<String>,
    row: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    workload: String,
    step: String,
    devices: Vec<String>,
    unit: GivenUnit,
    figures: BTreeMap<String, f64>,
    #[serde(default)]
    others: BTreeMap<String, BTreeMap<String, f64>>,
    why: Option<String>,
}

/// Units as they were published.
#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum GivenUnit {
    MegabytesPerSecond,
    /// iozone's: 1024 bytes per second.
    KilobytesPerSecond,
    PerSecond,
    Seconds,
    Milliseconds,
    Megabytes,
}

impl GivenUnit {
    /// Ours, and by how much to multiply.
    fn ours(self) -> (Unit, f64) {
        match self {
            Self::MegabytesPerSecond => (Unit::MegabytesPerSecond, 1.0),
            Self::KilobytesPerSecond => (Unit::MegabytesPerSecond, 1024e-6),
            Self::PerSecond => (Unit::PerSecond, 1.0),
            Self::Seconds => (Unit::Seconds, 1.0),
            Self::Milliseconds => (Unit::Milliseconds, 1.0),
            Self::Megabytes => (Unit::Megabytes, 1.0),
        }
    }
}

const FILES: [(&str, &str); 5] = [
    ("usb-2010", include_str!("../published/usb-2010.toml")),
    ("sata-ssd-2009", include_str!("../published/sata-ssd-2009.toml")),
    ("x18m-2010", include_str!("../published/x18m-2010.toml")),
    ("microsd-2012", include_str!("../published/microsd-2012.toml")),
    ("life-2009", include_str!("../published/life-2009.toml")),
];

static ALL: OnceLock<Vec<Published>> = OnceLock::new();

/// All published figures.
///
/// # Errors
/// A data file is wrong; a test sees to it that none is.
pub fn all() -> Result<Vec<Published>> {
    let mut all = Vec::new();
    for (name, text) in FILES {
        let file: File = toml::from_str(text).with_context(|| format!("published/{name}.toml"))?;
        for row in &file.row {
            all.extend(row.figures(&file));
        }
    }
    Ok(all)
}

impl Row {
    fn figures(&self, file: &File) -> impl Iterator<Item = Published> {
        let (unit, factor) = self.unit.ours();
        self.figures.iter().map(move |(file_system, figure)| Published {
            workload: self.workload.clone(),
            step: self.step.clone(),
            devices: self.devices.clone(),
            file_system: file_system.clone(),
            unit,
            figure: figure * factor,
            others: self
                .others
                .iter()
                .filter_map(|(where_, row)| Some((where_.clone(), row.get(file_system)? * factor)))
                .collect(),
            source: file.source.clone(),
            why: self.why.as_ref().or(file.why.as_ref()).cloned(),
        })
    }
}

/// The figure to hold a cell against, if there is one.
#[must_use]
pub fn figure(workload: &str, step: &str, device: &str, file_system: &str) -> Option<Published> {
    let fits = |published: &Published| {
        published.workload == workload
            && published.step == step
            && published.file_system == file_system
            && published.devices.iter().any(|name| name == "*" || name == device)
    };
    // The files are part of the program and tested; nobody can give others.
    ALL.get_or_init(|| all().unwrap_or_default()).iter().find(|published| fits(published)).cloned()
}
