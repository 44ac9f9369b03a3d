//! The life of a mount that cannot be written: of a volume on its device, or of a checkpoint of one
//! that is mounted already. Such a checkpoint is what the door of that mount shows, as a file
//! system of its own: the device is not opened, so its cleaner works on.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use anyhow::Context;
use nilfs_engine::{
    CheckpointInfo, CheckpointTotals, Checkpoints, CleanerState, Cno, Error, Ino, Note,
    ReadOnlyVolume, Status, Usage,
};
use nilfs_fuse::{
    Connection, Content, CopyNr, KernelOptions, Mountpoint, Operations, PastSettings, Session,
    Settings, Transport,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::attend::{
    Activity, Attended, Event, Hangup, listen, log_end, log_transport, take_away, wait,
};
use super::options::Options;
use crate::administration::{Administration, ReadOnly, Reason, Refusal};
use crate::control::{self, Past, Powers, Served};
use crate::exit::Failure;
use crate::image::Door;
use crate::metrics::{Endpoint, Gatherer, Metrics};
use crate::past::KnownParents;
use crate::scrubbing::Scrubber;
use crate::threads;

/// Threads besides those that answer the kernel: for signals, for the end, for metrics and for the
/// past. And unmounting may take a process, fusermount3.
const OTHER_THREADS: usize = 5;

/// What such a mount shows.
pub trait Shown: ReadOnly + Send + Sync + 'static {
    /// Its files.
    fn content(self: Arc<Self>) -> Content;

    /// Lets others know that it is in use.
    fn stay(&self) {}

    /// What the mount does not show of a file of the past.
    fn powers(&self, cno: Cno, ino: Ino) -> Result<Powers, Refusal>;

    /// What its past is told from; `known` is remembered of it.
    fn past<'a>(&'a self, known: &'a KnownParents) -> Past<'a>;
}

impl Shown for ReadOnlyVolume {
    fn content(self: Arc<Self>) -> Content {
        self.into()
    }

    fn powers(&self, cno: Cno, ino: Ino) -> Result<Powers, Refusal> {
        Ok(self.tree(Some(cno))?.file(ino)?.attr().into())
    }

    fn past<'a>(&'a self, known: &'a KnownParents) -> Past<'a> {
        Past::Own(self, known)
    }
}

impl ReadOnly for Door {
    const REASON: &'static str =
        "a checkpoint of the past is mounted here; name the mount of the present";

    fn status(&self) -> Result<Status, Refusal> {
        let mut status = self.client().status()?;
        status.cno = self.cno();
        status.state = CleanerState::Off;
        status.of_the_past = true;
        Ok(status)
    }

    fn usage(&self) -> Result<Usage, Refusal> {
        self.client().usage()
    }

    fn checkpoints(&self, from: Cno, limit: usize) -> Result<Vec<CheckpointInfo>, Refusal> {
        self.client().checkpoints(from, limit)
    }

    fn checkpoint_totals(&self) -> Result<CheckpointTotals, Refusal> {
        self.client().checkpoint_totals()
    }

    fn newest_until(&self, second: u64) -> Result<Option<CheckpointInfo>, Refusal> {
        self.client().newest_until(second)
    }

    fn notes(&self) -> Result<Vec<Note>, Refusal> {
        self.client().notes()
    }
}

impl Shown for Door {
    fn content(self: Arc<Self>) -> Content {
        Content::files(self)
    }

    fn stay(&self) {
        self.stay();
    }

    fn powers(&self, cno: Cno, ino: Ino) -> Result<Powers, Refusal> {
        self.client().powers(cno, ino)
    }

    fn past<'a>(&'a self, _: &'a KnownParents) -> Past<'a> {
        Past::Served(self.client())
    }
}

/// Serves what `open` opens in `dir`, until it is unmounted or a signal says so. Calls `ready` when it
/// can be used. `checkpoint` is the one that is shown, unless that is the newest.
pub fn serve<S: Shown>(
    open: impl FnOnce(&Options) -> anyhow::Result<S>,
    source: &Path,
    dir: &Path,
    checkpoint: Option<Cno>,
    options: Options,
    hangup: Hangup,
    ready: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mountpoint = Mountpoint::prepare(dir)?;
    let endpoint = options.metrics.map(Endpoint::bind).transpose()?;
    threads::make_sure_of(Session::threads() + OTHER_THREADS)?;
    threads::abort_on_panic();
    let (events, happened) = mpsc::channel();
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot listen for signals")?;
    let kernel =
        KernelOptions { checkpoint: checkpoint.map(|cno| cno.0), ..options.kernel.clone() };
    let (mount, channel) = mountpoint.mount(source, &kernel)?;
    let mount = Arc::new(mount);
    let usable = Arc::new(AtomicBool::new(false));
    let (transport, memory) = (options.transport, Some(options.request_memory));
    let begin = || {
        listen(signals, hangup, events.clone(), Arc::clone(&mount), Arc::clone(&usable))?;
        let service = Arc::new(Service::new(open(&options)?, options, checkpoint.is_some())?);
        let metrics = service.gatherer();
        let shown = Arc::clone(&service.shown);
        let control = control::handler(shown.clone(), service.clone(), Arc::clone(&metrics));
        endpoint.map_or(Ok(()), |endpoint| endpoint.answer(metrics))?;
        let metrics = Arc::clone(&service.requests);
        let settings = Settings { transport, memory, metrics, writeback: false };
        let content = shown.content().with_past(service.shown_past()).with_control(Some(control));
        let connection = Connection::new(channel);
        let operations = Operations::new(content, &connection)?;
        let session = Session::start(connection, operations, &settings)?;
        _ = service.transport.set(session.transport());
        let why_not_uring = session.why_not_uring();
        threads::start("end", move || events.send(Event::Unmounted(session.join())))?;
        anyhow::Ok((service, why_not_uring))
    };
    let (service, why_not_uring) = begin().inspect_err(|_| take_away(&mount))?;
    mount.raise_read_ahead();
    usable.store(true, Ordering::Relaxed);
    let (what, dir) = (source.display(), mount.dir().display());
    match checkpoint {
        Some(cno) => tracing::info!("checkpoint {cno} of {what} is mounted on {dir}"),
        None => tracing::info!("{what} is mounted on {dir}"),
    }
    log_transport(why_not_uring);
    let served = ready().and_then(|()| wait(&happened, &mount, &*service));
    log_end(source, served.as_ref().err(), hangup);
    served.map(drop)
}

/// What is being served.
struct Service<S> {
    shown: Arc<S>,
    /// How things were when it was mounted.
    at_first: Status,
    requests: Arc<nilfs_fuse::Metrics>,
    options: Options,
    of_the_past: bool,
    parents: KnownParents,
    transport: OnceLock<Transport>,
}

impl<S: Shown> Service<S> {
    fn new(shown: S, options: Options, of_the_past: bool) -> anyhow::Result<Self> {
        let at_first = Administration::status(&shown)?;
        let (shown, requests) = (Arc::new(shown), Arc::default());
        let (parents, transport) = (KnownParents::default(), OnceLock::new());
        Ok(Self { shown, at_first, requests, options, of_the_past, parents, transport })
    }

    /// How directories show their past: in the past, they do not.
    fn shown_past(&self) -> Option<PastSettings> {
        self.options.past().filter(|_| !self.of_the_past)
    }

    fn gatherer(self: &Arc<Self>) -> Gatherer {
        let service = Arc::clone(self);
        Arc::new(move || {
            let status = Administration::status(&*service.shown);
            let status = status.unwrap_or_else(|_| service.at_first.clone());
            Metrics::new(status, &service.requests.operations())
        })
    }
}

impl<S: Shown> Attended for Service<S> {
    fn activity(&self) -> Activity {
        Activity::new(&self.requests.operations(), 0, 0)
    }

    fn rest(&self) {}

    fn reload(&self) {}

    fn stay(&self) {
        self.shown.stay();
    }
}

impl<S: Shown> Served for Service<S> {
    fn reload_settings(&self, _: Option<&Path>) -> Result<Vec<String>, Refusal> {
        self.shown.refuse()
    }

    fn remount(&self, words: &[String]) -> Result<(), Refusal> {
        let wrong = |failure: Failure| Refusal::new(Reason::Usage, failure.to_string());
        match self.options.remounted(words).map_err(wrong)? {
            Some(true) | None => Ok(()),
            Some(false) => {
                let reason = "it was mounted read-only; unmount it and mount it again".into();
                Err(Error::ReadOnly { reason }.into())
            }
        }
    }

    fn scrubber(&self) -> Result<&Scrubber, Refusal> {
        self.shown.refuse()
    }

    fn powers(&self, cno: Cno, ino: Ino) -> Result<Powers, Refusal> {
        self.shown.powers(cno, ino)
    }

    fn door(&self) -> Option<String> {
        self.shown_past().map(|past| past.name)
    }

    /// Nothing is purged here.
    fn end_past(&self) {}

    /// Nothing is written here, so there is no shortage of room.
    fn keep_past(&self, _: CopyNr, _: Duration) {}

    fn transport(&self) -> Option<Transport> {
        self.transport.get().copied()
    }

    fn past(&self) -> Past<'_> {
        self.shown.past(&self.parents)
    }
}
