//! From a moment to a checkpoint.
//!
//! Clocks may have been put back, so times need not ascend with numbers. The newest checkpoint is that
//! with the largest number.

use std::error::Error;

use jiff::Zoned;
use jiff::civil::{Date, DateTime};
use jiff::tz::AmbiguousOffset;
use nilfs_engine::{CheckpointInfo, Cno, Note, newest_below};

use super::error::{Named, Nearest};
use super::{Day, Length, Meaning, When, WhenError, canonical_name};

/// Returns the checkpoints from a number on, ascending, at most as many as it is told.
pub type List<'a, E> = &'a dyn Fn(Cno, usize) -> Result<Vec<CheckpointInfo>, E>;

/// Returns the newest checkpoint that was not made after a second since 1970.
pub type Until<'a, E> = &'a dyn Fn(u64) -> Result<Option<CheckpointInfo>, E>;

/// Returns what is noted about snapshots.
pub type Notes<'a, E> = &'a dyn Fn() -> Result<Vec<Note>, E>;

/// The seconds of a moment, since 1970: the first and the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seconds {
    first: i64,
    last: i64,
}

impl When {
    /// The checkpoint that is meant by one who asks at `now`, in the time zone of that. The clock is
    /// asked only for words that need it, because time zones take a while to be looked up. `newest` is the
    /// number of the newest checkpoint; `until` is asked only if a time is meant, and `notes`, only if a
    /// snapshot is meant by its name.
    ///
    /// # Errors
    /// See [`WhenError`].
    pub fn find<E: Error + 'static>(
        &self,
        now: &dyn Fn() -> Zoned,
        newest: Cno,
        list: List<'_, E>,
        until: Until<'_, E>,
        notes: Notes<'_, E>,
    ) -> Result<CheckpointInfo, WhenError<E>> {
        let past = Past { newest, list };
        match &self.meaning {
            Meaning::Number(cno) => self.by_number(*cno, &past, |_| true),
            Meaning::Name(name) => {
                let notes = notes().map_err(WhenError::Unreadable)?;
                let note = notes.iter().find(|note| note.name.as_ref() == Some(name));
                let missing = || WhenError::NoSnapshot { words: self.words.clone() };
                self.by_number(note.ok_or_else(missing)?.cno, &past, |_| true)
            }
            Meaning::Canonical(cno) => self.by_number(*cno, &past, |found| {
                canonical_name(found.cno, found.created) == self.words
            }),
            Meaning::Now => self.by_number(newest, &past, |_| true),
            _ => {
                let now = now();
                self.by_time(self.seconds(&now)?, &now, &past, until)
            }
        }
    }

    fn by_number<E: Error + 'static>(
        &self,
        cno: Cno,
        past: &Past<'_, E>,
        fits: impl Fn(&CheckpointInfo) -> bool,
    ) -> Result<CheckpointInfo, WhenError<E>> {
        let found = past.first_from(cno)?;
        if let Some(found) = found.filter(|found| found.cno == cno && fits(found)) {
            return Ok(found);
        }
        let before = past.newest_below(cno)?.map(Named::from);
        let near = Nearest { before, after: found.map(Named::from) };
        Err(WhenError::Missing { words: self.words.clone(), near })
    }

    fn by_time<E: Error + 'static>(
        &self,
        moment: Seconds,
        now: &Zoned,
        past: &Past<'_, E>,
        until: Until<'_, E>,
    ) -> Result<CheckpointInfo, WhenError<E>> {
        let words = self.words.clone();
        let last = u64::try_from(moment.last).ok();
        let is_to_come = moment.first > now.timestamp().as_second();
        match last.map_or(Ok(None), until).map_err(WhenError::Unreadable)? {
            // Where a clock went wrong there may be checkpoints of a time that is still to come.
            Some(found) if is_to_come && found.cno == past.newest => {
                Err(WhenError::ToCome { words, newest: found.into() })
            }
            Some(found) => Ok(found),
            None => Err(match past.first_from(Cno::MIN)? {
                Some(oldest) => WhenError::TooEarly { words, oldest: oldest.into() },
                None => WhenError::Missing { words, near: Nearest { before: None, after: None } },
            }),
        }
    }

    /// The moment itself.
    fn seconds<E: Error + 'static>(&self, now: &Zoned) -> Result<Seconds, WhenError<E>> {
        Ok(match self.meaning {
            Meaning::Number(_) | Meaning::Canonical(_) | Meaning::Name(_) | Meaning::Now => {
                Seconds::of(now, Length::Second)
            }
            Meaning::Ago(span) => {
                let then = now.checked_sub(span.0).map_err(|_| self.no_calendar())?;
                Seconds::of(&then, Length::Second)
            }
            Meaning::Exact(second, length) => Seconds::from(second, length),
            Meaning::Local(day, time) => {
                let date = day.date(now).map_err(|_| self.no_calendar())?;
                match time {
                    Some((time, length)) => {
                        Seconds::of(&self.local(date.to_datetime(time), now)?, length)
                    }
                    None => self.whole_day(date, now)?,
                }
            }
        })
    }

    fn whole_day<E: Error + 'static>(
        &self,
        date: Date,
        now: &Zoned,
    ) -> Result<Seconds, WhenError<E>> {
        let begin = |date: Date| {
            let begin = date.to_zoned(now.time_zone().clone());
            begin.map(|begin| begin.timestamp().as_second())
        };
        let next = date.tomorrow().and_then(begin).map_err(|_| self.no_calendar())?;
        let first = begin(date).map_err(|_| self.no_calendar())?;
        Ok(Seconds { first, last: next - 1 })
    }

    /// A time on the clock of the one who asks.
    fn local<E: Error + 'static>(
        &self,
        time: DateTime,
        now: &Zoned,
    ) -> Result<Zoned, WhenError<E>> {
        let found = now.time_zone().to_ambiguous_zoned(time);
        let count = match found.offset() {
            AmbiguousOffset::Unambiguous { .. } => {
                return found.unambiguous().map_err(|_| self.no_calendar());
            }
            AmbiguousOffset::Gap { .. } => "never",
            AmbiguousOffset::Fold { .. } => "twice",
        };
        let written = |time: Result<Zoned, jiff::Error>| {
            let time = time.map_err(|_| self.no_calendar())?;
            Ok(time.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string())
        };
        let (one, other) = (written(found.clone().earlier())?, written(found.later())?);
        let zone = now.time_zone().iana_name().unwrap_or("of this machine").to_owned();
        Err(WhenError::Ambiguous { words: self.words.clone(), count, zone, one, other })
    }

    fn no_calendar<E: Error + 'static>(&self) -> WhenError<E> {
        WhenError::NoCalendar { words: self.words.clone() }
    }
}

impl Day {
    fn date(self, now: &Zoned) -> Result<Date, jiff::Error> {
        let today = now.date();
        match self {
            Self::Today => Ok(today),
            Self::Yesterday => today.yesterday(),
            Self::Last(weekday) => today.nth_weekday(-1, weekday),
            Self::Of(date) => Ok(date),
        }
    }
}

impl Seconds {
    fn of(time: &Zoned, length: Length) -> Self {
        Self::from(time.timestamp().as_second(), length)
    }

    fn from(first: i64, length: Length) -> Self {
        let more = match length {
            Length::Minute => 59,
            Length::Second => 0,
        };
        Self { first, last: first.saturating_add(more) }
    }
}

/// The checkpoints of a volume.
struct Past<'a, E> {
    newest: Cno,
    list: List<'a, E>,
}

impl<E: Error + 'static> Past<'_, E> {
    /// The first checkpoint from a number on.
    fn first_from(&self, from: Cno) -> Result<Option<CheckpointInfo>, WhenError<E>> {
        let found = (self.list)(from, 1).map_err(WhenError::Unreadable)?;
        Ok(found.first().copied())
    }

    /// The newest checkpoint below a number.
    fn newest_below(&self, end: Cno) -> Result<Option<CheckpointInfo>, WhenError<E>> {
        let end = end.min(Cno(self.newest.0.saturating_add(1)));
        newest_below(end, self.list, &|_| true).map_err(WhenError::Unreadable)
    }
}
