use std::cell::Cell;
use std::convert::Infallible;

use jiff::{Timestamp, Zoned};
use nilfs_engine::{CheckpointInfo, MadeBy, Note, NoteText, Times};

use super::*;

/// A Wednesday.
const NOW: &str = "2026-11-18T12:00:00+01:00[Europe/Berlin]";

fn now() -> Zoned {
    NOW.parse().unwrap()
}

/// A checkpoint, by its number and its time in UTC.
fn checkpoint(cno: u64, created: &str) -> CheckpointInfo {
    let created = created.parse::<Timestamp>().unwrap().as_second() as u64;
    let mut checkpoint = CheckpointInfo::default();
    (checkpoint.cno, checkpoint.created) = (Cno(cno), created);
    checkpoint
}

fn list(all: &[CheckpointInfo], from: Cno, limit: usize) -> Vec<CheckpointInfo> {
    all.iter().filter(|it| it.cno >= from).take(limit).copied().collect()
}

/// What is noted: 4 is called "before-upgrade".
fn notes() -> Vec<Note> {
    let name = "before-upgrade".parse().ok();
    let (made_by, text) = (MadeBy::User, NoteText::default());
    vec![Note { cno: Cno(4), created: 0, made_by, name, text }]
}

/// The number of the checkpoint that is meant, or what is wrong.
fn find_in(all: &[CheckpointInfo], words: &str) -> Result<u64, String> {
    let when: When = words.parse().map_err(|error: NotAMoment| error.to_string())?;
    let newest = all.last().map_or(Cno(0), |it| it.cno);
    let list = |from, limit| Ok::<_, Infallible>(list(all, from, limit));
    let until = |second| Times::default().newest_made(newest, Cno::MAX, &(0..=second), &list);
    let found = when.find(&now, newest, &list, &until, &|| Ok(notes()));
    let found = found.map_err(|error| error.to_string())?;
    Ok(found.cno.0)
}

/// Checkpoints of several days; 5 was deleted, and before 9 the clock was put back by an hour.
fn days() -> Vec<CheckpointInfo> {
    [
        (2, "2026-11-14T10:00:00Z"),
        (3, "2026-11-16T08:00:00Z"),
        (4, "2026-11-16T22:59:59Z"),
        (6, "2026-11-16T23:00:00Z"),
        (7, "2026-11-17T16:00:30Z"),
        (8, "2026-11-18T09:30:00Z"),
        (9, "2026-11-18T08:45:00Z"),
        (10, "2026-11-18T10:55:00Z"),
    ]
    .map(|(cno, created)| checkpoint(cno, created))
    .to_vec()
}

#[test]
fn a_moment_means_the_newest_checkpoint_that_is_not_later() {
    for (words, cno) in [
        ("4", 4),
        ("cp4", 4),
        ("now", 10),
        ("10 minutes ago", 9),
        ("an hour ago", 9),
        ("1h ago", 9),
        ("2h 20m ago", 7),
        ("1 day ago", 6),
        ("2 days ago", 3),
        // Monday ended at 23:00 UTC.
        ("monday", 4),
        ("Mon", 4),
        ("2026-11-16", 4),
        ("yesterday", 7),
        ("today", 10),
        ("sunday", 2),
        ("2026-11-15", 2),
        ("yesterday 16:59", 6),
        ("yesterday 17:00", 7),
        ("yesterday 17:00:29", 6),
        ("2026-11-17 17:00", 7),
        ("2026-11-17T17:00", 7),
        ("2026-11-17T17:00:30", 7),
        ("2026-11-17T16:00Z", 7),
        ("2026-11-17T16.00.30Z", 7),
        ("2026-11-17T16.00.29Z", 6),
        ("2026-11-17T11:00:30-05:00", 7),
        ("2026-11-17T11:00:30-05:00[America/New_York]", 7),
        ("11:55", 10),
        ("11:54", 9),
        ("@1794902400", 6),
        ("  monday ", 4),
    ] {
        assert_eq!(find_in(&days(), words), Ok(cno), "{words}");
    }
}

#[test]
fn the_name_in_a_door_is_understood_if_both_halves_are_right() {
    let all = days();
    assert_eq!(canonical_name(all[1].cno, all[1].created), "2026-11-16T08.00.00Z+cp3");
    assert_eq!(find_in(&all, "2026-11-16T08.00.00Z+cp3"), Ok(3));
    for words in ["2026-11-16T08.00.01Z+cp3", "2026-11-16T08.00.00Z+cp4", "x+cp3"] {
        assert!(find_in(&all, words).unwrap_err().starts_with("there is no checkpoint"), "{words}");
    }
}

#[test]
fn what_is_out_of_reach_is_answered_with_the_nearest() {
    let said = |words| find_in(&days(), words).unwrap_err();
    let local = |cno: usize| {
        let found = days().into_iter().find(|it| it.cno.0 == cno as u64).unwrap();
        error::Named::from(found).to_string()
    };
    assert_eq!(
        said("5"),
        format!("there is no checkpoint 5; the nearest are {} and {}", local(4), local(6))
    );
    assert_eq!(said("99"), format!("there is no checkpoint 99; the newest is {}", local(10)));
    assert_eq!(said("1"), format!("there is no checkpoint 1; the oldest is {}", local(2)));
    assert_eq!(
        said("2026-11-13"),
        format!("no checkpoint is as old as 2026-11-13; the oldest is {}", local(2))
    );
    assert_eq!(
        said("12:01"),
        format!("12:01 is still to come; the newest checkpoint is {}", local(10))
    );
    assert_eq!(find_in(&[], "yesterday").unwrap_err(), "there is no checkpoint yesterday");
    let said = said("19998 years ago");
    assert_eq!(said, "19998 years ago is farther away than any calendar goes");
}

/// The clock was ahead by a day once. Its checkpoints can be named by their times.
#[test]
fn a_time_to_come_can_be_that_of_a_checkpoint() {
    let mut all = days();
    all.push(checkpoint(11, "2026-11-19T12:00:00Z"));
    all.push(checkpoint(12, "2026-11-18T10:59:00Z"));
    assert_eq!(find_in(&all, "2026-11-18T10:58Z"), Ok(10));
    assert_eq!(find_in(&all, "now"), Ok(12));
    all.pop();
    assert!(find_in(&all, "2026-11-19T12:00Z").is_err(), "the newest is `now`");
}

#[test]
fn times_that_a_clock_showed_twice_or_never_are_asked_back() {
    let all = [checkpoint(1, "2026-01-01T00:00:00Z")];
    assert_eq!(
        find_in(&all, "2026-10-25 02:30").unwrap_err(),
        "2026-10-25 02:30 was twice in the time zone Europe/Berlin; say 2026-10-25T02:30:00+02:00 or \
         2026-10-25T02:30:00+01:00"
    );
    assert_eq!(
        find_in(&all, "2026-03-29 02:30").unwrap_err(),
        "2026-03-29 02:30 was never in the time zone Europe/Berlin; say 2026-03-29T01:30:00+01:00 or \
         2026-03-29T03:30:00+02:00"
    );
    assert_eq!(find_in(&all, "2026-10-25T02:30:00+02:00"), Ok(1));
}

#[test]
fn what_names_no_moment_is_not_guessed_at() {
    for words in [
        "",
        "0",
        "-1",
        "cp",
        "cp0",
        "+5",
        "10 minutes",
        "-5m ago",
        "2026-13-01",
        "2026-11-31",
        "2026-11",
        "25:00",
        "17:",
        "yesterday 5",
        "monday tuesday",
        "2026-11-20x",
        "2026-11-20T",
        "2026-11-20T17:00X",
        "5 5",
        "1e3",
        "@x",
        "last monday",
        ".git",
        "+cp",
        "99999999999999999999",
    ] {
        let found = words.parse::<When>();
        assert!(found.is_err(), "{words:?}: {found:?}");
    }
}

#[test]
fn a_snapshot_can_be_meant_by_its_name() {
    assert_eq!(find_in(&days(), "before-upgrade"), Ok(4));
    for words in ["before_upgrade", "Before-upgrade", "tomorrow"] {
        let said = find_in(&days(), words).unwrap_err();
        assert!(said.starts_with(&format!("there is no snapshot called {words},")), "{said}");
    }
    assert!(find_in(&days()[3..], "before-upgrade").unwrap_err().starts_with("there is no"));
}

#[test]
fn what_means_something_else_can_be_no_name() {
    for name in ["before-upgrade", "v1.0", "cp-1", "Montag", "friday-13", "chicago"] {
        assert_eq!(new_name(name).map(|name| name.to_string()), Ok(name.to_owned()));
        assert_eq!(name.parse::<When>().unwrap().name(), new_name(name).ok().as_ref());
    }
    for name in ["monday", "Now", "TODAY", "cp17", "CP0", "cp", "gmt"] {
        assert!(matches!(new_name(name), Err(UnfitName::Meaning(_))), "{name}");
    }
    for name in ["17", "@5", "a b", "a@b", "a+cp3", "a/b", "a\n", ""] {
        assert!(matches!(new_name(name), Err(UnfitName::NotAName(_))), "{name:?}");
    }
}

/// A hundred thousand checkpoints: near ones are found without looking at the far ones, and where
/// nearly all were deleted, the numbers between are not tried one by one.
#[test]
fn where_numbers_are_far_apart_few_are_asked_for() {
    let few = [checkpoint(1, "2026-11-01T00:00:00Z"), checkpoint(1 << 62, "2026-11-18T00:00:00Z")];
    let asked = Cell::new(0);
    let counting = |from: Cno, limit: usize| {
        asked.set(asked.get() + 1);
        Ok::<_, Infallible>(list(&few, from, limit))
    };
    let newest = Cno(1 << 62);
    let until = |second| Times::default().newest_made(newest, Cno::MAX, &(0..=second), &counting);
    let when: When = "2026-11-02".parse().unwrap();
    let found = when.find(&now, newest, &counting, &until, &|| unreachable!()).unwrap();
    assert_eq!(found.cno, Cno(1));
    assert!(asked.get() < 200, "{}", asked.get());
}
