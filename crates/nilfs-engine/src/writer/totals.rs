//! Counts of what was written, and of what a failing device would take along.

use nilfs_ondisk::lifetime::Lifetime;

use super::Writer;
use crate::commit::Effects;
use crate::host::atomic::{AtomicU64, Ordering};
use crate::log::segment_writer::Synced;

/// Work of the cleaner since the mount.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Cleaned {
    /// Blocks that it has written beside the log.
    pub(crate) blocks_written: u64,
    pub(crate) segments_freed: u64,
}

/// Blocks that were written since the mount, and all before.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// In checkpoints, data blocks of user files.
    pub(crate) data: AtomicU64,
    /// In checkpoints, everything else.
    pub(crate) metadata: AtomicU64,
    /// In data-sync logs.
    pub(crate) data_sync: AtomicU64,
    /// In both, data blocks of user files.
    pub(crate) user_blocks: AtomicU64,
    before: Lifetime,
}

impl Written {
    /// Nothing since the mount, and this much before.
    pub(super) fn after(before: Lifetime) -> Self {
        Self { before, ..Self::default() }
    }

    /// Blocks in all logs of the chain since the mount.
    pub(crate) fn in_chain(&self) -> u64 {
        let parts = [&self.data, &self.metadata, &self.data_sync];
        parts.into_iter().map(|part| part.load(Ordering::Relaxed)).sum()
    }

    /// Counts what a commit has written.
    pub(super) fn add(&self, effects: &Effects) {
        let blocks: u64 = effects.written.iter().map(|(_, blocks)| blocks).sum();
        assert!(effects.user_blocks <= blocks, "a commit has written less than its users' blocks");
        self.data.fetch_add(effects.user_blocks, Ordering::Relaxed);
        self.metadata.fetch_add(blocks - effects.user_blocks, Ordering::Relaxed);
        self.user_blocks.fetch_add(effects.user_blocks, Ordering::Relaxed);
    }

    /// Counts what logs without a checkpoint have written.
    pub(super) fn add_logs(&self, written: &Synced) {
        let user_blocks: usize = written.placed.iter().map(Vec::len).sum();
        self.data_sync.fetch_add(written.blocks(), Ordering::Relaxed);
        self.user_blocks.fetch_add(user_blocks as u64, Ordering::Relaxed);
    }
}

/// Changes that have been taken from memory and are not durable yet, or never will be.
#[derive(Debug, Default)]
pub(crate) struct Exposed {
    pub(crate) files: AtomicU64,
    pub(crate) pages: AtomicU64,
    /// Everything that was changed before is in a checkpoint (s since 1970).
    frozen: AtomicU64,
    /// Everything that was changed before is durable (s since 1970).
    pub(crate) since: AtomicU64,
}

impl Exposed {
    /// Nothing that was changed after this moment (s since 1970).
    pub(super) fn new(since: u64) -> Self {
        Self { since: AtomicU64::new(since), ..Self::default() }
    }

    /// Takes note that everything that was changed before this moment (s since 1970) is in a checkpoint.
    pub(super) fn committed(&self, frozen: u64) {
        self.frozen.store(frozen, Ordering::Relaxed);
    }

    /// Adds so many files and pages.
    pub(super) fn add(&self, (files, pages): (u64, u64)) {
        self.files.fetch_add(files, Ordering::Relaxed);
        self.pages.fetch_add(pages, Ordering::Relaxed);
    }

    /// Takes note that everything has become durable that was written.
    pub(super) fn flushed(&self) {
        self.files.store(0, Ordering::Relaxed);
        self.pages.store(0, Ordering::Relaxed);
        self.since.fetch_max(self.frozen.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Writer {
    /// Totals over the life of the volume so far, with what the cleaner has done since the mount.
    pub(crate) fn lifetime(&self, cleaned: Cleaned) -> Lifetime {
        let before = self.written.before;
        let bytes = |blocks: u64| blocks.saturating_mul(self.store.block_size().bytes64());
        let user = self.written.user_blocks.load(Ordering::Relaxed);
        Lifetime {
            user_bytes: before.user_bytes.saturating_add(bytes(user)),
            written_bytes: before
                .written_bytes
                .saturating_add(bytes(self.written.in_chain() + cleaned.blocks_written)),
            segments_freed: before.segments_freed.saturating_add(cleaned.segments_freed),
        }
    }
}
