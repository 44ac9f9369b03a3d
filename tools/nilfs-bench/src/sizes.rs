//! How much work each workload does.

use serde::Serialize;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Seed of everything that is random: offsets, file sizes, orders. Fixed, so that two runs of the
/// program do the same work.
pub const SEED: u64 = 2;

/// The amounts of one execution.
#[derive(Clone, Serialize)]
pub struct Sizes {
    /// Size of the volume that most workloads run on.
    pub volume_bytes: u64,
    /// Size of the large file.
    pub file_bytes: u64,
    /// Writes with an fsync each, by one thread.
    pub sync_writes: u64,
    /// Size of each thread's file of which single blocks are overwritten and synced.
    pub sync_file_bytes: u64,
    /// Number of small files to create, stat and unlink.
    pub small_files: u64,
    /// Directories of the tree that is copied.
    pub tree_dirs: u64,
    /// Files of the tree that is copied.
    pub tree_files: u64,
    /// Rows of the database that SQLite fills.
    pub database_rows: u64,
    /// Files of the program that is built.
    pub program_files: u64,
    /// Part of the kernel tree that is unpacked, as a pattern of tar; all of it without one.
    pub kernel_members: Option<&'static str>,
    /// Size of the volume whose mount is timed.
    pub aged_volume_bytes: u64,
    /// Checkpoints of that volume.
    pub checkpoints: u64,
}

impl Sizes {
    /// The amounts that count.
    pub const FULL: Self = Self {
        volume_bytes: 8 * GIB,
        file_bytes: GIB,
        sync_writes: 4_000,
        sync_file_bytes: 16 * MIB,
        small_files: 50_000,
        tree_dirs: 1_019,
        tree_files: 4_499,
        database_rows: 50_000,
        program_files: 300,
        kernel_members: None,
        aged_volume_bytes: 64 * GIB,
        checkpoints: 10_000,
    };
    /// Scaled down, to see within a minute or two whether everything works.
    pub const QUICK: Self = Self {
        volume_bytes: 2 * GIB,
        file_bytes: 128 * MIB,
        sync_writes: 500,
        sync_file_bytes: 4 * MIB,
        small_files: 5_000,
        tree_dirs: 102,
        tree_files: 450,
        database_rows: 5_000,
        program_files: 30,
        kernel_members: Some("*/fs/*"),
        aged_volume_bytes: 64 * GIB,
        checkpoints: 500,
    };
}
