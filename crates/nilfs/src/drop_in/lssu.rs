//! `lssu`: the segments of a volume, and with -l how much of them is still needed.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use nilfs_engine::{EffectiveTimes, SegmentInfo, SegmentLife, Volume};
use nilfs_ondisk::{Cno, SegNum};

use super::number::NotAPeriod;
use super::words::{Word, Words};
use super::{Tool, number, volume};
use crate::output::{self, local_time};

pub(super) const TOOL: Tool = Tool {
    name: "lssu",
    usage: "\
Usage: lssu [OPTION]... [DEVICE|NODE]
List the segments of a NILFS2 volume.

  -a, --all                        clean segments too
  -i, --index=SEGNUM               start with this segment
  -l, --latest-usage               count the blocks that are still needed
  -n, --lines=N                    at most N lines
  -p, --protection-period=PERIOD   with -l: blocks of younger checkpoints are needed, too
  -h, --help                       this help
  -V, --version                    the version

PERIOD is a number of seconds, or has one of the units s m h d w M Y.
",
    long: &[
        ("all", 'a'),
        ("index", 'i'),
        ("latest-usage", 'l'),
        ("lines", 'n'),
        ("protection-period", 'p'),
    ],
    complaint: "lssu: ",
    run,
};

const HEADER: &str = "              SEGNUM        DATE     TIME STAT     NBLOCKS";
const LATEST_HEADER: &str =
    "           SEGNUM        DATE     TIME STAT     NBLOCKS       NLIVEBLOCKS";

/// What stands for the date of a segment that was never written.
const NO_DATE: &str = "---------- --:--:--";

#[derive(Debug, Default)]
struct Options {
    all: bool,
    latest: bool,
    index: u64,
    /// 0: as many as there are.
    lines: u64,
    protection: Duration,
}

fn run(mut words: Words) -> anyhow::Result<ExitCode> {
    let mut options = Options::default();
    let mut operands = Vec::new();
    while let Some(word) = words.next()? {
        match word {
            Word::Option('a') => options.all = true,
            Word::Option('l') => options.latest = true,
            Word::Option('i') => options.index = number::leading(&words.value()?),
            Word::Option('n') => options.lines = number::leading(&words.value()?),
            Word::Option('p') => options.protection = period(&words.value()?)?,
            Word::Option(letter) => return Err(words.invalid(letter)),
            Word::Operand(operand) => operands.push(operand),
        }
    }
    let volume = words.only_volume(operands)?;
    let rows = volume::look(volume.as_deref(), |volume| {
        let segments = chosen(volume, &options)?;
        match options.latest {
            true => latest(volume, &segments, options.protection),
            false => Ok(segments.iter().map(row).collect()),
        }
    })?;
    let mut out = io::BufWriter::new(output::out());
    writeln!(out, "{}", if options.latest { LATEST_HEADER } else { HEADER })?;
    rows.iter().try_for_each(|row| writeln!(out, "{row}"))?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// A period as lssu and nilfs_cleanerd take it, or their complaint.
pub(super) fn period(word: &OsStr) -> anyhow::Result<Duration> {
    let shown = word.to_string_lossy();
    number::period(word).map_err(|error| match error {
        NotAPeriod::Invalid => anyhow::anyhow!("invalid protection period: {shown}"),
        NotAPeriod::TooLarge => anyhow::anyhow!("too large period: {shown}"),
    })
}

/// The segments to be shown, in order.
fn chosen(volume: &Volume, options: &Options) -> anyhow::Result<Vec<SegmentInfo>> {
    let first = SegNum(options.index);
    let mut list = match volume.geometry().has_segment(first) {
        true => volume.segments(first)?,
        false => Vec::new(),
    };
    list.retain(|segment| options.all || segment.active || segment.dirty || segment.bad);
    if options.lines != 0 {
        list.truncate(usize::try_from(options.lines).unwrap_or(usize::MAX));
    }
    Ok(list)
}

fn row(segment: &SegmentInfo) -> String {
    let [active, dirty, bad] = flags(segment);
    format!(
        "{:>20}  {}  {active}{dirty}{bad}  {:>10}",
        segment.segment.0,
        date(segment),
        segment.blocks
    )
}

/// The rows of -l.
fn latest(
    volume: &Volume,
    segments: &[SegmentInfo],
    protection: Duration,
) -> anyhow::Result<Vec<String>> {
    let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0);
    let oldest_protected = now.saturating_sub(protection.as_secs());
    let protected = match protection.is_zero() {
        true => Cno::MAX,
        false => first_since(volume, oldest_protected)?,
    };
    let is_recent = |time: u64| (oldest_protected..=now).contains(&time);
    let per_segment = u64::from(volume.geometry().blocks_per_segment);
    let lives = volume.segment_lives(segments, protected)?;
    let rows = segments.iter().zip(lives).map(|(segment, life)| {
        let (live, percent, kept) = match life {
            SegmentLife::Unused => (0, 0, false),
            SegmentLife::Needed => (segment.blocks, 100, true),
            SegmentLife::Reclaimable { live } => {
                (live, percentage(live, per_segment), is_recent(segment.last_modified))
            }
        };
        let [active, dirty, bad] = flags(segment);
        format!(
            "{:>17}  {} {active}{dirty}{bad}{}  {:>10} {live:>10} ({percent:>3}%)",
            segment.segment.0,
            date(segment),
            if kept { 'p' } else { '-' },
            segment.blocks,
        )
    });
    Ok(rows.collect())
}

/// The share in hundredths as lssu rounds it: neither up nor to the nearest.
fn percentage(live: u64, all: u64) -> u64 {
    (live * 100 + 99) / all
}

/// The first checkpoint that is not older than a time, however wrong the clock was.
fn first_since(volume: &Volume, time: u64) -> anyhow::Result<Cno> {
    let mut times = EffectiveTimes::default();
    for checkpoint in volume.checkpoints(Cno::MIN, usize::MAX)? {
        times.add(checkpoint.cno, checkpoint.created);
    }
    Ok(times.first_since(time).unwrap_or(Cno::MAX))
}

fn flags(segment: &SegmentInfo) -> [char; 3] {
    let flag = |set, letter| if set { letter } else { '-' };
    [flag(segment.active, 'a'), flag(segment.dirty, 'd'), flag(segment.bad, 'e')]
}

fn date(segment: &SegmentInfo) -> String {
    match segment.last_modified {
        0 => NO_DATE.to_owned(),
        seconds => local_time(seconds as i64),
    }
}
