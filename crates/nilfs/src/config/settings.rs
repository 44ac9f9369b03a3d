//! The cleaner's settings, each defined once, and how their values are written.

use std::time::Duration;

use nilfs_engine::{Amount, CleanerOptions, Policy};

use crate::definition::{self, Definition, Problem, Word, one_of, text};

/// A setting of the cleaner.
type Setting = Definition<CleanerOptions>;

/// All settings, under the names that nilfs_cleanerd has for them. `mc_` is for times when clean
/// segments are few.
pub const SETTINGS: &[Setting] = &[
    Setting::new(
        &[one_of(
            "enabled",
            &[("true", |it| it.enabled = true), ("false", |it| it.enabled = false)],
        )],
        "whether the cleaner works by itself; if not, it does what `nilfs clean` asks for; not in \
         `nilfs_cleanerd.conf`",
    )
    .default("true"),
    Setting::new(
        &[policy_called("policy"), policy_called("selection_policy")],
        "which segments are cleaned first. `cost-benefit`: the most gain for the least moving, and \
         old content first; `greedy`: the fewest live blocks; `timestamp`: what was written longest \
         ago",
    )
    .default("cost-benefit"),
    Setting::new(
        &[text("protection_period", "PERIOD", |it, value| {
            it.protection = interval(value)?;
            Ok(())
        })],
        "checkpoints that are younger are kept as long as there is room",
    )
    .default("3600"),
    Setting::new(
        &[one_of(
            "protection",
            &[("soft", |it| it.hard_protection = false), ("hard", |it| it.hard_protection = true)],
        )],
        "when the volume gets full inside that period. `soft`: give up the oldest checkpoints; \
         `hard`: refuse to write; not in `nilfs_cleanerd.conf`",
    )
    .default("soft"),
    Setting::new(
        &[text("min_clean_segments", "AMOUNT", |it, value| {
            it.min_clean = amount(value)?;
            Ok(())
        })],
        "below it, the cleaner works while others write; 0: there are never enough",
    )
    .default("10%"),
    Setting::new(
        &[text("max_clean_segments", "AMOUNT", |it, value| {
            it.max_clean = amount(value)?;
            Ok(())
        })],
        "above it there is nothing to do",
    )
    .default("20%"),
    Setting::new(
        &[text("clean_check_interval", "PERIOD", |it, value| {
            it.check_interval = interval(value)?;
            Ok(())
        })],
        "time between two looks while there is nothing to do",
    )
    .default("10"),
    Setting::new(
        &[text("nsegments_per_clean", "N", |it, value| {
            it.segments_per_step = number(value)?;
            Ok(())
        })],
        "segments that are cleaned together",
    )
    .default("64"),
    Setting::new(
        &[text("cleaning_interval", "PERIOD", |it, value| {
            it.step_interval = interval(value)?;
            Ok(())
        })],
        "time between two steps",
    )
    .default("0.1"),
    Setting::new(
        &[text("min_reclaimable_blocks", "AMOUNT", |it, value| {
            it.min_reclaimable = amount(value)?;
            Ok(())
        })],
        "segments in which less can be gained are left alone",
    )
    .default("10%"),
    Setting::new(
        &[text("mc_nsegments_per_clean", "N", |it, value| {
            it.urgent_segments_per_step = number(value)?;
            Ok(())
        })],
        "as `nsegments_per_clean`, below `min_clean_segments`",
    )
    .default("64"),
    Setting::new(
        &[text("mc_cleaning_interval", "PERIOD", |it, value| {
            it.urgent_step_interval = interval(value)?;
            Ok(())
        })],
        "as `cleaning_interval`, below `min_clean_segments`",
    )
    .default("0"),
    Setting::new(
        &[text("mc_min_reclaimable_blocks", "AMOUNT", |it, value| {
            it.urgent_min_reclaimable = amount(value)?;
            Ok(())
        })],
        "as `min_reclaimable_blocks`, below `min_clean_segments`",
    )
    .default("5%"),
];

/// nilfs_cleanerd has another name for it.
const fn policy_called(name: &'static str) -> Word<CleanerOptions> {
    one_of(
        name,
        &[
            ("timestamp", |it| it.policy = Policy::Timestamp),
            ("greedy", |it| it.policy = Policy::Greedy),
            ("cost-benefit", |it| it.policy = Policy::CostBenefit),
        ],
    )
}

/// Sets one of them.
///
/// # Errors
/// There is no such setting, or it cannot have such a value.
pub fn set(options: &mut CleanerOptions, name: &str, value: &str) -> Result<(), String> {
    definition::set(SETTINGS, options, name, Some(value)).map_err(|problem| match problem {
        Problem::Unknown(meant) => unknown(name, meant),
        Problem::Value(expected) => wrong(name, value, &expected),
    })
}

/// Says that there is no such setting, and which may be meant.
pub fn unknown(name: &str, meant: Option<&str>) -> String {
    let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
    format!("there is no setting {name:?}{meant}")
}

/// Says that a setting cannot have a value, and what it can have.
pub fn wrong(name: &str, value: &str, expected: &str) -> String {
    format!("{name}: {expected}, not {value:?}")
}

/// What the manual says of values, and shows.
pub const VALUES_HELP: &str = "\
Values:
  amounts
      A number (of segments, or of blocks), a share such as \"10%\", or a size such as \"4G\".
  times
      Seconds, or a time such as \"1h30m\".
What is not a number, true or false stands in quotes.

Examples:
  [cleaner]
      The table that all settings stand in.
  protection_period = \"2h\"
      Keep the last two hours.
  policy = \"greedy\"
      Clean the emptiest segments first.
";

/// A number, a share such as `10%`, or a size such as `4G`, with binary units but for `kB`, `MB`,
/// `GB` and so on. An error says what was expected.
pub fn amount(text: &str) -> Result<Amount, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let expected = || "expected a number, a share such as 10% or a size".to_owned();
    if digits.starts_with('+') {
        return Err(expected());
    }
    let number: u64 = digits.parse().map_err(|_| expected())?;
    match &text[digits.len()..] {
        "" => Ok(Amount::Count(number)),
        "%" => match u8::try_from(number) {
            Ok(percent @ 0..=100) => Ok(Amount::Percent(percent)),
            _ => Err("expected at most 100%".to_owned()),
        },
        unit => {
            let unit = unit_bytes(unit).ok_or_else(expected)?;
            let bytes = number.checked_mul(unit).ok_or("expected a size below 16E")?;
            Ok(Amount::Bytes(bytes))
        }
    }
}

/// The bytes of a unit: `kB` is 1000, `K` and `KiB` are 1024.
fn unit_bytes(unit: &str) -> Option<u64> {
    let (letter, rest) = unit.split_at_checked(1)?;
    let power = match letter {
        "k" | "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        "P" => 5,
        "E" => 6,
        _ => return None,
    };
    let base: u64 = match rest {
        "B" => 1000,
        "" | "iB" => 1024,
        _ => return None,
    };
    base.checked_pow(power)
}

/// What [`interval`] reads, for messages.
const PERIOD: &str = "seconds, or a time such as 1h30m";

/// Seconds, which may have a fraction; or a time with units such as `90 min` or `1h30m`. An
/// error says what was expected.
pub fn interval(text: &str) -> Result<Duration, String> {
    let expected = || format!("expected {PERIOD}");
    if let Ok(seconds) = text.parse() {
        return Duration::try_from_secs_f64(seconds).map_err(|_| expected());
    }
    let time: jiff::SignedDuration = text.parse().map_err(|_| expected())?;
    Duration::try_from(time).map_err(|_| expected())
}

fn number(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "expected a number".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_numbers_shares_and_sizes() {
        for (text, expected) in [
            ("0", Amount::Count(0)),
            ("17", Amount::Count(17)),
            ("100%", Amount::Percent(100)),
            ("1kB", Amount::Bytes(1000)),
            ("1K", Amount::Bytes(1024)),
            ("3MiB", Amount::Bytes(3 << 20)),
            ("2GB", Amount::Bytes(2_000_000_000)),
            ("15E", Amount::Bytes(15 << 60)),
        ] {
            assert_eq!(amount(text), Ok(expected), "{text}");
        }
        for text in
            ["", "%", "101%", "-1", "+1", "1.5", "1X", "1Kb", "16E", "1 0", "10%%", "é", "1é"]
        {
            assert!(amount(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_defaults_are_what_the_cleaner_does_when_it_is_told_nothing() {
        for definition in SETTINGS {
            let names = definition.names();
            for name in names.split(", ") {
                let mut options = CleanerOptions::default();
                definition::set(SETTINGS, &mut options, name, Some(definition.default_value()))
                    .unwrap();
                assert_eq!(options, CleanerOptions::default(), "{name}");
            }
        }
    }

    #[test]
    fn the_documentation_has_every_setting() {
        let page = include_str!("../../../../docs/cleaning.md");
        definition::assert_documented(
            "docs/cleaning.md",
            page,
            &definition::setting_table(SETTINGS),
        );
    }

    #[test]
    fn intervals_are_seconds_unless_they_say_otherwise() {
        for (text, milliseconds) in [
            ("0", 0),
            ("3600", 3_600_000),
            ("0.25", 250),
            ("90 min", 5_400_000),
            ("1h30m", 5_400_000),
        ] {
            assert_eq!(interval(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "-1", "-1h", "soon", "1e300", "nan", "inf"] {
            assert!(interval(text).is_err(), "{text}");
        }
    }
}
