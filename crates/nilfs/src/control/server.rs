//! The side of the process that serves a mount: who may ask what, and whom to ask in turn.

use std::path::Path;
use std::sync::Arc;

use nilfs_engine::ResizeProgress;
use nilfs_fuse::{Caller, Handler};
use parking_lot::Mutex;

use super::pages::{Message, Pages};
use super::protocol::{Reply, Request, Resizing};
use crate::administration::{Administration, Reason, Refusal};
use crate::exit;
use crate::metrics::Gatherer;
use crate::threads;

/// What can be asked of a mount, beside what can be asked of any volume.
pub trait Served: Send + Sync {
    /// Reads the cleaner's settings again, from `file` instead of the mount's own. Gives what was
    /// wrong with it.
    fn reload_settings(&self, file: Option<&Path>) -> Result<Vec<String>, Refusal>;

    /// Makes the volume read-only or writable, as the words behind `-o` say, if they ask for nothing
    /// else.
    fn remount(&self, words: &[String]) -> Result<(), Refusal>;
}

/// Whom to ask in turn.
struct Server {
    volume: Arc<dyn Administration + Send + Sync>,
    mount: Arc<dyn Served>,
    metrics: Gatherer,
    /// Who started the process.
    owner: u32,
    resizing: Arc<Mutex<Resizing>>,
}

/// Answers messages of [`super::Client`]. `metrics` gathers what is counted.
pub fn handler(
    volume: Arc<dyn Administration + Send + Sync>,
    mount: Arc<dyn Served>,
    metrics: Gatherer,
) -> Handler {
    let owner = rustix::process::geteuid().as_raw();
    let server = Server { volume, mount, metrics, owner, resizing: Arc::default() };
    let pages = Mutex::new(Pages::default());
    Arc::new(move |caller, bytes| {
        let Some(message) = Message::parse(bytes) else { return Vec::new() };
        if message.ticket != 0 {
            return pages.lock().next(caller, message.ticket, message.number);
        }
        // What a request means is a matter of the file system, how it is written is not.
        let reply = match threads::aside(|| serde_json::from_slice(message.content)) {
            Ok(Ok(request)) => server.answer(caller, request),
            _ => Err(unknown()),
        };
        let reply = serde_json::to_vec(&reply.unwrap_or_else(Reply::Refused));
        pages.lock().first(caller, reply.unwrap_or_default())
    })
}

impl Server {
    fn answer(&self, caller: Caller, request: Request) -> Result<Reply, Refusal> {
        if !self.may(caller, &request) {
            let message = "only the superuser and the owner of the mount may do this";
            return Err(Refusal::new(Reason::NotPermitted, message));
        }
        let volume = &self.volume;
        Ok(match request {
            Request::Status => Reply::Status(Box::new(volume.status()?)),
            Request::Usage => Reply::Usage(volume.usage()?),
            Request::Metrics => Reply::Metrics(Box::new((self.metrics)())),
            Request::SetSnapshot { cno, snapshot } => {
                volume.set_snapshot(cno, snapshot)?;
                Reply::Done
            }
            Request::DeleteCheckpoints { first, last } => {
                Reply::Deleted(volume.delete_checkpoints(first..=last)?)
            }
            Request::Checkpoint { anew } => Reply::Checkpoint(volume.checkpoint(anew)?),
            Request::Cleaner(order) => {
                volume.order_cleaner(order)?;
                Reply::Done
            }
            Request::ReloadSettings { file } => {
                Reply::Reloaded { warnings: self.mount.reload_settings(file.as_deref())? }
            }
            Request::Remount { words } => {
                self.mount.remount(&words)?;
                Reply::Done
            }
            Request::Trim { from, to, minimum } => Reply::Trimmed(volume.trim(from, to, minimum)?),
            Request::StartResize { bytes } => {
                self.start_resize(bytes)?;
                Reply::Done
            }
            Request::Resizing => Reply::Resizing(self.resizing.lock().clone()),
            Request::Defragment { ino, budget } => {
                Reply::Defragmented(volume.defragment(ino, budget)?)
            }
        })
    }

    /// Whether the caller may ask for it. Whoever serves a volume could do all of it anyway.
    fn may(&self, caller: Caller, request: &Request) -> bool {
        request.is_harmless() || caller.uid == 0 || caller.uid == self.owner
    }

    /// Resizes the volume in a thread of its own.
    fn start_resize(&self, bytes: u64) -> Result<(), Refusal> {
        let mut resizing = self.resizing.lock();
        if let Resizing::Running(_) = *resizing {
            return Err(Refusal::new(Reason::Failed, "the volume is being resized already"));
        }
        let (volume, state) = (Arc::clone(&self.volume), Arc::clone(&self.resizing));
        let work = move || {
            let mut last = ResizeProgress::default();
            let done = volume.resize(bytes, &mut |progress| {
                last = progress;
                *state.lock() = Resizing::Running(progress);
            });
            *state.lock() = done.map_or_else(Resizing::Failed, |()| Resizing::Done(last));
        };
        // It can note nothing before the lock is let go of.
        threads::start("resize", work)
            .map_err(|error| Refusal::new(Reason::Failed, exit::sentence(&error)))?;
        *resizing = Resizing::Running(ResizeProgress::default());
        Ok(())
    }
}

fn unknown() -> Refusal {
    let message = "the process that serves the volume is of another version; mount it again";
    Refusal::new(Reason::Unsupported, message)
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    use nilfs_engine::{CleanerOrder, Cno, Defragmented, DeletedCheckpoints, Ino, Status, Usage};

    use super::*;
    use crate::control::pages::collect;

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

        fn set_snapshot(&self, _: Cno, _: bool) -> Result<(), Refusal> {
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
    }

    fn ask(handler: &Handler, request: &Request) -> Reply {
        let request = serde_json::to_vec(request).unwrap();
        let answer = collect(&request, |question| Ok(handler(ROOT, question)));
        serde_json::from_slice(&answer.unwrap()).unwrap()
    }

    #[test]
    fn nobody_waits_for_a_resize_and_its_end_is_told() {
        let (end, ended) = channel();
        let slow = Arc::new(Slow(Mutex::new(ended)));
        let handler = handler(slow.clone(), slow, Arc::new(|| unreachable!()));
        let resizing = || ask(&handler, &Request::Resizing);
        let begin = || ask(&handler, &Request::StartResize { bytes: 5 });
        let running = |progress| Reply::Resizing(Resizing::Running(progress));
        let last = ResizeProgress { emptied: 1, to_empty: 5 };
        assert_eq!(resizing(), Reply::Resizing(Resizing::default()));
        for how in [Ok(()), Err(Refusal::new(Reason::NoSpace, "full"))] {
            assert_eq!(begin(), Reply::Done);
            while resizing() == running(ResizeProgress::default()) {
                thread::yield_now();
            }
            assert_eq!(resizing(), running(last));
            assert_eq!(ask(&handler, &Request::Usage), Reply::Usage(Usage::default()));
            assert!(matches!(begin(), Reply::Refused(_)), "one at a time");
            end.send(how.clone()).unwrap();
            while matches!(resizing(), Reply::Resizing(Resizing::Running(_))) {
                thread::yield_now();
            }
            let expected = how.map_or_else(Resizing::Failed, |()| Resizing::Done(last));
            assert_eq!(resizing(), Reply::Resizing(expected));
        }
    }
}
