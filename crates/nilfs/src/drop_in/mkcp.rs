//! `mkcp`: makes a checkpoint.

use std::io::Write;
use std::process::ExitCode;

use super::words::{Word, Words};
use super::{Tool, volume};
use crate::output;

pub(super) const TOOL: Tool = Tool {
    name: "mkcp",
    usage: "\
Usage: mkcp [OPTION]... [DEVICE|NODE]
Make a checkpoint of a NILFS2 volume.

  -s, --snapshot   make it a snapshot
  -p, --print      print its number
  -h, --help       this help
  -V, --version    the version
",
    long: &[("snapshot", 's'), ("print", 'p')],
    complaint: "mkcp: ",
    run,
};

fn run(mut words: Words) -> anyhow::Result<ExitCode> {
    let (mut snapshot, mut print) = (false, false);
    let mut operands = Vec::new();
    while let Some(word) = words.next()? {
        match word {
            Word::Option('s') => snapshot = true,
            Word::Option('p') => print = true,
            Word::Option(letter) => return Err(words.invalid(letter)),
            Word::Operand(operand) => operands.push(operand),
        }
    }
    let cno = volume::administer(words.only_volume(operands)?.as_deref(), |volume| {
        let cno = volume.checkpoint(false)?;
        if snapshot {
            volume.set_snapshot(cno, true)?;
        }
        Ok(cno)
    })?;
    if print {
        writeln!(output::out(), "{cno}")?;
    }
    Ok(ExitCode::SUCCESS)
}
