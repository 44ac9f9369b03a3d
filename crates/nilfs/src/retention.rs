//! Retention: which checkpoints are kept as snapshots without anybody naming each of them. A rule
//! keeps the newest checkpoint of each of the last hours, days, weeks and months that have one.
//!
//! Periods are those of the local time zone, and only those count in which something was written.
//! Checkpoints are gone through by number, from the newest down: a clock that was wrong for a while
//! adds periods that never were, which age like any others, and ends none that were before.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use nilfs_engine::{CheckpointInfo, Cno, Filesystem, MadeBy, Note, SnapshotChange};
use parking_lot::Mutex;

use crate::administration::{Administration, Reason, Refusal, all_checkpoints};
use crate::output::counted;
use crate::threads;

/// How often a plan is made anew because a checkpoint that it wanted to keep is gone.
const ATTEMPTS: u32 = 3;

/// How often a mount looks at the clock, which may be put forward or back.
const LOOK: Duration = Duration::from_secs(600);

/// How many periods of each length have a checkpoint that is kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    counts: [u32; 4],
}

/// A length of periods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Length {
    Hour,
    Day,
    Week,
    Month,
}

const LENGTHS: [(Length, &str); 4] = [
    (Length::Hour, "hourly"),
    (Length::Day, "daily"),
    (Length::Week, "weekly"),
    (Length::Month, "monthly"),
];

/// One period of all: its first day, and of an hour also the hour and how far it is from UTC (s), as
/// the clock may show it twice.
type Period = (Length, Date, i8, i32);

impl Length {
    fn period_of(self, time: &Zoned) -> Period {
        let date = time.date();
        match self {
            Self::Hour => (self, date, time.hour(), time.offset().seconds()),
            Self::Day => (self, date, 0, 0),
            Self::Week => {
                let monday = date.nth_weekday(-1, jiff::civil::Weekday::Monday);
                let is_monday = date.weekday() == jiff::civil::Weekday::Monday;
                (self, monday.ok().filter(|_| !is_monday).unwrap_or(date), 0, 0)
            }
            Self::Month => (self, date.first_of_month(), 0, 0),
        }
    }
}

/// What a rule changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Checkpoints that become snapshots.
    pub keep: Vec<CheckpointInfo>,
    /// Snapshots that a rule made, and that are not wanted any more.
    pub release: Vec<CheckpointInfo>,
}

impl Retention {
    /// A rule with these counts.
    pub fn new(hourly: u32, daily: u32, weekly: u32, monthly: u32) -> Self {
        Self { counts: [hourly, daily, weekly, monthly] }
    }

    /// Whether it keeps nothing. Then it lets go of nothing either: there is no rule.
    pub fn is_none(self) -> bool {
        self.counts == [0; 4]
    }

    /// What is to be changed, of all checkpoints in ascending order, and what is noted about
    /// snapshots.
    fn plan(self, all: &[CheckpointInfo], notes: &[Note], zone: &TimeZone) -> Plan {
        let wanted = self.wanted(all, zone);
        let is_ours = |it: &CheckpointInfo| {
            let note = notes.iter().find(|note| note.cno == it.cno);
            it.snapshot && note.is_some_and(|note| note.made_by == MadeBy::Retention)
        };
        let is_wanted = |it: &&CheckpointInfo| wanted.contains(&it.cno);
        let keep = all.iter().filter(|it| !it.snapshot).filter(is_wanted);
        let release = all.iter().filter(|it| is_ours(it)).filter(|it| !is_wanted(it));
        Plan { keep: keep.copied().collect(), release: release.copied().collect() }
    }

    fn wanted(self, all: &[CheckpointInfo], zone: &TimeZone) -> BTreeSet<Cno> {
        let mut wanted = BTreeSet::new();
        // What a minor one has, one before it has as well.
        let of_files = all.iter().rev().filter(|it| !it.minor || it.snapshot);
        let mut left = self.counts;
        let mut seen: HashSet<Period> = HashSet::new();
        for checkpoint in of_files {
            let seconds = i64::try_from(checkpoint.created).unwrap_or(i64::MAX);
            let time = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX);
            let time = time.to_zoned(zone.clone());
            for ((length, _), left) in LENGTHS.iter().zip(&mut left).filter(|(_, left)| **left > 0)
            {
                if seen.insert(length.period_of(&time)) {
                    wanted.insert(checkpoint.cno);
                    *left -= 1;
                }
            }
        }
        wanted
    }

    /// Says what following the rule now would change.
    ///
    /// # Errors
    /// The checkpoints cannot be read.
    pub fn look(self, volume: &dyn Administration) -> Result<Plan, Refusal> {
        let all = all_checkpoints(volume)?;
        Ok(self.plan(&all, &volume.notes()?, &TimeZone::system()))
    }

    /// Follows the rule once, in one checkpoint. Returns what has changed.
    ///
    /// # Errors
    /// The volume cannot be changed, or the notes about snapshots cannot be read.
    pub fn follow(self, volume: &dyn Administration) -> Result<Plan, Refusal> {
        let mut attempts = 0;
        loop {
            let plan = self.look(volume)?;
            if plan == Plan::default() {
                return Ok(plan);
            }
            attempts += 1;
            match volume.change_snapshots(&plan.changes()) {
                // The cleaner was faster.
                Err(refusal) if refusal.reason == Reason::NoCheckpoint && attempts < ATTEMPTS => {}
                done => return done.map(|()| plan),
            }
        }
    }
}

impl Plan {
    fn changes(&self) -> Vec<SnapshotChange> {
        let made_by = MadeBy::Retention;
        let keep = |it: &CheckpointInfo| SnapshotChange::Keep {
            cno: it.cno,
            made_by,
            name: None,
            text: None,
        };
        let release = |it: &CheckpointInfo| SnapshotChange::Release { cno: it.cno, made_by };
        self.keep.iter().map(keep).chain(self.release.iter().map(release)).collect()
    }
}

impl FromStr for Retention {
    type Err = String;

    /// From words such as `hourly:24+daily:14`.
    fn from_str(words: &str) -> Result<Self, String> {
        let expected =
            || "expected, for example, hourly:24+daily:14+weekly:8+monthly:12".to_owned();
        let mut rule = Self::default();
        for word in words.split('+') {
            let (name, count) = word.split_once(':').ok_or_else(expected)?;
            let nth = LENGTHS.iter().position(|(_, known)| *known == name).ok_or_else(expected)?;
            rule.counts[nth] = count.parse().map_err(|_| expected())?;
        }
        if rule.is_none() { Err(expected()) } else { Ok(rule) }
    }
}

impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = LENGTHS.iter().zip(self.counts).filter(|(_, count)| *count > 0);
        let words: Vec<_> = words.map(|((_, name), count)| format!("{name}:{count}")).collect();
        f.write_str(&words.join("+"))
    }
}

/// The rule of a mount, which is followed when the mount begins and in each hour.
pub struct Keeper {
    running: Mutex<Option<(mpsc::Sender<Retention>, JoinHandle<()>)>>,
}

impl Keeper {
    /// Starts to follow a rule.
    ///
    /// # Errors
    /// There is no thread left.
    pub fn start(fs: Arc<Filesystem>, rule: Retention) -> anyhow::Result<Self> {
        let (changes, changed) = mpsc::channel();
        let thread = threads::start("retention", move || run(&fs, rule, &changed))?;
        Ok(Self { running: Mutex::new(Some((changes, thread))) })
    }

    /// Follows another rule from now on.
    pub fn change(&self, rule: Retention) {
        if let Some((changes, _)) = &*self.running.lock() {
            // Nobody listens any more when the process is about to end.
            let _ = changes.send(rule);
        }
    }

    /// Follows none any more; returns when what was begun is done.
    pub fn stop(&self) {
        if let Some((changes, thread)) = self.running.lock().take() {
            drop(changes);
            // A panic has ended the process.
            let _ = thread.join();
        }
    }
}

fn run(fs: &Filesystem, mut rule: Retention, changed: &mpsc::Receiver<Retention>) {
    let mut last = None;
    loop {
        let now = Zoned::now();
        let hour = Length::Hour.period_of(&now);
        if last != Some((hour, rule)) && !rule.is_none() && !fs.is_read_only() {
            last = Some((hour, rule));
            follow(fs, rule);
        }
        let left = 3600
            - 60 * u64::from(now.minute().unsigned_abs())
            - u64::from(now.second().unsigned_abs());
        let heard = match rule.is_none() {
            true => changed.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
            false => changed.recv_timeout(Duration::from_secs(left).min(LOOK)),
        };
        match heard {
            Ok(other) => rule = other,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn follow(fs: &Filesystem, rule: Retention) {
    match rule.follow(fs) {
        Ok(plan) if plan == Plan::default() => {}
        Ok(Plan { keep, release }) => {
            let (kept, gone) = (counted(keep.len() as u64, "snapshot"), release.len());
            tracing::info!("keep={rule}: {kept} made, {gone} let go of");
        }
        Err(refusal) => tracing::warn!("keep={rule}: no snapshots made this time: {refusal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone() -> TimeZone {
        TimeZone::get("Europe/Berlin").unwrap()
    }

    fn checkpoint(cno: u64, local: &str) -> CheckpointInfo {
        let local: jiff::civil::DateTime = local.parse().unwrap();
        let mut checkpoint = CheckpointInfo::default();
        checkpoint.cno = Cno(cno);
        checkpoint.created = local.to_zoned(zone()).unwrap().timestamp().as_second() as u64;
        checkpoint
    }

    fn wanted(rule: &str, all: &[CheckpointInfo]) -> Vec<u64> {
        let rule: Retention = rule.parse().unwrap();
        rule.wanted(all, &zone()).into_iter().map(|cno| cno.0).collect()
    }

    /// One an hour for that many hours from a moment on.
    fn hours(first: u64, from: &str, count: u64) -> Vec<CheckpointInfo> {
        let start = checkpoint(first, from);
        let hour = |nth| {
            let mut next = start;
            (next.cno, next.created) = (Cno(first + nth), start.created + nth * 3600);
            next
        };
        (0..count).map(hour).collect()
    }

    #[test]
    fn the_newest_of_each_of_the_last_periods_is_kept() {
        let all = [
            checkpoint(1, "2026-09-30T23:59:59"),
            checkpoint(2, "2026-10-31T12:00:00"),
            // The Sunday, Monday and Tuesday after.
            checkpoint(3, "2026-11-01T12:00:00"),
            checkpoint(4, "2026-11-02T12:00:00"),
            checkpoint(5, "2026-11-03T10:05:00"),
            checkpoint(6, "2026-11-03T10:59:59"),
            checkpoint(7, "2026-11-03T11:00:00"),
        ];
        assert_eq!(wanted("hourly:2", &all), [6, 7]);
        assert_eq!(wanted("daily:3", &all), [3, 4, 7]);
        assert_eq!(wanted("weekly:2", &all), [3, 7], "weeks begin on Monday");
        assert_eq!(wanted("monthly:2", &all), [2, 7]);
        assert_eq!(wanted("monthly:9", &all), [1, 2, 7], "as many as there are");
        assert_eq!(wanted("hourly:1+monthly:3", &all), [1, 2, 7]);
    }

    #[test]
    fn an_hour_that_the_clock_shows_twice_is_two() {
        let all = hours(1, "2026-10-25T00:30:00", 6);
        assert_eq!(wanted("hourly:9", &all), [1, 2, 3, 4, 5, 6]);
        assert_eq!(wanted("daily:9", &all), [6]);
    }

    #[test]
    fn minor_checkpoints_have_nothing_of_their_own() {
        let mut all = hours(1, "2026-11-03T10:00:00", 3);
        all[2].minor = true;
        assert_eq!(wanted("hourly:1", &all), [2]);
        all[2].snapshot = true;
        assert_eq!(wanted("hourly:1", &all), [3]);
    }

    #[test]
    fn a_clock_that_was_wrong_for_a_while_costs_no_more_than_the_while() {
        let mut all = hours(1, "2026-11-03T00:00:00", 24);
        // It was ahead by years, or was never set.
        for wrong in ["2037-01-01T00:00:00", "1971-01-01T00:00:00"] {
            let next = all.len() as u64 + 1;
            all.extend(hours(next, wrong, 5));
            let kept = wanted("hourly:24", &all);
            assert_eq!(kept.len(), 24);
            assert!(kept.contains(&(next + 4)), "the newest, whatever its time");
            assert!(kept.contains(&24), "what was before: {kept:?}");
        }
        // It goes right again.
        let next = all.len() as u64 + 1;
        all.extend(hours(next, "2026-11-04T05:00:00", 24));
        assert_eq!(wanted("hourly:24", &all), (next..next + 24).collect::<Vec<_>>());
    }

    #[test]
    fn only_what_a_rule_made_is_let_go_of() {
        let mut all = hours(1, "2026-11-03T00:00:00", 4);
        all[..3].iter_mut().for_each(|it| it.snapshot = true);
        let note = |cno, made_by| Note {
            cno: Cno(cno),
            created: 0,
            made_by,
            name: None,
            text: Default::default(),
        };
        let notes = [note(1, MadeBy::Retention), note(3, MadeBy::User)];
        let plan = Retention::new(1, 0, 0, 0).plan(&all, &notes, &zone());
        assert_eq!(plan, Plan { keep: vec![all[3]], release: vec![all[0]] });
        all[3].snapshot = true;
        let plan = Retention::new(4, 0, 0, 0).plan(&all, &notes, &zone());
        assert_eq!(plan, Plan::default(), "what somebody keeps need not be kept twice");
    }

    #[test]
    fn a_rule_is_read_as_it_is_written() {
        let rule: Retention = "daily:14+hourly:24".parse().unwrap();
        assert_eq!(rule, Retention::new(24, 14, 0, 0));
        assert_eq!(rule.to_string(), "hourly:24+daily:14");
        for wrong in
            ["", "hourly", "hourly:", "hourly:0", "hourly:-1", "yearly:1", "hourly:1,daily:1"]
        {
            assert!(wrong.parse::<Retention>().unwrap_err().contains("hourly:24"), "{wrong}");
        }
    }
}
