//! nilfs_cleanerd.conf: one `keyword [argument]` in a line, `#` begins a comment (docs/cleaning.md).
//!
//! nilfs-utils installs such a file for everybody, and it spells out what nilfs_cleanerd does
//! anyway. Nobody has chosen that. So where our cleaner has better ways of its own (the policy, how
//! many segments it cleans in a step, and how long it pauses), a value that is nilfs_cleanerd's
//! default says nothing; every other value is obeyed. Who wants just that value says it in our own
//! file or as a mount option.

use std::time::Duration;

use nilfs_engine::{Amount, Policy};

use super::settings::{self, CleanerSettings};

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

/// Reads a file; `warn` hears of each line that is not understood, and why.
pub fn parse(text: &str, warn: &mut dyn FnMut(Option<usize>, String)) -> CleanerSettings {
    let mut file = File::default();
    for (nth, line) in text.lines().enumerate() {
        let line = line.split_once('#').map_or(line, |(line, _)| line);
        let mut words = line.split_whitespace();
        let Some(keyword) = words.next() else { continue };
        let arguments: Vec<_> = words.collect();
        if let Err(problem) = file.take(keyword, &arguments) {
            warn(Some(nth + 1), problem);
        }
    }
    file.settings()
}

#[derive(Default)]
struct File {
    settings: CleanerSettings,
    use_set_suinfo: bool,
}

impl File {
    fn take(&mut self, keyword: &str, arguments: &[&str]) -> Result<(), String> {
        let one = || match arguments {
            [argument] => Ok(*argument),
            _ => Err(format!("{keyword} needs one value, and has {}", arguments.len())),
        };
        let named = |problem| format!("{keyword}: {problem}");
        let interval = || settings::interval(one()?).map(Some).map_err(named);
        let amount = || settings::amount(one()?).map(Some).map_err(named);
        let count = || segments(one()?).map(Some).map_err(named);
        let settings = &mut self.settings;
        match keyword {
            "protection_period" => settings.protection_period = interval()?,
            "min_clean_segments" => settings.min_clean_segments = amount()?,
            "max_clean_segments" => settings.max_clean_segments = amount()?,
            "clean_check_interval" => settings.clean_check_interval = interval()?,
            "selection_policy" => {
                settings.policy = Some(settings::policy(one()?).map_err(named)?);
            }
            "nsegments_per_clean" => settings.nsegments_per_clean = count()?,
            "mc_nsegments_per_clean" => settings.mc_nsegments_per_clean = count()?,
            "cleaning_interval" => settings.cleaning_interval = interval()?,
            "mc_cleaning_interval" => settings.mc_cleaning_interval = interval()?,
            "min_reclaimable_blocks" => settings.min_reclaimable_blocks = amount()?,
            "mc_min_reclaimable_blocks" => settings.mc_min_reclaimable_blocks = amount()?,
            // What follows has no meaning here but what is checked: memory for a step is there or
            // the mount is not, and segments are read as all else is.
            "retry_interval" => {
                let _: Option<Duration> = interval()?;
            }
            "log_priority" => priority(one()?).map_err(named)?,
            "use_mmap" => flag(keyword, arguments)?,
            "use_set_suinfo" => {
                flag(keyword, arguments)?;
                self.use_set_suinfo = true;
            }
            _ => return Err(format!("there is no setting {keyword:?}")),
        }
        Ok(())
    }

    fn settings(mut self) -> CleanerSettings {
        if !self.use_set_suinfo {
            // Without it nilfs_cleanerd cleans every segment, be there ever so little to reclaim.
            // Where there is nothing at all, nothing would change but the place.
            self.settings.min_reclaimable_blocks = Some(Amount::Count(1));
            self.settings.mc_min_reclaimable_blocks = Some(Amount::Count(1));
        }
        without_defaults(self.settings)
    }
}

/// Leaves out what is said in the file that everybody has.
fn without_defaults(mut settings: CleanerSettings) -> CleanerSettings {
    settings.policy.take_if(|policy| *policy == Policy::Timestamp);
    settings.nsegments_per_clean.take_if(|count| *count == 2);
    settings.mc_nsegments_per_clean.take_if(|count| *count == 4);
    settings.cleaning_interval.take_if(|pause| *pause == Duration::from_secs(5));
    settings.mc_cleaning_interval.take_if(|pause| *pause == Duration::from_secs(1));
    settings
}

fn flag(keyword: &str, arguments: &[&str]) -> Result<(), String> {
    match arguments {
        [] => Ok(()),
        _ => Err(format!("{keyword} has no value")),
    }
}

fn segments(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(count @ 1..=MOST_PER_STEP) => Ok(count),
        _ => Err(format!("expected a number from 1 to {MOST_PER_STEP}, not {text:?}")),
    }
}

fn priority(text: &str) -> Result<(), String> {
    match PRIORITIES.contains(&text) {
        true => Ok(()),
        false => Err(format!("expected one of {}, not {text:?}", PRIORITIES.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::say;

    fn read(text: &str) -> (CleanerSettings, Vec<String>) {
        let mut warnings = Vec::new();
        let settings = parse(text, &mut |line, problem| {
            warnings.push(format!("{}: {problem}", line.unwrap()));
        });
        (settings, warnings)
    }

    #[test]
    fn every_directive_has_its_meaning() {
        let (settings, warnings) = read(
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
        let expected = CleanerSettings {
            enabled: None,
            policy: Some(Policy::Greedy),
            protection_period: Some(Duration::from_millis(7_200_500)),
            protection: None,
            min_clean_segments: Some(Amount::Bytes(10 << 30)),
            max_clean_segments: Some(Amount::Percent(40)),
            clean_check_interval: Some(Duration::from_secs(20)),
            nsegments_per_clean: Some(3),
            mc_nsegments_per_clean: Some(32),
            cleaning_interval: Some(Duration::from_millis(500)),
            mc_cleaning_interval: Some(Duration::ZERO),
            min_reclaimable_blocks: Some(Amount::Percent(20)),
            mc_min_reclaimable_blocks: Some(Amount::Count(5)),
        };
        assert_eq!(settings, expected);
    }

    #[test]
    fn the_file_that_comes_with_nilfs_utils_leaves_our_cleaner_its_own_ways() {
        let Ok(text) = std::fs::read_to_string(super::super::CLEANERD) else {
            return say!("skipped: there is no {}", super::super::CLEANERD);
        };
        let (settings, warnings) = read(&text);
        assert_eq!(warnings, [] as [&str; 0]);
        let expected = CleanerSettings {
            protection_period: Some(Duration::from_secs(3600)),
            min_clean_segments: Some(Amount::Percent(10)),
            max_clean_segments: Some(Amount::Percent(20)),
            clean_check_interval: Some(Duration::from_secs(10)),
            min_reclaimable_blocks: Some(Amount::Percent(10)),
            mc_min_reclaimable_blocks: Some(Amount::Percent(1)),
            ..CleanerSettings::default()
        };
        assert_eq!(settings, expected);
    }

    /// A value of one directive may be the default of another.
    #[test]
    fn all_but_the_default_of_the_very_directive_is_obeyed() {
        let (settings, _) = read(
            "use_set_suinfo\n\
             nsegments_per_clean 4\n\
             mc_nsegments_per_clean 2\n\
             cleaning_interval 1\n\
             mc_cleaning_interval 5\n",
        );
        let expected = CleanerSettings {
            nsegments_per_clean: Some(4),
            mc_nsegments_per_clean: Some(2),
            cleaning_interval: Some(Duration::from_secs(1)),
            mc_cleaning_interval: Some(Duration::from_secs(5)),
            ..CleanerSettings::default()
        };
        assert_eq!(settings, expected);
    }

    #[test]
    fn what_is_wrong_is_named_and_leaves_all_else_in_force() {
        let (settings, warnings) = read(
            "use_set_suinfo\n\
             protection_period\n\
             protection_period 1 2\n\
             protection_period soon\n\
             min_clean_segments 10%\n\
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
            "6: min_clean_segments: expected at most 100%, not 200%",
            "7: nsegments_per_clean: expected a number from 1 to 32, not \"33\"",
            "8: selection_policy: expected timestamp, greedy or cost-benefit, not \"newest\"",
            "9: log_priority: expected one of emerg, alert, crit, err, warning, notice, info, \
             debug, not \"loud\"",
            "10: use_mmap has no value",
            "11: there is no setting \"Protection_Period\"",
        ];
        assert_eq!(warnings, expected);
        let min_clean_segments = Some(Amount::Percent(10));
        assert_eq!(settings, CleanerSettings { min_clean_segments, ..CleanerSettings::default() });
    }

    #[test]
    fn without_use_set_suinfo_the_least_gain_is_enough() {
        let (settings, _) = read("min_reclaimable_blocks 50%\n");
        assert_eq!(settings.min_reclaimable_blocks, Some(Amount::Count(1)));
        assert_eq!(settings.mc_min_reclaimable_blocks, Some(Amount::Count(1)));
    }
}
