//! The limit of the transport: a FUSE file system that does nothing.
//!
//! Its requests come the way that ours come, and are answered by the same transport; what it is told
//! of each it answers from memory. It keeps names and sizes, for without these no workload would run;
//! data that are written are gone, data that are read are zeros. What it reaches is what the transport
//! leaves to any file system.
//!
//! With an image it keeps the data there, and does nothing else with them. That is what transport and
//! device together leave to one.

mod data;
mod nodes;
mod requests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use nilfs_fuse::{Connection, KernelOptions, Mount, Mountpoint, Session, Settings, Transport};
use nilfs_lab::cleanup::{Undo, register};

use data::Data;
use requests::NullFs;

/// How to serve it.
#[derive(Args)]
pub struct Options {
    /// Directory to mount on.
    dir: PathBuf,
    /// Let requests come through io_uring, not through /dev/fuse.
    #[arg(long)]
    uring: bool,
    /// Keep data on this image; it is overwritten.
    #[arg(long)]
    image: Option<PathBuf>,
}

/// Mounts it and serves it until it is unmounted.
pub fn serve(options: &Options) -> Result<()> {
    let transport = if options.uring { Transport::Uring } else { Transport::Device };
    let data = options.image.as_deref().map(data_on).transpose()?;
    let (mount, session) = mount(&options.dir, transport, data)?;
    let pending = register(Undo::Unmount(options.dir.clone()));
    mount.raise_read_ahead();
    let farewell = session.join().context("the connection to the kernel broke")?;
    pending.cancel();
    drop(farewell);
    Ok(())
}

fn data_on(image: &Path) -> Result<Data> {
    Data::on(image).with_context(|| format!("cannot open the image {}", image.display()))
}

fn mount(dir: &Path, transport: Transport, data: Option<Data>) -> Result<(Mount, Session)> {
    let subtype = "nilfs-bench".to_owned();
    let kernel = KernelOptions { subtype, allow_other: true, ..KernelOptions::default() };
    let (mount, channel) = Mountpoint::prepare(dir)?.mount(Path::new("null"), &kernel)?;
    let settings = Settings { transport, ..Settings::default() };
    let session = Session::start(Connection::new(channel), Arc::new(NullFs::new(data)), &settings)?;
    Ok((mount, session))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use rustix::io::Errno;

    use super::*;

    /// What workloads do, and what they do not.
    fn live_in(dir: &Path) {
        let path = |name: &str| dir.join(name);
        fs::create_dir(path("directory")).unwrap();
        for nth in 0..300 {
            fs::write(path(&format!("directory/file-{nth}")), "content").unwrap();
        }
        let file = path("directory/file-7");
        assert_eq!(fs::metadata(&file).unwrap().len(), 7);
        assert_eq!(fs::read(&file).unwrap(), [0; 7]);
        File::open(&file).unwrap().sync_all().unwrap();
        assert_eq!(fs::read_dir(path("directory")).unwrap().count(), 300);
        std::os::unix::fs::symlink("target", path("link")).unwrap();
        assert_eq!(fs::read_link(path("link")).unwrap(), Path::new("target"));
        fs::remove_dir(path("directory")).unwrap_err();
        let renamed = fs::rename(&file, path("other")).unwrap_err();
        assert_eq!(Errno::from_io_error(&renamed), Some(Errno::NOSYS), "it has no rename");
        fs::remove_dir_all(path("directory")).unwrap();
        assert!(fs::metadata(&file).is_err());
    }

    #[test]
    fn it_is_a_file_system_for_what_workloads_do() {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            eprintln!("skipped: it takes the superuser and /dev/fuse");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (mount, session) = mount(dir.path(), Transport::Device, None).unwrap();
        let lived = std::panic::catch_unwind(|| live_in(dir.path()));
        mount.unmount().unwrap();
        drop(session.join().unwrap());
        lived.unwrap();
    }
}
