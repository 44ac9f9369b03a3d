//! What is to be measured: suites, and what the user chooses from them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::file_systems::{self, FileSystem, OURS, SMALL_FLASH_PAGES};
use crate::model::preset::{self, Preset};
use crate::names::wrong;
use crate::results::Clock;
use crate::workloads::{self, Measure, Modes, Setting, Workload};

/// Where to run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Where {
    /// On this machine if its kernel can mount all that is asked for, else in a virtual one.
    #[default]
    Auto,
    /// On this machine.
    Host,
    /// In a virtual machine.
    Vm,
}

/// A workload on a device: rows of figures, with a column for each file system.
#[derive(Debug, Clone)]
pub struct Table {
    /// What is done.
    pub workload: &'static Workload,
    /// The device.
    pub device: Preset,
    /// The file systems that take part.
    pub file_systems: Vec<FileSystem>,
    /// At least this part of the original sizes is done.
    pub least_scale: f64,
}

/// Everything about a run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Name of the suite; `None`: a selection of the user's own.
    pub suite: Option<String>,
    /// The tables, in order.
    pub tables: Vec<Table>,
    /// The part of the original sizes.
    pub scale: f64,
    /// How often each workload is repeated.
    pub runs: u32,
    /// Where.
    pub place: Where,
    /// Which clock; `None`: the one that suits the place.
    pub clock: Option<Clock>,
    /// Where results go.
    pub directory: PathBuf,
    /// Our program.
    pub nilfs: PathBuf,
    /// Whether to keep the traces, in `traces`.
    pub keep_traces: bool,
}

impl Plan {
    /// Everything to do: each table with each of its file systems.
    pub fn jobs(&self) -> impl Iterator<Item = (&Table, &FileSystem)> {
        self.tables.iter().flat_map(|table| table.file_systems.iter().map(move |fs| (table, fs)))
    }

    /// What is found out about a table, in the order of the steps.
    #[must_use]
    pub fn measures(&self, table: &Table, setting: &Setting) -> Vec<Measure> {
        let steps = (table.workload.steps)(setting).into_iter();
        steps.flat_map(|step| step.measures).filter(|measure| self.wants(measure)).collect()
    }

    /// How many figures a file system gets from a table.
    #[must_use]
    pub fn figures(&self, table: &Table) -> usize {
        self.measures(table, &table.setting(self.scale)).len()
    }

    /// Whether the figure means something by the clock of this plan.
    #[must_use]
    pub fn wants(&self, measure: &Measure) -> bool {
        match self.clock {
            Some(Clock::Device | Clock::Busy) => measure.without_pace(),
            Some(Clock::Paced) | None => true,
        }
    }
}

/// A choice of tables that belong together.
#[derive(Debug)]
pub struct Suite {
    /// Its name.
    pub name: &'static str,
    /// What it is for.
    pub about: &'static str,
    /// The scale, unless the user wants another.
    pub scale: &'static str,
    groups: &'static [Group],
}

#[derive(Debug)]
struct Group {
    workloads: &'static [&'static str],
    devices: &'static [&'static str],
    file_systems: &'static [&'static str],
    /// A smaller part than this would be another workload: a file that fits what a card has open or
    /// an SSD's memory, a tree of a few directories.
    least_scale: f64,
}

const STICK: &str = "usb-2010";
const CARD: &str = "microsd-2012";
const FIRST_SSD: &str = "ssd-2009";
const X18M: &str = "x18-m";

const EVERYONE: &[&str] = &[
    "ext2",
    "ext3",
    "ext4",
    "ext4-nojournal",
    "btrfs",
    "btrfs-ssd",
    "nilfs2",
    "f2fs",
    "f2fs-lfs",
    "vfat",
    OURS,
];

/// A workload that was asked for and is not in the suite.
const ON_A_CARD: Group =
    Group { workloads: &[], devices: &[CARD], file_systems: EVERYONE, least_scale: 0.0 };

/// All suites.
pub const SUITES: [Suite; 3] = [
    Suite {
        name: "published",
        about: "the comparisons that others published, each on the device it was made on",
        scale: "1/8",
        groups: &[
            Group {
                workloads: &["big-file"],
                devices: &[STICK],
                file_systems: &["ext2", "ext3", "ext4", "btrfs", "nilfs2", OURS],
                least_scale: 0.0,
            },
            Group {
                workloads: &["gentoo-tree"],
                devices: &[STICK],
                file_systems: &["ext2", "ext3", "ext4", "btrfs", "nilfs2", OURS],
                least_scale: 1.0 / 4.0,
            },
            Group {
                workloads: &["dd"],
                devices: &[FIRST_SSD],
                file_systems: &["ext3", "nilfs2", OURS],
                least_scale: 1.0 / 8.0,
            },
            Group {
                workloads: &["dd-sync"],
                devices: &[X18M],
                file_systems: &["ext4", "nilfs2", OURS],
                least_scale: 1.0 / 4.0,
            },
            Group {
                workloads: &["iozone"],
                devices: &[CARD],
                file_systems: &["ext4", "nilfs2", "f2fs", "f2fs-lfs", "vfat", OURS],
                least_scale: 3.0 / 16.0,
            },
            Group {
                workloads: &["mount-time"],
                devices: &[CARD],
                file_systems: &["ext4", "nilfs2", "f2fs", "f2fs-lfs", "vfat", OURS],
                least_scale: 0.0,
            },
            Group {
                workloads: &["life"],
                devices: &[X18M],
                file_systems: &["ext2", "ext3", "ext4", "ext4-nojournal", OURS],
                least_scale: 0.0,
            },
        ],
    },
    Suite {
        name: "quick",
        about: "a few workloads on two devices, with what this machine's kernel has: some seven \
                minutes, and half an hour in a virtual machine",
        scale: "1/64",
        groups: &[Group {
            workloads: &["big-file", "gentoo-tree", "dd-sync", "iozone", "mount-time", "sqlite"],
            devices: &[CARD, X18M],
            file_systems: &["ext2", "ext4", "btrfs", OURS],
            least_scale: 0.0,
        }],
    },
    Suite {
        name: "full",
        about: "every workload with every file system on cards, sticks and drives; takes a day",
        scale: "1/16",
        groups: &[Group {
            workloads: &[
                "big-file",
                "gentoo-tree",
                "dd",
                "dd-sync",
                "iozone",
                "mount-time",
                "life",
                "postmark",
                "kernel-tree",
                "sqlite",
                "mail-spool",
                "packages",
                "small-fsyncs",
                "fsync-beside-writer",
                "steady-overwrite",
            ],
            devices: &[
                CARD,
                "microsd-cheap",
                STICK,
                "microsd-a1",
                "emmc",
                "ssd-first",
                FIRST_SSD,
                X18M,
                "nvme",
            ],
            file_systems: EVERYONE,
            least_scale: 0.0,
        }],
    },
];

impl Suite {
    /// The suite of a name.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn find(name: &str) -> Result<&'static Self> {
        static ALL: [Suite; 3] = SUITES;
        match ALL.iter().find(|suite| suite.name == name) {
            Some(suite) => Ok(suite),
            None => Err(wrong("suite", name, &SUITES.map(|suite| suite.name))),
        }
    }
}

/// What the user has chosen; what is empty is left to the suite.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// Names of workloads.
    pub workloads: Vec<String>,
    /// Names of devices, or paths of presets.
    pub devices: Vec<String>,
    /// Names of file systems with options.
    pub file_systems: Vec<String>,
}

impl Choice {
    /// The name under which the results are reported: that of the suite, if all of it is measured
    /// and nothing else.
    #[must_use]
    pub fn suite(&self, suite: &Suite) -> Option<String> {
        (*self == Self::default()).then(|| suite.name.to_owned())
    }

    /// The tables of a suite that are left, with what was chosen in place of its own. Workloads
    /// that the suite does not have are measured with all file systems on a card.
    ///
    /// # Errors
    /// A name that does not exist, or nothing is left.
    pub fn tables(&self, suite: &Suite, nilfs: &Path) -> Result<Vec<Table>> {
        let mut tables = Vec::new();
        for group in suite.groups {
            for name in group.workloads.iter().filter(|name| self.wants(name)) {
                self.add(name, group, nilfs, &mut tables)?;
            }
        }
        for name in &self.workloads {
            if !suite.groups.iter().any(|group| group.workloads.contains(&name.as_str())) {
                self.add(name, &ON_A_CARD, nilfs, &mut tables)?;
            }
        }
        ensure!(!tables.is_empty(), "there is nothing to measure");
        // One device after the other, as they are read.
        let mut devices: Vec<String> = Vec::new();
        for table in &tables {
            if !devices.contains(&table.device.name) {
                devices.push(table.device.name.clone());
            }
        }
        tables.sort_by_key(|table| devices.iter().position(|name| *name == table.device.name));
        Ok(tables)
    }

    fn wants(&self, workload: &str) -> bool {
        self.workloads.is_empty() || self.workloads.iter().any(|name| name == workload)
    }

    fn add(
        &self,
        workload: &str,
        group: &Group,
        nilfs: &Path,
        tables: &mut Vec<Table>,
    ) -> Result<()> {
        let workload = workloads::find(workload)?;
        let devices = chosen(&self.devices, group.devices);
        let names = chosen(&self.file_systems, group.file_systems);
        for device in devices {
            let device = preset::find(device)?;
            let mut file_systems: Vec<FileSystem> = Vec::new();
            for name in &names {
                let found = file_systems::find(name, nilfs)?;
                file_systems.extend(in_modes(workload.modes, found, &device));
            }
            let mut names = HashSet::new();
            file_systems.retain(|system| names.insert(system.name.clone()));
            tables.push(Table { workload, device, file_systems, least_scale: group.least_scale });
        }
        Ok(())
    }
}

fn chosen<'a>(own: &'a [String], given: &[&'a str]) -> Vec<&'a str> {
    match own {
        [] => given.to_vec(),
        own => own.iter().map(String::as_str).collect(),
    }
}

/// A file system in each of the modes that a workload is about, unless somebody has named one.
fn in_modes(modes: Modes, found: FileSystem, device: &Preset) -> Vec<FileSystem> {
    match modes {
        _ if found.has_options() => vec![found],
        Modes::AccessTimes if found.keeps_access_times() => {
            ["strictatime", "relatime", "noatime"].map(|mode| found.with(mode)).to_vec()
        }
        Modes::FlashPages if found.base_name() == OURS && device.has_pages_of(4 << 10) => {
            let told = found.with(SMALL_FLASH_PAGES);
            vec![found, told]
        }
        _ => vec![found],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(suite: &str, choice: &Choice) -> Result<Vec<Table>> {
        choice.tables(Suite::find(suite)?, Path::new("nilfs"))
    }

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_a_whole_suite_goes_by_its_name() {
        let quick = Suite::find("quick").unwrap();
        assert_eq!(Choice::default().suite(quick).as_deref(), Some("quick"));
        for own in [
            Choice { workloads: words(&["dd"]), ..Choice::default() },
            Choice { devices: words(&[CARD]), ..Choice::default() },
            Choice { file_systems: words(&["ext4"]), ..Choice::default() },
        ] {
            assert_eq!(own.suite(quick), None, "{own:?}");
        }
    }

    #[test]
    fn what_is_chosen_replaces_what_the_suite_has() {
        let choice = Choice {
            workloads: words(&["iozone", "postmark"]),
            devices: words(&[X18M]),
            file_systems: words(&["ext4:discard", OURS]),
        };
        let tables = tables("published", &choice).unwrap();
        let names: Vec<_> = tables.iter().map(|table| table.workload.name).collect();
        assert_eq!(names, ["iozone", "postmark"]);
        for table in tables {
            assert_eq!(table.device.name, X18M);
            let systems: Vec<_> = table.file_systems.iter().map(|fs| fs.name.as_str()).collect();
            assert_eq!(systems, ["ext4:discard", OURS]);
        }
    }

    #[test]
    fn a_life_is_lived_with_each_mode_of_access_times() {
        let choice = Choice {
            workloads: words(&["life"]),
            file_systems: words(&["ext4", "ext2:noatime", "nilfs2"]),
            ..Choice::default()
        };
        let tables = tables("published", &choice).unwrap();
        let systems: Vec<_> = tables[0].file_systems.iter().map(|fs| fs.name.as_str()).collect();
        let modes = ["ext4:strictatime", "ext4:relatime", "ext4:noatime"];
        assert_eq!(systems, [&modes[..], &["ext2:noatime", "nilfs2"]].concat());
    }

    #[test]
    fn where_pages_are_small_ours_is_also_told_so() {
        let choice = Choice { workloads: words(&["small-fsyncs"]), ..Choice::default() };
        for table in tables("full", &choice).unwrap() {
            let is_told = table.file_systems.iter().any(|fs| fs.name == "nilfs:flash-page=4K");
            let has_small_pages = table.device.ssd.as_ref().is_some_and(|it| it.page_bytes == 4096);
            assert_eq!(is_told, has_small_pages, "{}", table.device.name);
            assert!(table.file_systems.iter().any(|fs| fs.name == OURS));
        }
        let both = words(&[OURS, "nilfs:flash-page=4K"]);
        let tables = tables("full", &Choice { file_systems: both, ..choice }).unwrap();
        assert!(tables.iter().all(|table| table.file_systems.len() == 2), "none is there twice");
    }

    #[test]
    fn every_suite_can_be_planned() {
        for suite in &SUITES {
            assert!(!tables(suite.name, &Choice::default()).unwrap().is_empty(), "{}", suite.name);
            workloads::scale_of(suite.scale).unwrap();
        }
    }
}
