//! The one definition of the command line: help, man pages and completions are made of it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::exit::{self, Status};
use crate::{commands, interrupt, output};

/// The examples on the help page of `nilfs` itself.
const EXAMPLES: &str = "\
Examples:
  nilfs mkfs --size 4G disk.img    make a volume in a new image file
  nilfs mount disk.img mnt         mount it; nilfs umount mnt ends that
  nilfs checkpoints mnt            the past, which can be read and mounted
  nilfs help snapshot              how to keep it";

/// What the help page of `nilfs` ends with. Every page of the manual about a subcommand has it,
/// too.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed: a device error, a full disk, a file that is not there …
  2  the command line is wrong
  3  not a NILFS2 volume, or one that is damaged or too new
  4  the device or image is missing or cannot be opened
  5  the device, image or mount is in use
  6  refused, because data would be overwritten (mkfs, restore without -f)
  7  cannot mount there: the directory, or FUSE, does not allow it
  130  interrupted, by Ctrl-C or the signal TERM";

/// NILFS2 in user space: make, mount and look into volumes of the log-structured file system.
///
/// Every few seconds a volume makes a checkpoint: the whole of it as it was at that moment.
/// Checkpoints can be listed, read and mounted until the cleaner needs their space: not for an hour,
/// as long as there is room. As snapshots they are kept until further notice.
#[derive(Debug, Parser)]
#[command(name = "nilfs", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_CODES}"))]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(disable_help_subcommand = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Does what a command line says, the program's name included.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = with_subcommand(arguments.into_iter().collect());
    match parse(&arguments) {
        Ok(Cli { command: Command::Help(args) }) => main(args.asked()),
        // A process that serves a mount has its own way to end.
        Ok(Cli { command: command @ Command::Mount(_) }) => finish(command),
        Ok(Cli { command }) => {
            let code = Status::Interrupted as u8;
            interrupt::interruptible("nilfs: ", code, || finish(command))
        }
        Err(error) => {
            let error = without_signs(&arguments, &error).unwrap_or(error);
            exit::report_usage(&error, &subcommand(&arguments))
        }
    }
}

/// The words with the subcommand that they mean. Where our helper is not installed, mount(8) lets
/// mount.fuse3(8) run `nilfs DEVICE DIR -o OPTIONS`, as it does with every file system. No subcommand
/// has a slash in its name.
fn with_subcommand(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.get(1).is_some_and(|word| word.as_bytes().contains(&b'/')) {
        arguments.insert(1, "mount".into());
    }
    arguments
}

/// Does what a subcommand says, and reports what became of it.
fn finish(command: Command) -> ExitCode {
    let done = command.run().and_then(|()| Ok(output::flush()?));
    done.map_or_else(|error| exit::report(&error), |()| ExitCode::SUCCESS)
}

/// The definition of the whole command line.
pub fn definition() -> clap::Command {
    let mut command = Cli::command();
    command.build();
    command
}

/// Reads a command line.
pub fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    // To define every subcommand would take longer than most of them do, so one that is named is
    // defined alone. Help is about all of them.
    if arguments.get(1).is_none_or(|word| command.find_subcommand(word).is_none()) {
        command.build();
    }
    let matches = command.try_get_matches_from_mut(arguments)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// What is wrong with a word that was taken for a value because a sign may come first there
/// (`nilfs resize`), but that begins like an option.
pub fn without_signs(arguments: &[OsString], error: &clap::Error) -> Option<clap::Error> {
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else {
        return None;
    };
    let rest = value.strip_prefix('-')?;
    if rest.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let unsigned = |arg: clap::Arg| arg.allow_hyphen_values(false);
    let command = definition().mut_subcommands(|it| it.mut_args(unsigned));
    command.try_get_matches_from(arguments).err()
}

/// The command that a command line is for, as far as there is one: `nilfs snapshot create`.
pub fn subcommand(arguments: &[OsString]) -> String {
    let mut command = definition();
    let mut name = command.get_name().to_owned();
    for word in arguments.iter().skip(1) {
        let Some(subcommand) = command.find_subcommand(word).cloned() else { break };
        name = format!("{name} {}", subcommand.get_name());
        command = subcommand;
    }
    name
}

/// The subcommands. Each is defined when it is needed.
#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub enum Command {
    Mkfs(commands::mkfs::Args),
    Tune(commands::tune::Args),
    Mount(commands::mount::MountArgs),
    Umount(commands::mount::UmountArgs),
    List(commands::list::Args),
    Info(commands::info::Args),
    Ls(commands::ls::Args),
    Cat(commands::cat::Args),
    Stat(commands::stat::Args),
    Cp(commands::cp::Args),
    Diff(commands::diff::Args),
    Log(commands::log::Args),
    Restore(commands::restore::Args),
    Rollback(commands::rollback::Args),
    Purge(commands::purge::Args),
    Undelete(commands::undelete::Args),
    Status(commands::status::Args),
    Df(commands::df::Args),
    Clean(commands::clean::Args),
    Sync(commands::sync::Args),
    Checkpoints(commands::checkpoints::Args),
    Snapshot(commands::snapshot::Args),
    Trim(commands::trim::Args),
    Resize(commands::resize::Args),
    Defrag(commands::defrag::Args),
    Metrics(commands::metrics::Args),
    Segments(commands::segments::Args),
    Dump(commands::dump::Args),
    Check(commands::check::Args),
    Fsck(commands::fsck::Args),
    Scrub(commands::scrub::Args),
    Recover(commands::recover::Args),
    Salvage(commands::salvage::Args),
    Image(commands::image::Args),
    Help(commands::help::Args),
    Generate(commands::generate::Args),
}

impl Command {
    /// Does it.
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Mkfs(args) => commands::mkfs::run(args),
            Self::Tune(args) => commands::tune::run(args),
            Self::Mount(args) => commands::mount::mount(args),
            Self::Umount(args) => commands::mount::umount(args),
            Self::List(args) => commands::list::run(args),
            Self::Info(args) => commands::info::run(args),
            Self::Ls(args) => commands::ls::run(args),
            Self::Cat(args) => commands::cat::run(args),
            Self::Stat(args) => commands::stat::run(args),
            Self::Cp(args) => commands::cp::run(args),
            Self::Diff(args) => commands::diff::run(args),
            Self::Log(args) => commands::log::run(args),
            Self::Restore(args) => commands::restore::run(&args),
            Self::Rollback(args) => commands::rollback::run(&args),
            Self::Purge(args) => commands::purge::run(&args),
            Self::Undelete(args) => commands::undelete::run(&args),
            Self::Status(args) => commands::status::run(args),
            Self::Df(args) => commands::df::run(args),
            Self::Clean(args) => commands::clean::run(args),
            Self::Sync(args) => commands::sync::run(args),
            Self::Checkpoints(args) => commands::checkpoints::run(args),
            Self::Snapshot(args) => commands::snapshot::run(args),
            Self::Trim(args) => commands::trim::run(args),
            Self::Resize(args) => commands::resize::run(args),
            Self::Defrag(args) => commands::defrag::run(args),
            Self::Metrics(args) => commands::metrics::run(args),
            Self::Segments(args) => commands::segments::run(args),
            Self::Dump(args) => commands::dump::run(args),
            Self::Check(args) => commands::check::run(args),
            Self::Fsck(args) => commands::fsck::run(args),
            Self::Scrub(args) => commands::scrub::run(&args),
            Self::Recover(args) => commands::recover::run(args),
            Self::Salvage(args) => commands::salvage::run(&args),
            Self::Image(args) => commands::image::run(&args),
            // `main` has answered this already.
            Self::Help(_) => Ok(()),
            Self::Generate(args) => commands::generate::run(args),
        }
    }
}
