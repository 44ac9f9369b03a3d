//! Telling people how far a check and the plan of a repair are.

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

/// Shows how far the check and the plan are, task by task. What is shown goes away with the last copy of
/// the observer.
pub(super) fn watch() -> Observer {
    let shown = Mutex::new(Shown::Spinner { _moving: spinner("checking") });
    Observer::new(move |task, done, all| {
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
