//! Presets: what the built-in devices are like, and files of the same kind that users write.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::card::Card;
use super::check::{Nonsense, multiple, within};
use super::disk::Disk;
use super::ssd::Ssd;
use super::{Limits, Model};
use crate::names::unknown;

/// The built-in presets, in the order in which they are listed.
const BUILT_IN: [(&str, &str); 11] = [
    ("microsd-2012", include_str!("../../presets/microsd-2012.toml")),
    ("microsd-cheap", include_str!("../../presets/microsd-cheap.toml")),
    ("usb-2010", include_str!("../../presets/usb-2010.toml")),
    ("olpc-sd", include_str!("../../presets/olpc-sd.toml")),
    ("microsd-a1", include_str!("../../presets/microsd-a1.toml")),
    ("emmc", include_str!("../../presets/emmc.toml")),
    ("ssd-first", include_str!("../../presets/ssd-first.toml")),
    ("x18-m", include_str!("../../presets/x18-m.toml")),
    ("ssd-2009", include_str!("../../presets/ssd-2009.toml")),
    ("nvme", include_str!("../../presets/nvme.toml")),
    ("disk-5400", include_str!("../../presets/disk-5400.toml")),
];

/// The least a file system can be made on, and the most that is sensible.
const CAPACITY: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 50;

/// What FUSE lets through in one request, which the lab's devices are behind.
const MOST_REQUEST_BYTES: u64 = 1 << 20;

fn most_request_bytes() -> u64 {
    MOST_REQUEST_BYTES
}

/// What the lab's devices let their users have under way.
const MOST_QUEUE_DEPTH: u16 = 64;

/// A kind of device. One of `card`, `ssd` and `disk` says how it works.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// What it is called on the command line.
    pub name: String,
    /// What it is called in a report.
    pub title: String,
    /// What it stands for, and how its parameters were chosen.
    pub about: String,
    /// Where the parameters come from.
    pub sources: Vec<String>,
    /// Bytes of the original.
    pub capacity: u64,
    /// The largest request that the host's driver made of it.
    #[serde(default = "most_request_bytes")]
    pub request_bytes: u64,
    /// Requests that the host's driver has under way at a time. The others wait in the scheduler, which
    /// puts them in order: 1 on cards and on sticks without a queue of commands.
    pub queue_depth: u16,
    /// A card or stick.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<Card>,
    /// A solid-state disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssd: Option<Ssd>,
    /// A rotating disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
}

/// Why there is no preset, or no model of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither built in nor a file.
    #[error("{0}; or give the path of a .toml file")]
    Unknown(String),
    /// The file cannot be read.
    #[error("cannot read {path}: {reason}")]
    Read {
        /// Its path.
        path: String,
        /// What the system said.
        reason: std::io::Error,
    },
    /// It is not TOML, a field is missing or unknown, or is of the wrong type.
    #[error("{origin}: {reason}")]
    Syntax {
        /// The preset, or the path of its file.
        origin: String,
        /// Where and what.
        reason: Box<toml::de::Error>,
    },
    /// A field makes no sense.
    #[error("{origin}: {field} {reason}")]
    Nonsense {
        /// The preset, or the path of its file.
        origin: String,
        /// The field.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// The result of looking for a preset.
pub type Result<T> = std::result::Result<T, Error>;

/// All presets that are built in.
///
/// # Panics
/// If one of them is not valid, which a test rules out.
#[must_use]
pub fn all() -> Vec<Preset> {
    let built_in = BUILT_IN.iter().map(|(name, text)| parse(name, text));
    built_in.map(|preset| preset.expect("built-in presets are tested")).collect()
}

/// The built-in preset of this name, or the one in a file.
///
/// # Errors
/// If there is none, or it is not valid: which field, and why.
pub fn find(name_or_path: &str) -> Result<Preset> {
    if let Some((name, text)) = BUILT_IN.iter().find(|(name, _)| *name == name_or_path) {
        return parse(name, text);
    }
    let is_path = name_or_path.contains('/') || name_or_path.ends_with(".toml");
    if !is_path {
        let known = BUILT_IN.map(|(name, _)| name);
        return Err(Error::Unknown(unknown("device", name_or_path, &known)));
    }
    let text = std::fs::read_to_string(Path::new(name_or_path))
        .map_err(|reason| Error::Read { path: name_or_path.to_owned(), reason })?;
    parse(name_or_path, &text)
}

/// Reads a preset; `origin` is where it comes from, for messages.
///
/// # Errors
/// If it is not valid: which field, and why.
pub fn parse(origin: &str, text: &str) -> Result<Preset> {
    let preset: Preset = toml::from_str(text)
        .map_err(|reason| Error::Syntax { origin: origin.to_owned(), reason: reason.into() })?;
    preset.check().map_err(|nonsense| nonsense.of(origin))?;
    Ok(preset)
}

impl Preset {
    /// Whether it is flash with pages of this size in bytes.
    #[must_use]
    pub fn has_pages_of(&self, bytes: u64) -> bool {
        let card = self.card.as_ref().map(|card| card.page_bytes);
        let ssd = self.ssd.as_ref().map(|ssd| ssd.page_bytes);
        card.or(ssd) == Some(bytes)
    }

    /// A device of this kind with this many bytes: units, rates and times are those of the
    /// original.
    ///
    /// # Errors
    /// If a field makes no sense, or the size.
    pub fn model(&self, device_bytes: u64) -> Result<Box<dyn Model>> {
        self.build(device_bytes).map_err(|nonsense| nonsense.of(&self.name))
    }

    /// What a device of this kind can do at best, in requests as large as it takes.
    ///
    /// # Errors
    /// If a field makes no sense.
    pub fn limits(&self) -> Result<Limits> {
        /// Limits do not depend on the size, and a small device is soon made.
        const DEVICE_BYTES: u64 = 512 << 20;
        Ok(self.model(DEVICE_BYTES)?.limits(self.request_bytes))
    }

    fn build(&self, device_bytes: u64) -> std::result::Result<Box<dyn Model>, Nonsense> {
        match (&self.card, &self.ssd, &self.disk) {
            (Some(card), None, None) => Ok(Box::new(card.model(device_bytes)?)),
            (None, Some(ssd), None) => Ok(Box::new(ssd.model(device_bytes)?)),
            (None, None, Some(disk)) => Ok(Box::new(disk.model(device_bytes)?)),
            _ => Err(Nonsense::new("card, ssd, disk", "exactly one of them must be there")),
        }
    }

    fn check(&self) -> std::result::Result<(), Nonsense> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.name.is_empty() || !self.name.chars().all(plain) {
            let reason = format!("is '{}', must be of a-z, 0-9 and -", self.name);
            return Err(Nonsense::new("name", reason));
        }
        if self.title.trim().is_empty() {
            return Err(Nonsense::new("title", "is empty"));
        }
        within("capacity", self.capacity, CAPACITY)?;
        within("request_bytes", self.request_bytes, 4096..=MOST_REQUEST_BYTES)?;
        multiple("request_bytes", self.request_bytes, 4096, "4096")?;
        within("queue_depth", u64::from(self.queue_depth), 1..=u64::from(MOST_QUEUE_DEPTH))?;
        match (&self.card, &self.ssd, &self.disk) {
            (Some(card), None, None) => card.check(),
            (None, Some(ssd), None) => ssd.check(),
            (None, None, Some(disk)) => disk.check(),
            _ => Err(Nonsense::new("card, ssd, disk", "exactly one of them must be there")),
        }
    }
}

impl Nonsense {
    fn of(self, origin: &str) -> Error {
        let Self { field, reason } = self;
        Error::Nonsense { origin: origin.to_owned(), field, reason }
    }
}
