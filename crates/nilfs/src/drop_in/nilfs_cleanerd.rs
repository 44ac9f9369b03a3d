//! `nilfs_cleanerd`: a daemon that nobody needs here. A user who starts it is told so.

use std::process::ExitCode;

use super::words::{Word, Words};
use super::{Tool, lssu};

pub(super) const TOOL: Tool = Tool {
    name: "nilfs_cleanerd",
    usage: "\
Usage: nilfs_cleanerd [OPTION]... DEVICE [DIR]
Does nothing: the process that serves a volume cleans it, too.

  -c, --conffile=FILE              accepted without effect
  -p, --protection-period=PERIOD   accepted without effect; see the mount option pp
  -h, --help                       this help
  -V, --version                    the version
",
    long: &[("conffile", 'c'), ("protection-period", 'p')],
    complaint: "nilfs_cleanerd: ",
    run,
};

fn run(mut words: Words) -> anyhow::Result<ExitCode> {
    while let Some(word) = words.next()? {
        match word {
            Word::Option('c') => drop(words.value()?),
            Word::Option('p') => drop(lssu::period(&words.value()?)?),
            Word::Option(letter) => return Err(words.invalid(letter)),
            Word::Operand(_) => {}
        }
    }
    words.tool().complain(
        "not needed: a volume that nilfs mounts is cleaned by the process that serves it \
         (see nilfs status)",
    );
    Ok(ExitCode::SUCCESS)
}
