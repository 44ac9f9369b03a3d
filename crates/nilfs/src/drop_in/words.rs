//! Options and operands as getopt_long(3) reads them: letters in bundles, long names that may be
//! cut short, options after operands, and its messages.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

use anyhow::ensure;
use lexopt::{Arg, Error, Parser};

use super::{Ended, FAILED, Tool};
use crate::output::{self, say};

/// The words of a command line after the program's name.
pub struct Words {
    tool: &'static Tool,
    parser: Parser,
    /// The option that came last, as the user wrote it.
    last: Given,
}

/// A word.
#[derive(Debug, PartialEq, Eq)]
pub enum Word {
    /// An option, by its letter.
    Option(char),
    /// Anything else.
    Operand(OsString),
}

/// How an option was written.
#[derive(Debug, Clone, Copy)]
enum Given {
    Short(char),
    Long(&'static str),
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(letter) => write!(f, "option requires an argument -- '{letter}'"),
            Self::Long(name) => write!(f, "option '--{name}' requires an argument"),
        }
    }
}

impl Words {
    /// Words for a tool.
    pub fn new(tool: &'static Tool, words: impl Iterator<Item = OsString>) -> Self {
        Self { tool, parser: Parser::from_args(words), last: Given::Short('?') }
    }

    /// The next word. Answers -h and -V itself, which end the tool.
    pub fn next(&mut self) -> anyhow::Result<Option<Word>> {
        let letter = match self.parser.next() {
            Ok(None) => return Ok(None),
            Ok(Some(Arg::Value(operand))) => return Ok(Some(Word::Operand(operand))),
            Ok(Some(Arg::Short(letter))) => {
                self.last = Given::Short(letter);
                letter
            }
            Ok(Some(Arg::Long(start))) => {
                let start = start.to_owned();
                let (name, letter) = self.long(&start)?;
                self.last = Given::Long(name);
                letter
            }
            Err(error) => return Err(self.misread(&error)),
        };
        match letter {
            'h' => {
                output::out().write_all(self.tool.usage.as_bytes())?;
                Err(Ended(0).into())
            }
            'V' => {
                writeln!(output::out(), "{}", self.tool.version())?;
                Err(Ended(0).into())
            }
            letter => Ok(Some(Word::Option(letter))),
        }
    }

    /// The value of the option that came last.
    pub fn value(&mut self) -> anyhow::Result<OsString> {
        self.parser.value().map_err(|error| self.misread(&error))
    }

    /// The value of the option that came last, if it was given in the same word.
    pub fn optional_value(&mut self) -> Option<OsString> {
        self.parser.optional_value()
    }

    /// All operands, of a tool that has no further options. Options may stand between them.
    pub fn operands(
        mut self,
        operands: impl IntoIterator<Item = OsString>,
    ) -> anyhow::Result<Vec<OsString>> {
        let mut operands: Vec<_> = operands.into_iter().collect();
        while let Some(word) = self.next()? {
            match word {
                Word::Operand(operand) => operands.push(operand),
                Word::Option(letter) => return Err(self.invalid(letter)),
            }
        }
        Ok(operands)
    }

    /// The operand of a tool that takes a volume and nothing else.
    pub fn only_volume(&self, mut operands: Vec<OsString>) -> anyhow::Result<Option<OsString>> {
        ensure!(operands.len() <= 1, "too many arguments");
        Ok(operands.pop())
    }

    /// Ends the tool because it has no such option.
    pub fn invalid(&self, letter: char) -> anyhow::Error {
        self.misuse(format_args!("invalid option -- '{letter}'"))
    }

    /// Ends the tool because the command line is wrong.
    pub fn misuse(&self, what: impl fmt::Display) -> anyhow::Error {
        say!("{}: {what}", self.tool.name);
        Ended(FAILED).into()
    }

    /// The tool, for its messages.
    pub fn tool(&self) -> &'static Tool {
        self.tool
    }

    /// The long option that starts like this, and its letter.
    fn long(&self, start: &str) -> anyhow::Result<(&'static str, char)> {
        let all = || self.tool.long.iter().copied().chain([("help", 'h'), ("version", 'V')]);
        if let Some(exact) = all().find(|(name, _)| *name == start) {
            return Ok(exact);
        }
        let found: Vec<_> = all().filter(|(name, _)| name.starts_with(start)).collect();
        match found[..] {
            [] => Err(self.misuse(format_args!("unrecognized option '--{start}'"))),
            [(name, letter), ref rest @ ..] if rest.iter().all(|other| other.1 == letter) => {
                Ok((name, letter))
            }
            _ => {
                let names: String = found.iter().map(|(name, _)| format!(" '--{name}'")).collect();
                Err(self
                    .misuse(format_args!("option '--{start}' is ambiguous; possibilities:{names}")))
            }
        }
    }

    fn misread(&self, error: &Error) -> anyhow::Error {
        match (error, self.last) {
            (Error::MissingValue { .. }, last) => self.misuse(last),
            (Error::UnexpectedValue { .. }, Given::Long(name)) => {
                self.misuse(format_args!("option '--{name}' doesn't allow an argument"))
            }
            (Error::UnexpectedValue { .. }, Given::Short(_)) => self.invalid('='),
            _ => self.misuse(error),
        }
    }
}

/// Takes the operand that names the volume away from those that name something else on it: the
/// first, unless it could be one of these.
pub fn split_volume(
    operands: Vec<OsString>,
    is_item: impl Fn(&[u8]) -> bool,
) -> (Option<OsString>, Vec<OsString>) {
    let mut operands = operands.into_iter().peekable();
    let volume = operands.next_if(|first: &OsString| !is_item(OsStr::as_bytes(first)));
    (volume, operands.collect())
}
