//! How far a run is: a bar on a terminal, lines elsewhere.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use nilfs_lab::results::{Cell, Outcome};
use nilfs_lab::run::Event;

pub struct Progress {
    bar: Option<ProgressBar>,
    jobs: usize,
    done: usize,
}

impl Progress {
    pub fn new() -> Self {
        let bar = stderr().is_terminal().then(|| {
            let template = "{wide_bar} {pos}/{len}, {elapsed}, {eta} left\n{msg}";
            let style = ProgressStyle::with_template(template);
            let bar = ProgressBar::new(0);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        Self { bar, jobs: 0, done: 0 }
    }

    pub fn tell(&mut self, event: &Event) {
        match event {
            Event::Begins { place, jobs, done } => self.begin(place, *jobs, *done),
            Event::Job { table, file_system, run } => {
                let repetition = if *run > 1 { format!(", run {run}") } else { String::new() };
                let (workload, device) = (table.workload.name, &table.device.name);
                let what = format!("{workload} on {} on {device}{repetition}", file_system.name);
                match &self.bar {
                    Some(bar) => bar.set_message(what),
                    None => eprintln!("[{}/{}] {what}", self.done + 1, self.jobs),
                }
            }
            Event::Done(cells) => {
                self.done += 1;
                if let Some(reason) = cells.iter().find_map(failure) {
                    self.say(&reason);
                }
                if let Some(bar) = &self.bar {
                    bar.inc(1);
                }
            }
        }
    }

    fn begin(&mut self, place: &str, jobs: usize, done: usize) {
        (self.jobs, self.done) = (jobs, done);
        let place = if place == "vm" { "in a virtual machine" } else { "on this machine" };
        let before = match done {
            0 => String::new(),
            done => format!(", {done} of them done before"),
        };
        self.say(&format!(
            "{jobs} measurements {place}{before}. After Ctrl-C the same command goes on."
        ));
        if let Some(bar) = &self.bar {
            bar.set_length(jobs as u64);
            bar.set_position(done as u64);
            // What an earlier run has done says nothing of this one's pace.
            bar.reset_eta();
        }
    }

    fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None => eprintln!("{line}"),
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
        Outcome::Failed(reason) => {
            Some(format!("{} on {} on {}: {reason}", cell.workload, cell.file_system, cell.device))
        }
        Outcome::Measured(_) => None,
    }
}
