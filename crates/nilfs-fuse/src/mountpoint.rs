//! Mounting and unmounting: the superuser asks the kernel, everybody else fusermount3.
//!
//! # Two types of mounts
//! The kernel has FUSE as `fuse` and as `fuseblk`. With `fuseblk` it passes sync(2) and syncfs(2)
//! on (since Linux 6.18), and umount(2) returns only when the answer to its last request is there.
//! With `fuse` it does neither. `fuseblk` is for the superuser, and takes a block device as its
//! source, which it claims for itself as for any file system on it.

use std::ffi::{CString, OsString};
use std::fs;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use thiserror::Error;

use crate::loop_device;
use crate::mounts::{BLOCK, Mounted, PLAIN, SUBTYPE, says_nobody_serves, source_at};
use crate::users::User;

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";

/// Bytes in a block of a device, as `fuseblk` wants to know it; what devices have by themselves.
const BLOCK_SIZE: u32 = 4096;

/// KiB that the kernel may read ahead: two requests, so that the device reads for the one while the data
/// of the other are copied.
const READ_AHEAD_KIB: &str = "2048";

/// How often an unmount is tried while the mount is in use, and how long it waits in between: a second
/// in all. Programs that look at every mount, as df(1) does, use each of them for a moment.
const MOST_TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(10);

/// Why mounting or unmounting failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MountError {
    /// The directory cannot be mounted on.
    #[error("cannot mount on {}: {why}", dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The kernel has no FUSE.
    #[error("there is no {DEVICE}: load the kernel's FUSE module with `modprobe fuse`")]
    NoFuse,
    /// An ordinary user cannot do without fusermount3.
    #[error("{HELPER} is not installed (package fuse3); only the superuser can do without it")]
    NoHelper,
    /// What fusermount3 said.
    #[error("{0}")]
    Helper(String),
    /// Something on the volume is in use.
    #[error("{} is in use{}", dir.display(), by(users))]
    Busy {
        /// The directory.
        dir: PathBuf,
        /// Users of the mount, as far as they were looked for and can be told.
        users: Vec<User>,
    },
    /// Somebody still writes.
    #[error(
        "{} cannot become read-only: a process has a file open there for writing, or a deleted one",
        dir.display()
    )]
    Written {
        /// The directory.
        dir: PathBuf,
    },
    /// Requests cannot come as they shall.
    #[error("transport=uring is not to be had: {why}; transport=auto does without it")]
    Transport {
        /// What is missing, and what to do.
        why: String,
    },
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What was to be done.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

impl MountError {
    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System { what: what.into(), source: source.into() }
    }
}

/// The end of the sentence that a mount is in use.
fn by(users: &[User]) -> String {
    match users {
        [] => ": a process has a file open there, or works in it".to_owned(),
        [user] => format!(" by {user}"),
        [user, _] => format!(" by {user}, and by another one"),
        [user, rest @ ..] => format!(" by {user}, and by {} others", rest.len()),
    }
}

/// How the kernel treats the mount; everything else is the engine's affair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelOptions {
    /// As `fuseblk`; the source is a block device on which nobody has an exclusive claim, or an
    /// image.
    pub block: bool,
    /// What comes after the dot in the type that the table of mounts shows; with nothing, the dot
    /// is missing as well.
    pub subtype: String,
    /// The checkpoint of the past that is shown, for the table of mounts.
    pub checkpoint: Option<u64>,
    /// Nothing can be changed.
    pub read_only: bool,
    /// Device nodes are dead.
    pub nodev: bool,
    /// Set-id bits have no effect.
    pub nosuid: bool,
    /// No program can be started.
    pub noexec: bool,
    /// Every write is durable when it returns.
    pub sync: bool,
    /// The table of mounts says that names are durable, too; [`Content::with_durable_changes`] makes
    /// that true.
    ///
    /// [`Content::with_durable_changes`]: crate::Content::with_durable_changes
    pub dirsync: bool,
    /// Users other than the one who mounts have access, as far as permissions go.
    pub allow_other: bool,
}

impl Default for KernelOptions {
    fn default() -> Self {
        Self {
            block: false,
            subtype: SUBTYPE.to_owned(),
            checkpoint: None,
            read_only: false,
            nodev: false,
            nosuid: false,
            noexec: false,
            sync: false,
            dirsync: false,
            allow_other: false,
        }
    }
}

impl KernelOptions {
    /// The type, as mount(2) and the table of mounts have it.
    fn file_system(&self) -> String {
        let kind = if self.block { BLOCK } else { PLAIN };
        match self.subtype.as_str() {
            "" => kind.to_owned(),
            subtype => format!("{kind}.{subtype}"),
        }
    }

    fn flags(&self) -> MountFlags {
        // The format has no atime; with this the kernel does not even try.
        let mut flags = MountFlags::NOATIME;
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NODEV, self.nodev);
        flags.set(MountFlags::NOSUID, self.nosuid);
        flags.set(MountFlags::NOEXEC, self.noexec);
        flags.set(MountFlags::SYNCHRONOUS, self.sync);
        flags.set(MountFlags::DIRSYNC, self.dirsync);
        flags
    }

    /// For fusermount3, which forces `nodev` and `nosuid` on ordinary users itself.
    fn words(&self) -> Vec<&'static str> {
        let words = [
            (true, "default_permissions"),
            (true, "noatime"),
            (self.read_only, "ro"),
            (self.noexec, "noexec"),
            (self.sync, "sync"),
            (self.dirsync, "dirsync"),
            (self.allow_other, "allow_other"),
        ];
        words.into_iter().filter(|(given, _)| *given).map(|(_, word)| word).collect()
    }
}

/// A directory on which a volume is or will be mounted.
#[derive(Debug)]
pub struct Mountpoint {
    dir: PathBuf,
}

impl Mountpoint {
    /// Checks that `dir` can be mounted on. What is in it is hidden by the mount.
    ///
    /// # Errors
    /// [`MountError::Directory`], [`MountError::NoFuse`].
    pub fn prepare(dir: &Path) -> Result<Self, MountError> {
        let refuse = |why: String| MountError::Directory { dir: dir.to_owned(), why };
        let because = |error: io::Error| {
            refuse(match Errno::from_io_error(&error) {
                Some(Errno::NOENT) => "there is no such directory".into(),
                _ if says_nobody_serves(&error) => format!(
                    "a FUSE mount whose process is gone is in the way; remove it with \
                     `{HELPER} -u {}`",
                    dir.display()
                ),
                _ => error.to_string(),
            })
        };
        let absolute = fs::canonicalize(dir).map_err(because)?;
        if !fs::metadata(&absolute).map_err(because)?.is_dir() {
            return Err(refuse("it is not a directory".into()));
        }
        if let Some(mounted) = Mounted::on(&absolute)
            && mounted.is_nilfs()
        {
            return Err(refuse(format!("{} is mounted on it already", mounted.source.display())));
        }
        if !Path::new(DEVICE).exists() {
            return Err(MountError::NoFuse);
        }
        Ok(Self { dir: absolute })
    }

    /// The directory, absolute and without symbolic links.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Mounts, and returns the channel through which the kernel will send its requests. Until they
    /// are answered, everybody who looks into the directory waits.
    ///
    /// # Errors
    /// The kernel or fusermount3 refused.
    pub fn mount(
        &self,
        source: &Path,
        options: &KernelOptions,
    ) -> Result<(Mount, OwnedFd), MountError> {
        let channel = match rustix::process::geteuid().is_root() {
            true if options.block => mount_block(&self.dir, source, options)?,
            true => mount_directly(&self.dir, &source_at(source, options.checkpoint), options)?,
            false => mount_with_helper(&self.dir, source, options)?,
        };
        let device = Mounted::on(&self.dir).map(|mounted| mounted.device);
        Ok((Mount { dir: self.dir.clone(), device, block: options.block }, channel))
    }
}

/// A volume that is mounted.
#[derive(Debug)]
pub struct Mount {
    dir: PathBuf,
    /// As in the table of mounts.
    device: Option<String>,
    /// Of type `fuseblk`.
    block: bool,
}

impl Mount {
    /// The directory, absolute and without symbolic links.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Lets the kernel read ahead as much as fits into two of the largest requests, if we may.
    pub fn raise_read_ahead(&self) {
        if let Some(device) = &self.device {
            let suffix = if self.block { "-fuseblk" } else { "" };
            let setting = format!("/sys/class/bdi/{device}{suffix}/read_ahead_kb");
            if let Err(error) = fs::write(&setting, READ_AHEAD_KIB) {
                tracing::debug!("{setting}: {error}");
            }
        }
    }

    /// Unmounts wherever it is still mounted.
    ///
    /// # Errors
    /// [`MountError::Busy`], or the kernel or fusermount3 refused.
    pub fn unmount(&self) -> Result<(), MountError> {
        self.everywhere(unmount)
    }

    /// Takes the mount out of the tree of directories although something on it is in use.
    ///
    /// # Errors
    /// The kernel or fusermount3 refused.
    pub fn detach(&self) -> Result<(), MountError> {
        // Pages that are mapped and dirty would be lost with the connection.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if let Ok(root) = rustix::fs::open(&self.dir, flags, Mode::empty()) {
            let _ = rustix::fs::syncfs(root);
        }
        self.everywhere(|dir| take_away(dir, UnmountFlags::DETACH, &["-u", "-z"]))
    }

    /// Unmounts it from each directory on which it is: `mount --bind` shows it on others as well. A
    /// mount of another file system on top of one is left alone.
    fn everywhere(
        &self,
        unmount: impl Fn(&Path) -> Result<(), MountError>,
    ) -> Result<(), MountError> {
        let is_ours = |mounted: &Mounted| Some(&mounted.device) == self.device.as_ref();
        for place in Mounted::all().into_iter().rev().filter(is_ours) {
            if Mounted::on(&place.dir).as_ref().is_some_and(is_ours) {
                unmount(&place.dir)?;
            }
        }
        Ok(())
    }
}

/// Unmounts what is mounted on `dir`, an absolute path without symbolic links. If that is in use, it is
/// tried again for a second.
///
/// # Errors
/// [`MountError::Busy`], or the kernel or fusermount3 refused.
pub fn unmount(dir: &Path) -> Result<(), MountError> {
    for _ in 0..MOST_TRIES {
        match take_away(dir, UnmountFlags::empty(), &["-u"]) {
            Err(MountError::Busy { .. }) => thread::sleep(PAUSE),
            result => return result,
        }
    }
    Err(MountError::Busy { dir: dir.to_owned(), users: User::of(dir) })
}

/// Makes what is mounted read-only, or writable, and leaves everything else as it is. Only the
/// superuser may do it. Nothing is kept back by the kernel then.
///
/// # Errors
/// [`MountError::Written`], or the kernel refused.
pub fn remount(mounted: &Mounted, read_only: bool) -> Result<(), MountError> {
    let words = [
        ("nosuid", MountFlags::NOSUID),
        ("nodev", MountFlags::NODEV),
        ("noexec", MountFlags::NOEXEC),
        ("noatime", MountFlags::NOATIME),
        ("sync", MountFlags::SYNCHRONOUS),
        ("dirsync", MountFlags::DIRSYNC),
    ];
    let given = words.into_iter().filter(|(word, _)| mounted.has(word)).map(|(_, flag)| flag);
    let mut flags: MountFlags = given.collect();
    flags.set(MountFlags::RDONLY, read_only);
    let dir = &mounted.dir;
    match rustix::mount::mount_remount(dir, flags, c"") {
        Err(Errno::BUSY) => Err(MountError::Written { dir: dir.clone() }),
        result => {
            result.map_err(|error| MountError::system(format!("remount {}", dir.display()), error))
        }
    }
}

fn take_away(dir: &Path, flags: UnmountFlags, helper_flags: &[&str]) -> Result<(), MountError> {
    let busy = || MountError::Busy { dir: dir.to_owned(), users: Vec::new() };
    if rustix::process::geteuid().is_root() {
        return match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
            Err(Errno::BUSY) => Err(busy()),
            result => result
                .map_err(|error| MountError::system(format!("unmount {}", dir.display()), error)),
        };
    }
    let mut command = Command::new(HELPER);
    command.args(helper_flags).arg("--").arg(dir);
    let output = run(command.stdin(Stdio::null()))?;
    if output.status.success() {
        return Ok(());
    }
    match complaint(&output.stderr) {
        said if said.contains("busy") => Err(busy()),
        said => Err(MountError::Helper(said)),
    }
}

/// An image gets a loop device, which the mount keeps when this function lets go of it.
fn mount_block(dir: &Path, source: &Path, options: &KernelOptions) -> Result<OwnedFd, MountError> {
    let is_device = fs::metadata(source).is_ok_and(|it| it.file_type().is_block_device());
    if is_device {
        return mount_directly(dir, source, options);
    }
    let lent = loop_device::lend(source)
        .map_err(|error| MountError::system("attach a loop device to the image", error))?;
    mount_directly(dir, &lent.path, options)
}

fn mount_directly(
    dir: &Path,
    source: &Path,
    options: &KernelOptions,
) -> Result<OwnedFd, MountError> {
    let channel = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(
        |error| match error {
            Errno::NOENT | Errno::NODEV | Errno::NXIO => MountError::NoFuse,
            other => MountError::system(format!("open {DEVICE}"), other),
        },
    )?;
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        channel.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    if options.block {
        data.push_str(&format!(",blksize={BLOCK_SIZE}"));
    }
    let cannot = |error| MountError::system(format!("mount on {}", dir.display()), error);
    let data = CString::new(data).map_err(|error| cannot(io::Error::from(error)))?;
    rustix::mount::mount(source, dir, options.file_system(), options.flags(), data.as_c_str())
        .map_err(|error| cannot(error.into()))?;
    Ok(channel)
}

/// fusermount3 mounts, and sends the channel through the socket that it is given. Being its
/// standard input, the socket is inherited without further ado.
fn mount_with_helper(
    dir: &Path,
    source: &Path,
    options: &KernelOptions,
) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = UnixStream::pair().map_err(|e| MountError::system("make a socket", e))?;
    let mut words = OsString::from(options.words().join(","));
    if !options.subtype.is_empty() {
        words.push(format!(",subtype={}", options.subtype));
    }
    words.push(",fsname=");
    words.push(escape_commas(&source_at(source, options.checkpoint)));
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(words).arg("--").arg(dir).env("_FUSE_COMMFD", "0");
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::piped());
    command.env("LC_ALL", "C");
    let mut child = command.spawn().map_err(no_helper)?;
    // The command still holds its end of the socket, which would keep us waiting for ever.
    drop(command);
    let channel = receive_channel(&ours);
    let mut said = Vec::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_end(&mut said);
    }
    let _ = child.wait();
    channel
        .map_err(|error| MountError::system(format!("receive from {HELPER}"), error))?
        .ok_or_else(|| MountError::Helper(complaint(&said)))
}

/// The file descriptor that comes through `socket`; `None` if it is closed without one.
fn receive_channel(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    rustix::io::retry_on_intr(|| {
        let mut data = [IoSliceMut::new(&mut byte)];
        rustix::net::recvmsg(socket, &mut data, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let channel = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(channel)
}

/// A comma would end the option.
fn escape_commas(source: &Path) -> OsString {
    let mut escaped = Vec::new();
    for byte in source.as_os_str().as_bytes() {
        if matches!(byte, b',' | b'\\') {
            escaped.push(b'\\');
        }
        escaped.push(*byte);
    }
    OsString::from_vec(escaped)
}

fn run(command: &mut Command) -> Result<Output, MountError> {
    command.env("LC_ALL", "C").output().map_err(no_helper)
}

fn no_helper(error: io::Error) -> MountError {
    match error.kind() {
        io::ErrorKind::NotFound => MountError::NoHelper,
        _ => MountError::system(format!("start {HELPER}"), error),
    }
}

/// What a program said on its standard error, in one line.
fn complaint(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    match lines.is_empty() {
        true => format!("{HELPER} failed without a word"),
        false => lines.join("; "),
    }
}
