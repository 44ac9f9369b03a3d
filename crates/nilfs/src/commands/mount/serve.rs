//! The life of a mount: open, mount, answer the kernel until somebody unmounts, commit, end.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::Context;
use nilfs_device::FileDevice;
use nilfs_engine::{CleanerOrder, Filesystem};
use nilfs_fuse::{Farewell, KernelOptions, Mount, MountError, Mountpoint, Session, Settings};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::open::open;
use super::options::Options;
use crate::administration::{Reason, Refusal};
use crate::control::{self, Served};
use crate::exit::{self, Failure};
use crate::memory;
use crate::metrics::{self, Endpoint, Metrics};
use crate::threads;

/// How often a mount looks whether it is idle.
const IDLE: Duration = Duration::from_secs(2);

/// What a mount waits for.
enum Event {
    /// The kernel has no more requests, and may wait for us to say farewell.
    Unmounted(io::Result<Farewell>),
    /// Somebody wanted the process to end, and the volume is not mounted any more.
    TakenAway,
    /// Somebody has changed the cleaner's settings.
    Reload,
}

/// Threads beside those that answer the kernel: for signals, for the end, for metrics, for
/// checkpoints and for the cleaner. And unmounting may take a process, fusermount3.
const OTHER_THREADS: usize = 6;

/// What SIGHUP means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hangup {
    /// The terminal is gone, and so is whoever wanted the mount.
    Ends,
    /// What it means to a daemon: the cleaner's settings are to be read again.
    Reloads,
}

/// Serves the volume on `device` in `dir`, until it is unmounted or a signal says so. Calls
/// `ready` when it can be used. Whatever can fail without touching the volume comes first.
pub fn serve(
    device: &Path,
    dir: &Path,
    options: Options,
    hangup: Hangup,
    ready: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mountpoint = Mountpoint::prepare(dir, options.nonempty)?;
    let endpoint = options.metrics.map(Endpoint::bind).transpose()?;
    let opened = open(device, &options.engine)?;
    let source = std::fs::canonicalize(device)
        .with_context(|| format!("cannot find {}", device.display()))?;
    threads::make_sure_of(Session::threads() + OTHER_THREADS)?;
    threads::abort_on_panic();
    let (events, happened) = mpsc::channel();
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot listen for signals")?;
    let (mount, channel) = mount_device(&mountpoint, &opened, &source, &options)?;
    let mount = Arc::new(mount);
    let usable = Arc::new(AtomicBool::new(false));
    let writeback = options.writeback;
    let past = options.past && options.engine.checkpoint.is_none();
    let begin = || {
        let (mounted, is_usable) = (Arc::clone(&mount), Arc::clone(&usable));
        listen(signals, hangup, events.clone(), mounted, is_usable)?;
        let fs = Filesystem::mount(opened.clone(), options.engine.clone())
            .with_context(|| device.display().to_string())?;
        let requests = Arc::<nilfs_fuse::Metrics>::default();
        let metrics = gatherer(Arc::clone(&fs), Arc::clone(&requests));
        let service =
            Arc::new(Service { fs: Arc::clone(&fs), requests: Arc::clone(&requests), options });
        let control = control::handler(fs.clone(), service.clone(), Arc::clone(&metrics));
        let settings = Settings { writeback, past, control: Some(control), metrics: requests };
        endpoint.map_or(Ok(()), |endpoint| endpoint.answer(metrics))?;
        let background = fs.start_background().context(threads::NO_THREAD)?;
        let session = Session::start(channel, fs.clone(), Some(fs), settings)
            .context("cannot answer the kernel")?;
        threads::start("end", move || events.send(Event::Unmounted(session.join())))?;
        anyhow::Ok((service, background))
    };
    let (service, background) = begin().inspect_err(|_| take_away(&mount))?;
    mount.raise_read_ahead();
    usable.store(true, Ordering::Relaxed);
    tracing::info!("{} is mounted on {}", source.display(), mount.dir().display());
    let served = ready().and_then(|()| wait(&happened, &mount, &service));
    if let Err(error) = opened.announce_end() {
        tracing::debug!("nobody is told that {} is about to be free: {error}", source.display());
    }
    drop(background);
    let closed = service.fs.unmount();
    if let Err(error) = opened.release() {
        tracing::debug!("{} is free when the process has ended: {error}", source.display());
    }
    let closed = closed.with_context(|| {
        format!("{} is unmounted, but the last changes could not be written", source.display())
    });
    match closed.as_ref().err().or(served.as_ref().err()) {
        None => tracing::info!("{} is unmounted", source.display()),
        // In the background nobody reads what the command prints at its end.
        Some(error) if hangup == Hangup::Reloads => {
            tracing::error!("{}", exit::sentence(error));
        }
        Some(_) => {}
    }
    // An umount(8) that waits ends here.
    closed.and(served.map(drop))
}

/// Mounts as `fuseblk` where that was asked for or is possible, else as `fuse`. Until the volume is
/// read, nothing is written; so it does no harm that somebody else could claim the device between us
/// and the kernel: one of the two is refused then.
fn mount_device(
    mountpoint: &Mountpoint,
    device: &FileDevice,
    source: &Path,
    options: &Options,
) -> anyhow::Result<(Mount, OwnedFd)> {
    let kernel = KernelOptions {
        checkpoint: options.engine.checkpoint.map(|cno| cno.0),
        ..options.kernel.clone()
    };
    if !kernel.block {
        return Ok(mountpoint.mount(source, &kernel)?);
    }
    device.yield_claim();
    match mountpoint.mount(source, &kernel) {
        Err(error) if !options.must_be_block() => {
            tracing::warn!("not mounted as fuseblk, so umount(8) and sync do not wait: {error}");
        }
        result => return Ok(result?),
    }
    device.retake_claim().with_context(|| format!("cannot claim {}", source.display()))?;
    Ok(mountpoint.mount(source, &KernelOptions { block: false, ..kernel })?)
}

/// What tells at any time how things are.
fn gatherer(fs: Arc<Filesystem>, operations: Arc<nilfs_fuse::Metrics>) -> metrics::Gatherer {
    Arc::new(move || Metrics::new(fs.status(), &operations.operations()))
}

/// What others can ask of the mount.
struct Service {
    fs: Arc<Filesystem>,
    requests: Arc<nilfs_fuse::Metrics>,
    options: Options,
}

impl Service {
    /// Tells apart moments between which somebody has asked for something, the kernel has forgotten
    /// something, or something was written.
    fn activity(&self) -> (u64, usize, u64) {
        let requests = self.requests.operations();
        let count = requests.iter().map(|operation| operation.count).sum();
        (count, self.fs.held(), self.fs.status().blocks_written)
    }

    /// Lets the cleaner have the settings that `file` has now, or the mount's own files. Gives what
    /// was wrong with them.
    fn reload(&self, file: Option<&Path>) -> anyhow::Result<Vec<String>> {
        let (options, warnings) = self.options.cleaner.load(file)?;
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        self.fs.order_cleaner(CleanerOrder::Configure(options))?;
        tracing::info!("the cleaner's settings were read again");
        Ok(warnings.iter().map(ToString::to_string).collect())
    }
}

impl Served for Service {
    fn reload_settings(&self, file: Option<&Path>) -> Result<Vec<String>, Refusal> {
        let failed = |error| Refusal::new(Reason::Failed, exit::sentence(&error));
        self.reload(file).map_err(failed)
    }

    fn remount(&self, words: &[String]) -> Result<(), Refusal> {
        let wrong = |failure: Failure| Refusal::new(Reason::Usage, failure.to_string());
        if let Some(read_only) = self.options.remounted(words).map_err(wrong)? {
            self.fs.set_read_only(read_only)?;
        }
        Ok(())
    }
}

/// Waits for the end, and lets the cleaner's settings be read again until then. Meanwhile it gives
/// memory back whenever the mount has become idle. The kernel may wait for what this returns to be
/// dropped.
fn wait(
    events: &mpsc::Receiver<Event>,
    mount: &Mount,
    service: &Service,
) -> anyhow::Result<Option<Farewell>> {
    let (mut last, mut rested) = (None, None);
    loop {
        match events.recv_timeout(IDLE) {
            Err(RecvTimeoutError::Timeout) => {
                let now = Some(service.activity());
                if now == last && now != rested {
                    rested = now;
                    service.fs.free_spare_memory();
                    memory::give_back();
                }
                last = now;
            }
            Ok(Event::Unmounted(result)) => {
                return result
                    .map(Some)
                    .context("lost the connection to the kernel")
                    .inspect_err(|_| take_away(mount));
            }
            Ok(Event::Reload) => {
                if let Err(error) = service.reload(None) {
                    tracing::error!("the cleaner's settings stay as they are: {error:#}");
                }
            }
            Ok(Event::TakenAway) | Err(RecvTimeoutError::Disconnected) => return Ok(None),
        }
    }
}

/// Unmounts. What is in use by a process becomes unreachable for it. This may wait for the answer to
/// the kernel's last request, and so must not run in the thread that lets it be given.
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

/// Obeys signals, or passes them on. Before the volume can be used there is nothing to be committed,
/// and no need to wait for the recovery of a large one.
fn listen(
    mut signals: Signals,
    hangup: Hangup,
    events: mpsc::Sender<Event>,
    mount: Arc<Mount>,
    usable: Arc<AtomicBool>,
) -> anyhow::Result<()> {
    let pass_on = move || {
        for signal in signals.forever() {
            let reloads = signal == SIGHUP && hangup == Hangup::Reloads;
            if !usable.load(Ordering::Relaxed) && !reloads {
                take_away(&mount);
                std::process::exit(1);
            }
            let event = match reloads {
                true => Event::Reload,
                false => {
                    take_away(&mount);
                    Event::TakenAway
                }
            };
            if events.send(event).is_err() {
                return;
            }
        }
    };
    threads::start("signals", pass_on).map(drop)
}
