//! nilfs_cleanerd.conf: one `keyword [argument]` in a line, `#` begins a comment
//! (docs/cleaning.md).
//!
//! nilfs-utils installs such a file for everybody, and it spells out what nilfs_cleanerd does
//! anyway. Nobody has chosen that. So where our cleaner has better ways of its own (the policy, how
//! many segments it cleans in a step, and how long it pauses), a value that is nilfs_cleanerd's
//! default says nothing; every other value is obeyed. An administrator who wants just that value
//! says it in our own file or as a mount option.

use std::collections::BTreeMap;

use nilfs_engine::CleanerOptions;

use super::settings;

/// What the manual says of the file.
pub const HELP: &str = "\
Settings:
  protection_period, min_clean_segments, max_clean_segments, clean_check_interval
      As in nilfs.toml(5).
  selection_policy
      policy of nilfs.toml(5); all its values are taken.
  nsegments_per_clean, mc_nsegments_per_clean
      As in nilfs.toml(5), but from 1 to 32.
  cleaning_interval, mc_cleaning_interval
      As in nilfs.toml(5).
  use_set_suinfo
      Without this word, the least gain is enough to clean a segment.
  min_reclaimable_blocks, mc_min_reclaimable_blocks
      As in nilfs.toml(5), with use_set_suinfo.
  retry_interval, use_mmap, log_priority
      Checked, and without effect.

Examples:
  protection_period 600
      Keep the last ten minutes.
  selection_policy greedy
      Clean the emptiest segments first.
";

/// As many segments as nilfs_cleanerd cleans in one step, whatever it is told.
const MOST_PER_STEP: u32 = 32;

/// What a file may ask `log_priority` for. Our messages have levels of their own.
const PRIORITIES: [&str; 8] =
    ["emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"];

/// Words that mean here what they mean in our own file, each with nilfs_cleanerd's default where
/// that says nothing.
const SHARED: [(&str, Option<&str>); 11] = [
    ("protection_period", None),
    ("min_clean_segments", None),
    ("max_clean_segments", None),
    ("clean_check_interval", None),
    ("selection_policy", Some("timestamp")),
    (NSEGMENTS, Some("2")),
    (MC_NSEGMENTS, Some("4")),
    ("cleaning_interval", Some("5")),
    ("mc_cleaning_interval", Some("1")),
    (MIN_RECLAIMABLE, None),
    (MC_MIN_RECLAIMABLE, None),
];

const NSEGMENTS: &str = "nsegments_per_clean";
const MC_NSEGMENTS: &str = "mc_nsegments_per_clean";
const MIN_RECLAIMABLE: &str = "min_reclaimable_blocks";
const MC_MIN_RECLAIMABLE: &str = "mc_min_reclaimable_blocks";

/// Reads a file into `options`; `warn` hears of each line that is not understood, and why.
pub fn read(text: &str, options: &mut CleanerOptions, warn: &mut dyn FnMut(Option<usize>, String)) {
    let mut file = File { said: BTreeMap::new(), use_set_suinfo: false };
    for (nth, line) in text.lines().enumerate() {
        let line = line.split_once('#').map_or(line, |(line, _)| line);
        let mut words = line.split_whitespace();
        let Some(keyword) = words.next() else { continue };
        let arguments: Vec<_> = words.collect();
        if let Err(problem) = file.take(keyword, &arguments) {
            warn(Some(nth + 1), problem);
        }
    }
    file.obey(options);
}

/// What a file says.
struct File<'a> {
    /// The value of each word, the last one if there are several.
    said: BTreeMap<&'static str, &'a str>,
    use_set_suinfo: bool,
}

impl<'a> File<'a> {
    fn take(&mut self, keyword: &str, arguments: &[&'a str]) -> Result<(), String> {
        if let Some((name, _)) = SHARED.iter().find(|(name, _)| *name == keyword) {
            let value = one(keyword, arguments)?;
            if [NSEGMENTS, MC_NSEGMENTS].contains(name) {
                segments(value).map_err(|problem| settings::wrong(keyword, value, &problem))?;
            }
            settings::set(&mut CleanerOptions::default(), name, value)?;
            self.said.insert(name, value);
            return Ok(());
        }
        let checked = |check: fn(&str) -> Result<(), String>| {
            let value = one(keyword, arguments)?;
            check(value).map_err(|problem| settings::wrong(keyword, value, &problem))
        };
        match keyword {
            // What follows has no meaning here but what is checked: memory for a step is there or
            // the mount is not, and segments are read as all else is.
            "retry_interval" => checked(|value| settings::interval(value).map(drop)),
            "log_priority" => checked(priority),
            "use_mmap" => flag(keyword, arguments),
            "use_set_suinfo" => {
                flag(keyword, arguments)?;
                self.use_set_suinfo = true;
                Ok(())
            }
            _ => Err(settings::unknown(keyword, None)),
        }
    }

    fn obey(mut self, options: &mut CleanerOptions) {
        if !self.use_set_suinfo {
            // Without it nilfs_cleanerd cleans every segment, be there ever so little to reclaim.
            // Where there is nothing at all, nothing would change but the place.
            self.said.extend([(MIN_RECLAIMABLE, "1"), (MC_MIN_RECLAIMABLE, "1")]);
        }
        for (name, value) in self.said {
            // What the file says that everybody has is left out.
            if !is_default(name, value) {
                // It was tried when the line was read.
                let _ = settings::set(options, name, value);
            }
        }
    }
}

/// Whether a value is the one that nilfs_cleanerd takes by itself, however it is written.
fn is_default(name: &str, value: &str) -> bool {
    let with = |value: &str| {
        let mut options = CleanerOptions::default();
        settings::set(&mut options, name, value).map(|()| options)
    };
    let default = SHARED.iter().find(|(known, _)| *known == name).and_then(|(_, default)| *default);
    default.is_some_and(|default| with(default) == with(value))
}

fn one<'a>(keyword: &str, arguments: &[&'a str]) -> Result<&'a str, String> {
    match arguments {
        [argument] => Ok(*argument),
        _ => Err(format!("{keyword} needs one value, and has {}", arguments.len())),
    }
}

fn flag(keyword: &str, arguments: &[&str]) -> Result<(), String> {
    match arguments {
        [] => Ok(()),
        _ => Err(format!("{keyword} has no value")),
    }
}

fn segments(text: &str) -> Result<(), String> {
    match text.parse() {
        Ok(1..=MOST_PER_STEP) => Ok(()),
        _ => Err(format!("expected a number from 1 to {MOST_PER_STEP}")),
    }
}

fn priority(text: &str) -> Result<(), String> {
    match PRIORITIES.contains(&text) {
        true => Ok(()),
        false => Err(format!("expected one of {}", PRIORITIES.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nilfs_engine::{Amount, Policy};

    use super::*;
    use crate::output::say;

    fn read(text: &str) -> (CleanerOptions, Vec<String>) {
        let mut warnings = Vec::new();
        let mut options = CleanerOptions::default();
        super::read(text, &mut options, &mut |line, problem| {
            warnings.push(format!("{}: {problem}", line.unwrap()));
        });
        (options, warnings)
    }

    #[test]
    fn every_directive_has_its_meaning() {
        let (options, warnings) = read(
            "# all of them\n\
             protection_period 7200.5\n\
             min_clean_segments\t10G # a comment\n\
             \tmax_clean_segments 40%\n\
             clean_check_interval 20\n\
             selection_policy greedy\n\
             nsegments_per_clean 3\n\
             mc_nsegments_per_clean 32\n\
             cleaning_interval 0.5\n\
             mc_cleaning_interval 0\n\
             retry_interval 60\n\
             min_reclaimable_blocks 20%\n\
             mc_min_reclaimable_blocks 5\n\
             use_set_suinfo\n\
             use_mmap\n\
             log_priority debug\n\n",
        );
        assert_eq!(warnings, [] as [&str; 0]);
        let expected = CleanerOptions {
            enabled: true,
            policy: Policy::Greedy,
            protection: Duration::from_millis(7_200_500),
            hard_protection: false,
            min_clean: Amount::Bytes(10 << 30),
            max_clean: Amount::Percent(40),
            check_interval: Duration::from_secs(20),
            segments_per_step: 3,
            urgent_segments_per_step: 32,
            step_interval: Duration::from_millis(500),
            urgent_step_interval: Duration::ZERO,
            min_reclaimable: Amount::Percent(20),
            urgent_min_reclaimable: Amount::Count(5),
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn the_file_that_comes_with_nilfs_utils_leaves_our_cleaner_its_own_ways() {
        let Ok(text) = std::fs::read_to_string(super::super::CLEANERD) else {
            return say!("skipped: there is no {}", super::super::CLEANERD);
        };
        let (options, warnings) = read(&text);
        assert_eq!(warnings, [] as [&str; 0]);
        let expected = CleanerOptions {
            urgent_min_reclaimable: Amount::Percent(1),
            ..CleanerOptions::default()
        };
        assert_eq!(options, expected);
    }

    /// A value of one directive may be the default of another.
    #[test]
    fn all_but_the_default_of_the_very_directive_is_obeyed() {
        let (options, _) = read(
            "use_set_suinfo\n\
             nsegments_per_clean 4\n\
             mc_nsegments_per_clean 2\n\
             cleaning_interval 1\n\
             mc_cleaning_interval 5\n",
        );
        let expected = CleanerOptions {
            segments_per_step: 4,
            urgent_segments_per_step: 2,
            step_interval: Duration::from_secs(1),
            urgent_step_interval: Duration::from_secs(5),
            ..CleanerOptions::default()
        };
        assert_eq!(options, expected);
        let (options, _) = read(
            "use_set_suinfo\n\
             selection_policy timestamp\n\
             nsegments_per_clean 2\n\
             mc_nsegments_per_clean 4\n\
             cleaning_interval 5.0\n\
             mc_cleaning_interval 1s\n",
        );
        assert_eq!(options, CleanerOptions::default());
    }

    #[test]
    fn what_is_wrong_is_named_and_leaves_all_else_in_force() {
        let (options, warnings) = read(
            "use_set_suinfo\n\
             protection_period\n\
             protection_period 1 2\n\
             protection_period soon\n\
             min_clean_segments 15%\n\
             min_clean_segments 200%\n\
             nsegments_per_clean 33\n\
             selection_policy newest\n\
             log_priority loud\n\
             use_mmap yes\n\
             Protection_Period 5\n",
        );
        let expected = [
            "2: protection_period needs one value, and has 0",
            "3: protection_period needs one value, and has 2",
            "4: protection_period: expected seconds, or a time such as 1h30m, not \"soon\"",
            "6: min_clean_segments: expected at most 100%, not \"200%\"",
            "7: nsegments_per_clean: expected a number from 1 to 32, not \"33\"",
            "8: selection_policy: expected timestamp, greedy or cost-benefit, not \"newest\"",
            "9: log_priority: expected one of emerg, alert, crit, err, warning, notice, info, \
             debug, not \"loud\"",
            "10: use_mmap has no value",
            "11: there is no setting \"Protection_Period\"",
        ];
        assert_eq!(warnings, expected);
        let min_clean = Amount::Percent(15);
        assert_eq!(options, CleanerOptions { min_clean, ..CleanerOptions::default() });
    }

    #[test]
    fn without_use_set_suinfo_the_least_gain_is_enough() {
        let (options, _) = read("min_reclaimable_blocks 50%\n");
        assert_eq!(options.min_reclaimable, Amount::Count(1));
        assert_eq!(options.urgent_min_reclaimable, Amount::Count(1));
    }
}
