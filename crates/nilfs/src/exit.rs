//! How the command ends when it fails: an exit code, and one sentence on stderr.

use std::fmt;
use std::io;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use nilfs_device::OpenError;
use nilfs_engine::Error;
use nilfs_engine::mkfs::MkfsError;
use nilfs_fuse::MountError;

use crate::administration::{Reason, Refusal};
use crate::output::{self, OutputError, say};

/// The exit codes; `nilfs --help` and docs/exit-codes.md explain them to the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It was tried and did not work.
    Failed = 1,
    /// The command line is wrong. (clap ends with the same code.)
    Usage = 2,
    /// Not a volume that can be used.
    NotAVolume = 3,
    /// The device or image cannot be opened.
    CannotOpen = 4,
    /// It is in use.
    Busy = 5,
    /// Data would be overwritten.
    Refused = 6,
    /// The directory or FUSE does not allow a mount.
    CannotMount = 7,
    /// A signal has asked the command to end: the code that a shell makes of Ctrl-C.
    Interrupted = 130,
}

/// An error of the command itself, with the status it ends with.
#[derive(Debug)]
pub struct Failure {
    status: Status,
    message: String,
}

impl Failure {
    /// The message is one sentence that says what failed and what to do.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status, message }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Prints what is wrong with the command line of `command`, or the help that was asked for.
pub fn report_usage(error: &clap::Error, command: &str) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let printed = error.print().map_err(output::unprinted);
            return printed.map_or_else(|error| report(&error.into()), |()| ExitCode::SUCCESS);
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // It goes to standard error, where nobody is left to be told.
            let _ = error.print();
        }
        _ => say!("nilfs: {}", usage_sentence(error, command)),
    }
    ExitCode::from(Status::Usage as u8)
}

/// What clap says about a mistake, what may have been meant, and where to read on.
fn usage_sentence(error: &clap::Error, command: &str) -> String {
    let text = error.to_string();
    // The first paragraph has all that matters.
    let (paragraph, _) = text.split_once("\n\n").unwrap_or((&text, ""));
    let words: Vec<_> = paragraph.trim_start_matches("error: ").split_whitespace().collect();
    // Values are not guessed: the message lists them.
    let suggestions = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg];
    let meant = suggestions.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(one) => Some(one.clone()),
        ContextValue::Strings(several) => several.last().cloned(),
        _ => None,
    });
    if error.kind() == ErrorKind::ArgumentConflict
        && let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand)
    {
        // clap takes every word for a subcommand here, whether or not there is one of that name.
        return format!("unexpected argument '{word}' found; see {command} --help");
    }
    let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
    let end = if meant.is_empty() { ";" } else { "" };
    format!("{}{meant}{end} see {command} --help", in_words(&words.join(" ")))
}

/// Replaces the standard library's words about a wrong number, which are meant for programmers.
fn in_words(text: &str) -> String {
    text.replace("invalid digit found in string", "expected a whole number")
        .replace("cannot parse integer from empty string", "expected a whole number")
        .replace("number too large to fit in target type", "the number is too large")
}

/// Prints why the command failed, and returns its exit code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    say!("nilfs: {}", sentence(error));
    ExitCode::from(status_of(error) as u8)
}

/// The causes of an error from the outermost to the innermost, as one sentence.
pub fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        // Typed errors name their source in their own words already.
        if text.ends_with(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    without_error_numbers(&text).replace('\n', " ")
}

/// Takes out what the standard library adds to the system's words: "(os error 2)".
pub fn without_error_numbers(text: &str) -> String {
    let mut rest = text;
    let mut clean = String::new();
    while let Some((before, after)) = rest.split_once(" (os error ") {
        clean.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    clean + rest
}

/// Whether all that is wrong is that the reader of our output has seen enough.
pub fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let of_output = |cause: &io::Error| {
        cause.get_ref()?.downcast_ref::<OutputError>().map(|e| e.is_closed_pipe())
    };
    error.chain().any(|cause| cause.downcast_ref().and_then(of_output) == Some(true))
}

/// The exit code that an error means.
pub fn status_of(error: &anyhow::Error) -> Status {
    error.chain().find_map(status_of_cause).unwrap_or(Status::Failed)
}

/// The status that an error of a known type stands for.
fn status_of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Status> {
    if let Some(failure) = cause.downcast_ref::<Failure>() {
        return Some(failure.status);
    }
    if let Some(error) = cause.downcast_ref::<OpenError>() {
        return Some(match error {
            OpenError::Busy { .. } => Status::Busy,
            _ => Status::CannotOpen,
        });
    }
    if let Some(error) = cause.downcast_ref::<MkfsError>() {
        return Some(match error {
            MkfsError::Device { .. } => Status::Failed,
            _ => Status::Usage,
        });
    }
    if let Some(error) = cause.downcast_ref::<MountError>() {
        return Some(match error {
            MountError::Busy { .. } | MountError::Written { .. } => Status::Busy,
            _ => Status::CannotMount,
        });
    }
    if let Some(refusal) = cause.downcast_ref::<Refusal>() {
        return (refusal.reason == Reason::Usage).then_some(Status::Usage);
    }
    cause.downcast_ref::<Error>().map(|error| match error {
        Error::NotAVolume(_)
        | Error::NoSuperblock(_)
        | Error::NothingToRescue
        | Error::Truncated(_)
        | Error::Feature(_)
        | Error::Corrupt { .. }
        | Error::Inconsistent(_)
        | Error::Damaged { .. }
        | Error::RollForward(_) => Status::NotAVolume,
        _ => Status::Failed,
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_is_said_once_and_without_error_numbers() {
        let source = io::Error::from_raw_os_error(2);
        let path = "x.img".into();
        let error = anyhow::Error::new(OpenError::Open { path, source }).context("while looking");
        assert_eq!(sentence(&error), "while looking: cannot open x.img: No such file or directory");
    }

    #[test]
    fn a_mistake_on_the_command_line_is_one_sentence() {
        let mistake = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let error = crate::cli::parse(&words).unwrap_err();
            let error = crate::cli::without_signs(&words, &error).unwrap_or(error);
            usage_sentence(&error, &crate::cli::subcommand(&words))
        };
        for (line, sentence) in [
            (
                "nilfs mkfs -b 512 x",
                "invalid value '512' for '--block-size <BYTES>' \
                 [possible values: 1024, 2048, 4096]; see nilfs mkfs --help",
            ),
            ("nilfs ls --frob x", "unexpected argument '--frob' found; see nilfs ls --help"),
            (
                "nilfs check",
                "the following required arguments were not provided: <DEVICE|DIR>; \
                 see nilfs check --help",
            ),
            (
                "nilfs ls --at 5x y",
                "invalid value '5x' for '--at <WHEN>': expected a checkpoint number, the name of a \
                 snapshot, or a time, such as 17, 2026-11-20, \"2026-11-20 17:00\", \
                 \"yesterday 17:00\", monday, \"10 minutes ago\" or now; see nilfs ls --help",
            ),
            (
                "nilfs mout x y",
                "unrecognized subcommand 'mout'; did you mean mount? see nilfs --help",
            ),
            (
                "nilfs snapshot creat x",
                "unrecognized subcommand 'creat'; did you mean create? see nilfs snapshot --help",
            ),
            (
                "nilfs ls --recursiv x",
                "unexpected argument '--recursiv' found; did you mean --recursive? \
                 see nilfs ls --help",
            ),
            (
                "nilfs checkpoints x y",
                "unexpected argument 'y' found; see nilfs checkpoints --help",
            ),
            (
                "nilfs resize x --verbos",
                "unexpected argument '--verbos' found; did you mean --verbose? \
                 see nilfs resize --help",
            ),
            (
                "nilfs resize x -5X",
                "invalid value '-5X' for '[SIZE]': X is none of the units K, M, G and T; \
                 see nilfs resize --help",
            ),
            (
                "nilfs mkfs -U x y",
                "invalid value 'x' for '--uuid <UUID>': expected a UUID such as \
                 8f481382-d326-486d-86ca-73a3bb2d13f1; see nilfs mkfs --help",
            ),
        ] {
            assert_eq!(mistake(line), sentence);
        }
    }

    #[test]
    fn the_innermost_known_error_decides_the_status() {
        let failed: Result<(), _> = Err(Failure::new(Status::Refused, "no"));
        assert_eq!(status_of(&failed.context("outer").unwrap_err()), Status::Refused);
        assert_eq!(status_of(&anyhow::anyhow!("anything")), Status::Failed);
    }
}
