//! The file systems that are compared. To add one, write its file and name it in [`all`].

mod fuse2fs;
mod io_uring;
pub mod kernel;
mod nilfs;
mod null;

use std::path::Path;

use anyhow::Result;

use crate::mount::Mount;

/// Name of ours, the one that others are compared with.
pub const OURS: &str = "nilfs";

/// Name of ours where requests come through io_uring.
pub const OURS_BY_IO_URING: &str = "nilfs-uring";

/// What the bench asks of a file system.
pub trait FileSystem {
    /// The name in the table and in `--fs`.
    fn name(&self) -> &'static str;

    /// What a reader must know to judge its figures.
    fn what(&self) -> &'static str;

    /// Those that are compared with it: ours, on both ways that requests take.
    fn references(&self) -> &'static [&'static str] {
        &[OURS, OURS_BY_IO_URING]
    }

    /// Makes an empty volume of an image, over whatever it holds. Its blocks stay allocated:
    /// nothing is discarded, and nothing is zeroed by taking blocks away.
    fn format(&self, image: &Path) -> Result<()>;

    /// Mounts an image as its user would, with default options, but without discards.
    fn mount(&self, image: &Path, dir: &Path) -> Result<Mount>;

    /// Mounts an image so that the process that serves it, where there is one, is a child of ours:
    /// what it does is counted, and [`Mount::kill`] can cut it off.
    fn mount_by_child(&self, image: &Path, dir: &Path) -> Result<Mount> {
        self.mount(image, dir)
    }

    /// How many requests the kernel has sent to what is mounted on `dir`, if that is counted.
    fn requests(&self, _dir: &Path) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Whether what it holds survives unmounting.
    fn persistent(&self) -> bool {
        true
    }
}

/// All file systems, ours first. `nilfs` is the path of our command.
pub fn all(nilfs: &Path) -> Vec<Box<dyn FileSystem>> {
    vec![
        Box::new(nilfs::Nilfs::by_device(nilfs)),
        Box::new(nilfs::Nilfs::by_io_uring(nilfs)),
        Box::new(kernel::Kernel::EXT4),
        Box::new(kernel::Kernel::BTRFS),
        Box::new(fuse2fs::Fuse2fs),
        Box::new(null::Null::BY_DEVICE),
        Box::new(null::Null::BY_IO_URING),
        Box::new(null::Null::WITH_DATA),
        Box::new(null::Null::WITH_DATA_BY_IO_URING),
    ]
}
