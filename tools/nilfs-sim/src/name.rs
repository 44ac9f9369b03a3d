//! Names and paths: a small space, so that random operations meet the same files again.

use std::fmt;

use crate::outcome::Refusal;

/// The longest name that the format can hold, in bytes.
pub const NAME_MAX: usize = 255;

/// A name in a directory. The number decides its kind: a letter, a name of the greatest length, a
/// name that is one byte too long, or one of many of medium length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(pub u16);

impl Name {
    /// How many names are single letters: `Name(0)` is `a`.
    pub const LETTERS: u16 = 26;
    /// The first of the names of 255 bytes.
    pub const LONG: u16 = Self::LETTERS;
    /// The one name that is too long.
    pub const TOO_LONG: Name = Name(Self::LONG + 8);
    /// The first of the names `n0`, `n1`, ….
    pub const NUMBERED: u16 = Self::TOO_LONG.0 + 1;

    pub(crate) fn check_length(self) -> Result<(), Refusal> {
        if self == Self::TOO_LONG {
            return Err(Refusal::NameTooLong);
        }
        Ok(())
    }

    /// The name as it lies in a directory.
    #[must_use]
    pub fn bytes(self) -> Vec<u8> {
        match self.0 {
            letter if letter < Self::LETTERS => vec![b'a' + letter as u8],
            long if long < Self::TOO_LONG.0 => vec![b'A' + (long - Self::LONG) as u8; NAME_MAX],
            _ if self == Self::TOO_LONG => vec![b'!'; NAME_MAX + 1],
            number => format!("n{}", number - Self::NUMBERED).into_bytes(),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes();
        if bytes.len() < NAME_MAX {
            return f.write_str(&String::from_utf8_lossy(&bytes));
        }
        write!(f, "<{}*{}>", char::from(bytes[0]), bytes.len())
    }
}

/// A path from the root: the names on the way. The empty path is the root itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Path(pub Vec<Name>);

impl Path {
    /// The root.
    #[must_use]
    pub fn root() -> Self {
        Self::default()
    }

    /// This directory's entry `name`.
    #[must_use]
    pub fn join(&self, name: Name) -> Self {
        let mut names = self.0.clone();
        names.push(name);
        Self(names)
    }

    /// The names as they lie in directories, separated by `/`; empty for the root.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let names: Vec<_> = self.0.iter().map(|name| name.bytes()).collect();
        names.join(&b'/')
    }

    /// The directory that holds the last name, and that name; `None` for the root.
    #[must_use]
    pub fn split(&self) -> Option<(&[Name], Name)> {
        let (last, parents) = self.0.split_last()?;
        Some((parents, *last))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("/");
        }
        self.0.iter().try_for_each(|name| write!(f, "/{name}"))
    }
}
