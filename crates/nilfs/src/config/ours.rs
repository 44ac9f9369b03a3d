//! Our own file, in TOML: the table `[cleaner]` with the words of nilfs_cleanerd.conf and a few
//! more, and the table `[snapshots]`.

use std::collections::BTreeMap;

use nilfs_engine::CleanerOptions;
use serde::Deserialize;
use toml::{Spanned, Value};

use super::settings;
use crate::retention::Retention;

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct File {
    cleaner: BTreeMap<String, Spanned<Value>>,
    snapshots: Snapshots,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Snapshots {
    keep: Option<Spanned<String>>,
}

/// Reads a file into settings. If anything is wrong with it, `warn` hears what, and nothing of it
/// counts.
pub fn read(
    text: &str,
    options: &mut CleanerOptions,
    keep: &mut Retention,
    warn: &mut dyn FnMut(Option<usize>, String),
) {
    match parse(text, *options, *keep) {
        Ok(changed) => (*options, *keep) = changed,
        Err(Problem { at, what }) => {
            let line = at.map(|at| text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count());
            let (line, source) = match line {
                Some(nth) => (Some(nth + 1), text.lines().nth(nth).unwrap_or_default().trim()),
                None => (None, ""),
            };
            warn(line, format!("{what} ({source}); the whole file is left aside"));
        }
    }
}

struct Problem {
    /// Bytes of the text before it.
    at: Option<usize>,
    what: String,
}

fn parse(
    text: &str,
    mut options: CleanerOptions,
    mut keep: Retention,
) -> Result<(CleanerOptions, Retention), Problem> {
    let file: File = toml::from_str(text).map_err(|error| Problem {
        at: error.span().map(|span| span.start.min(text.len())),
        what: error.message().replace('\n', " "),
    })?;
    let mut settings: Vec<_> = file.cleaner.iter().collect();
    settings.sort_by_key(|(_, value)| value.span().start);
    for (name, value) in settings {
        let set = word(value.get_ref())
            .ok_or_else(|| format!("{name}: expected a number or a word in quotes"))
            .and_then(|word| settings::set(&mut options, name, &word));
        set.map_err(|what| Problem { at: Some(value.span().start), what })?;
    }
    if let Some(rule) = file.snapshots.keep {
        keep = rule.get_ref().parse().map_err(|what| Problem {
            at: Some(rule.span().start),
            what: format!("keep: {what}"),
        })?;
    }
    Ok((options, keep))
}

/// A value as a word: in a file with types, what is a word elsewhere may be a number.
fn word(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(number) => Some(number.to_string()),
        Value::Boolean(is_so) => Some(is_so.to_string()),
        Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nilfs_engine::{Amount, Policy};

    use super::*;

    fn read(text: &str) -> Result<CleanerOptions, String> {
        let mut warning = None;
        let mut options = CleanerOptions::default();
        let mut keep = Retention::default();
        super::read(text, &mut options, &mut keep, &mut |line, problem| {
            warning = Some(format!("{}: {problem}", line.unwrap_or_default()));
        });
        match warning {
            Some(warning) => {
                assert_eq!(options, CleanerOptions::default());
                Err(warning)
            }
            None => Ok(options),
        }
    }

    #[test]
    fn every_setting_has_its_meaning() {
        let settings = read(
            "[cleaner]\n\
             enabled = false\n\
             policy = 'greedy'\n\
             protection_period = '2h'\n\
             protection = 'hard'\n\
             min_clean_segments = 100\n\
             max_clean_segments = '10GB'\n\
             clean_check_interval = 5\n\
             nsegments_per_clean = 63\n\
             mc_nsegments_per_clean = 1\n\
             cleaning_interval = 0.25\n\
             mc_cleaning_interval = 1\n\
             min_reclaimable_blocks = '20%'\n\
             mc_min_reclaimable_blocks = 1\n",
        );
        let expected = CleanerOptions {
            enabled: false,
            policy: Policy::Greedy,
            protection: Duration::from_secs(7200),
            hard_protection: true,
            min_clean: Amount::Count(100),
            max_clean: Amount::Bytes(10_000_000_000),
            check_interval: Duration::from_secs(5),
            segments_per_step: 63,
            urgent_segments_per_step: 1,
            step_interval: Duration::from_millis(250),
            urgent_step_interval: Duration::from_secs(1),
            min_reclaimable: Amount::Percent(20),
            urgent_min_reclaimable: Amount::Count(1),
        };
        assert_eq!(settings, Ok(expected));
        assert_eq!(read(""), Ok(CleanerOptions::default()));
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
            ("[cleaner]\nenabled = 'yes'\n", "2: ", "enabled: expected true or false"),
            ("[cleaner]\npolicy = 'greedy'\npolcy = 'greedy'\n", "3: ", "did you mean policy?"),
            ("[cleaner]\npolicy = [1]\n", "2: ", "expected a number or a word in quotes"),
            ("[snapshots]\nkeep = 'hourly'\n", "2: ", "keep: expected, for example, hourly:24"),
            ("[snapshots]\nkeep = 5\n", "2: ", "string"),
            ("[sweeper]\n", "1: ", "sweeper"),
            ("[cleaner\n", "1: ", "[cleaner"),
        ] {
            let warning = read(text).unwrap_err();
            assert!(warning.starts_with(line) && warning.contains(words), "{text:?}: {warning}");
        }
    }
}
