//! A picture of a whole file tree, the same whether it was taken of the model or of the engine.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use crate::outcome::Facts;

/// Blocks of a file that exist, each whole, by block index; all others are holes.
pub type Blocks = BTreeMap<u64, Arc<[u8]>>;

/// All files by path. The root has the empty path; parts of a path are separated by `/`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree {
    /// The files.
    pub files: BTreeMap<Vec<u8>, File>,
}

/// One name of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct File {
    /// Attributes.
    pub facts: Facts,
    /// The first path, in order, that leads to the same inode.
    pub first_path: Vec<u8>,
    /// What is in it.
    pub content: Content,
}

/// What is in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// The blocks of a regular file.
    Blocks(Blocks),
    /// The text of a symbolic link.
    Text(Vec<u8>),
    /// Nothing, or the entries of a directory, which are files of the tree themselves.
    None,
}

impl Tree {
    /// A tree of names, each with its path, a number that is the same for all names of one file,
    /// attributes and content.
    #[must_use]
    pub fn new(mut names: Vec<(Vec<u8>, u64, Facts, Content)>) -> Self {
        names.sort_by(|a, b| a.0.cmp(&b.0));
        let mut first_paths = BTreeMap::new();
        let mut files = BTreeMap::new();
        for (path, inode, facts, content) in names {
            let first = first_paths.entry(inode).or_insert_with(|| path.clone());
            let first_path = first.clone();
            let file = File { facts, first_path, content };
            files.insert(path, file);
        }
        Self { files }
    }

    /// Says where `found` differs from this tree first, or `None` if it does not.
    #[must_use]
    pub fn difference(&self, found: &Self) -> Option<String> {
        for (path, file) in &self.files {
            let Some(other) = found.files.get(path) else {
                return Some(format!("{} is missing", shown(path)));
            };
            if let Some(what) = file.difference(other) {
                return Some(format!("{}: {what}", shown(path)));
            }
        }
        let extra = found.files.keys().find(|path| !self.files.contains_key(*path))?;
        Some(format!("{} should not be there", shown(extra)))
    }
}

impl File {
    fn difference(&self, found: &Self) -> Option<String> {
        if self.facts != found.facts {
            return Some(format!(
                "attributes\n    found    {:?}\n    expected {:?}",
                found.facts, self.facts
            ));
        }
        if self.first_path != found.first_path {
            return Some(format!(
                "the same file as {}, expected {}",
                shown(&found.first_path),
                shown(&self.first_path)
            ));
        }
        self.content.difference(&found.content)
    }
}

impl Content {
    /// Says where `found` differs from this content first, or `None` if it does not.
    #[must_use]
    pub fn difference(&self, found: &Self) -> Option<String> {
        match (self, found) {
            (Self::Blocks(want), Self::Blocks(have)) => difference_of_blocks(want, have),
            (want, have) if want == have => None,
            (want, have) => Some(format!("content {have:?}, expected {want:?}")),
        }
    }
}

fn difference_of_blocks(want: &Blocks, have: &Blocks) -> Option<String> {
    for (index, block) in want {
        let Some(other) = have.get(index) else {
            return Some(format!("block {index} is a hole, expected data"));
        };
        // Blocks that both sides share need not be looked at.
        if !Arc::ptr_eq(block, other)
            && let Some(at) = block.iter().zip(other.iter()).position(|(a, b)| a != b)
        {
            return Some(format!(
                "byte {at} of block {index} is {:#04x}, expected {:#04x}",
                other[at], block[at]
            ));
        }
    }
    let extra = have.keys().find(|index| !want.contains_key(*index))?;
    Some(format!("block {extra} has data, expected a hole"))
}

/// A path for a message: long runs of one letter are shortened.
#[must_use]
pub fn shown(path: &[u8]) -> String {
    let mut text = String::new();
    for part in path.split(|byte| *byte == b'/') {
        text.push('/');
        match part {
            [first, .., last] if part.len() > 100 && first == last => {
                let _ = write!(text, "<{}*{}>", char::from(*first), part.len());
            }
            _ => text.push_str(&String::from_utf8_lossy(part)),
        }
    }
    text
}
