//! The bytes of a regular file of the model.

use std::sync::Arc;

use nilfs_engine::Seek;

use crate::op::pattern;
use crate::outcome::Refusal;
use crate::tree::Blocks;

/// The greatest size of a file in bytes.
const SIZE_MAX: u64 = i64::MAX as u64;

/// Size and blocks. Bytes beyond the size are zero in the block that holds the end, and there
/// are no blocks beyond it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileBody {
    size: u64,
    blocks: Blocks,
}

impl FileBody {
    /// Size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The blocks that exist.
    #[must_use]
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    pub(super) fn check_size(&self, size: u64) -> Result<(), Refusal> {
        if size > SIZE_MAX {
            return Err(Refusal::FileTooLarge);
        }
        Ok(())
    }

    pub(super) fn write(&mut self, block_size: u64, offset: u64, length: u64, fill: u32) {
        let bytes = pattern(fill, offset, length);
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let within = (at % block_size) as usize;
            let take = (block_size as usize - within).min(bytes.len() - done);
            let block = self
                .blocks
                .entry(at / block_size)
                .or_insert_with(|| vec![0; block_size as usize].into());
            Arc::make_mut(block)[within..within + take].copy_from_slice(&bytes[done..done + take]);
            done += take;
        }
        self.size = self.size.max(offset + length);
    }

    pub(super) fn truncate(&mut self, block_size: u64, size: u64) {
        self.size = size;
        self.blocks.split_off(&size.div_ceil(block_size));
        let within = (size % block_size) as usize;
        if within > 0
            && let Some(block) = self.blocks.get_mut(&(size / block_size))
        {
            Arc::make_mut(block)[within..].fill(0);
        }
    }

    pub(super) fn read(&self, block_size: u64, offset: u64, length: u64) -> Vec<u8> {
        let end = offset.saturating_add(length).min(self.size);
        let mut bytes = Vec::new();
        let mut at = offset;
        while at < end {
            let within = (at % block_size) as usize;
            let take = (block_size as usize - within).min((end - at) as usize);
            match self.blocks.get(&(at / block_size)) {
                Some(block) => bytes.extend_from_slice(&block[within..within + take]),
                None => bytes.resize(bytes.len() + take, 0),
            }
            at += take as u64;
        }
        bytes
    }

    /// As `lseek` with `SEEK_DATA` or `SEEK_HOLE`; `None` stands for `ENXIO`.
    pub(super) fn seek(&self, block_size: u64, offset: u64, what: Seek) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        let first = offset / block_size;
        match what {
            Seek::Data => {
                let (index, _) = self.blocks.range(first..).next()?;
                Some(offset.max(index * block_size))
            }
            Seek::Hole => {
                let hole = (first..).find(|index| !self.blocks.contains_key(index))?;
                Some(offset.max(hole * block_size).min(self.size))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortened_file_does_not_get_its_old_bytes_back() {
        let mut file = FileBody::default();
        file.write(1024, 0, 3000, 1);
        file.truncate(1024, 1500);
        file.truncate(1024, 3000);
        let bytes = file.read(1024, 0, 5000);
        assert_eq!(bytes.len(), 3000);
        assert_eq!(bytes[..1500], pattern(1, 0, 1500));
        assert!(bytes[1500..].iter().all(|byte| *byte == 0));
        assert_eq!(file.seek(1024, 0, Seek::Hole), Some(2048));
        assert_eq!(file.seek(1024, 2048, Seek::Data), None);
    }

    #[test]
    fn the_end_of_a_file_is_a_hole() {
        let mut file = FileBody::default();
        file.write(1024, 5000, 100, 1);
        assert_eq!(file.seek(1024, 0, Seek::Data), Some(4096));
        assert_eq!(file.seek(1024, 4500, Seek::Data), Some(4500));
        assert_eq!(file.seek(1024, 4500, Seek::Hole), Some(5100));
        assert_eq!(file.seek(1024, 5100, Seek::Hole), None);
    }
}
