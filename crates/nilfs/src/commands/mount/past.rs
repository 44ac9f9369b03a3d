//! A mount of a checkpoint of a volume that is mounted already: what the door of that mount shows, as
//! a file system of its own. The device is not opened, so its cleaner works on.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use anyhow::Context;
use nilfs_engine::{
    CleanerOrder, CleanerState, Cno, Defragmented, DeletedCheckpoints, Error, Ino, ResizeProgress,
    Status, Usage,
};
use nilfs_fuse::{KernelOptions, Mountpoint, Session, Settings};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::attend::{Activity, Attended, Event, Hangup, listen, take_away, wait};
use super::options::Options;
use crate::administration::{Administration, Refusal};
use crate::control::{self, Powers, Served};
use crate::image::Door;
use crate::metrics::{Endpoint, Gatherer, Metrics};
use crate::threads;

/// Threads beside those that answer the kernel: for signals, for the end and for metrics. And
/// unmounting may take a process, fusermount3.
const OTHER_THREADS: usize = 4;

/// Serves the checkpoint in `dir`, until it is unmounted or a signal says so. Calls `ready` when it can
/// be used.
pub fn serve(
    door: Door,
    source: &Path,
    dir: &Path,
    options: Options,
    hangup: Hangup,
    ready: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mountpoint = Mountpoint::prepare(dir, options.nonempty)?;
    let endpoint = options.metrics.map(Endpoint::bind).transpose()?;
    threads::make_sure_of(Session::threads() + OTHER_THREADS)?;
    threads::abort_on_panic();
    let (events, happened) = mpsc::channel();
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).context("cannot listen for signals")?;
    let kernel = KernelOptions { checkpoint: Some(door.cno().0), ..options.kernel };
    let (mount, channel) = mountpoint.mount(source, &kernel)?;
    let mount = Arc::new(mount);
    let usable = Arc::new(AtomicBool::new(false));
    let past =
        Past { at_first: door.client().status()?, door: Arc::new(door), requests: Arc::default() };
    let past = Arc::new(past);
    let begin = || {
        listen(signals, hangup, events.clone(), Arc::clone(&mount), Arc::clone(&usable))?;
        let metrics = past.gatherer();
        let control = control::handler(past.clone(), past.clone(), Arc::clone(&metrics));
        endpoint.map_or(Ok(()), |endpoint| endpoint.answer(metrics))?;
        let requests = Arc::clone(&past.requests);
        let settings =
            Settings { control: Some(control), metrics: requests, ..Settings::default() };
        let session = Session::start(channel, past.door.clone(), None, settings)
            .context("cannot answer the kernel")?;
        threads::start("end", move || events.send(Event::Unmounted(session.join()))).map(drop)
    };
    begin().inspect_err(|_| take_away(&mount))?;
    mount.raise_read_ahead();
    usable.store(true, Ordering::Relaxed);
    tracing::info!(
        "checkpoint {} of {} is mounted on {}",
        past.door.cno(),
        source.display(),
        mount.dir().display()
    );
    let served = ready().and_then(|()| wait(&happened, &mount, &*past));
    served.map(drop).inspect_err(|error| tracing::error!("{error:#}"))
}

/// A checkpoint that is being served.
struct Past {
    door: Arc<Door>,
    /// How things were when it was mounted.
    at_first: Status,
    requests: Arc<nilfs_fuse::Metrics>,
}

impl Past {
    fn gatherer(self: &Arc<Self>) -> Gatherer {
        let past = Arc::clone(self);
        Arc::new(move || {
            let status = past.status().unwrap_or_else(|_| past.at_first.clone());
            Metrics::new(status, &past.requests.operations())
        })
    }
}

impl Attended for Past {
    fn activity(&self) -> Activity {
        Activity::new(&self.requests.operations(), 0, 0)
    }

    fn rest(&self) {}

    fn reload(&self) {}
}

fn read_only<T>() -> Result<T, Refusal> {
    let reason = "a checkpoint of the past is mounted here; name the mount of the present".into();
    Err(Error::ReadOnly { reason }.into())
}

impl Administration for Past {
    fn status(&self) -> Result<Status, Refusal> {
        let mut status = self.door.client().status()?;
        status.cno = self.door.cno();
        status.state = CleanerState::Off;
        status.of_the_past = true;
        Ok(status)
    }

    fn usage(&self) -> Result<Usage, Refusal> {
        self.door.client().usage()
    }

    fn set_snapshot(&self, _: Cno, _: bool) -> Result<(), Refusal> {
        read_only()
    }

    fn delete_checkpoints(&self, _: RangeInclusive<Cno>) -> Result<DeletedCheckpoints, Refusal> {
        read_only()
    }

    fn checkpoint(&self, _: bool) -> Result<Cno, Refusal> {
        read_only()
    }

    fn order_cleaner(&self, _: CleanerOrder) -> Result<(), Refusal> {
        read_only()
    }

    fn trim(&self, _: u64, _: u64, _: u64) -> Result<u64, Refusal> {
        read_only()
    }

    fn resize(&self, _: u64, _: &mut dyn FnMut(ResizeProgress)) -> Result<(), Refusal> {
        read_only()
    }

    fn defragment(&self, _: Ino, _: u64) -> Result<Defragmented, Refusal> {
        read_only()
    }
}

impl Served for Past {
    fn reload_settings(&self, _: Option<&Path>) -> Result<Vec<String>, Refusal> {
        read_only()
    }

    fn remount(&self, _: &[String]) -> Result<(), Refusal> {
        read_only()
    }

    fn powers(&self, cno: Cno, ino: Ino) -> Result<Powers, Refusal> {
        self.door.client().powers(cno, ino)
    }
}
