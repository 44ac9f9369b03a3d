//! `lscp`: the checkpoints of a volume.

use std::io::{self, Write};
use std::process::ExitCode;

use nilfs_engine::{CheckpointInfo, Volume};
use nilfs_ondisk::Cno;

use super::words::{Word, Words};
use super::{Tool, number, volume};
use crate::output::{self, local_time};

pub(super) const TOOL: Tool = Tool {
    name: "lscp",
    usage: "\
Usage: lscp [OPTION]... [DEVICE|NODE]
List the checkpoints of a NILFS2 volume.

  -a, --all                minor checkpoints too
  -b, --show-block-count   the number of blocks of each (default)
  -g, --show-increment     the number of blocks that each has written
  -r, --reverse            the newest first
  -s, --snapshot           snapshots only
  -i, --index=CNO          start with this checkpoint
  -n, --lines=N            at most N lines
  -h, --help               this help
  -V, --version            the version
",
    long: &[
        ("all", 'a'),
        ("show-block-count", 'b'),
        ("show-increment", 'g'),
        ("reverse", 'r'),
        ("snapshot", 's'),
        ("index", 'i'),
        ("lines", 'n'),
    ],
    complaint: "lscp: ",
    run,
};

#[derive(Debug, Default)]
struct Options {
    all: bool,
    increment: bool,
    reverse: bool,
    snapshots: bool,
    /// 0: not given.
    index: u64,
    /// 0: as many as there are.
    lines: u64,
}

fn run(mut words: Words) -> anyhow::Result<ExitCode> {
    let mut options = Options::default();
    let mut operands = Vec::new();
    while let Some(word) = words.next()? {
        match word {
            Word::Option('a') => options.all = true,
            Word::Option('b') => options.increment = false,
            Word::Option('g') => options.increment = true,
            Word::Option('r') => options.reverse = true,
            Word::Option('s') => options.snapshots = true,
            Word::Option('i') => options.index = number::leading(&words.value()?),
            Word::Option('n') => options.lines = number::leading(&words.value()?),
            Word::Option(letter) => return Err(words.invalid(letter)),
            Word::Operand(operand) => operands.push(operand),
        }
    }
    let volume = words.only_volume(operands)?;
    let list = volume::look(volume.as_deref(), |volume| chosen(volume, &options))?;
    print(&list, options.increment)?;
    Ok(ExitCode::SUCCESS)
}

/// The checkpoints to be shown, in order.
fn chosen(volume: &Volume, options: &Options) -> anyhow::Result<Vec<CheckpointInfo>> {
    let from = if options.reverse { 1 } else { options.index.max(1) };
    let mut list = volume.checkpoints(Cno(from), usize::MAX)?;
    list.retain(|checkpoint| match options.snapshots {
        true => checkpoint.snapshot,
        false => options.all || checkpoint.snapshot || !checkpoint.minor,
    });
    if options.reverse {
        list.retain(|checkpoint| options.index == 0 || checkpoint.cno.0 <= options.index);
        list.reverse();
    }
    if options.lines != 0 {
        list.truncate(usize::try_from(options.lines).unwrap_or(usize::MAX));
    }
    Ok(list)
}

fn print(list: &[CheckpointInfo], increment: bool) -> anyhow::Result<()> {
    let mut out = io::BufWriter::new(output::out());
    let column = if increment { "NBLKINC" } else { "BLKCNT" };
    let [cno, date, time, mode] = ["CNO", "DATE", "TIME", "MODE"];
    writeln!(out, "{cno:>20}  {date:>10}  {time:>7}  {mode}  FLG {column:>11}{:>11}", "ICNT")?;
    for checkpoint in list {
        writeln!(
            out,
            "{:>20}  {}   {}    {} {:>12} {:>10}",
            checkpoint.cno.0,
            local_time(checkpoint.created as i64),
            if checkpoint.snapshot { "ss" } else { "cp" },
            if checkpoint.minor { "i" } else { "-" },
            if increment { checkpoint.increment } else { checkpoint.blocks },
            checkpoint.inodes,
        )?;
    }
    Ok(out.flush()?)
}
