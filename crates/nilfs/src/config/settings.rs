//! Settings that need not all be there, and how their values are written.

use std::time::Duration;

use nilfs_engine::{Amount, CleanerOptions, Policy};
use serde::Deserialize;
use serde::de::{self, Deserializer, Unexpected, Visitor};

/// What the manual says of them. Amounts and periods are read by [`amount`] and [`interval`].
pub const HELP: &str = "\
Settings:
  enabled
      false: no cleaning but what nilfs-clean(1) asks for. (default: true)
  policy
      Which segments are cleaned first. cost-benefit: the most gain for the least moving, and old
      content first. greedy: the fewest live blocks. timestamp: what was written longest ago.
      (default: cost-benefit)
  protection_period
      Checkpoints that are younger are kept as long as there is room. (default: 3600)
  protection
      When the volume gets full inside that period. soft: give up the oldest checkpoints. hard:
      refuse to write. (default: soft)
  min_clean_segments
      Below it, the cleaner works beside the writers. 0: there are never enough. (default: 10%)
  max_clean_segments
      Above it there is nothing to do. (default: 20%)
  clean_check_interval
      Time between two looks while there is nothing to do. (default: 10)
  nsegments_per_clean
      Segments that are cleaned together. (default: 64)
  cleaning_interval
      Time between two steps. (default: 0.1)
  min_reclaimable_blocks
      Segments in which less can be gained are left alone. (default: 10%)
  mc_nsegments_per_clean
      As nsegments_per_clean, below min_clean_segments. (default: 64)
  mc_cleaning_interval
      As cleaning_interval, below min_clean_segments. (default: 0)
  mc_min_reclaimable_blocks
      As min_reclaimable_blocks, below min_clean_segments. (default: 5%)

Values:
  amounts
      A number (of segments, or of blocks), a share such as \"10%\", or a size such as \"4G\".
  times
      Seconds, or a time such as \"1h30m\".
What is no number stands in quotes.

Examples:
  [cleaner]
      The table that all settings stand in.
  protection_period = \"2h\"
      Keep the last two hours.
  policy = \"greedy\"
      Clean the emptiest segments first.
";

/// Some of the cleaner's settings, under the names that nilfs_cleanerd has for them. `mc_` is for
/// times when clean segments are few.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CleanerSettings {
    pub enabled: Option<bool>,
    #[serde(alias = "selection_policy", deserialize_with = "with::policy")]
    pub policy: Option<Policy>,
    #[serde(deserialize_with = "with::interval")]
    pub protection_period: Option<Duration>,
    #[serde(deserialize_with = "with::protection")]
    pub protection: Option<Protection>,
    #[serde(deserialize_with = "with::amount")]
    pub min_clean_segments: Option<Amount>,
    #[serde(deserialize_with = "with::amount")]
    pub max_clean_segments: Option<Amount>,
    #[serde(deserialize_with = "with::interval")]
    pub clean_check_interval: Option<Duration>,
    pub nsegments_per_clean: Option<u32>,
    pub mc_nsegments_per_clean: Option<u32>,
    #[serde(deserialize_with = "with::interval")]
    pub cleaning_interval: Option<Duration>,
    #[serde(deserialize_with = "with::interval")]
    pub mc_cleaning_interval: Option<Duration>,
    #[serde(deserialize_with = "with::amount")]
    pub min_reclaimable_blocks: Option<Amount>,
    #[serde(deserialize_with = "with::amount")]
    pub mc_min_reclaimable_blocks: Option<Amount>,
}

/// What the protection period is worth on a volume that gets full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// The oldest checkpoints in it are given up before a writer is refused.
    Soft,
    /// A writer is refused.
    Hard,
}

impl CleanerSettings {
    /// These, and those of `other` where these say nothing.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        macro_rules! each {
            ($($field:ident),*) => { Self { $($field: self.$field.or(other.$field)),* } };
        }
        each!(
            enabled,
            policy,
            protection_period,
            protection,
            min_clean_segments,
            max_clean_segments,
            clean_check_interval,
            nsegments_per_clean,
            mc_nsegments_per_clean,
            cleaning_interval,
            mc_cleaning_interval,
            min_reclaimable_blocks,
            mc_min_reclaimable_blocks
        )
    }

    /// `options` with these instead of its own.
    #[must_use]
    pub fn over(self, options: CleanerOptions) -> CleanerOptions {
        CleanerOptions {
            enabled: self.enabled.unwrap_or(options.enabled),
            policy: self.policy.unwrap_or(options.policy),
            protection: self.protection_period.unwrap_or(options.protection),
            hard_protection: match self.protection {
                Some(protection) => protection == Protection::Hard,
                None => options.hard_protection,
            },
            min_clean: self.min_clean_segments.unwrap_or(options.min_clean),
            max_clean: self.max_clean_segments.unwrap_or(options.max_clean),
            check_interval: self.clean_check_interval.unwrap_or(options.check_interval),
            segments_per_step: self.nsegments_per_clean.unwrap_or(options.segments_per_step),
            urgent_segments_per_step: self
                .mc_nsegments_per_clean
                .unwrap_or(options.urgent_segments_per_step),
            step_interval: self.cleaning_interval.unwrap_or(options.step_interval),
            urgent_step_interval: self.mc_cleaning_interval.unwrap_or(options.urgent_step_interval),
            min_reclaimable: self.min_reclaimable_blocks.unwrap_or(options.min_reclaimable),
            urgent_min_reclaimable: self
                .mc_min_reclaimable_blocks
                .unwrap_or(options.urgent_min_reclaimable),
        }
    }
}

/// A number, a share such as `10%`, or a size such as `4G`, with binary units but for `kB`, `MB`,
/// `GB` and so on.
pub fn amount(text: &str) -> Result<Amount, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let expected = || format!("expected a number, a share such as 10% or a size, not {text:?}");
    if digits.starts_with('+') {
        return Err(expected());
    }
    let number: u64 = digits.parse().map_err(|_| expected())?;
    match &text[digits.len()..] {
        "" => Ok(Amount::Count(number)),
        "%" => match u8::try_from(number) {
            Ok(percent @ 0..=100) => Ok(Amount::Percent(percent)),
            _ => Err(format!("expected at most 100%, not {text}")),
        },
        unit => {
            let unit = unit_bytes(unit).ok_or_else(expected)?;
            let bytes = number.checked_mul(unit).ok_or_else(|| format!("{text} is too large"))?;
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
pub const PERIOD: &str = "seconds, or a time such as 1h30m";

/// Seconds, which may have a fraction; or a time with units such as `90 min` or `1h30m`.
pub fn interval(text: &str) -> Result<Duration, String> {
    let expected = || format!("expected {PERIOD}, not {text:?}");
    if let Ok(seconds) = text.parse() {
        return Duration::try_from_secs_f64(seconds).map_err(|_| expected());
    }
    let time: jiff::SignedDuration = text.parse().map_err(|_| expected())?;
    Duration::try_from(time).map_err(|_| expected())
}

/// A protection by its name.
pub fn protection(text: &str) -> Result<Protection, String> {
    match text {
        "soft" => Ok(Protection::Soft),
        "hard" => Ok(Protection::Hard),
        _ => Err(format!("expected soft or hard, not {text:?}")),
    }
}

/// The names of policies.
const POLICIES: [(&str, Policy); 3] = [
    ("timestamp", Policy::Timestamp),
    ("greedy", Policy::Greedy),
    ("cost-benefit", Policy::CostBenefit),
];

/// A policy by its name.
pub fn policy(text: &str) -> Result<Policy, String> {
    let known = POLICIES.iter().find(|(name, _)| *name == text);
    known
        .map(|(_, policy)| *policy)
        .ok_or_else(|| format!("expected timestamp, greedy or cost-benefit, not {text:?}"))
}

/// Values in a file with types: what is a word elsewhere may be a number there.
mod with {
    use super::*;

    pub fn amount<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Amount>, D::Error> {
        from.deserialize_any(Word(super::amount)).map(Some)
    }

    pub fn interval<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        from.deserialize_any(Word(super::interval)).map(Some)
    }

    pub fn protection<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Protection>, D::Error> {
        from.deserialize_any(Word(super::protection)).map(Some)
    }

    pub fn policy<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Policy>, D::Error> {
        from.deserialize_any(Word(super::policy)).map(Some)
    }
}

/// Reads a word, or a number as the word that it would be.
struct Word<T>(fn(&str) -> Result<T, String>);

impl<T> Visitor<'_> for Word<T> {
    type Value = T;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a number or a word in quotes")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        (self.0)(text).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<T, E> {
        match number.is_finite() {
            true => self.visit_str(&number.to_string()),
            false => Err(E::invalid_value(Unexpected::Float(number), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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

    /// The message about an unknown setting lists all that there are.
    #[test]
    fn the_manual_has_every_setting_and_no_other() {
        let error = toml::from_str::<CleanerSettings>("nothing = 1").unwrap_err().to_string();
        let (_, known) = error.split_once("expected one of ").expect(&error);
        let known = known.split(['`', ',', ' ', '\n']).filter(|word| !word.is_empty());
        let described = HELP.lines().skip(1).take_while(|line| !line.is_empty());
        let described = described.filter_map(|line| line.strip_prefix("  "));
        let described: BTreeSet<_> = described.filter(|line| !line.starts_with(' ')).collect();
        let known: BTreeSet<_> = known.filter(|word| *word != "selection_policy").collect();
        assert_eq!(described, known);
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
