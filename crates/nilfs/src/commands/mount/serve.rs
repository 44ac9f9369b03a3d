//! The life of a mount: open, mount, answer the kernel until somebody unmounts, commit, end.

use std::io;
use std::panic::PanicHookInfo;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nilfs_device::{Access, FileDevice, OpenError};
use nilfs_engine::Filesystem;
use nilfs_fuse::{Mount, MountError, Mounted, Mountpoint, Session};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::options::Options;

/// Why the mount ends.
enum End {
    /// The kernel has no more requests.
    Unmounted(io::Result<()>),
    /// Somebody wants the process to end.
    Signal,
}

/// Serves the volume on `device` in `dir`, until it is unmounted or a signal says so. Calls
/// `ready` when it can be used. Whatever can fail without touching the volume comes first.
pub fn serve(
    device: &Path,
    dir: &Path,
    options: Options,
    ready: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mountpoint = Mountpoint::prepare(dir, options.nonempty)?;
    let access = if options.engine.read_only { Access::ReadOnly } else { Access::ReadWrite };
    let opened = open(device, access)?;
    let source = std::fs::canonicalize(device)
        .with_context(|| format!("cannot find {}", device.display()))?;
    std::panic::set_hook(Box::new(abort));
    let (ended, end) = mpsc::channel();
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot listen for signals")?;
    let (mount, channel) = mountpoint.mount(&source, &options.kernel)?;
    let mount = Arc::new(mount);
    let usable = Arc::new(AtomicBool::new(false));
    listen(signals, ended.clone(), Arc::clone(&mount), Arc::clone(&usable));

    let begin = || {
        let fs = Filesystem::mount(Arc::new(opened), options.engine)
            .with_context(|| device.display().to_string())?;
        let session = Session::start(channel, Arc::clone(&fs), options.settings)
            .context("cannot talk to the kernel")?;
        anyhow::Ok((fs, session))
    };
    let (fs, session) = begin().inspect_err(|_| take_away(&mount))?;
    thread::spawn(move || ended.send(End::Unmounted(session.join())));
    mount.raise_read_ahead();
    usable.store(true, Ordering::Relaxed);
    tracing::info!("{} is mounted on {}", source.display(), mount.dir().display());
    let background = fs.start_background();
    let served = ready().and_then(|()| wait(&end, &mount));
    drop(background);
    fs.unmount()
        .with_context(|| format!("cannot unmount {}", source.display()))
        .inspect_err(log)?;
    tracing::info!("{} is unmounted", source.display());
    served.inspect_err(log)
}

/// Opens the device. After umount(8), which does not wait, the process that served the volume may
/// still be writing: it is given some time.
fn open(device: &Path, access: Access) -> anyhow::Result<FileDevice> {
    const PATIENCE: Duration = Duration::from_secs(10);
    const PAUSE: Duration = Duration::from_millis(20);
    let started = Instant::now();
    loop {
        match FileDevice::open(device, access) {
            Err(OpenError::Busy { .. }) if started.elapsed() < PATIENCE && !is_mounted(device) => {
                thread::sleep(PAUSE);
            }
            result => return Ok(result?),
        }
    }
}

fn is_mounted(device: &Path) -> bool {
    let source = std::fs::canonicalize(device).unwrap_or_else(|_| device.to_owned());
    Mounted::all().iter().any(|mounted| mounted.source == source)
}

/// Waits for the end, and brings it about if a signal asks for it.
fn wait(end: &mpsc::Receiver<End>, mount: &Mount) -> anyhow::Result<()> {
    match end.recv() {
        Ok(End::Unmounted(result)) => result.context("lost the connection to the kernel"),
        Ok(End::Signal) => {
            take_away(mount);
            Ok(())
        }
        Err(mpsc::RecvError) => Ok(()),
    }
}

/// Unmounts. What is in use by a process becomes unreachable for it.
fn take_away(mount: &Mount) {
    let result = match mount.unmount() {
        Err(MountError::Busy { .. }) => {
            tracing::warn!("{} is unmounted although it is in use", mount.dir().display());
            mount.detach()
        }
        result => result,
    };
    if let Err(error) = result {
        tracing::error!("{error}");
    }
}

/// Passes signals on. Before the volume can be used there is nothing to be committed, and no need
/// to wait for the recovery of a large one.
fn listen(
    mut signals: Signals,
    ended: mpsc::Sender<End>,
    mount: Arc<Mount>,
    usable: Arc<AtomicBool>,
) {
    thread::spawn(move || {
        for _ in signals.forever() {
            if !usable.load(Ordering::Relaxed) {
                take_away(&mount);
                std::process::exit(1);
            }
            if ended.send(End::Signal).is_err() {
                return;
            }
        }
    });
}

/// In the background nobody reads what the command prints at its end.
fn log(error: &anyhow::Error) {
    tracing::error!("{error:#}");
}

/// A thread that panics leaves its request without an answer and perhaps a promise half kept. An
/// end without commit is safe: the volume is then as it was at its last durable moment.
fn abort(panic: &PanicHookInfo<'_>) {
    tracing::error!("nilfs has a bug and must stop: {panic}");
    eprintln!("nilfs has a bug and must stop: {panic}");
    std::process::abort();
}
