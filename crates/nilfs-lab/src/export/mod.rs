//! An image as one file, with a modelled device and a recorder behind it.
//!
//! The file is served through FUSE, for whatever takes a file for a disk: a loop device
//! (`losetup --direct-io=on`), QEMU (`-drive file=...,cache=none`), our own daemon. Nothing of it
//! is cached by the kernel of this machine, and requests of up to 1 MiB come through as they are:
//!
//! (FUSE carries 256 pages, so a request of 1 MiB is whole only if the buffer in memory begins at a
//! page. Buffers of the kernel do; a program that opens the file itself has to see to it.)
//!
//! | at the file | at the modelled device |
//! |---|---|
//! | read, write | the same; a write of a file opened with `O_DSYNC` is followed by a flush |
//! | fsync, fdatasync | flush |
//! | fallocate: punch a hole | discard |
//! | fallocate: zero a range | writes of zeros, of up to 1 MiB |
//!
//! A loop device asks for a hole also where zeros are wanted and the blocks need not stay
//! allocated, which cannot be told from a discard.
//!
//! The device serves one request after another, in the order in which they arrive. `serve` takes
//! them from the kernel, does them on the image and tells them to the `device`, which knows when
//! each is done by the model's clock. If it is paced, the `pacer` keeps the answer back until
//! then; meanwhile further requests arrive. What was written can be kept (`keep`), so that the
//! trace rebuilds the image, or what it was at any moment.

mod device;
mod keep;
mod pacer;
mod serve;

pub use keep::{events, rebuild};

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use nilfs_device::OpenError;
use rustix::fs::FlockOperation;
use rustix::mount::UnmountFlags;

use crate::cleanup::{self, Pending, Undo, set_up};
use crate::failure::{Failure, Status};
use crate::model::{Model, Wear};
use crate::trace::{DeviceRequest, Trace};
use device::Device;
use keep::{Keeper, private};
use serve::{FILE_NAME, Front};

/// The smallest part of a disk: the exported file consists of whole ones.
const SECTOR_BYTES: u64 = 512;
/// How long a user of the file may take to let go of it: a loop device is detached a little
/// after `losetup -d` has returned.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What to export, and how.
pub struct ExportOptions {
    /// The image. It is made if there is none, and grows if it is too small.
    pub image: PathBuf,
    /// Size of the device in bytes.
    pub bytes: u64,
    /// The device; without one, requests are recorded only.
    pub model: Option<Box<dyn Model>>,
    /// Whether requests really take as long as the model says.
    pub pace: bool,
    /// Requests that an asynchronous user may have under way.
    pub queue_depth: u16,
    /// Where to keep what was written, for [`rebuild`].
    pub keep_data: Option<PathBuf>,
}

/// What the device has done up to a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Snapshot {
    /// The number of requests that have arrived.
    pub requests: usize,
    /// How long the model was busy with them.
    pub busy: Duration,
    /// What the flash has suffered.
    pub wear: Wear,
    /// When, since the recording began.
    pub at: Duration,
}

/// An exported device. Dropped without [`Export::end`], it is torn away from its users.
pub struct Export {
    device: Arc<Device>,
    queue_depth: u16,
    path: PathBuf,
    mounted: Option<Mounted>,
    _dir: Pending,
}

/// The switch of an exported device's power. Without power, requests are refused with an I/O error,
/// do not reach the image, and are not recorded; those under way are finished. So a power cut is
/// the same to every file system, however the kernel holds the device.
#[derive(Clone)]
pub struct Power(Arc<Device>);

impl Power {
    /// Every request from now on is refused.
    pub fn cut(&self) {
        self.0.set_power(false);
    }

    /// Requests are served again.
    pub fn restore(&self) {
        self.0.set_power(true);
    }
}

struct Mounted {
    dir: PathBuf,
    session: BackgroundSession,
    pending: Pending,
}

impl Export {
    /// Begins to serve the image and to record.
    ///
    /// # Errors
    /// The options make no sense, the image is in use or cannot be made, or FUSE refuses.
    pub fn start(options: ExportOptions) -> Result<Self> {
        let ExportOptions { image, bytes, model, pace, queue_depth, keep_data } = options;
        ensure!(
            bytes > 0 && bytes.is_multiple_of(SECTOR_BYTES),
            "a device of {bytes} bytes: its size must be a multiple of {SECTOR_BYTES}"
        );
        ensure!(model.is_some() || !pace, "a device without a model has no pace");
        let file = open_image(&image, bytes)?;
        let keeper = keep_data.map(|path| Keeper::create(&path)).transpose()?;
        let device = Arc::new(Device::new(file, bytes, model, keeper));
        let (dir, removal) = cleanup::directory("nilfs-lab-export-", &std::env::temp_dir())?;
        let front = Front::new(Arc::clone(&device), pace, queue_depth)?;
        let mounted = Some(mount(dir.clone(), &image, front)?);
        Ok(Self { device, queue_depth, path: dir.join(FILE_NAME), mounted, _dir: removal })
    }

    /// The file that stands for the device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Requests that may be under way at a time.
    pub(crate) fn queue_depth(&self) -> u16 {
        self.queue_depth
    }

    /// The switch of its power, which is on.
    #[must_use]
    pub fn power(&self) -> Power {
        Power(Arc::clone(&self.device))
    }

    /// Notes a moment in the trace, and how things stand. Requests go on meanwhile.
    pub fn mark(&self, name: &str) -> Snapshot {
        self.device.mark(name)
    }

    /// Some of the requests so far, by their numbers; what is not there yet is left out.
    #[must_use]
    pub fn requests(&self, range: Range<usize>) -> Vec<DeviceRequest> {
        self.device.requests(range)
    }

    /// Why the image could not be read or written, if that has happened: a full disk, for instance.
    /// What its users made of it says nothing about them then.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.device.failure()
    }

    /// Stops serving, and returns the recording.
    ///
    /// # Errors
    /// The file is still in use, or the image could not be read or written, so that the recording
    /// is not what a device would have seen. The export is over in either case.
    pub fn end(mut self) -> Result<Trace> {
        if let Some(mounted) = self.mounted.take() {
            mounted.unmount()?;
        }
        self.device.finish()
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if let Some(mounted) = self.mounted.take() {
            mounted.tear_away();
        }
    }
}

fn open_image(path: &Path, bytes: u64) -> Result<File> {
    let about = || format!("cannot make the image {} large enough", path.display());
    let source = |source| OpenError::Open { path: path.to_owned(), source };
    let file = private().read(true).truncate(false).open(path).map_err(source)?;
    let metadata = file.metadata().map_err(source)?;
    ensure!(metadata.is_file(), "{} is not a regular file", path.display());
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
        Failure::new(Status::Busy, format!("{} is in use by another process", path.display()))
    })?;
    if metadata.len() < bytes {
        file.set_len(bytes).with_context(about)?;
    }
    Ok(file)
}

fn mount(dir: PathBuf, image: &Path, front: Front) -> Result<Mounted> {
    let is_root = rustix::process::geteuid().is_root();
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(image.display().to_string().replace(',', "_")),
        MountOption::Subtype("nilfs-lab".to_owned()),
        MountOption::DefaultPermissions,
        MountOption::NoAtime,
        MountOption::NoExec,
    ];
    // Requests of a loop device come from the kernel itself. Others are kept out by the mode of
    // the file.
    config.acl = if is_root { SessionACL::All } else { SessionACL::Owner };
    // One reader, so that requests keep the order in which they arrive.
    config.n_threads = Some(1);
    let (session, pending) = set_up(|| {
        let session = fuser::spawn_mount(front, &dir, &config).with_context(|| {
            let dir = dir.display();
            format!("cannot mount on {dir} (FUSE; users other than root need fusermount3)")
        })?;
        Ok((session, Undo::Unmount(dir.clone())))
    })?;
    Ok(Mounted { dir, session, pending })
}

impl Mounted {
    /// Waits until nobody uses the file any more.
    fn unmount(self) -> Result<()> {
        let start = Instant::now();
        while !try_unmount(&self.dir)? {
            if start.elapsed() > RELEASE_LIMIT {
                let dir = self.dir.clone();
                self.tear_away();
                bail!("the device in {} was still in use at its end", dir.display());
            }
            sleep(POLL_INTERVAL);
        }
        self.pending.cancel();
        self.session.join().context("the connection to the kernel broke")
    }

    fn tear_away(self) {
        drop(self.pending);
        // Only root can break the connection; else it lasts until the last user is gone, whom to
        // wait for is nobody's wish.
        if rustix::process::geteuid().is_root() {
            let _ = self.session.join();
        }
    }
}

/// Says whether it is unmounted now; it is not while it is in use.
fn try_unmount(dir: &Path) -> Result<bool> {
    if !rustix::process::geteuid().is_root() {
        let mut command = Command::new("fusermount3");
        command.args(["-u", "-q", "--"]).arg(dir).stdin(Stdio::null()).stderr(Stdio::null());
        return Ok(command.status().context("cannot run fusermount3")?.success());
    }
    match rustix::mount::unmount(dir, UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::BUSY) => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot unmount {}", dir.display())),
    }
}
