//! Our own file, in TOML: the table `[cleaner]` with the words of nilfs_cleanerd.conf and a few
//! more.

use serde::Deserialize;

use super::settings::CleanerSettings;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    cleaner: CleanerSettings,
}

/// Reads a file. If anything is wrong with it, `warn` hears what, and nothing of it counts.
pub fn parse(text: &str, warn: &mut dyn FnMut(Option<usize>, String)) -> CleanerSettings {
    match toml::from_str::<File>(text) {
        Ok(file) => file.cleaner,
        Err(error) => {
            let at = error.span().map(|span| span.start.min(text.len()));
            let line = at.map(|at| text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count());
            let (line, source) = match line {
                Some(nth) => (Some(nth + 1), text.lines().nth(nth).unwrap_or_default().trim()),
                None => (None, ""),
            };
            let problem = error.message().replace('\n', " ");
            warn(line, format!("{problem} ({source}); the whole file is left aside"));
            CleanerSettings::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nilfs_engine::{Amount, Policy};

    use super::super::settings::Protection;
    use super::*;

    fn read(text: &str) -> Result<CleanerSettings, String> {
        let mut warning = None;
        let settings = parse(text, &mut |line, problem| {
            warning = Some(format!("{}: {problem}", line.unwrap_or_default()));
        });
        match warning {
            Some(warning) => {
                assert_eq!(settings, CleanerSettings::default());
                Err(warning)
            }
            None => Ok(settings),
        }
    }

    #[test]
    fn every_setting_has_its_meaning() {
        let settings = read(
            "[cleaner]\n\
             enabled = false\n\
             policy = 'cost-benefit'\n\
             protection_period = '2h'\n\
             protection = 'hard'\n\
             min_clean_segments = 100\n\
             max_clean_segments = '10GB'\n\
             clean_check_interval = 5\n\
             nsegments_per_clean = 64\n\
             mc_nsegments_per_clean = 1\n\
             cleaning_interval = 0.25\n\
             mc_cleaning_interval = 0\n\
             min_reclaimable_blocks = '20%'\n\
             mc_min_reclaimable_blocks = 1\n",
        );
        let expected = CleanerSettings {
            enabled: Some(false),
            policy: Some(Policy::CostBenefit),
            protection_period: Some(Duration::from_secs(7200)),
            protection: Some(Protection::Hard),
            min_clean_segments: Some(Amount::Count(100)),
            max_clean_segments: Some(Amount::Bytes(10_000_000_000)),
            clean_check_interval: Some(Duration::from_secs(5)),
            nsegments_per_clean: Some(64),
            mc_nsegments_per_clean: Some(1),
            cleaning_interval: Some(Duration::from_millis(250)),
            mc_cleaning_interval: Some(Duration::ZERO),
            min_reclaimable_blocks: Some(Amount::Percent(20)),
            mc_min_reclaimable_blocks: Some(Amount::Count(1)),
        };
        assert_eq!(settings, Ok(expected));
        assert_eq!(read(""), Ok(CleanerSettings::default()));
    }

    #[test]
    fn what_is_wrong_is_named_with_line_and_key() {
        for (text, line, words) in [
            ("[cleaner]\nenabled = true\nspeed = 5\n", "3: ", "speed"),
            ("[cleaner]\npolicy = 'newest'\n", "2: ", "expected timestamp, greedy or cost-benefit"),
            ("[cleaner]\n\nprotection_period = -1\n", "3: ", "protection_period = -1"),
            ("[cleaner]\nprotection = 'firm'\n", "2: ", "expected soft or hard"),
            ("[cleaner]\nmin_clean_segments = '101%'\n", "2: ", "at most 100%"),
            ("[cleaner]\ncleaning_interval = nan\n", "2: ", "cleaning_interval"),
            ("[cleaner]\nenabled = 'yes'\n", "2: ", "enabled"),
            ("[sweeper]\n", "1: ", "sweeper"),
            ("[cleaner\n", "1: ", "[cleaner"),
        ] {
            let warning = read(text).unwrap_err();
            assert!(warning.starts_with(line) && warning.contains(words), "{text:?}: {warning}");
        }
    }
}
