//! The limit of the transport: a FUSE file system that does nothing.
//!
//! It speaks to the kernel over the same library and with the same settings as ours (large
//! requests, two threads with a device each, zero-message open, readdirplus, time-outs as long as
//! they get). It keeps names and sizes, for without these no workload would run; data that is
//! written is gone, data that is read is zero. What it reaches is what the transport leaves to
//! any file system behind it.

mod nodes;
mod requests;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use fuser::{Config, MountOption, SessionACL};
use nilfs_lab::cleanup::{Undo, register};

use requests::NullFs;

/// Largest request, both ways: the most that Linux allows by default (`fs.fuse.max_pages_limit`).
const MAX_REQUEST_BYTES: u32 = 1 << 20;

/// How to serve it.
#[derive(Args)]
pub struct Options {
    /// Directory to mount on.
    dir: PathBuf,
    /// Threads that serve requests, each with a clone of the device.
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
    /// Let the kernel gather writes in its write-back cache.
    #[arg(long)]
    writeback_cache: bool,
}

/// Mounts it and serves it until it is unmounted.
pub fn serve(options: &Options) -> Result<()> {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName("null".to_owned()),
        MountOption::Subtype("nilfs-bench".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::Dev,
        MountOption::Suid,
    ];
    config.acl = SessionACL::All;
    config.n_threads = Some(options.threads);
    config.clone_fd = true;
    let session = fuser::spawn_mount(NullFs::new(options.writeback_cache), &options.dir, &config)
        .with_context(|| format!("cannot mount on {}", options.dir.display()))?;
    let pending = register(Undo::Unmount(options.dir.clone()));
    raise_read_ahead(&options.dir);
    session.join().context("the connection to the kernel broke")?;
    pending.cancel();
    Ok(())
}

/// Lets the kernel read ahead as far as one request can carry. Only root may; for others the
/// default of 128 KiB stays, which is their limit then.
fn raise_read_ahead(dir: &Path) {
    if let Ok(metadata) = dir.metadata() {
        let (major, minor) = (rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev()));
        let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        let _ = std::fs::write(setting, (MAX_REQUEST_BYTES >> 10).to_string());
    }
}
