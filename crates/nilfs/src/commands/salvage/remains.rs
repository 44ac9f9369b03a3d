//! Remains of a file of which not all can be read, and whether an older version has all of them.

use nilfs_engine::rescue::Evidence;
use nilfs_engine::tree::{Extent, File, Survey};
use nilfs_engine::{Error, Tree};

/// A version of a file.
#[derive(Clone, Copy)]
pub struct Version<'a> {
    pub tree: &'a Tree,
    pub file: &'a File,
}

/// Remains of a version of a regular file.
pub struct Remains {
    /// Parts that have data or may have some, whether these can be read or not.
    pub survey: Survey,
    /// Parts that can be read, and are known not to be what was written.
    pub wrong: Vec<Extent>,
}

impl Remains {
    /// Finds out what is left of a version, and what of that is wrong as far as there is evidence.
    pub fn of(version: Version<'_>, evidence: Option<&mut Evidence>) -> Result<Self, Error> {
        let Version { tree, file } = version;
        // Where the way to its blocks is damaged, nothing tells.
        let doubts = evidence.and_then(|it| it.judge_readable(tree, file).ok());
        let wrong = doubts.unwrap_or_default().wrong;
        Ok(Self { survey: tree.survey(file)?, wrong })
    }

    /// Whether another version has all that can be read of this one.
    pub fn are_in(&self, of: Version<'_>, other: Version<'_>) -> bool {
        let size = of.tree.block_size().bytes();
        let (mut here, mut there) = (vec![0; size], vec![0; size]);
        self.survey.data.iter().flat_map(|data| blocks(data, size)).all(|at| {
            let is_wrong = self.wrong.iter().any(|wrong| wrong.offset <= at && at < wrong.end());
            match of.tree.read(of.file, at, &mut here) {
                Ok(count) if !is_wrong => {
                    let read = other.tree.read(other.file, at, &mut there);
                    read.is_ok_and(|found| there[..found].starts_with(&here[..count]))
                }
                _ => true,
            }
        })
    }
}

/// Whether all of a version can be read.
pub fn is_readable(Version { tree, file }: Version<'_>) -> bool {
    let size = tree.block_size().bytes();
    let mut bytes = vec![0; size];
    tree.survey(file).is_ok_and(|Survey { data, unknown }| {
        let mut all = data.iter().flat_map(|data| blocks(data, size));
        unknown.is_empty() && all.all(|at| tree.read(file, at, &mut bytes).is_ok())
    })
}

/// Where the blocks of a part begin.
fn blocks(part: &Extent, size: usize) -> impl Iterator<Item = u64> + use<> {
    (part.offset..part.end()).step_by(size)
}
