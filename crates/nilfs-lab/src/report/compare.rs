//! Two sets of results side by side.

use super::agreement::lead;
use super::format_numbers::{clock, figure, scale, times, unit};
use super::table::{Entry, Figure, Row, Shown, Tables, Workload};
use super::terminal::{align_right, lined_table, plain};
use super::{Nothing, selection};
use crate::results::Results;

/// Medians closer than this are alike even if no run of one set reaches into the other.
const ALIKE: f64 = 1.01;

/// Tables of all figures of both: before, after, and what has become better or worse by more than
/// the runs of either differ among themselves.
#[must_use]
pub fn compare(before: &Results, after: &Results) -> String {
    let (old, new) = (Tables::of(before, &Nothing), Tables::of(after, &Nothing));
    let mut text = differences(before, after);
    let mut tally = Tally::default();
    for device in &new.devices {
        for workload in &device.workloads {
            let names = workload.file_systems(&new.file_systems);
            let old_row = |row: &Row<'_>| old.row(device.name, workload.name, row);
            let table = workload_table(workload, &names, &old_row, &mut tally);
            let heading = format!("{}, {}", plain(device.name), plain(workload.name));
            text.push_str(&format!("\n{heading}\n{table}\n"));
        }
    }
    text.push_str(&format!("\n{}", tally.text()));
    text.push_str(&gone(&old, &new));
    text
}

/// What makes figures of the two sets hard to compare.
fn differences(before: &Results, after: &Results) -> String {
    let pairs = facts(before).into_iter().zip(facts(after)).filter(|(old, new)| old != new);
    let lines: Vec<String> = pairs
        .map(|((what, old), (_, new))| format!("  {what}: {} → {}\n", plain(&old), plain(&new)))
        .collect();
    if lines.is_empty() {
        return String::new();
    }
    format!("The two were not measured alike:\n{}", lines.concat())
}

fn facts(results: &Results) -> [(&'static str, String); 6] {
    let place = &results.surroundings;
    [
        ("place", place.place.clone()),
        ("kernel", place.kernel.clone()),
        ("machine", place.machine.clone()),
        ("selection", selection(results)),
        ("scale", scale(results.scale)),
        ("clock", clock(results.clock).to_owned()),
    ]
}

fn workload_table<'a>(
    workload: &Workload<'_>,
    file_systems: &[&str],
    old_row: &dyn Fn(&Row<'_>) -> Option<&'a Row<'a>>,
    tally: &mut Tally,
) -> comfy_table::Table {
    let mut table = lined_table();
    let header = ["step"].into_iter().chain(file_systems.iter().copied());
    table.set_header(header.map(plain).collect::<Vec<_>>());
    for row in &workload.rows {
        let mut line = vec![format!("{}\n{}", plain(row.step), unit(row.unit))];
        for name in file_systems {
            let before = old_row(row).and_then(|old| old.entry(name));
            line.push(row.entry(name).map_or_else(String::new, |after| {
                let change = Change::of(before, after, row.unit.more_is_better());
                tally.add(&change);
                cell(before, after, &change)
            }));
        }
        table.add_row(line);
    }
    align_right(&mut table);
    table
}

fn cell(before: Option<&Entry<'_>>, after: &Entry<'_>, change: &Change) -> String {
    let old = before.map_or_else(|| "–".to_owned(), short);
    format!("{old} → {}\n{}", short(after), change.text())
}

fn short(entry: &Entry<'_>) -> String {
    match &entry.found {
        Shown::Figure(found) => figure(found.measured.median),
        Shown::Failed(_) => "failed".to_owned(),
    }
}

/// How a figure has changed.
enum Change {
    /// The ratio, above 1 for the better; whether it goes beyond the spread of runs.
    Figure { ratio: f64, beyond: bool, single: bool },
    /// It was not measured in the first set, or failed there.
    New,
    /// It fails, and did not in the first set.
    Broken,
    /// It failed in both, or a figure is zero.
    Nothing,
}

impl Change {
    fn of(before: Option<&Entry<'_>>, after: &Entry<'_>, more_is_better: bool) -> Self {
        let old = before.and_then(Entry::figure);
        match (old, after.figure()) {
            (Some(old), Some(new)) => Self::between(old, new, more_is_better),
            (None, Some(_)) => Self::New,
            (Some(_), None) => Self::Broken,
            (None, None) => Self::Nothing,
        }
    }

    fn between(old: &Figure<'_>, new: &Figure<'_>, more_is_better: bool) -> Self {
        let ratio = lead(new.measured.median, old.measured.median, more_is_better);
        if !ratio.is_finite() || ratio <= 0.0 {
            return Self::Nothing;
        }
        let apart = old.most < new.least || new.most < old.least;
        let alike = (1.0 / ALIKE..=ALIKE).contains(&ratio);
        let single = old.measured.runs.len() < 2 || new.measured.runs.len() < 2;
        Self::Figure { ratio, beyond: apart && !alike, single }
    }

    fn text(&self) -> String {
        match self {
            Self::Figure { ratio, beyond: false, .. } => format!("{}  =", times(*ratio)),
            Self::Figure { ratio, single, .. } => {
                let verdict = if *ratio > 1.0 { "better" } else { "WORSE" };
                let doubt = if *single { "?" } else { "" };
                format!("{}  {verdict}{doubt}", times(*ratio))
            }
            Self::New => "new".to_owned(),
            Self::Broken => "FAILS NOW".to_owned(),
            Self::Nothing => "–".to_owned(),
        }
    }
}

/// How many figures went which way.
#[derive(Default)]
struct Tally {
    better: usize,
    worse: usize,
    alike: usize,
    new: usize,
    broken: usize,
    doubtful: bool,
}

impl Tally {
    fn add(&mut self, change: &Change) {
        match change {
            Change::Figure { beyond: false, .. } => self.alike += 1,
            Change::Figure { ratio, single, .. } => {
                self.doubtful |= single;
                *(if *ratio > 1.0 { &mut self.better } else { &mut self.worse }) += 1;
            }
            Change::New => self.new += 1,
            Change::Broken => self.broken += 1,
            Change::Nothing => {}
        }
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{} better, {} worse, {} within the spread of runs (=), {} new, {} fail now.\n\
             1.20× better means: the second is 1.2 times as good as the first.\n",
            self.better, self.worse, self.alike, self.new, self.broken
        );
        if self.doubtful {
            text.push_str("?: one of the two has a single run, so its spread is not known.\n");
        }
        text
    }
}

/// What only the first set has.
fn gone(old: &Tables<'_>, new: &Tables<'_>) -> String {
    let mut text = String::new();
    for device in &old.devices {
        for workload in &device.workloads {
            for row in &workload.rows {
                let new_row = new.row(device.name, workload.name, row);
                let here = |entry: &&Entry<'_>| {
                    new_row.is_none_or(|row| row.entry(entry.file_system).is_none())
                };
                for entry in row.entries.iter().filter(here) {
                    let names = [device.name, workload.name, row.step, entry.file_system];
                    text.push_str(&format!("Only in the first: {}\n", plain(&names.join(", "))));
                }
            }
        }
    }
    text
}
