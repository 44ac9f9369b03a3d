//! How the program ends when it fails: an exit code, and one sentence on standard error.

use std::process::ExitCode;

use anyhow::Error;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use nilfs_device::OpenError;
use nilfs_lab::failure::{Failure, Status};
use nilfs_lab::model::preset;
use nilfs_lab::trace::TraceError;

use super::say;

/// Prints what is wrong with the command line, or the help that was asked for.
pub fn report_usage(error: &clap::Error, command: &str) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let printed = super::show(&error.render().to_string());
            return printed.map_or_else(|error| report(&error), |()| ExitCode::SUCCESS);
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            say(error.render().to_string().trim_end());
        }
        _ => say(&format!("nilfs-lab: {}", usage_sentence(error, command))),
    }
    code(Status::Usage)
}

/// Sentence with what clap says about a mistake, what may have been meant, and where to read on.
fn usage_sentence(error: &clap::Error, command: &str) -> String {
    let text = error.to_string();
    // The first paragraph has all that matters.
    let (paragraph, _) = text.split_once("\n\n").unwrap_or((&text, ""));
    let words: Vec<_> = paragraph.trim_start_matches("error: ").split_whitespace().collect();
    let said = words.join(" ").replace("invalid digit found in string", "expected a whole number");
    let suggestions = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg];
    let meant = suggestions.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(one) => Some(one.clone()),
        ContextValue::Strings(several) => several.last().cloned(),
        _ => None,
    });
    match meant {
        Some(meant) => format!("{said}; did you mean {meant}? see {command} --help"),
        None => format!("{said}; see {command} --help"),
    }
}

/// Prints why the command failed, and returns its exit code.
pub fn report(error: &Error) -> ExitCode {
    say(&format!("nilfs-lab: {}", sentence(error)));
    code(error.chain().find_map(status_of).unwrap_or(Status::Failed))
}

/// The causes of an error from the outermost to the innermost, each said once, without the numbers
/// that the standard library adds to the system's words.
pub fn sentence(error: &Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.ends_with(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&cause);
    }
    let mut parts = text.split(" (os error ");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    plain.replace('\n', " ")
}

fn code(status: Status) -> ExitCode {
    ExitCode::from(status as u8)
}

/// The status that an error of a known type stands for.
fn status_of(cause: &(dyn std::error::Error + 'static)) -> Option<Status> {
    if let Some(failure) = cause.downcast_ref::<Failure>() {
        return Some(failure.status());
    }
    if let Some(error) = cause.downcast_ref::<OpenError>() {
        return Some(match error {
            OpenError::Busy { .. } => Status::Busy,
            _ => Status::CannotOpen,
        });
    }
    if let Some(error) = cause.downcast_ref::<preset::Error>() {
        return match error {
            preset::Error::Unknown(_) => Some(Status::Usage),
            preset::Error::Read { .. } => Some(Status::CannotOpen),
            _ => None,
        };
    }
    let error = cause.downcast_ref::<TraceError>()?;
    matches!(error, TraceError::File { .. }).then_some(Status::CannotOpen)
}
