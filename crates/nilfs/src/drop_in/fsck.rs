//! Programs that fsck(8) calls for a volume: `fsck.nilfs2`, and two for the types that our own mounts
//! have in fstab(5). nilfs-utils have no such program; options and exit codes are those that fsck(8)
//! expects of all of its kind.

use std::fs::File;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use nilfs_device::{Access, FileDevice};
use nilfs_engine::Volume;
use nilfs_ondisk::superblock::STATE_ERROR;

use super::words::{Word, Words};
use super::{Ended, Tool};
use crate::commands::fsck::{Mode, Order, Outcome, check_and_repair};
use crate::exit;
use crate::interrupt;
use crate::names;
use crate::output::say;

macro_rules! options {
    () => {
        "
  -a   as -p
  -C   write to the file descriptor FD how far the check is: pass, done, all, device
  -f   check also what -p takes for sound by its superblocks
  -h   this help
  -n   write nothing
  -p   repair what can be repaired without loss
  -r   show what is to be done, and ask; this is so on a terminal
  -v   show every finding, however many there are of a kind
  -V   the version
  -y   repair everything
"
    };
}

macro_rules! checker_for {
    ($type:literal) => {
        Tool {
            name: concat!("fsck.", $type),
            usage: concat!(
                "Usage: fsck.",
                $type,
                " [-afnprvy] [-C FD] DEVICE\nCheck a NILFS2 volume, and repair it: what fsck(8) calls for \
                 the type ",
                $type,
                ".\n",
                options!()
            ),
            long: &[],
            complaint: concat!("fsck.", $type, ": "),
            run,
        }
    };
}

pub(super) const FOR_NILFS2: Tool = checker_for!("nilfs2");
pub(super) const FOR_FUSE: Tool = checker_for!("fuse.nilfs");
pub(super) const FOR_FUSEBLK: Tool = checker_for!("fuseblk.nilfs");

/// Exit codes as in fsck(8), which combines them.
const REPAIRED: u8 = 1;
const ERRORS_LEFT: u8 = 4;
const FAILED: u8 = 8;
const USAGE: u8 = 16;
const INTERRUPTED: u8 = 32;

fn run(mut words: Words) -> anyhow::Result<ExitCode> {
    let Asked { mode, force, verbose, progress, device } = match read(&mut words) {
        Ok(Some(asked)) => asked,
        Ok(None) => return Err(Ended(USAGE).into()),
        // Help was asked for, or an option has no value, which has been said.
        Err(error) => {
            let helped = error.downcast_ref().is_some_and(|Ended(code)| *code == 0);
            return Err(Ended(if helped { 0 } else { USAGE }).into());
        }
    };
    if mode == Mode::Safe && !force && seems_sound(&device) {
        return Ok(ExitCode::SUCCESS);
    }
    let order = Order {
        mode,
        scrub: false,
        verbose,
        json: false,
        force: false,
        accept: false,
        undo: None,
        progress,
        device,
    };
    let tool = words.tool();
    let check = || ExitCode::from(checked(tool, &order));
    Ok(interrupt::interruptible(tool.complaint, INTERRUPTED, check))
}

/// Does it, and returns the exit code.
fn checked(tool: &Tool, order: &Order) -> u8 {
    match check_and_repair(order) {
        Ok(Outcome::Sound) => 0,
        Ok(Outcome::Repaired) => REPAIRED,
        Ok(Outcome::Partly(left)) => {
            tool.complain(left);
            REPAIRED | ERRORS_LEFT
        }
        Ok(Outcome::Damaged(why)) => {
            tool.complain(why);
            ERRORS_LEFT
        }
        Err(error) => {
            tool.complain(exit::sentence(&error));
            FAILED
        }
    }
}

/// What is asked for.
struct Asked {
    mode: Mode,
    force: bool,
    verbose: bool,
    /// Where to write how far it is.
    progress: Option<File>,
    device: PathBuf,
}

/// What is asked for; `None` if it makes no sense, which has been said then.
fn read(words: &mut Words) -> anyhow::Result<Option<Asked>> {
    let (mut modes, mut progress, mut device) = (Vec::new(), None, None);
    let (mut force, mut verbose) = (false, false);
    while let Some(word) = words.next()? {
        match word {
            Word::Option('a' | 'p') => modes.push(Mode::Safe),
            Word::Option('n') => modes.push(Mode::Check),
            Word::Option('r') => modes.push(Mode::Ask),
            Word::Option('y') => modes.push(Mode::All),
            Word::Option('f') => force = true,
            Word::Option('v') => verbose = true,
            Word::Option('C') => {
                let value = words.value()?;
                let Some(number) = value.to_str().and_then(|it| it.parse::<i32>().ok()) else {
                    say!("{}: -C needs the number of a file descriptor", words.tool().name());
                    return Ok(None);
                };
                progress = descriptor(number);
            }
            Word::Option(letter) => {
                say!("{}: invalid option -- '{letter}'", words.tool().name());
                return Ok(None);
            }
            Word::Operand(_) if device.is_some() => {
                say!("{}: name one device", words.tool().name());
                return Ok(None);
            }
            Word::Operand(operand) => device = Some(PathBuf::from(operand)),
        }
    }
    modes.dedup();
    let mode = match modes[..] {
        [] if io::stdin().is_terminal() => Mode::Ask,
        [] => Mode::Check,
        [mode] => mode,
        _ => {
            say!("{}: only one of -a, -n, -p, -r and -y makes sense", words.tool().name());
            return Ok(None);
        }
    };
    let Some(device) = device else {
        say!("{}: no device was named", words.tool().name());
        return Ok(None);
    };
    Ok(Some(Asked { mode, force, verbose, progress, device }))
}

/// A file that was open when the program began. The standard input stands for a bar on the terminal, which
/// is there anyway, and a negative number for none yet.
fn descriptor(number: i32) -> Option<File> {
    let path = format!("/proc/self/fd/{number}");
    (number > 0).then(|| File::options().append(true).open(path).ok()).flatten()
}

/// Whether both superblocks are whole, without the mark of an error, and lead to a checkpoint: so a
/// machine starts without reading all of its disks. After a crash, the mount recovers.
fn seems_sound(device: &Path) -> bool {
    let Ok(path) = names::device(device) else { return false };
    let Ok(device) = FileDevice::open(&path, Access::Inspect) else { return false };
    let Ok(superblocks) = Volume::superblocks(&device) else { return false };
    let has_errors = superblocks.best.raw().s_state.get() & STATE_ERROR != 0;
    superblocks.other.is_some()
        && !has_errors
        && Volume::open(std::sync::Arc::new(device)).and_then(|it| it.tree(None)).is_ok()
}
