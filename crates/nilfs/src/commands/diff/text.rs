//! The lines that differ in text files, as diff(1) writes them and patch(1) reads them.

use std::io::Write;
use std::sync::Arc;

use nilfs_engine::{FileType, Files};
use similar::TextDiff;

use crate::image::{LastLink, find};
use crate::output::printable;
use crate::past::Name;

/// Bytes of the largest file that is compared line by line.
const LARGEST: u64 = 16 << 20;

/// A file of a checkpoint, by its path.
pub struct Side<'a> {
    /// The files of the checkpoint.
    pub files: &'a Arc<dyn Files>,
    /// The path from the root of the volume.
    pub path: Name,
}

/// Prints the lines that differ between two versions of a file, of which one need not exist. Of what is
/// no text, or too large, only that it differs.
pub fn print(
    out: &mut impl Write,
    before: Option<Side<'_>>,
    after: Option<Side<'_>>,
) -> anyhow::Result<()> {
    let name = |side: &Option<Side<'_>>, prefix: &str| match side {
        Some(side) => format!("{prefix}/{}", printable(side.path.as_bytes())),
        None => "/dev/null".to_owned(),
    };
    let (old_name, new_name) = (name(&before, "a"), name(&after, "b"));
    let (old, new) = (content(before)?, content(after)?);
    match (old, new) {
        (Content::None, Content::None) => {}
        (Content::Other, _) | (_, Content::Other) => {
            writeln!(out, "{old_name} and {new_name} differ, and are not compared line by line")?;
        }
        (old, new) => {
            let (old, new) = (old.lines(), new.lines());
            let diff = TextDiff::from_lines(&old, &new);
            diff.unified_diff().header(&old_name, &new_name).to_writer(out)?;
        }
    }
    Ok(())
}

/// What is to be compared of a file.
enum Content {
    Text(Vec<u8>),
    /// It has none: it is a directory, a device node, or not there.
    None,
    /// It is no text, or too large.
    Other,
}

impl Content {
    fn lines(self) -> Vec<u8> {
        match self {
            Self::Text(text) => text,
            Self::None | Self::Other => Vec::new(),
        }
    }
}

fn content(side: Option<Side<'_>>) -> anyhow::Result<Content> {
    let Some(Side { files, path }) = side else { return Ok(Content::None) };
    let file = find(files, path.as_bytes(), LastLink::Keep)?;
    match file.attr.file_type {
        FileType::Symlink => {
            let target = file.read_link()?;
            Ok(Content::Text([target.as_slice(), b"\n"].concat()))
        }
        FileType::Regular if file.attr.size > LARGEST => Ok(Content::Other),
        FileType::Regular => {
            let mut bytes = vec![0; file.attr.size as usize];
            let mut read = 0;
            while read < bytes.len() {
                match file.read(read as u64, &mut bytes[read..])? {
                    0 => break,
                    count => read += count,
                }
            }
            bytes.truncate(read);
            Ok(if bytes.contains(&0) { Content::Other } else { Content::Text(bytes) })
        }
        _ => Ok(Content::None),
    }
}
