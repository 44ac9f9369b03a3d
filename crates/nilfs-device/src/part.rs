//! The parts of a read: what is wanted of a range, and where it goes.

use std::io;

/// A part of a range that is read.
#[derive(Debug)]
pub enum Part<'a> {
    /// Fills this buffer.
    Wanted(&'a mut [u8]),
    /// This many bytes, between two other parts, are not needed.
    Skipped(usize),
}

impl Part<'_> {
    /// How many bytes it is.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Wanted(buffer) => buffer.len(),
            Self::Skipped(bytes) => *bytes,
        }
    }
}

/// How many bytes all of them are.
pub(crate) fn total(parts: &[Part<'_>]) -> usize {
    parts.iter().map(Part::bytes).sum()
}

/// Fills the parts from what `read` reads, which has all of them in one piece. Returns what it does.
///
/// # Errors
/// Those of `read`.
pub fn gather(
    parts: &mut [Part<'_>],
    read: impl FnOnce(&mut [u8]) -> io::Result<bool>,
) -> io::Result<bool> {
    if let [Part::Wanted(buffer)] = parts {
        return read(buffer);
    }
    let mut content = vec![0; total(parts)];
    let is_read = read(&mut content)?;
    let mut rest = &content[..];
    for part in parts {
        let (found, after) = rest.split_at(part.bytes());
        if let Part::Wanted(buffer) = part {
            buffer.copy_from_slice(found);
        }
        rest = after;
    }
    Ok(is_read)
}
