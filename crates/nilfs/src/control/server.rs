//! The side of the process that serves a mount: who may ask what, and what it has to serve that
//! with.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use nilfs_engine::{Checkpoints, Cno, Ino, PurgeOptions, ResizeProgress};
use nilfs_fuse::{Caller, CopyNr, Handler, Transport};
use parking_lot::Mutex;
use serde_json::Value;

use super::client::Client;
use super::messages::{self, Question, RequestOutcome};
use super::pages::{Message, Pages};
use super::requests::{ALL, AdminRequest, Nothing, Powers, Purging, Resizing, RollingBack, Work};
use crate::administration::{Administration, Reason, Refusal};
use crate::exit;
use crate::metrics::Gatherer;
use crate::past::{self, Change, KnownParents, Name, Version};
use crate::scrubbing::Scrubber;
use crate::threads;

/// What can be asked of a mount, besides what can be asked of any volume.
pub trait Served: Send + Sync {
    /// Reads the cleaner's settings again, from `file` instead of the mount's own. Returns
    /// what was wrong with it.
    fn reload_settings(&self, file: Option<&Path>) -> Result<Vec<String>, Refusal>;

    /// Makes the volume read-only or writable, as the words after `-o` say, if they ask for nothing
    /// else.
    fn remount(&self, words: &[String]) -> Result<(), Refusal>;

    /// What scrubs the volume; a mount that cannot be written has none.
    fn scrubber(&self) -> Result<&Scrubber, Refusal>;

    /// What the mount does not show of a file of the past.
    fn powers(&self, cno: Cno, ino: Ino) -> Result<Powers, Refusal>;

    /// The name of the door to the past in every directory, if there is one.
    fn door(&self) -> Option<String>;

    /// Lets go of checkpoints that are only kept because somebody looks at them through the mount.
    fn end_past(&self);

    /// Keeps such checkpoints `for_now`, however short of room the volume is, for a command that copies out
    /// of the past; no longer, if that is no time at all.
    fn keep_past(&self, copy: CopyNr, for_now: Duration);

    /// Which way requests take, when that has been found out.
    fn transport(&self) -> Option<Transport>;

    /// What the past of the volume is told from.
    fn past(&self) -> Past<'_>;
}

/// What the past of a volume is told from.
pub enum Past<'a> {
    /// The volume, which this process has open, and what it remembers of it.
    Own(&'a dyn Checkpoints, &'a KnownParents),
    /// The process that serves the volume.
    Served(&'a Client),
}

impl Past<'_> {
    /// What two checkpoints differ in.
    pub fn changes(&self, from: Cno, to: Cno) -> Result<Vec<Change>, Refusal> {
        match self {
            Self::Own(volume, known) => Ok(past::changes(*volume, known, from, to)?),
            Self::Served(client) => client.changes(from, to),
        }
    }

    /// The versions of a file, as [`past::versions`] returns them.
    pub fn versions(
        &self,
        path: &Name,
        at: Option<Cno>,
        limit: usize,
    ) -> Result<Vec<Version>, Refusal> {
        match self {
            Self::Own(volume, _) => Ok(past::versions(*volume, path, at, limit)?),
            Self::Served(client) => client.versions(path, at, limit),
        }
    }

    /// When names changed below a directory, as [`past::changes_of_directories`] returns it.
    pub fn changes_of_directories(
        &self,
        path: &Name,
        from: Cno,
        most: usize,
    ) -> Result<Option<BTreeSet<Cno>>, Refusal> {
        match self {
            Self::Own(volume, _) => Ok(past::changes_of_directories(*volume, path, from, most)?),
            Self::Served(client) => client.changes_of_directories(path, from, most),
        }
    }
}

/// What requests are served with.
pub struct Server {
    pub(super) volume: Arc<dyn Administration + Send + Sync>,
    pub(super) mount: Arc<dyn Served>,
    pub(super) metrics: Gatherer,
    /// The user who started the process.
    owner: u32,
    resizing: Arc<Mutex<Job<u64, Resizing>>>,
    rolling_back: Arc<Mutex<Job<(Cno, Name), RollingBack>>>,
    purging: Arc<Mutex<Job<AskedPurge, Purging>>>,
}

/// The path of which the past is purged, if it has one, and how.
type AskedPurge = (Option<Name>, PurgeOptions);

/// The work of a kind that was begun last.
struct Job<Asked, Work> {
    /// Request for the work.
    asked: Option<Asked>,
    /// How it is going.
    work: Work,
}

impl<Asked, Work: Default> Default for Job<Asked, Work> {
    fn default() -> Self {
        Self { asked: None, work: Work::default() }
    }
}

/// A request by its name.
pub(super) struct Known {
    name: &'static str,
    is_harmless: bool,
    /// Returns the answer.
    serve: fn(&Server, Value) -> Vec<u8>,
    /// Whether a request and its reply that were recorded are understood.
    #[cfg(test)]
    understand: fn(Value, Value) -> serde_json::Result<()>,
}

impl Known {
    pub(super) const fn new<R: AdminRequest>() -> Self {
        Self {
            name: R::NAME,
            is_harmless: R::IS_HARMLESS,
            serve: serve::<R>,
            #[cfg(test)]
            understand: |request, reply| {
                messages::read::<R>(request)?;
                messages::read::<R::Reply>(reply).map(drop)
            },
        }
    }
}

fn serve<R: AdminRequest>(server: &Server, arguments: Value) -> Vec<u8> {
    // What a request means is a matter of the file system, how it is written is not.
    let request: R = match threads::aside(|| messages::read(arguments)) {
        Ok(Ok(request)) => request,
        Ok(Err(error)) => return not_understood(format!("{}: {error}", R::NAME)),
        Err(_) => return not_understood(R::NAME.to_owned()),
    };
    let served = request.serve(server);
    messages::answer(served.map_or_else(RequestOutcome::Refused, RequestOutcome::Done))
}

fn not_understood(why: String) -> Vec<u8> {
    messages::answer(RequestOutcome::<Nothing>::NotUnderstood(why))
}

/// Answers messages of [`super::Client`]. `metrics` gathers what is counted.
pub fn handler(
    volume: Arc<dyn Administration + Send + Sync>,
    mount: Arc<dyn Served>,
    metrics: Gatherer,
) -> Handler {
    let owner = rustix::process::geteuid().as_raw();
    let (resizing, rolling_back, purging) = Default::default();
    let server = Server { volume, mount, metrics, owner, resizing, rolling_back, purging };
    let pages = Mutex::new(Pages::default());
    Arc::new(move |caller, bytes| {
        let Some(message) = Message::parse(bytes) else { return Vec::new() };
        if message.ticket != 0 {
            return pages.lock().next(caller, message.ticket, message.number);
        }
        let answer = match threads::aside(|| serde_json::from_slice(message.content)) {
            Ok(Ok(question)) => server.answer(caller, question),
            _ => not_understood("it is not asked as this version is".to_owned()),
        };
        pages.lock().first(caller, answer)
    })
}

impl Server {
    fn answer(&self, caller: Caller, question: Question) -> Vec<u8> {
        let Some(known) = ALL.iter().find(|known| known.name == question.request) else {
            return not_understood(format!("there is no request {:?}", question.request));
        };
        if !known.is_harmless && !self.is_master(caller) {
            let message = "only the superuser and the owner of the mount may do this";
            let refusal = Refusal::new(Reason::NotPermitted, message);
            return messages::answer(RequestOutcome::<Nothing>::Refused(refusal));
        }
        (known.serve)(self, question.arguments)
    }

    /// Whether the caller may ask for everything. The user who serves a volume could do all of it
    /// anyway.
    fn is_master(&self, caller: Caller) -> bool {
        caller.uid == 0 || caller.uid == self.owner
    }

    /// How the resize is going that was begun last.
    pub(super) fn resizing(&self) -> Resizing {
        self.resizing.lock().work.clone()
    }

    /// How the rollback is going that was begun last.
    pub(super) fn rolling_back(&self) -> RollingBack {
        self.rolling_back.lock().work.clone()
    }

    /// Resizes the volume in a thread of its own.
    pub(super) fn start_resize(&self, bytes: u64) -> Result<(), Refusal> {
        let volume = Arc::clone(&self.volume);
        start("resize", &self.resizing, bytes, PartialEq::eq, move |note| {
            let mut last = ResizeProgress::default();
            let done = volume.resize(bytes, &mut |progress| {
                last = progress;
                note(progress);
            });
            done.map(|()| last)
        })
    }

    /// Rolls the volume back in a thread of its own.
    pub(super) fn start_rollback(&self, to: Cno, path: Name) -> Result<(), Refusal> {
        let volume = Arc::clone(&self.volume);
        let asked = (to, path.clone());
        start("rollback", &self.rolling_back, asked, PartialEq::eq, move |note| {
            volume.roll_back(to, &path, note)
        })
    }

    /// How the purge is going that was begun last.
    pub(super) fn purging(&self) -> Purging {
        self.purging.lock().work.clone()
    }

    /// Purges a file in a thread of its own.
    pub(super) fn start_purge(
        &self,
        path: Option<Name>,
        options: PurgeOptions,
    ) -> Result<(), Refusal> {
        let volume = Arc::clone(&self.volume);
        let asked = (path.clone(), options);
        // To complete a purge is a part of it.
        let covers = |running: &(Option<Name>, PurgeOptions),
                      asked: &(Option<Name>, PurgeOptions)| {
            running.1 == asked.1 && (asked.0.is_none() || running.0 == asked.0)
        };
        start("purge", &self.purging, asked, covers, move |note| {
            volume.purge(path.as_ref(), options, note)
        })
    }
}

/// Does something in a thread of its own, one at a time, with `job` saying how it is going. `work` calls what
/// it is given with its progress. Where what is under way `covers` what is asked for, as when a command was
/// interrupted and is called again, there is nothing to begin.
fn start<Asked: Send + 'static, Progress: Default + Send + 'static, Done: Send + 'static>(
    name: &'static str,
    job: &Arc<Mutex<Job<Asked, Work<Progress, Done>>>>,
    asked: Asked,
    covers: impl FnOnce(&Asked, &Asked) -> bool,
    work: impl FnOnce(&mut dyn FnMut(Progress)) -> Result<Done, Refusal> + Send + 'static,
) -> Result<(), Refusal> {
    let mut now = job.lock();
    if let Work::Running(_) = now.work {
        if now.asked.as_ref().is_some_and(|running| covers(running, &asked)) {
            return Ok(());
        }
        let message =
            format!("another {name} of the volume is under way; try again when that is done");
        return Err(Refusal::new(Reason::Failed, message));
    }
    let told = Arc::clone(job);
    let work = move || {
        let done = work(&mut |progress| told.lock().work = Work::Running(progress));
        told.lock().work = done.map_or_else(Work::Failed, Work::Done);
    };
    // It can note nothing before the lock is let go of.
    threads::start(name, work)
        .map_err(|error| Refusal::new(Reason::Failed, exit::sentence(&error)))?;
    *now = Job { asked: Some(asked), work: Work::Running(Progress::default()) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use nilfs_engine::{
        CheckpointInfo, CheckpointTotals, CleanerOrder, Cno, Defragmented, DeletedCheckpoints,
        Holders, Ino, Note, PurgeProgress, Purged, RollbackProgress, RolledBack, SnapshotChange,
        Status, Usage,
    };
    use nilfs_ondisk::superblock::LogCursor;

    use super::*;
    use crate::control::pages::collect;
    use crate::control::requests::*;

    const ROOT: Caller = Caller { uid: 0, gid: 0 };

    /// A volume of which a resize takes as long as somebody wants, and which does nothing else.
    struct Slow(Mutex<Receiver<Result<(), Refusal>>>);

    fn nothing<T>() -> Result<T, Refusal> {
        Err(Refusal::new(Reason::Unsupported, "not in this test"))
    }

    impl Administration for Slow {
        fn status(&self) -> Result<Status, Refusal> {
            nothing()
        }

        fn usage(&self) -> Result<Usage, Refusal> {
            Ok(Usage::default())
        }

        fn checkpoints(&self, _: Cno, _: usize) -> Result<Vec<CheckpointInfo>, Refusal> {
            nothing()
        }

        fn checkpoint_totals(&self) -> Result<CheckpointTotals, Refusal> {
            nothing()
        }

        fn newest_until(&self, _: u64) -> Result<Option<CheckpointInfo>, Refusal> {
            nothing()
        }

        fn newest_log(&self) -> Result<LogCursor, Refusal> {
            nothing()
        }

        fn notes(&self) -> Result<Vec<Note>, Refusal> {
            nothing()
        }

        fn change_snapshots(&self, _: &[SnapshotChange]) -> Result<(), Refusal> {
            nothing()
        }

        fn delete_checkpoints(
            &self,
            _: RangeInclusive<Cno>,
        ) -> Result<DeletedCheckpoints, Refusal> {
            nothing()
        }

        fn checkpoint(&self, _: bool) -> Result<Cno, Refusal> {
            nothing()
        }

        fn order_cleaner(&self, _: CleanerOrder) -> Result<(), Refusal> {
            nothing()
        }

        fn trim(&self, _: u64, _: u64, _: u64) -> Result<u64, Refusal> {
            nothing()
        }

        fn resize(
            &self,
            bytes: u64,
            progress: &mut dyn FnMut(ResizeProgress),
        ) -> Result<(), Refusal> {
            progress(ResizeProgress { emptied: 1, to_empty: bytes });
            self.0.lock().recv().unwrap()
        }

        fn roll_back(
            &self,
            _: Cno,
            _: &Name,
            _: &mut dyn FnMut(RollbackProgress),
        ) -> Result<RolledBack, Refusal> {
            nothing()
        }

        fn holders(&self, _: &Name) -> Result<Holders, Refusal> {
            nothing()
        }

        fn purge(
            &self,
            _: Option<&Name>,
            _: PurgeOptions,
            _: &mut dyn FnMut(PurgeProgress),
        ) -> Result<Purged, Refusal> {
            nothing()
        }

        fn defragment(&self, _: Ino, _: u64) -> Result<Defragmented, Refusal> {
            nothing()
        }
    }

    impl Served for Slow {
        fn reload_settings(&self, _: Option<&Path>) -> Result<Vec<String>, Refusal> {
            nothing()
        }

        fn remount(&self, _: &[String]) -> Result<(), Refusal> {
            nothing()
        }

        fn scrubber(&self) -> Result<&Scrubber, Refusal> {
            nothing()
        }

        fn powers(&self, _: Cno, _: Ino) -> Result<Powers, Refusal> {
            nothing()
        }

        fn door(&self) -> Option<String> {
            None
        }

        fn end_past(&self) {}

        fn keep_past(&self, _: CopyNr, _: Duration) {}

        fn transport(&self) -> Option<Transport> {
            None
        }

        fn past(&self) -> Past<'_> {
            unreachable!("nobody asks")
        }
    }

    fn ask<R: AdminRequest>(handler: &Handler, request: &R) -> Result<R::Reply, Refusal> {
        messages::reply::<R>(&answer(handler, &messages::question(request).unwrap()))
    }

    fn answer(handler: &Handler, question: &[u8]) -> Vec<u8> {
        collect(question, |question| Ok(handler(ROOT, question))).unwrap()
    }

    fn slow() -> (Handler, Sender<Result<(), Refusal>>) {
        let (end, ended) = channel();
        let slow = Arc::new(Slow(Mutex::new(ended)));
        (handler(slow.clone(), slow, Arc::new(|| unreachable!())), end)
    }

    #[test]
    fn nobody_waits_for_a_resize_and_its_end_is_told() {
        let (handler, end) = slow();
        let resizing = || ask(&handler, &GetResize {}).unwrap();
        let begin = || ask(&handler, &StartResize { bytes: 5 });
        let last = ResizeProgress { emptied: 1, to_empty: 5 };
        assert_eq!(resizing(), Resizing::default());
        for how in [Ok(()), Err(Refusal::new(Reason::NoSpace, "full"))] {
            assert_eq!(begin(), Ok(Nothing {}));
            while resizing() == Resizing::Running(ResizeProgress::default()) {
                thread::yield_now();
            }
            assert_eq!(resizing(), Resizing::Running(last));
            assert_eq!(ask(&handler, &GetUsage {}), Ok(Usage::default()));
            let other = ask(&handler, &StartResize { bytes: 6 });
            assert_eq!(other.unwrap_err().reason, Reason::Failed, "one at a time");
            assert_eq!(begin(), Ok(Nothing {}), "who asks again waits for the same one");
            end.send(how.clone()).unwrap();
            while matches!(resizing(), Resizing::Running(_)) {
                thread::yield_now();
            }
            let expected = how.map_or_else(Resizing::Failed, |()| Resizing::Done(last));
            assert_eq!(resizing(), expected);
        }
    }

    /// A command that came after this process.
    #[test]
    fn what_only_a_newer_command_knows_is_named_or_passed_over() {
        let (handler, _end) = slow();
        let said = |question: &str| {
            let answer: Value =
                serde_json::from_slice(&answer(&handler, question.as_bytes())).unwrap();
            assert_eq!(answer["version"], messages::VERSION);
            answer
        };
        let unknown = said(r#"{"version":"99.0.0","request":"tidy","arguments":{"up":true}}"#);
        assert_eq!(unknown["not-understood"], "there is no request \"tidy\"");
        let changed =
            said(r#"{"version":"99.0.0","request":"start-resize","arguments":{"segments":5}}"#);
        assert_eq!(changed["not-understood"], "start-resize: missing field `bytes`");
        let more = said(
            r#"{"version":"99.0.0","request":"usage","arguments":{"exact":true},"urgent":true}"#,
        );
        assert_eq!(more["done"], serde_json::to_value(Usage::default()).unwrap());
        // An older command, which knew one enum.
        assert!(said(r#""usage""#)["not-understood"].is_string());
    }

    #[derive(serde::Deserialize)]
    struct Recorded {
        request: String,
        arguments: Value,
        reply: Value,
    }

    /// Version 0.1.0 asked and answered so. If this fails, a command and a mount of different
    /// versions do not work together any more.
    #[test]
    fn what_earlier_versions_said_is_understood() {
        let recorded: Vec<Recorded> = serde_json::from_str(include_str!("recorded.json")).unwrap();
        for known in ALL {
            let mut of_it = recorded.iter().filter(|it| it.request == known.name).peekable();
            assert!(of_it.peek().is_some(), "{} is not recorded", known.name);
            for one in of_it {
                let understood = (known.understand)(one.arguments.clone(), one.reply.clone());
                assert!(understood.is_ok(), "{}: {understood:?}", known.name);
            }
        }
        assert!(recorded.iter().all(|it| ALL.iter().any(|known| known.name == it.request)));
    }
}
