//! `nilfs-clean`: orders for the cleaner. Ours is part of the process that serves a mount; a
//! volume that nobody serves is cleaned by this one.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{anyhow, bail, ensure};
use nilfs_engine::{Amount, CleanerOrder, CleanerState, ManualRun, Speed};

use super::number::{self, NotAPeriod};
use super::words::{Word, Words};
use super::{Ended, FAILED, Tool, lssu, volume};
use crate::administration::{self, Administration, Purpose, Target};
use crate::output::{self, say};

pub(super) const TOOL: Tool = Tool {
    name: "nilfs-clean",
    usage: "\
Usage: nilfs-clean [OPTION]... [DEVICE|NODE]
Let the cleaner of a NILFS2 volume work now, or give it another order.

  -b, --break, --stop                  end the work that was asked for
  -c, --reload[=FILE]                  read its settings again
  -l, --status                         print what it is doing
  -q, --quit                           let it rest until it is told to resume
  -r, --resume                         let it go on
  -s, --suspend                        let it rest
  -p, --protection-period=PERIOD       keep checkpoints that are younger
  -m, --min-reclaimable-blocks=N[%]    leave segments alone in which less can be reclaimed
  -S, --speed=COUNT[/SECONDS]          clean COUNT segments, then pause
  -v, --verbose                        accepted without effect
  -h, --help                           this help
  -V, --version                        the version
",
    long: &[
        ("break", 'b'),
        ("stop", 'b'),
        ("reload", 'c'),
        ("status", 'l'),
        ("quit", 'q'),
        ("resume", 'r'),
        ("suspend", 's'),
        ("protection-period", 'p'),
        ("min-reclaimable-blocks", 'm'),
        ("speed", 'S'),
        ("verbose", 'v'),
    ],
    complaint: "Error: ",
    run,
};

/// How often a run is asked whether it is over.
const GLANCE: Duration = Duration::from_millis(100);

/// What the cleaner is asked.
enum Action {
    Run,
    Status,
    Reload(Option<PathBuf>),
    Order(CleanerOrder),
}

fn run(mut words: Words) -> anyhow::Result<ExitCode> {
    let mut action = Action::Run;
    let mut run = ManualRun::default();
    let mut operands = Vec::new();
    while let Some(word) = words.next()? {
        match word {
            Word::Option('b') => action = Action::Order(CleanerOrder::Stop),
            Word::Option('c') => {
                action = Action::Reload(words.optional_value().map(PathBuf::from));
            }
            Word::Option('l') => action = Action::Status,
            Word::Option('q' | 's') => action = Action::Order(CleanerOrder::Suspend),
            Word::Option('r') => action = Action::Order(CleanerOrder::Resume),
            Word::Option('p') => run.protection = Some(lssu::period(&words.value()?)?),
            Word::Option('m') => run.min_reclaimable = Some(reclaimable(&words.value()?)?),
            Word::Option('S') => run.speed = Some(speed(&words.value()?)?),
            Word::Option('v') => {}
            Word::Option(letter) => return Err(words.invalid(letter)),
            Word::Operand(operand) => operands.push(operand),
        }
    }
    ensure!(operands.len() <= 1, "too many arguments.");
    let (path, target) = find(operands.pop())?;
    match (action, &target) {
        (Action::Run, _) => clean(&path, &target, run)?,
        (_, Target::Unmounted(_)) => return Err(no_cleaner(&target)),
        (Action::Status, _) => writeln!(output::out(), "{}", state(&target)?)?,
        (Action::Reload(file), _) => {
            // The process that reads it has another current directory.
            let file = file.map(std::path::absolute).transpose()?;
            let warnings = target.client()?.reload_settings(file)?;
            warnings.iter().for_each(|warning| say!("{warning}"));
        }
        (Action::Order(order), _) => target.client()?.order_cleaner(order)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn find(operand: Option<OsString>) -> anyhow::Result<(PathBuf, Target)> {
    let path = volume::path(operand.as_deref()).map_err(|error| match error.is::<io::Error>() {
        true => anyhow!("no valid nilfs mountpoint found."),
        false => anyhow!("{error}."),
    })?;
    let metadata = fs::metadata(&path);
    metadata.map_err(|error| {
        anyhow!("cannot find {}: {}.", path.display(), volume::why(&error.into()))
    })?;
    let target = volume::target_to_change(&path)
        .map_err(|error| anyhow!("no valid nilfs mountpoint found: {error}."))?;
    Ok((path, target))
}

/// Starts a run; of a volume that nobody serves, until it is over.
fn clean(path: &Path, target: &Target, run: ManualRun) -> anyhow::Result<()> {
    if let Some(Amount::Count(blocks)) = run.min_reclaimable {
        let geometry = volume::look(Some(path.as_os_str()), |volume| Ok(volume.geometry()))?;
        let in_segment = geometry.blocks_per_segment;
        ensure!(
            blocks <= in_segment.into(),
            "cannot run cleaner: Invalid argument (-m {blocks}; a segment has {in_segment} blocks)"
        );
    }
    let cleans = run.speed.is_none_or(|speed| speed.segments > 0);
    ensure!(cleans, "cannot run cleaner: Invalid argument (-S 0 cleans nothing)");
    administration::on(path, Purpose::Change, |volume| {
        volume.order_cleaner(CleanerOrder::Run(run))?;
        while matches!(target, Target::Unmounted(_)) && volume.status()?.run.running {
            thread::sleep(GLANCE);
        }
        Ok(())
    })
}

fn state(target: &Target) -> anyhow::Result<&'static str> {
    match target.client()?.status()?.state {
        CleanerState::Idle | CleanerState::HeldUp => Ok("idle"),
        CleanerState::Running => Ok("running"),
        CleanerState::Suspended => Ok("suspended"),
        CleanerState::Off => Err(no_cleaner(target)),
    }
}

fn no_cleaner(target: &Target) -> anyhow::Error {
    say!("No cleaner found on {}.", target.device().display());
    Ended(FAILED).into()
}

/// A number of blocks, or a share of a segment.
fn reclaimable(word: &OsStr) -> anyhow::Result<Amount> {
    let shown = word.to_string_lossy();
    match number::split(word.as_bytes()) {
        Some((u64::MAX, b"" | [b'%', ..])) => bail!("value too large: {shown}"),
        Some((blocks, b"")) => Ok(Amount::Count(blocks)),
        Some((percent, [b'%', ..])) => match u8::try_from(percent) {
            Ok(percent @ 0..=100) => Ok(Amount::Percent(percent)),
            _ => bail!("percent value can't be > 100: {shown}"),
        },
        _ => bail!("invalid reclaimable blocks: {shown}"),
    }
}

/// Segments, and the pause after them, which is a second unless given.
fn speed(word: &OsStr) -> anyhow::Result<Speed> {
    let shown = word.to_string_lossy();
    let (count, pause) = match number::split(word.as_bytes()) {
        Some((count, b"")) => (count, Ok(Duration::from_secs(1))),
        Some((count, [b'/', pause @ ..])) => (count, self::pause(pause)),
        _ => bail!("invalid gc speed: {shown}"),
    };
    let pause = pause.map_err(|error| match error {
        NotAPeriod::Invalid => anyhow!("invalid gc speed: {shown}"),
        NotAPeriod::TooLarge => anyhow!("value too large: {shown}"),
    })?;
    ensure!(count != u64::MAX, "value too large: {shown}");
    Ok(Speed { segments: u32::try_from(count).unwrap_or(u32::MAX), pause })
}

/// Seconds, with or without a fraction.
fn pause(word: &[u8]) -> Result<Duration, NotAPeriod> {
    match number::split(word) {
        Some((u64::MAX, b"")) => Err(NotAPeriod::TooLarge),
        Some((seconds, b"")) => Ok(Duration::from_secs(seconds)),
        Some((_, [b'.', ..])) => {
            let seconds = str::from_utf8(word).ok().and_then(|word| word.parse().ok());
            let seconds = seconds.ok_or(NotAPeriod::Invalid)?;
            Duration::try_from_secs_f64(seconds).map_err(|_| NotAPeriod::TooLarge)
        }
        _ => Err(NotAPeriod::Invalid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said<T: std::fmt::Debug>(result: anyhow::Result<T>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn amounts_and_speeds_are_read() {
        let of = |word| reclaimable(OsStr::new(word));
        assert_eq!(of("7").unwrap(), Amount::Count(7));
        assert_eq!(of("10%").unwrap(), Amount::Percent(10));
        assert_eq!(said(of("200%")), "percent value can't be > 100: 200%");
        assert_eq!(of("10%x").unwrap(), Amount::Percent(10));
        assert_eq!(said(of("x")), "invalid reclaimable blocks: x");
        assert_eq!(said(of("5x")), "invalid reclaimable blocks: 5x");
        assert_eq!(said(of("-1")), "value too large: -1");
        let of = |word| speed(OsStr::new(word));
        let four = |pause| Speed { segments: 4, pause };
        assert_eq!(of("4").unwrap(), four(Duration::from_secs(1)));
        assert_eq!(of("4/0.5").unwrap(), four(Duration::from_millis(500)));
        assert_eq!(said(of("4/x")), "invalid gc speed: 4/x");
        assert_eq!(said(of("4/")), "invalid gc speed: 4/");
        assert_eq!(said(of("-1")), "value too large: -1");
        assert_eq!(said(of("4/-1")), "value too large: 4/-1");
    }
}
