//! `mount.fuse.nilfs`: mount(8) finds its helper for `-t fuse.nilfs` as a program of this name. It
//! is `nilfs mount`, with the words that mount(8) adds.

use std::ffi::OsString;
use std::process::ExitCode;

use super::Tool;
use super::words::{Word, Words};
use crate::cli;

pub(super) const TOOL: Tool = Tool {
    name: "mount.fuse.nilfs",
    usage: "\
Usage: mount.fuse.nilfs DEVICE DIR [-sfnv] [-o OPTIONS]
The helper of mount(8) for the type fuse.nilfs; see nilfs mount --help for the options.
",
    long: &[],
    complaint: "mount.fuse.nilfs: ",
    run,
};

fn run(words: Words) -> anyhow::Result<ExitCode> {
    Ok(translate(words)?.map_or(ExitCode::SUCCESS, cli::main))
}

/// The command line as `nilfs` would have been given it, or `None` if nothing is to be done.
fn translate(mut words: Words) -> anyhow::Result<Option<Vec<OsString>>> {
    let mut translated: Vec<OsString> = vec!["nilfs".into(), "mount".into()];
    let mut operands = Vec::new();
    let mut fake = false;
    while let Some(word) = words.next()? {
        match word {
            Word::Option('o') => translated.extend(["-o".into(), words.value()?]),
            Word::Option('f') => fake = true,
            // Words to mount(8) itself, which it passes on: sloppy, no mtab, verbose.
            Word::Option('s' | 'n' | 'v') => {}
            // The type and the namespace have brought mount(8) here.
            Word::Option('t' | 'N') => drop(words.value()?),
            Word::Option(letter) => return Err(words.invalid(letter)),
            Word::Operand(operand) => operands.push(operand),
        }
    }
    translated.push("--".into());
    translated.extend(operands);
    Ok((!fake).then_some(translated))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn translated(line: &str) -> Option<String> {
        let words = Words::new(&TOOL, line.split(' ').map(OsString::from));
        let words = translate(words).unwrap()?;
        Some(words.join(OsStr::new(" ")).into_string().unwrap())
    }

    #[test]
    fn a_call_by_mount_8_becomes_nilfs_mount() {
        assert_eq!(
            translated("/dev/sdb1 /mnt -n -o rw,noatime -t fuse.nilfs").as_deref(),
            Some("nilfs mount -o rw,noatime -- /dev/sdb1 /mnt")
        );
        assert_eq!(translated("/dev/sdb1 /mnt -f -o rw"), None, "fake");
    }
}
