//! The report on a terminal.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::format_numbers::{clock, duration, figure, scale, times, unit};
use super::table::{Device, Entry, Figure, Row, Shown, Tables, Workload};
use super::{Background, doubts, extent, missing, place, selection};
use crate::results::Results;

const LEGEND: &str = "\
Figures are medians; #1 is the best; 2.00× is half as good as the best. \"limit\": how many times
as good the device could be, if nothing but it stood in the way.
";

/// Tables of all figures: for each device and workload one, a row for each step.
#[must_use]
pub fn terminal(results: &Results, background: &dyn Background) -> String {
    let tables = Tables::of(results, background);
    let mut text = heading(results, &tables);
    let mut notes = Notes::default();
    for device in &tables.devices {
        text.push_str(&format!("\n{}\n", device_line(device)));
        for workload in &device.workloads {
            let table = workload_table(workload, &tables, &mut notes);
            let steps = steps(workload);
            text.push_str(&format!("\n{}\n{steps}{table}\n", plain(workload.name)));
        }
    }
    text.push('\n');
    text.push_str(LEGEND);
    text.push_str(&standings(&tables));
    for warning in [missing(results), doubts(&tables)].iter().flatten() {
        text.push_str(&format!("{warning}\n"));
    }
    text.push_str(&notes.text());
    text
}

fn heading(results: &Results, tables: &Tables<'_>) -> String {
    let mut selection = plain(&selection(results));
    if let Some(first) = selection.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    format!(
        "{selection}: {}, scale {}; {}, Linux {}, {}.\nClock: {}.\n",
        extent(tables),
        scale(results.scale),
        plain(place(results)),
        plain(&results.surroundings.kernel),
        plain(&results.surroundings.machine),
        clock(results.clock),
    )
}

/// Lines that say what the steps of a workload did.
fn steps(workload: &Workload<'_>) -> String {
    let known: Vec<&Row<'_>> = workload.rows.iter().filter(|row| !row.about.is_empty()).collect();
    let line = |alike: &[&Row<'_>]| {
        let names: Vec<String> = alike.iter().map(|row| plain(row.step)).collect();
        format!("  {}: {}\n", names.join(", "), plain(alike[0].about))
    };
    known.chunk_by(|a, b| a.about == b.about).map(line).collect()
}

fn device_line(device: &Device<'_>) -> String {
    let name = plain(device.name);
    let Some(limits) = device.limits else {
        return name;
    };
    format!(
        "{name}: reads {} MB/s, writes {} MB/s; 4 KiB read in {}, written in {}; flush {}",
        figure(limits.sequential_read / 1e6),
        figure(limits.sequential_write / 1e6),
        duration(limits.small_read),
        duration(limits.small_write),
        duration(limits.flush),
    )
}

fn workload_table(workload: &Workload<'_>, tables: &Tables<'_>, notes: &mut Notes) -> Table {
    let file_systems = workload.file_systems(&tables.file_systems);
    let mut table = lined_table();
    let header = ["step"].into_iter().chain(file_systems.iter().copied());
    table.set_header(header.map(plain).collect::<Vec<_>>());
    for row in &workload.rows {
        let mut line = vec![step(row)];
        let entries = file_systems.iter().map(|name| row.entry(name));
        line.extend(entries.map(|entry| entry.map_or_else(String::new, |e| cell(e, notes))));
        table.add_row(line);
    }
    align_right(&mut table);
    table
}

/// A table of this report: lines between rows only, as wide as its content.
pub(super) fn lined_table() -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_HORIZONTAL_ONLY)
        .set_content_arrangement(ContentArrangement::Disabled);
    table
}

/// All columns but the first hold figures.
pub(super) fn align_right(table: &mut Table) {
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

fn step(row: &Row<'_>) -> String {
    let mut text = format!("{}\n{}", plain(row.step), unit(row.unit));
    if let Some(agreement) = &row.agreement {
        let order = if agreement.order_agrees() { "agrees" } else { "differs" };
        text.push_str(&format!(
            "\npublished order {order},\n{} of {} ratios within 30 %",
            agreement.ratios_that_agree(),
            agreement.ratios.len()
        ));
    }
    text
}

fn cell(entry: &Entry<'_>, notes: &mut Notes) -> String {
    let mut text = match &entry.found {
        Shown::Failed(reason) => format!("failed: note {}", notes.number(reason)),
        Shown::Figure(found) => figure_lines(found),
    };
    if let Some(published) = &entry.published {
        text.push_str(&format!("\npublished {}", figure(published.figure)));
        if let Some(original) = published.original() {
            text.push_str(&format!("\n({} at scale 1)", figure(original)));
        }
    }
    text
}

fn figure_lines(found: &Figure<'_>) -> String {
    let mut text = format!("{}\n#{}", figure(found.measured.median), found.rank);
    if let Some(ratio) = found.to_best {
        text.push_str(&format!(" {}", times(ratio)));
    }
    if let Some(ratio) = found.to_limit {
        text.push_str(&format!("\nlimit {}", times(ratio)));
    }
    if let Some(spread) = found.wide_spread() {
        text.push_str(&format!("\nruns differ {}", times(spread)));
    }
    text
}

fn standings(tables: &Tables<'_>) -> String {
    let mut text = String::new();
    for device in &tables.devices {
        text.push_str(&format!("\nFirst on {}:", plain(device.name)));
        for name in &tables.file_systems {
            let standing = device.standing(name);
            if standing.first > 0 {
                text.push_str(&format!(" {} {}/{}", plain(name), standing.first, standing.rows));
            }
        }
    }
    text.push('\n');
    text
}

/// Nothing that a terminal would obey.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Reasons, too long for a cell. The same reason in several cells is one note.
#[derive(Default)]
struct Notes {
    reasons: Vec<String>,
}

impl Notes {
    fn number(&mut self, reason: &str) -> usize {
        let known = self.reasons.iter().position(|known| known == reason);
        let at = known.unwrap_or_else(|| {
            self.reasons.push(reason.to_owned());
            self.reasons.len() - 1
        });
        at + 1
    }

    fn text(&self) -> String {
        let numbered = self.reasons.iter().enumerate();
        numbered.map(|(at, reason)| format!("Note {}: {}\n", at + 1, plain(reason))).collect()
    }
}
