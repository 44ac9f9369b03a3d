//! Telling people, and a program that asks for it, how far a check and the plan of a repair are.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use nilfs_check::Step;
use nilfs_repair::{Observer, Task};

use crate::progress::{Progress, Spinner, spinner};

/// What is on the terminal while a volume is checked.
enum Shown {
    Bar(Task, Progress),
    /// Of what follows, nobody knows how long it takes.
    Spinner {
        _moving: Spinner,
    },
}

/// Shows how far the check and the plan are, task by task, here and to the program that has given `told`.
/// What is shown goes away with the last copy of the observer.
pub fn watch(told: Option<File>, path: &Path) -> Observer {
    let shown = Mutex::new(Shown::Spinner { _moving: spinner("checking") });
    let told = told.map(|file| Mutex::new(Told { file, device: path.to_owned(), last: None }));
    Observer::new(move |task, done, all| {
        if let Some(Ok(mut told)) = told.as_ref().map(Mutex::lock) {
            told.tell(task, done, all);
        }
        let Ok(mut shown) = shown.lock() else { return };
        if done >= all && ends_something(task) {
            *shown = Shown::Spinner { _moving: spinner("working out what to do") };
            return;
        }
        if !matches!(&*shown, Shown::Bar(other, _) if *other == task) {
            *shown = Shown::Bar(task, Progress::with_end(in_words(task)));
        }
        if let Shown::Bar(_, bar) = &*shown {
            bar.set(done, all);
        }
    })
}

/// Whether it is not known what comes after a task.
fn ends_something(task: Task) -> bool {
    match task {
        Task::Check { step, .. } => step == Step::Checkpoints,
        Task::Scan | Task::Move => true,
    }
}

fn in_words(task: Task) -> String {
    match task {
        Task::Check { round, step } => {
            let what = match step {
                Step::Logs => "checking logs",
                Step::Inodes => "checking files",
                Step::Names => "checking names",
                Step::Checkpoints => "checking older checkpoints",
            };
            match round {
                0 => what.to_owned(),
                _ => format!("repair, round {round}: {what}"),
            }
        }
        Task::Scan => "repair: looking for logs".to_owned(),
        Task::Move => "repair: moving what is corrected".to_owned(),
    }
}

/// A program that shows a progress bar of its own, such as fsck(8).
struct Told {
    file: File,
    device: PathBuf,
    /// What it was told last: the pass, and thousandths of it.
    last: Option<(u32, u64)>,
}

impl Told {
    /// Tells it, as fsck(8) asks of the programs that it calls: the pass, how much of how much is done, and
    /// the device. Passes are the steps of the first check; what is checked after it are repairs.
    fn tell(&mut self, task: Task, done: u64, all: u64) {
        let pass = match task {
            Task::Check { round: 0, step } => step as u32 + 1,
            Task::Check { .. } | Task::Scan | Task::Move => return,
        };
        let now = Some((pass, done.saturating_mul(1000) / all.max(1)));
        if self.last != now {
            self.last = now;
            // If nobody listens any more, nothing is lost.
            let _ = writeln!(self.file, "{pass} {done} {all} {}", self.device.display());
        }
    }
}
