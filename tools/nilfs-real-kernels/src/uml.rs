//! User-Mode Linux: a real Linux kernel, with its nilfs2, as a process of the host.
//!
//! The guest sees the host's file tree as its root (so the host's programs and this crate's tools
//! run in it), the image as `/dev/ubda`, and a script of the test as the only thing to do. Its own
//! exit status tells nothing; the script's status and output come back through files in a directory
//! that both sides see, and the kernel's log through the console.
//!
//! UML drops the guest's flush requests and writes in 4 KiB pieces, in the order in which the guest
//! issued them. Killing it therefore leaves the image as a power cut would leave a disk without a
//! volatile cache.

mod running;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

pub use self::running::RunningUml;
use crate::ScriptResult;
use crate::error::{Error, Result, host};
use crate::tools::Tools;

const KERNEL: &str = "/usr/bin/linux.uml";
const MODULES: &str = "/usr/lib/uml/modules";
const INIT: &str = include_str!("uml/init.sh");
const PRELUDE: &str = include_str!("uml/prelude.sh");

/// A guest whose host process is gone powers itself off this long after its time is over.
const WATCHDOG_GRACE_SECONDS: u64 = 10;

/// Where the guest keeps its own file systems, so that the host's files below are out of its sight.
const HIDDEN_FROM_GUEST: &[&str] = &["/dev", "/proc", "/sys"];

/// A guest to be started: which image it gets and what it does with it.
///
/// The script is bash, run as root with `-eu -o pipefail`, so the first failing command ends it.
/// It finds, besides the host's programs:
///
/// * `$DEV`, the image as a block device, and `$MNT`, an empty directory to mount it on;
/// * `mount_nilfs [OPTIONS]` and `umount_nilfs`;
/// * `each_image DIRECTORY FUNCTION`, which calls the function with `$DEV` as each of the images in
///   the directory, and `$IMAGE` as its path;
/// * `manifest` and `fill`, this crate's tools, in its `PATH`;
/// * the variables given with [`Uml::env`];
/// * the host's files under their own names (except below `/dev`, `/proc` and `/sys`). What it
///   writes there reaches the host when it is synced, or when the script ends.
#[derive(Debug, Clone)]
pub struct Uml {
    image: PathBuf,
    memory_mib: u32,
    timeout: Duration,
    script: String,
    variables: Vec<(String, OsString)>,
}

impl Uml {
    /// Says what is missing on this machine, if anything is.
    pub fn available() -> std::result::Result<(), String> {
        if !rustix::process::geteuid().is_root() {
            return Err(
                "User-Mode Linux takes the host's file tree as its root: run as root".into()
            );
        }
        let needed = [
            (Path::new(KERNEL), "user-mode-linux"),
            (Path::new(MODULES), "user-mode-linux"),
            (Path::new("/usr/sbin/insmod"), "kmod"),
            (Path::new("/usr/bin/mount"), "mount"),
        ];
        match needed.iter().find(|(path, _)| !path.exists()) {
            Some((path, package)) => {
                Err(format!("{} is missing: install Debian's package {package}", path.display()))
            }
            None => Ok(()),
        }
    }

    /// A guest with the image (a regular file, or a block device of the host) as its disk.
    pub fn new(image: impl Into<PathBuf>) -> Self {
        Self {
            image: image.into(),
            memory_mib: 512,
            timeout: Duration::from_secs(300),
            script: String::new(),
            variables: Vec::new(),
        }
    }

    /// Sets the guest's memory (default: 512 MiB).
    pub fn memory_mib(mut self, memory_mib: u32) -> Self {
        self.memory_mib = memory_mib;
        self
    }

    /// Sets how long the script may take before the guest is taken for hung (default: 300 s).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets what the guest does.
    pub fn script(mut self, script: impl Into<String>) -> Self {
        self.script = script.into();
        self
    }

    /// Sets a variable of the script's environment.
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.variables.push((name.to_owned(), value.into()));
        self
    }

    /// Runs the script to its end, whatever its exit status.
    pub fn run(self) -> Result<ScriptResult> {
        self.start()?.wait()
    }

    /// Starts the guest and returns while it works, so that it can be killed in the middle.
    pub fn start(self) -> Result<RunningUml> {
        Self::available().map_err(Error::Unavailable)?;
        let directory = self.prepare()?;
        let mut command = self.command(directory.path())?;
        let (console, guest_end) =
            io::pipe().map_err(host("make a pipe for", Path::new(KERNEL)))?;
        let guest_end_too =
            guest_end.try_clone().map_err(host("make a pipe for", Path::new(KERNEL)))?;
        command.stdin(Stdio::null()).stdout(guest_end).stderr(guest_end_too);
        let child = command.spawn().map_err(host("start", Path::new(KERNEL)))?;
        // The command holds the guest's end of the console open; with it, the end of file that
        // tells of the guest's death would never come.
        drop(command);
        Ok(RunningUml::new(child, console, directory, self.timeout))
    }

    /// Makes the directory that host and guest share.
    fn prepare(&self) -> Result<TempDir> {
        let directory = tempfile::Builder::new()
            .prefix("uml-")
            .tempdir()
            .map_err(host("make a directory in", &std::env::temp_dir()))?;
        let path = directory.path();
        if let Some(hidden) = HIDDEN_FROM_GUEST.iter().find(|hidden| path.starts_with(hidden)) {
            return Err(Error::Unavailable(format!(
                "the guest cannot see {}: set TMPDIR to a directory that is not below {hidden}",
                path.display()
            )));
        }
        let volume = path.join("volume");
        fs::create_dir(&volume).map_err(host("make", &volume))?;
        let init = path.join("init.sh");
        write(&init, INIT)?;
        fs::set_permissions(&init, fs::Permissions::from_mode(0o755))
            .map_err(host("make executable", &init))?;
        let mut prelude = String::new();
        for (name, value) in self.exported(&volume)? {
            prelude.push_str(&format!("export {name}={}\n", quoted(&value)?));
        }
        prelude.push_str(PRELUDE);
        write(&path.join("prelude.sh"), &prelude)?;
        write(&path.join("script.sh"), &self.script)?;
        Ok(directory)
    }

    /// The environment of the script.
    fn exported(&self, volume: &Path) -> Result<Vec<(String, OsString)>> {
        let mut path = Tools::get()?.directory().as_os_str().to_owned();
        path.push(":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        let mut variables = vec![
            ("PATH".to_owned(), path),
            ("DEV".to_owned(), "/dev/ubda".into()),
            ("MNT".to_owned(), volume.into()),
        ];
        variables.extend(self.variables.iter().cloned());
        Ok(variables)
    }

    fn command(&self, directory: &Path) -> Result<Command> {
        let image = self.image.canonicalize().map_err(host("find", &self.image))?;
        let mut command = Command::new(KERNEL);
        command
            .arg(format!("mem={}M", self.memory_mib))
            .args(["root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw"])
            .args(["con=null", "con0=null,fd:1", "ignore_loglevel"])
            // What the kernel does not know becomes a variable of init's environment.
            .arg(format!("watchdog_seconds={}", self.timeout.as_secs() + WATCHDOG_GRACE_SECONDS))
            .arg(joined("init=", &directory.join("init.sh")))
            .arg(joined("uml_dir=", directory))
            .arg(joined("ubda=", &image))
            .env("LD_PRELOAD", env!("WHOLE_XSTATE_LIBRARY"))
            .process_group(0);
        if !fits_in_shared_memory(self.memory_mib) {
            command.env("TMPDIR", directory);
        }
        Ok(command)
    }
}

/// Whether `/dev/shm`, where UML keeps the guest's memory, has the room (in containers it is often
/// tiny).
fn fits_in_shared_memory(memory_mib: u32) -> bool {
    rustix::fs::statvfs("/dev/shm")
        .is_ok_and(|fs| fs.f_bavail.saturating_mul(fs.f_frsize) >> 20 >= u64::from(memory_mib))
}

fn joined(option: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(option);
    argument.push(path);
    argument
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(host("write", path))
}

/// The value as one word of bash.
fn quoted(value: &OsString) -> Result<String> {
    match value.to_str() {
        Some(text) => Ok(format!("'{}'", text.replace('\'', r"'\''"))),
        None => Err(Error::Unavailable(format!(
            "{} cannot be named in a script: it is not UTF-8",
            value.display()
        ))),
    }
}
