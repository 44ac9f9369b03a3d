//! The life of a mount that can be written: open, mount, answer the kernel until somebody unmounts,
//! commit, end.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use anyhow::Context;
use nilfs_device::FileDevice;
use nilfs_engine::{CleanerOrder, Cno, Filesystem, Ino};
use nilfs_fuse::{
    Connection, Content, CopyNr, HeldPast, KernelOptions, Mount, Mountpoint, Operations, Session,
    Settings, Transport,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::attend::{
    Activity, Attended, Event, Hangup, listen, log_end, log_transport, take_away, wait,
};
use super::open::open;
use super::options::Options;
use crate::administration::{Reason, Refusal};
use crate::config::Loaded;
use crate::control::{self, Past, Powers, Served};
use crate::exit::{self, Failure};
use crate::metrics::{self, Endpoint, Metrics};
use crate::past::KnownParents;
use crate::retention::Keeper;
use crate::scrubbing::{Scrubber, StateFile};
use crate::signature::OnVolume;
use crate::threads;

/// Threads besides those that answer the kernel: for signals, for the end, for metrics, for
/// checkpoints, for the cleaner, for the past, for retention, for scrubs, and one that writes to the
/// device. And unmounting may take a process, fusermount3. Others are not counted, because what they do is
/// done without them as well: workers, and those that tell the log of losses, and of damage by its path.
const OTHER_THREADS: usize = 10;

/// Serves the volume on `device` in `dir`, until it is unmounted or a signal says so. Calls
/// `ready` when it can be used. Whatever can fail without touching the volume comes first.
pub fn serve(
    device: &Path,
    dir: &Path,
    options: Options,
    hangup: Hangup,
    ready: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mountpoint = Mountpoint::prepare(dir)?;
    let endpoint = options.metrics.map(Endpoint::bind).transpose()?;
    let opened = open(device, mountpoint.dir(), &options)?;
    let source = std::fs::canonicalize(device)
        .with_context(|| format!("cannot find {}", device.display()))?;
    threads::make_sure_of(Session::threads() + OTHER_THREADS)?;
    threads::abort_on_panic();
    let (events, happened) = mpsc::channel();
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot listen for signals")?;
    let (mount, channel) = mount_device(&mountpoint, &opened, &source, &options)?;
    let mount = Arc::new(mount);
    let usable = Arc::new(AtomicBool::new(false));
    let (transport, writeback) = (options.transport, options.writeback);
    let memory = Some(options.request_memory);
    let shown_past = options.past();
    let durable_changes = options.kernel.sync || options.kernel.dirsync;
    let begin = || {
        let (mounted, is_usable) = (Arc::clone(&mount), Arc::clone(&usable));
        listen(signals, hangup, events.clone(), mounted, is_usable)?;
        let fs = Filesystem::mount(opened.clone(), options.engine.clone()).on_volume(device)?;
        let requests = Arc::<nilfs_fuse::Metrics>::default();
        let metrics = gatherer(Arc::clone(&fs), Arc::clone(&requests));
        let keeper = Keeper::start(Arc::clone(&fs), options.keep)?;
        let state = StateFile::of(&*opened);
        let scrubber = Scrubber::start(Arc::clone(&fs), state, options.scrub)?;
        let service =
            Service::new(Arc::clone(&fs), Arc::clone(&requests), options, keeper, scrubber);
        let service = Arc::new(service);
        let control = control::handler(fs.clone(), service.clone(), Arc::clone(&metrics));
        let settings = Settings { transport, writeback, memory, metrics: requests };
        endpoint.map_or(Ok(()), |endpoint| endpoint.answer(metrics))?;
        let background = fs.start_background().context(threads::NO_THREAD)?;
        let content = Content::from(fs).with_past(shown_past).with_control(Some(control));
        let content = content.with_durable_changes(durable_changes);
        let connection = Connection::new(channel);
        let operations = Operations::new(content, &connection)?;
        _ = service.held_past.set(operations.held_past());
        let session = Session::start(connection, operations, &settings)?;
        _ = service.transport.set(session.transport());
        let why_not_uring = session.why_not_uring();
        threads::start("end", move || events.send(Event::Unmounted(session.join())))?;
        anyhow::Ok((service, background, why_not_uring))
    };
    let (service, background, why_not_uring) = begin().inspect_err(|_| take_away(&mount))?;
    mount.raise_read_ahead();
    usable.store(true, Ordering::Relaxed);
    tracing::info!("{} is mounted on {}", source.display(), mount.dir().display());
    log_transport(why_not_uring);
    let served = ready().and_then(|()| wait(&happened, &mount, &*service));
    if let Err(error) = opened.announce_end() {
        tracing::debug!("nobody is told that {} is about to be free: {error}", source.display());
    }
    service.keeper.stop();
    service.scrubber.end();
    drop(background);
    let closed = service.fs.unmount();
    if let Err(error) = opened.release() {
        tracing::debug!("{} is free when the process has ended: {error}", source.display());
    }
    let closed = closed.with_context(|| {
        format!("{} is unmounted, but the last changes could not be written", source.display())
    });
    log_end(&source, closed.as_ref().err().or(served.as_ref().err()), hangup);
    // An umount(8) that waits ends here.
    closed.and(served.map(drop))
}

/// Mounts as `fuseblk` where that was asked for or is possible, else as `fuse`. Until the volume is
/// read, nothing is written; so it does no harm that somebody else could claim the device between
/// us and the kernel: one of the two is refused then.
fn mount_device(
    mountpoint: &Mountpoint,
    device: &FileDevice,
    source: &Path,
    options: &Options,
) -> anyhow::Result<(Mount, OwnedFd)> {
    let kernel = options.kernel.clone();
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
    parents: KnownParents,
    keeper: Keeper,
    scrubber: Scrubber,
    transport: OnceLock<Transport>,
    held_past: OnceLock<HeldPast>,
}

impl Service {
    fn new(
        fs: Arc<Filesystem>,
        requests: Arc<nilfs_fuse::Metrics>,
        options: Options,
        keeper: Keeper,
        scrubber: Scrubber,
    ) -> Self {
        let (transport, held_past) = (OnceLock::new(), OnceLock::new());
        let parents = KnownParents::default();
        Self { fs, requests, options, parents, keeper, scrubber, transport, held_past }
    }

    /// Lets the cleaner and retention have the settings that `file` has now, or the mount's own files.
    /// Returns what was wrong with them.
    fn reload(&self, file: Option<&Path>) -> anyhow::Result<Vec<String>> {
        let Loaded { cleaner, keep, warnings } = self.options.cleaner.load(file)?;
        warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
        self.fs.order_cleaner(CleanerOrder::Configure(cleaner))?;
        self.keeper.change(keep);
        tracing::info!("the settings were read again");
        Ok(warnings.iter().map(ToString::to_string).collect())
    }
}

impl Attended for Service {
    fn activity(&self) -> Activity {
        let written = self.fs.status().blocks_written;
        Activity::new(&self.requests.operations(), self.fs.held(), written)
    }

    fn rest(&self) {
        self.fs.free_spare_memory();
    }

    fn reload(&self) {
        if let Err(error) = self.reload(None) {
            tracing::error!("the cleaner's settings stay as they are: {error:#}");
        }
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

    fn scrubber(&self) -> Result<&Scrubber, Refusal> {
        Ok(&self.scrubber)
    }

    fn powers(&self, cno: Cno, ino: Ino) -> Result<Powers, Refusal> {
        Ok(self.fs.tree_of_past(cno)?.file(ino)?.attr().into())
    }

    fn door(&self) -> Option<String> {
        self.options.past().map(|past| past.name)
    }

    fn end_past(&self) {
        if let Some(held) = self.held_past.get() {
            held.end();
        }
    }

    fn keep_past(&self, copy: CopyNr, for_now: Duration) {
        if let Some(held) = self.held_past.get() {
            held.keep_for_copy(copy, for_now);
        }
    }

    fn transport(&self) -> Option<Transport> {
        self.transport.get().copied()
    }

    fn past(&self) -> Past<'_> {
        Past::Own(&*self.fs, &self.parents)
    }
}
