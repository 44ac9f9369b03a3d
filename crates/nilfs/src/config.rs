//! Settings from files, those of the cleaner and of retention: nilfs_cleanerd's own file, and ours,
//! which wins.
//!
//! Nothing in a file can keep a volume from being mounted: what is wrong with it is a warning, and
//! the setting stays as it was. Only a file that somebody has asked for must be there.

mod cleanerd;
mod ours;
mod settings;

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::Context;
use nilfs_engine::CleanerOptions;

use crate::retention::Retention;
pub use cleanerd::HELP as CLEANERD_HELP;

pub use settings::{SETTINGS, VALUES_HELP, amount, interval, set};

/// The settings of nilfs-utils' cleaner (docs/cleaning.md).
const CLEANERD: &str = "/etc/nilfs_cleanerd.conf";

/// Ours.
const OURS: &str = "/etc/nilfs.toml";

/// What files have said.
#[derive(Debug, Default, PartialEq)]
pub struct Loaded {
    /// The settings, with defaults for all that no file names.
    pub cleaner: CleanerOptions,
    /// Which checkpoints are kept as snapshots.
    pub keep: Retention,
    /// What was wrong.
    pub warnings: Vec<Warning>,
}

/// Something in a file that was not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    file: PathBuf,
    line: Option<usize>,
    problem: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl Loaded {
    /// Takes a file in, whose settings win over those so far.
    fn add(&mut self, file: &Path, text: &str) {
        let mut warn = |line, problem| {
            self.warnings.push(Warning { file: file.to_owned(), line, problem });
        };
        match file.extension().is_some_and(|extension| extension == "toml") {
            true => ours::read(text, &mut self.cleaner, &mut self.keep, &mut warn),
            false => cleanerd::read(text, &mut self.cleaner, &mut warn),
        }
    }
}

/// Reads `named` if it is given, else the files of the system, as far as they exist. A name that
/// ends with `.toml` is that of a file in our format.
///
/// # Errors
/// The named file cannot be read.
pub fn load(named: Option<&Path>) -> anyhow::Result<Loaded> {
    let mut loaded = Loaded::default();
    if let Some(file) = named {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read the cleaner's settings in {}", file.display()))?;
        loaded.add(file, &text);
        return Ok(loaded);
    }
    for file in [CLEANERD, OURS].map(Path::new) {
        match std::fs::read_to_string(file) {
            Ok(text) => loaded.add(file, &text),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                let problem = format!("cannot be read: {error}");
                loaded.warnings.push(Warning { file: file.to_owned(), line: None, problem });
            }
        }
    }
    Ok(loaded)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nilfs_engine::{Amount, Policy};

    use super::*;

    #[test]
    fn ours_wins_over_nilfs_cleanerd_s_and_both_over_the_defaults() {
        let mut loaded = Loaded::default();
        let conf = "protection_period 60\nmin_clean_segments 5%\nuse_set_suinfo\n";
        loaded.add(Path::new("a.conf"), conf);
        loaded.add(Path::new("b.toml"), "[cleaner]\nprotection_period = 0\npolicy = \"greedy\"");
        assert_eq!(loaded.warnings, []);
        let expected = CleanerOptions {
            protection: Duration::ZERO,
            policy: Policy::Greedy,
            min_clean: Amount::Percent(5),
            ..CleanerOptions::default()
        };
        assert_eq!(loaded.cleaner, expected);
    }

    #[test]
    fn only_a_file_that_was_asked_for_must_be_there() {
        assert!(load(None).is_ok());
        let error = load(Some(Path::new("/nowhere/cleaner.conf"))).unwrap_err();
        assert!(format!("{error}").contains("/nowhere/cleaner.conf"), "{error}");
    }

    #[test]
    fn a_warning_says_where_and_what() {
        let mut loaded = Loaded::default();
        loaded.add(Path::new("/etc/x.conf"), "use_set_suinfo\nfrobnicate 1\n");
        let said: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(said, ["/etc/x.conf, line 2: there is no setting \"frobnicate\""]);
        assert_eq!(loaded.cleaner, CleanerOptions::default());
    }
}
