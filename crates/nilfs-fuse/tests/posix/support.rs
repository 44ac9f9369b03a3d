//! A volume in memory, mounted on a temporary directory.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::mkfs::{Parameters, format};
use nilfs_engine::{
    Background, Filesystem, MountOptions, ReadOnlyOptions, ReadOnlyVolume, Tree, Volume,
};
use nilfs_fuse::{
    Connection, Content, Handler, KernelOptions, Metrics, Mount, MountError, Mountpoint,
    Operations, PastSettings, Session, Transport,
};
use rustix::fs::OFlags;
use rustix::io::Errno;
use tempfile::TempDir;

/// Somebody without privileges.
pub const NOBODY: u32 = 65534;

/// Bytes of the volume.
pub const SIZE: u64 = 64 << 20;

/// What has not come about after so long never will.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// How a volume is mounted.
#[derive(Clone, Default)]
pub struct Settings {
    pub writeback: bool,
    pub past: Option<PastSettings>,
    /// Names and attributes are durable when they have changed.
    pub synchronous: bool,
    pub control: Option<Handler>,
    pub metrics: Arc<Metrics>,
}

/// A mounted volume. It is unmounted and checked when dropped.
pub struct World {
    device: Arc<MemoryDevice>,
    mounted: Option<Mounted>,
    settings: Settings,
    // Last, so that it is empty when it is deleted.
    dir: TempDir,
}

struct Mounted {
    mount: Mount,
    session: Session,
    writer: Option<(Arc<Filesystem>, Background)>,
}

impl World {
    /// A fresh volume.
    pub fn new() -> Self {
        Self::with_settings(Settings::default())
    }

    pub fn with_settings(settings: Settings) -> Self {
        let device = Arc::new(MemoryDevice::new(SIZE));
        format(&*device, &parameters()).unwrap();
        let mut world =
            Self { device, mounted: None, settings: settings.clone(), dir: directory() };
        let device = Arc::clone(&world.device);
        world.mounted = Some(mount(device, world.dir.path(), settings));
        world
    }

    /// Answers requests in another way after the next mount.
    pub fn set(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// Unmounts, and mounts again.
    pub fn remount(&mut self) {
        self.unmount();
        let device = Arc::clone(&self.device);
        self.mounted = Some(mount(device, self.dir.path(), self.settings.clone()));
    }

    /// Unmounts, and mounts again without the right to write.
    pub fn remount_read_only(&mut self) {
        self.unmount();
        let device: Arc<dyn Device> = Arc::<MemoryDevice>::clone(&self.device);
        let volume = ReadOnlyVolume::mount(device, ReadOnlyOptions::default()).unwrap();
        let content = Content::from(Arc::new(volume));
        let (mount, session) = serve(content, self.dir.path(), true, self.settings.clone());
        self.mounted = Some(Mounted { mount, session, writer: None });
    }

    fn unmount(&mut self) {
        if let Some(mounted) = self.mounted.take() {
            mounted.end();
        }
    }

    /// A path on the volume.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file with this content.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        path
    }

    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).unwrap();
        path
    }

    /// A directory in which everybody may do everything.
    pub fn open_directory(&self, name: &str) -> PathBuf {
        let path = self.directory(name);
        chmod(&path, 0o777);
        path
    }

    /// Makes a checkpoint and returns its number.
    pub fn checkpoint(&self) -> u64 {
        let (fs, _) = self.mounted.as_ref().unwrap().writer.as_ref().unwrap();
        let cno = fs.checkpoint_now().unwrap().0;
        self.renew_doors();
        cno
    }

    /// Lets the kernel hear of checkpoints that were made or deleted without a request of its own.
    fn renew_doors(&self) {
        File::open(self.dir.path()).unwrap().sync_all().unwrap();
    }

    /// Deletes a checkpoint. What the kernel is shown of it stays for as long as it is kept.
    pub fn delete_checkpoint(&self, cno: u64) {
        let (fs, _) = self.mounted.as_ref().unwrap().writer.as_ref().unwrap();
        let cno = nilfs_engine::Cno(cno);
        assert_eq!(fs.delete_checkpoints(cno..=cno).unwrap().deleted, 1);
        self.renew_doors();
    }

    /// Makes a snapshot of a checkpoint.
    pub fn keep_checkpoint(&self, cno: u64) {
        let (fs, _) = self.mounted.as_ref().unwrap().writer.as_ref().unwrap();
        fs.set_snapshot(nilfs_engine::Cno(cno), true).unwrap();
        self.renew_doors();
    }

    /// The volume as it would be found if the power failed now.
    pub fn after_power_cut(&self) -> Tree {
        let device = Arc::new(MemoryDevice::from(self.device.snapshot()));
        Volume::open(device).unwrap().recovered_tree().unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.unmount();
        if std::thread::panicking() {
            return;
        }
        let report = nilfs_check::check(&*self.device, &nilfs_check::Options::default()).unwrap();
        let errors: Vec<_> = report.errors().map(ToString::to_string).collect();
        assert!(errors.is_empty(), "the volume is damaged: {errors:#?}");
    }
}

impl Mounted {
    fn end(self) {
        // A process that another test starts inherits our open files for a moment.
        let started = Instant::now();
        while let Err(error) = self.mount.unmount() {
            let busy = matches!(error, MountError::Busy { .. });
            assert!(busy && started.elapsed() < PATIENCE, "{error}");
            std::thread::yield_now();
        }
        let _farewell = self.session.join().unwrap();
        if let Some((fs, background)) = self.writer {
            drop(background);
            // A device that fails on purpose may make this impossible.
            let _ = fs.unmount();
        }
    }
}

/// A mounted volume on a device that the test chooses. Nothing is checked at the end.
pub struct Bare {
    mounted: Option<Mounted>,
    dir: TempDir,
}

impl Bare {
    pub fn new(device: Arc<dyn Device>) -> Self {
        let dir = directory();
        let mounted = Some(mount(device, dir.path(), Settings::default()));
        Self { mounted, dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns when the kernel waits for the answers to this many requests.
    pub fn wait_for_requests(&self, count: usize) {
        let connection = rustix::fs::minor(fs::metadata(self.path("")).unwrap().dev());
        let control = tempfile::tempdir().unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("none", control.path(), "fusectl", flags, None).unwrap();
        let waiting = control.path().join(format!("{connection}/waiting"));
        while fs::read_to_string(&waiting).unwrap().trim().parse::<usize>().unwrap() < count {
            std::thread::yield_now();
        }
        rustix::mount::unmount(control.path(), rustix::mount::UnmountFlags::empty()).unwrap();
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        if let Some(mounted) = self.mounted.take() {
            mounted.end();
        }
    }
}

/// A volume that can be formatted to 64 MiB in segments of 1 MiB.
pub fn parameters() -> Parameters {
    Parameters { blocks_per_segment: 256, ..Parameters::new([7; 16], 1, 1_700_000_000) }
}

fn directory() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    chmod(dir.path(), 0o755);
    dir
}

fn mount(device: Arc<dyn Device>, dir: &Path, settings: Settings) -> Mounted {
    let fs = Filesystem::mount(device, MountOptions::default()).unwrap();
    let (mount, session) = serve(Arc::clone(&fs).into(), dir, false, settings);
    let background = fs.start_background().unwrap();
    Mounted { mount, session, writer: Some((fs, background)) }
}

fn serve(content: Content, dir: &Path, read_only: bool, settings: Settings) -> (Mount, Session) {
    let Settings { writeback, past, synchronous, control, metrics } = settings;
    let transport = transport();
    let settings = nilfs_fuse::Settings { transport, writeback, metrics, memory: None };
    let kernel = KernelOptions {
        read_only,
        allow_other: true,
        sync: synchronous,
        ..KernelOptions::default()
    };
    let mountpoint = Mountpoint::prepare(dir).unwrap();
    let (mount, channel) = mountpoint.mount(Path::new("memory"), &kernel).unwrap();
    let connection = Connection::new(channel);
    let content = content.with_past(past).with_control(control).with_durable_changes(synchronous);
    let operations = Operations::new(content, &connection).unwrap();
    (mount, Session::start(connection, operations, &settings).unwrap())
}

/// The variable that says by which transport tests mount: by `/dev/fuse` unless it is `uring`.
pub const TRANSPORT: &str = "NILFS_TEST_TRANSPORT";

/// The transport by which tests mount.
pub fn transport() -> Transport {
    match std::env::var(TRANSPORT).as_deref() {
        Ok("uring") => Transport::Uring,
        _ => Transport::Device,
    }
}

pub fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Permission and set-id bits.
pub fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// The error number of what has failed.
pub fn errno<T>(result: io::Result<T>) -> Errno {
    match result {
        Ok(_) => panic!("this should have failed"),
        Err(error) => Errno::from_io_error(&error).unwrap(),
    }
}

/// Runs a shell script as somebody without privileges, in `dir`.
pub fn as_nobody(dir: &Path, script: &str) -> Output {
    Command::new("sh")
        .args(["-c", script])
        .current_dir(dir)
        .uid(NOBODY)
        .gid(NOBODY)
        .env("LC_ALL", "C")
        .output()
        .unwrap()
}

/// Opens for reading and writing with these flags; a new file gets mode 0644.
pub fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).mode(0o644).custom_flags(flags.bits() as i32).open(path)
}

/// The names in a directory, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
