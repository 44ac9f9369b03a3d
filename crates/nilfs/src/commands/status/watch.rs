//! The view of `nilfs status --watch`: numbers on top, graphs of the last minutes below.

use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

use nilfs_engine::Status;
use nilfs_ondisk::ByteCount;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{Block, Gauge, Paragraph, Sparkline};

use super::rates;
use crate::exit::Failure;
use crate::output;

/// Between two samples.
const INTERVAL: Duration = Duration::from_secs(1);

/// Samples that are remembered: as many as fit on a wide screen.
const REMEMBERED: usize = 512;

/// Samples from which it is told how fast the volume fills.
const MINUTE: usize = 60;

/// One status, and what has happened since the one before.
struct Sample {
    at: Instant,
    status: Status,
    user: u64,
    logs: u64,
    moved: u64,
}

/// The samples so far, the newest first.
struct History {
    samples: VecDeque<Sample>,
}

/// Draws until somebody presses q, or the volume cannot be asked any more.
pub fn watch(path: &Path, take: impl Fn() -> anyhow::Result<Status>) -> anyhow::Result<()> {
    if !io::stdout().is_terminal() {
        let message = "--watch needs a terminal; --json is for programs";
        return Err(Failure::new(crate::exit::Status::Usage, message).into());
    }
    let mut history = History { samples: VecDeque::new() };
    history.add(Instant::now(), take()?);
    let title = path.display().to_string();
    let mut terminal = ratatui::try_init()?;
    let mut go_on = || {
        terminal.draw(|frame| draw(frame, &title, &history))?;
        if is_ended(INTERVAL)? {
            return Ok(false);
        }
        history.add(Instant::now(), take()?);
        anyhow::Ok(true)
    };
    let result = loop {
        match go_on() {
            Ok(true) => {}
            Ok(false) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    ratatui::try_restore()?;
    result
}

/// Waits for a time, or until a key says that it is enough.
fn is_ended(time: Duration) -> io::Result<bool> {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if !event::poll(left)? {
            return Ok(false);
        }
        let Event::Key(key) = event::read()? else { continue };
        let interrupted = key.code == KeyCode::Char('c') && key.modifiers == KeyModifiers::CONTROL;
        let enough = matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) || interrupted;
        if enough && key.kind == KeyEventKind::Press {
            return Ok(true);
        }
    }
}

impl History {
    fn add(&mut self, at: Instant, status: Status) {
        let speed = |count| {
            self.samples.front().map_or(0, |last| {
                let seconds = at.duration_since(last.at).as_secs_f64();
                rates::speed(&last.status, &status, seconds, count)
            })
        };
        let user = speed(|status| status.user_blocks_written);
        let logs = speed(|status| status.blocks_written);
        let moved = speed(|status| status.cleaner.blocks_moved);
        self.samples.truncate(REMEMBERED - 1);
        self.samples.push_front(Sample { at, status, user, logs, moved });
    }
}

fn draw(frame: &mut Frame<'_>, title: &str, history: &History) {
    let Some(now) = history.samples.front() else { return };
    let earlier = history.samples.get(MINUTE).or(history.samples.back());
    let full = rates::until_full(earlier.map(|sample| &sample.status), &now.status);
    let lines = numbers(&now.status, full);
    let heights = [
        Constraint::Length(1),
        Constraint::Length(lines.len() as u16),
        Constraint::Length(3),
        Constraint::Fill(1),
        Constraint::Fill(1),
        Constraint::Fill(1),
        Constraint::Length(1),
    ];
    let [head, text, space, user, logs, moved, foot] =
        Layout::vertical(heights).areas(frame.area());
    frame.render_widget(Line::from(format!("nilfs {title}")).bold(), head);
    frame.render_widget(Paragraph::new(lines), text);
    frame.render_widget(clean_segments(&now.status), space);
    graph(frame, user, "written by programs", Color::Green, history, |look| look.user);
    graph(frame, logs, "written to the device", Color::Blue, history, |look| look.logs);
    graph(frame, moved, "moved by the cleaner", Color::Yellow, history, |look| look.moved);
    frame.render_widget(Line::from("q: end").dim(), foot);
}

/// What changes from look to look, in a few lines.
fn numbers(status: &Status, full: Option<Duration>) -> Vec<Line<'static>> {
    let amplification = super::amplification(rates::amplification(status));
    let full = super::full(full);
    let mut lines = vec![
        Line::from(format!(
            "cleaner {}   segments freed {}   blocks moved {}",
            super::state(status),
            status.cleaner.segments_freed,
            status.cleaner.blocks_moved
        )),
        Line::from(format!(
            "write amplification {amplification}   full {full}   checkpoint {}",
            status.cno
        )),
        Line::from(format!(
            "in memory {}   mounted for {}",
            ByteCount(status.dirty_bytes),
            output::duration(Duration::from_secs(status.uptime))
        )),
    ];
    if let Some(refused) = super::refused_segments(status.refused_segments) {
        lines.insert(0, Line::from(refused).red().bold());
    }
    if status.stopped.is_some() {
        lines.insert(0, Line::from("read-only after an error; see the log").red().bold());
    }
    lines
}

fn clean_segments(status: &Status) -> Gauge<'static> {
    let (clean, all) = (status.clean_segments, status.geometry.nsegments.max(1));
    let colour = if clean > status.kept_segments { Color::Cyan } else { Color::Red };
    Gauge::default()
        .block(Block::bordered().title("clean segments"))
        .gauge_style(Style::new().fg(colour))
        .label(format!("{clean} of {all}"))
        .ratio((clean as f64 / all as f64).clamp(0.0, 1.0))
}

fn graph(
    frame: &mut Frame<'_>,
    area: Rect,
    what: &str,
    colour: Color,
    history: &History,
    speed: fn(&Sample) -> u64,
) {
    let width = usize::from(area.width.saturating_sub(2));
    let mut shown: Vec<u64> = history.samples.iter().take(width).map(speed).collect();
    let last = shown.first().copied().unwrap_or(0);
    let most = shown.iter().copied().max().unwrap_or(0);
    shown.reverse();
    let title = format!("{what}: {}/s (most {}/s)", ByteCount(last), ByteCount(most));
    let sparkline = Sparkline::default()
        .block(Block::bordered().title(title))
        .style(Style::new().fg(colour))
        .data(shown);
    frame.render_widget(sparkline, area);
}

#[cfg(test)]
mod tests {
    use nilfs_engine::Loss;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::rates::tests::status;
    use super::*;

    /// What is on a screen of this size after a second in which 10 MiB were written.
    fn screen(width: u16, height: u16, later: Status) -> String {
        let mut history = History { samples: VecDeque::new() };
        let begin = Instant::now();
        history.add(begin, status());
        history.add(begin + Duration::from_secs(1), later);
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, "/mnt", &history)).unwrap();
        terminal.backend().to_string()
    }

    fn later() -> Status {
        let status = status();
        Status {
            blocks_written: status.blocks_written + 2560,
            user_blocks_written: status.user_blocks_written + 1280,
            uptime: status.uptime + 1,
            ..status
        }
    }

    #[test]
    fn numbers_and_speeds_are_on_the_screen() {
        let screen = screen(90, 24, later());
        for words in [
            "nilfs /mnt",
            "cleaner idle   segments freed 40",
            "550 of 1000",
            "written by programs: 5 MiB/s",
            "written to the device: 10 MiB/s",
            "moved by the cleaner: 0 B/s",
        ] {
            assert!(screen.contains(words), "{words}: {screen}");
        }
    }

    #[test]
    fn an_error_that_ended_writing_is_not_overlooked() {
        let loss = Loss { reason: "it broke".into(), since: 0, files: 1, bytes: 2 };
        let screen = screen(90, 24, Status { stopped: Some(loss), ..later() });
        assert!(screen.contains("read-only after an error"), "{screen}");
    }

    #[test]
    fn segments_that_are_kept_out_of_use_are_not_overlooked() {
        let screen = screen(90, 24, Status { refused_segments: 2, ..later() });
        assert!(screen.contains("2 segments count as clean, but hold what is needed"), "{screen}");
        assert!(screen.contains("run nilfs fsck"), "{screen}");
    }

    #[test]
    fn a_tiny_terminal_is_no_reason_to_fail() {
        for (width, height) in [(1, 1), (5, 3), (20, 8)] {
            screen(width, height, later());
        }
    }
}
