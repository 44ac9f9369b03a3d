//! The xattr file: names and notes of snapshots (docs/format.md §25).

use nilfs_ondisk::xattr_file::{REGION_SIZE, Region};
use nilfs_ondisk::{FormatError, notes};

use crate::block_map::Leaf;
use crate::checker::{Checker, FileAt};
use crate::report::Rule;

impl Checker<'_, '_> {
    /// Checks what the file has, by its blocks in order.
    pub(crate) fn check_xattr_file(&mut self, file: FileAt, leaves: &[Leaf]) {
        let block_size = self.volume.block_size();
        let start_of = |leaf: &Leaf| leaf.key.saturating_mul(block_size.bytes64());
        let end = Region::Notes.offset() + REGION_SIZE;
        let place = file.place();
        if let Some(leaf) = leaves.iter().find(|leaf| start_of(leaf) >= end) {
            self.note(Rule::XattrFile, place.file_block(leaf.key), || {
                "the block is in a region that is not known here".into()
            });
        }
        let mut bytes = Vec::new();
        for leaf in leaves.iter().filter(|leaf| start_of(leaf) < end) {
            // No notes go on beyond these, and a leaf far away must not cost memory.
            if start_of(leaf) >= notes::MOST_BYTES as u64 {
                break;
            }
            let Some(block) = self.read_leaf(file, leaf) else { return };
            bytes.resize(start_of(leaf) as usize, 0);
            bytes.extend(block);
        }
        match notes::parse(&bytes, self.superblock.raw().s_crc_seed.get()) {
            Ok(_) => {}
            Err(error @ FormatError::Version { .. }) => {
                self.note(Rule::XattrFile, place, || error.to_string());
            }
            // Only the newest ones count.
            Err(error) if file.present => {
                // What the first block says is about all of them.
                let anew = leaves.first().map(|leaf| self.anew(file, leaf));
                self.error(Rule::XattrFile, place, || error.to_string()).corrected_by(anew);
            }
            Err(error) => {
                self.warning(Rule::XattrFile, place, || error.to_string());
            }
        }
    }
}
