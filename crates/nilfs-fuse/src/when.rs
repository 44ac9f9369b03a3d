//! A moment of a volume's past, as people name it: [`When`].
//!
//! The words are read here, without a clock and without a volume. What they mean depends on both, and is
//! asked for with [`When::find`]: the newest checkpoint that is not later than the moment.
//!
//! A moment is as long as it was named: a day, a minute or a second. So `2026-11-20` means the last
//! checkpoint of that day, or of the last day before it that has one.

mod error;
mod find;

use std::fmt;
use std::str::FromStr;

use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::tz::TimeZone;
use jiff::{Span, SpanFieldwise, Timestamp, Zoned};
use nilfs_engine::{Cno, SnapshotName};

pub use self::error::{NotAMoment, UnfitName, WhenError};

/// A moment of the past, as it was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct When {
    words: String,
    meaning: Meaning,
}

/// What the words say.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Meaning {
    /// A checkpoint by its number.
    Number(Cno),
    /// A checkpoint by the name that it has in a door.
    Canonical(Cno),
    /// A snapshot by the name that somebody gave to it.
    Name(SnapshotName),
    Now,
    Ago(SpanFieldwise),
    /// A time that is the same everywhere, in seconds since 1970, and how long it is.
    Exact(i64, Length),
    /// A day in the time zone of the one who asks, or a time on it.
    Local(Day, Option<(Time, Length)>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Day {
    Today,
    Yesterday,
    /// The last one before today.
    Last(Weekday),
    Of(Date),
}

/// How long a moment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    Minute,
    Second,
}

/// The name of a checkpoint in a door: `2026-11-20T19.34.18Z+cp3`, in UTC. `created` is in seconds
/// since 1970.
pub(crate) fn canonical_name(cno: Cno, created: u64) -> String {
    // No colons: neither rsync nor Windows would take them for a part of a name.
    format!("{}+cp{cno}", time_of(created).strftime("%Y-%m-%dT%H.%M.%SZ"))
}

/// How Samba calls a moment, in UTC.
const GMT_FORMAT: &str = "@GMT-%Y.%m.%d-%H.%M.%S";

/// The name of a checkpoint that Samba knows. `created` is in seconds since 1970.
pub(crate) fn gmt_name(created: u64) -> String {
    time_of(created).strftime(GMT_FORMAT).to_string()
}

/// The second that such a name means, since 1970.
pub(crate) fn gmt_second(name: &[u8]) -> Option<u64> {
    let time = DateTime::strptime(GMT_FORMAT, name).ok()?.to_zoned(TimeZone::UTC).ok()?;
    let second = u64::try_from(time.timestamp().as_second()).ok()?;
    (gmt_name(second).as_bytes() == name).then_some(second)
}

/// A time on disk, or the last one of the calendar.
fn time_of(seconds: u64) -> Timestamp {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl FromStr for When {
    type Err = NotAMoment;

    fn from_str(words: &str) -> Result<Self, NotAMoment> {
        let words = words.trim();
        // What has another meaning can be nobody's name.
        let name = || words.parse().ok().filter(|_| !is_reserved(words)).map(Meaning::Name);
        let meaning = Meaning::parse(words).or_else(name).ok_or(NotAMoment)?;
        Ok(Self { words: words.to_owned(), meaning })
    }
}

impl When {
    /// The snapshot that is meant, if it is meant by its name.
    #[must_use]
    pub fn name(&self) -> Option<&SnapshotName> {
        match &self.meaning {
            Meaning::Name(name) => Some(name),
            _ => None,
        }
    }

    /// The checkpoint that is meant, if it is meant by its number alone.
    #[must_use]
    pub fn number(&self) -> Option<Cno> {
        match self.meaning {
            Meaning::Number(cno) => Some(cno),
            _ => None,
        }
    }

    /// Whether one checkpoint is meant, whatever the time and whatever other checkpoints there are.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        matches!(self.meaning, Meaning::Number(_) | Meaning::Canonical(_) | Meaning::Name(_))
    }
}

/// Whether words mean something in a door that is no moment, or look like the number of a checkpoint.
fn is_reserved(words: &str) -> bool {
    let number = words.get(..2).filter(|start| start.eq_ignore_ascii_case("cp"));
    let is_number = number.is_some() && words[2..].bytes().all(|byte| byte.is_ascii_digit());
    is_number || words == "gmt"
}

/// The name of a snapshot, if it can be one: what names another moment cannot.
///
/// # Errors
/// See [`UnfitName`].
pub fn new_name(words: &str) -> Result<SnapshotName, UnfitName> {
    let name: SnapshotName = words.parse()?;
    let has_a_meaning = Meaning::parse(words).is_some() || is_reserved(words);
    if has_a_meaning { Err(UnfitName::Meaning(name)) } else { Ok(name) }
}

impl From<Cno> for When {
    fn from(cno: Cno) -> Self {
        Self { words: cno.to_string(), meaning: Meaning::Number(cno) }
    }
}

impl Meaning {
    fn parse(words: &str) -> Option<Self> {
        if let Some((_, number)) = words.rsplit_once("+cp") {
            return Some(Self::Canonical(cno(number)?));
        }
        let words = words.to_ascii_lowercase();
        if let Some(number) = cno(words.strip_prefix("cp").unwrap_or(&words)) {
            return Some(Self::Number(number));
        }
        if words == "now" {
            return Some(Self::Now);
        }
        if let Some(seconds) = words.strip_prefix('@') {
            return Some(Self::Exact(seconds.parse().ok()?, Length::Second));
        }
        if let Some(span) = words.strip_suffix("ago") {
            return ago(span).map(Self::Ago);
        }
        if let Some((time, length)) = time(&words) {
            return Some(Self::Local(Day::Today, Some((time, length))));
        }
        match words.split_once(' ') {
            None => day(&words).map(|day| Self::Local(day, None)),
            Some((first, rest)) => match (day(first), time(rest.trim())) {
                (Some(day), Some(time)) => Some(Self::Local(day, Some(time))),
                _ => None,
            },
        }
        .or_else(|| date_time(&words))
    }
}

/// A number that a checkpoint may have.
fn cno(number: &str) -> Option<Cno> {
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| number.parse().ok().map(Cno))?.filter(|cno| *cno >= Cno::MIN)
}

/// A length of time, as in `10 minutes` or `an hour`.
fn ago(span: &str) -> Option<SpanFieldwise> {
    let span = span.trim();
    let one = span.strip_prefix("an ").or_else(|| span.strip_prefix("a "));
    let span: Span = one.map_or(span.to_owned(), |unit| format!("1 {unit}")).parse().ok()?;
    (!span.is_negative()).then(|| span.fieldwise())
}

fn day(word: &str) -> Option<Day> {
    Some(match word {
        "today" => Day::Today,
        "yesterday" => Day::Yesterday,
        "monday" | "mon" => Day::Last(Weekday::Monday),
        "tuesday" | "tue" => Day::Last(Weekday::Tuesday),
        "wednesday" | "wed" => Day::Last(Weekday::Wednesday),
        "thursday" | "thu" => Day::Last(Weekday::Thursday),
        "friday" | "fri" => Day::Last(Weekday::Friday),
        "saturday" | "sat" => Day::Last(Weekday::Saturday),
        "sunday" | "sun" => Day::Last(Weekday::Sunday),
        // The parser would take a date out of more than a date.
        date if date.len() == "2026-11-20".len() => Day::Of(date.parse().ok()?),
        _ => return None,
    })
}

/// A time of day: `17:00`, `17:00:30`.
fn time(word: &str) -> Option<(Time, Length)> {
    let is_of_time = |byte: u8| byte.is_ascii_digit() || byte == b':';
    if !word.contains(':') || !word.bytes().all(is_of_time) {
        return None;
    }
    Some((word.parse().ok()?, length(word)))
}

/// How long a time is that is written so.
fn length(time: &str) -> Length {
    if time.matches(':').count() > 1 { Length::Second } else { Length::Minute }
}

/// Date and time in one word, with a zone or without: `2026-11-20t17:00z`, also with the dots that
/// times have in a door.
fn date_time(words: &str) -> Option<Meaning> {
    let (date, rest) = words.split_once(['t', ' '])?;
    let end =
        rest.find(|c: char| !(c.is_ascii_digit() || matches!(c, ':' | '.'))).unwrap_or(rest.len());
    let (time, zone) = rest.split_at(end);
    let time = if time.contains(':') { time.to_owned() } else { time.replace('.', ":") };
    let length = length(&time);
    let whole = format!("{date}T{time}{}", zone.trim());
    if zone.is_empty() {
        let local: DateTime = whole.parse().ok()?;
        return Some(Meaning::Local(Day::Of(local.date()), Some((local.time(), length))));
    }
    let exact: Timestamp = match whole.parse() {
        Ok(exact) => exact,
        Err(_) => whole.parse::<Zoned>().ok()?.timestamp(),
    };
    Some(Meaning::Exact(exact.as_second(), length))
}

#[cfg(test)]
mod tests;
