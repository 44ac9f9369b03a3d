//! How far a run is: a bar on a terminal, lines elsewhere.

use std::io::{IsTerminal, stderr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use parking_lot::Mutex;

use nilfs_lab::results::{Cell, CellResult};
use nilfs_lab::run::{Beginning, Event, Plan};

use super::announcement::{announcement, duration};
use super::say;

/// Clones show the same bar.
#[derive(Clone)]
pub struct Progress {
    bar: Option<ProgressBar>,
    jobs: usize,
    done: usize,
    left: Left,
}

/// How long it will still take, and when that was said.
#[derive(Clone)]
struct Left(Arc<Mutex<(Duration, Instant)>>);

impl Left {
    fn set(&self, left: Duration) {
        *self.0.lock() = (left, Instant::now());
    }

    fn text(&self) -> String {
        let (left, said) = *self.0.lock();
        duration(left.saturating_sub(said.elapsed()))
    }
}

impl Progress {
    pub fn new() -> Self {
        let left = Left(Arc::new(Mutex::new((Duration::ZERO, Instant::now()))));
        let bar = stderr().is_terminal().then(|| {
            let shown = left.clone();
            let left = move |_: &ProgressState, out: &mut dyn std::fmt::Write| {
                // The line of a progress bar can be written to.
                let _ = out.write_str(&shown.text());
            };
            let template = "{wide_bar} {pos}/{len}, {elapsed}, {left} left\n{msg}";
            let style = ProgressStyle::with_template(template)
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            // It appears when there is something to say: after the announcement.
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
            bar.set_style(style.with_key("left", left));
            bar
        });
        Self { bar, jobs: 0, done: 0, left }
    }

    pub fn tell(&mut self, plan: &Plan, event: &Event) {
        match event {
            Event::Begins(beginning) => self.begin(plan, beginning),
            Event::Job { table, file_system, run } => {
                let repetition = if *run > 1 { format!(", run {run}") } else { String::new() };
                let (workload, device) = (table.workload.name, &table.device.name);
                let what = format!("{workload} on {} on {device}{repetition}", file_system.name);
                match &self.bar {
                    Some(bar) => bar.set_message(what),
                    None => {
                        let (at, jobs, left) = (self.done + 1, self.jobs, self.left.text());
                        say(&format!("[{at}/{jobs}] {what}, {left} left"));
                    }
                }
            }
            Event::Done { cells, left } => {
                self.done += 1;
                self.left.set(*left);
                if let Some(reason) = cells.iter().find_map(failure) {
                    self.say(&reason);
                }
                if let Some(bar) = &self.bar {
                    bar.inc(1);
                }
            }
        }
    }

    /// Whether there was something to be done, and nothing against it.
    pub fn has_begun(&self) -> bool {
        self.jobs > 0
    }

    fn begin(&mut self, plan: &Plan, beginning: &Beginning) {
        (self.jobs, self.done) = (beginning.jobs, beginning.done);
        self.left.set(beginning.left);
        say(&announcement(plan, beginning));
        if let Some(bar) = &self.bar {
            bar.set_length(self.jobs as u64);
            bar.set_position(self.done as u64);
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(Duration::from_millis(500));
        }
    }

    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => say(line),
        }
    }

    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn failure(cell: &Cell) -> Option<String> {
    match &cell.outcome {
        CellResult::Failed(reason) => {
            Some(format!("{} on {} on {}: {reason}", cell.workload, cell.file_system, cell.device))
        }
        CellResult::Measured(_) => None,
    }
}
