//! `rmcp`: deletes checkpoints.

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use anyhow::bail;
use nilfs_engine::Cno;

use super::words::{Word, Words, split_volume};
use super::{FAILED, Tool, confirmed, number, volume};
use crate::administration::{Administration, Reason};
use crate::output::say;

pub(super) const TOOL: Tool = Tool {
    name: "rmcp",
    usage: "\
Usage: rmcp [OPTION]... [DEVICE|NODE] RANGE...
Delete checkpoints of a NILFS2 volume. A RANGE is a number, A..B, ..B or A.. .

  -f, --force         say nothing of snapshots, which stay, and of checkpoints that are not there
  -i, --interactive   ask before anything is deleted
  -h, --help          this help
  -V, --version       the version
",
    long: &[("force", 'f'), ("interactive", 'i')],
    complaint: "rmcp: ",
    run,
};

#[derive(Debug, Default)]
struct Options {
    force: bool,
    interactive: bool,
}

/// What could not be done.
#[derive(Debug, Default)]
struct Failures {
    any: bool,
    snapshots: bool,
}

fn run(mut words: Words) -> anyhow::Result<ExitCode> {
    let mut options = Options::default();
    let mut operands = Vec::new();
    while let Some(word) = words.next()? {
        match word {
            Word::Option('f') => (options.force, options.interactive) = (true, false),
            Word::Option('i') => (options.force, options.interactive) = (false, true),
            Word::Option(letter) => return Err(words.invalid(letter)),
            Word::Operand(operand) => operands.push(operand),
        }
    }
    let (name, ranges) = match operands.len() {
        0 => bail!("too few arguments"),
        1 => (None, operands),
        _ => split_volume(operands, |operand| range(operand).is_some()),
    };
    let tool = words.tool();
    let mut failures = Failures::default();
    volume::administer(name.as_deref(), |volume| {
        ranges.iter().try_for_each(|word| delete(volume, tool, &options, word, &mut failures))
    })?;
    if failures.snapshots {
        say!(
            "\nTo delete snapshot(s), change them into checkpoints with\n\
             chcp command before removal."
        );
    }
    Ok(if failures.any { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

/// Deletes the checkpoints that a word names, and says what is not possible.
fn delete(
    volume: &dyn Administration,
    tool: &Tool,
    options: &Options,
    word: &OsString,
    failures: &mut Failures,
) -> anyhow::Result<()> {
    let shown = word.to_string_lossy();
    let Some(range) = range(word.as_bytes()) else {
        tool.complain(format_args!("invalid checkpoint range: {shown}"));
        failures.any = true;
        return Ok(());
    };
    if options.interactive && !confirmed(&format!("{}: remove checkpoint {shown}? ", tool.name))? {
        return Ok(());
    }
    let single = range.start() == range.end() && number::exact(word.as_bytes()).is_some();
    let last = *range.end();
    let snapshots = match volume.delete_checkpoints(range) {
        Ok(outcome) => outcome.snapshots,
        Err(refusal) if refusal.reason == Reason::NoCheckpoint => {
            if !options.force {
                failures.any = true;
                let is_newest = volume.status()?.cno == last;
                tool.complain(match single {
                    true if is_newest => format!("{shown}: cannot remove the newest checkpoint"),
                    true => format!("invalid checkpoint: {shown}"),
                    false => format!("no valid checkpoints found in {shown}"),
                });
            }
            return Ok(());
        }
        Err(refusal) => return Err(refusal.into()),
    };
    if !options.force && !snapshots.is_empty() {
        for snapshot in snapshots {
            tool.complain(format_args!("{snapshot}: cannot remove snapshot"));
        }
        (failures.any, failures.snapshots) = (true, true);
    }
    Ok(())
}

/// The range that a word means, if it is one.
fn range(word: &[u8]) -> Option<RangeInclusive<Cno>> {
    let text = std::str::from_utf8(word).ok()?;
    let number = |text: &str| number::exact(text.as_bytes());
    let (first, last) = match text.split_once("..") {
        None => (number(text)?, number(text)?),
        Some(("", "")) => return None,
        Some(("", last)) => (Cno::MIN.0, number(last)?),
        Some((first, "")) => (number(first)?, Cno::MAX.0 - 1),
        Some((first, last)) => (number(first)?, number(last)?),
    };
    (first <= last).then_some(Cno(first)..=Cno(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_a_number_or_has_two_dots() {
        let of = |word: &str| range(word.as_bytes()).map(|range| (range.start().0, range.end().0));
        assert_eq!(of("7"), Some((7, 7)));
        assert_eq!(of("7..9"), Some((7, 9)));
        assert_eq!(of("..9"), Some((1, 9)));
        assert_eq!(of("7.."), Some((7, u64::MAX - 1)));
        for word in ["", "x", "..", "9..7", "1..3x", "-1", "1.2"] {
            assert_eq!(of(word), None, "{word}");
        }
    }
}
