//! From samples to the one table: medians, ratios, and why a cell is empty.

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use crate::file_systems::FileSystem;
use crate::machine::Machine;
use crate::schedule::{Measurement, Plan, Row};
use crate::service::Service;
use crate::sizes::{SEED, Sizes};
use crate::stage::{SHORTEST_TIME, Sample};
use crate::workloads::Unit;

/// What the volumes lie on.
const IMAGES: &str = "\
All lie, in turns, on one image whose blocks are all allocated, as on a device: mkfs and mount
discard nothing. Only the volume of the mount rows is sparse; \"its reads\" are what the mount
reads of it, read again by themselves, cold. A line such as \"9.8 requests, 4.1 wake-ups, 35 µs\" is
about the process that serves a file system in user space: requests of the kernel, where they are
counted, how often one of its threads was woken, and its processor time; for each operation of the
row, or for the whole.
";

/// All results, ready to be printed.
#[derive(Serialize)]
pub struct Report {
    machine: Machine,
    runs: u32,
    quick: bool,
    seed: u64,
    sizes: Sizes,
    systems: Vec<System>,
    rows: Vec<ReportRow>,
}

#[derive(Serialize)]
struct System {
    name: &'static str,
    what: &'static str,
    /// Which ones are compared with it.
    references: Vec<&'static str>,
}

#[derive(Serialize)]
struct ReportRow {
    workload: &'static str,
    what: &'static str,
    /// Unit of all figures of the row.
    unit: String,
    /// In the order of `systems`.
    cells: Vec<Cell>,
}

#[derive(Serialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
enum Cell {
    Measured {
        #[serde(flatten)]
        figures: Figures,
        /// How many times as fast each of its references is; null if that was not measured.
        reference_ratios: Vec<Option<f64>>,
    },
    NotApplicable,
    Skipped {
        reason: String,
    },
    Failed {
        reason: String,
    },
}

/// Figures of one cell, in the unit of its row.
#[derive(Serialize)]
struct Figures {
    median: f64,
    min: f64,
    max: f64,
    samples: Vec<f64>,
    /// Seconds that the reads take alone; absent where they were not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    reads: Option<f64>,
    /// What the process that serves it did; absent where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<ServiceFigures>,
}

/// Medians of what the process that serves a file system did for each operation of the row, or for
/// the whole.
#[derive(Debug, PartialEq, Serialize)]
struct ServiceFigures {
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: Option<f64>,
    wakeups: f64,
    processor_seconds: f64,
}

impl System {
    /// What is compared with it, for the head of a column.
    fn comparisons(&self) -> impl Iterator<Item = String> {
        self.references.iter().map(|reference| format!("{reference} / {}", self.name))
    }
}

impl ServiceFigures {
    /// None where nothing was measured.
    fn of(unit: Unit, samples: &[Sample]) -> Option<Self> {
        let medians = |figure: &dyn Fn(&Service) -> Option<f64>| {
            let each = samples.iter().filter_map(|sample| {
                Some(figure(&sample.service?)? / unit.operations(sample.amount))
            });
            median(each.collect())
        };
        Some(Self {
            requests: medians(&|service| service.requests.map(|count| count as f64)),
            wakeups: medians(&|service| Some(service.wakeups as f64))?,
            processor_seconds: medians(&|service| Some(service.processor.as_secs_f64()))?,
        })
    }

    fn text(&self) -> String {
        let requests = self.requests.map(|count| format!("{} requests, ", short(count)));
        let time = match self.processor_seconds {
            seconds @ 0.1.. => format!("{seconds:.2} s"),
            seconds @ 0.001.. => format!("{:.1} ms", seconds * 1e3),
            seconds => format!("{:.1} µs", seconds * 1e6),
        };
        format!("{}{} wake-ups, {time}", requests.unwrap_or_default(), short(self.wakeups))
    }
}

impl Unit {
    fn name(self) -> String {
        match self {
            Unit::Bytes => "MiB/s".to_owned(),
            Unit::Operations(kind) => format!("{kind}/s"),
            Unit::Once => "s".to_owned(),
        }
    }

    fn figure(self, sample: &Sample) -> f64 {
        match self {
            Unit::Bytes => sample.rate() / f64::from(1 << 20),
            Unit::Operations(_) => sample.rate(),
            Unit::Once => sample.elapsed.as_secs_f64(),
        }
    }

    /// How many operations an amount is; an amount of bytes is one.
    fn operations(self, amount: u64) -> f64 {
        match self {
            Unit::Operations(_) => amount as f64,
            Unit::Bytes | Unit::Once => 1.0,
        }
    }

    /// How many times as fast `reference` is as `other`.
    fn speed_ratio(self, reference: f64, other: f64) -> f64 {
        match self {
            Unit::Bytes | Unit::Operations(_) => reference / other,
            Unit::Once => other / reference,
        }
    }
}

impl Figures {
    /// None without samples.
    fn of(unit: Unit, samples: &[Sample]) -> Option<Self> {
        let figures: Vec<f64> = samples.iter().map(|sample| unit.figure(sample)).collect();
        let min = figures.iter().copied().min_by(f64::total_cmp)?;
        let max = figures.iter().copied().max_by(f64::total_cmp)?;
        let reads = samples.iter().filter_map(|sample| sample.reads);
        let reads = median(reads.map(|alone| alone.as_secs_f64().max(SHORTEST_TIME)).collect());
        let service = ServiceFigures::of(unit, samples);
        Some(Self { median: median(figures.clone())?, min, max, samples: figures, reads, service })
    }
}

/// The places of the file systems that are compared with `system`: the first one alone, if none of
/// its own is among them.
fn references(systems: &[&dyn FileSystem], system: &dyn FileSystem) -> Vec<usize> {
    let place = |name: &&str| systems.iter().position(|other| other.name() == *name);
    let places: Vec<usize> = system.references().iter().filter_map(place).collect();
    if places.is_empty() { vec![0] } else { places }
}

/// None of none.
fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let upper = figures.len() / 2;
    let lower = figures.len().checked_sub(1)? / 2;
    Some((figures[lower] + figures[upper]) / 2.0)
}

impl Report {
    /// Puts the results of a plan together.
    pub fn new(machine: Machine, plan: &Plan<'_>, rows: &[Row<'_>], quick: bool) -> Self {
        let references: Vec<Vec<usize>> =
            plan.systems.iter().map(|system| references(&plan.systems, *system)).collect();
        let systems = plan.systems.iter().zip(&references).map(|(system, references)| System {
            name: system.name(),
            what: system.what(),
            references: references.iter().map(|place| plan.systems[*place].name()).collect(),
        });
        Self {
            machine,
            runs: plan.runs,
            quick,
            seed: SEED,
            sizes: plan.sizes.clone(),
            systems: systems.collect(),
            rows: rows.iter().map(|row| ReportRow::new(row, &references)).collect(),
        }
    }

    /// Whether the first file system failed in any row.
    pub fn reference_failed(&self) -> bool {
        self.rows.iter().any(|row| matches!(row.cells.first(), Some(Cell::Failed { .. })))
    }

    /// The results for programs.
    pub fn json(&self) -> Result<String> {
        serde_json::to_string_pretty(self).context("cannot write the results as JSON")
    }

    /// The results for people.
    pub fn text(&self) -> String {
        let mut notes = Notes::default();
        let mut table = Table::new();
        table
            .load_style(presets::UTF8_HORIZONTAL_ONLY)
            .set_content_arrangement(ContentArrangement::Disabled)
            .set_header(self.header());
        for row in &self.rows {
            let mut line = vec![format!("{}\n{}", row.workload, row.unit)];
            let cells = row.cells.iter().enumerate();
            line.extend(cells.map(|(column, cell)| cell.text(column == 0, &mut notes)));
            table.add_row(line);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        format!("{}\n\n{table}\n{}{}", self.heading(), self.legend(), notes.text())
    }

    /// Medians and ratios as a table in Markdown, for a page, with a column for each comparison. Rows
    /// without a peer are left out.
    pub fn markdown(&self) -> String {
        let mut header = vec!["workload", self.systems.first().map_or("", |system| system.name)];
        let compared: Vec<String> =
            self.systems.iter().skip(1).flat_map(System::comparisons).collect();
        header.extend(compared.iter().map(String::as_str));
        let mut lines = vec![markdown_row(header.iter().copied())];
        lines.push(markdown_row(header.iter().map(|_| "---")));
        for row in &self.rows {
            let peers = row.cells.iter().zip(&self.systems).skip(1);
            let ratios: Vec<Option<f64>> =
                peers.flat_map(|(cell, system)| cell.ratios(system.references.len())).collect();
            if ratios.iter().all(Option::is_none) {
                continue;
            }
            let median = row.cells.first().and_then(Cell::median);
            let median = median.map(|median| format!("{} {}", short(median), row.unit));
            let shown = ratios.iter().map(|ratio| ratio.map(|ratio| format!("{ratio:.2}×")));
            let cells: Vec<String> = std::iter::once(median)
                .chain(shown)
                .map(|cell| cell.unwrap_or_else(|| "–".to_owned()))
                .collect();
            let cells = std::iter::once(row.what).chain(cells.iter().map(String::as_str));
            lines.push(markdown_row(cells));
        }
        lines.concat()
    }

    fn header(&self) -> Vec<String> {
        let mut header = vec!["workload".to_owned()];
        header.extend(self.systems.iter().enumerate().map(|(column, system)| match column {
            0 => system.name.to_owned(),
            _ => system.comparisons().collect::<Vec<_>>().join("\n"),
        }));
        header
    }

    fn heading(&self) -> String {
        let machine = &self.machine;
        format!(
            "{} cores ({}), {:.0} GiB of memory, {}; images on {} ({}).\n\
             Runs of each: {}, in turns; figures are medians [min..max]{}.",
            machine.cores,
            machine.processor,
            machine.memory_bytes as f64 / f64::from(1 << 30),
            machine.kernel,
            machine.backing_file_system,
            machine.backing_dir,
            self.runs,
            if self.quick { "; QUICK: sizes too small to judge by" } else { "" },
        )
    }

    fn legend(&self) -> String {
        let mut legend =
            "1.50× means: the first named is one and a half times as fast; in a column with two heads, the \
             ratios stand in their order. Below them, the figures of the other.\n"
                .to_owned();
        for system in &self.systems {
            legend.push_str(&format!("  {}: {}\n", system.name, system.what));
        }
        for row in &self.rows {
            legend.push_str(&format!("  {}: {}\n", row.workload, row.what));
        }
        legend.push_str(IMAGES);
        legend
    }
}

impl ReportRow {
    /// `references` says for each outcome which ones are compared with it.
    fn new(row: &Row<'_>, references: &[Vec<usize>]) -> Self {
        let unit = row.workload.unit;
        let median = |outcome: &Measurement| match outcome {
            Measurement::Measured(samples) => Figures::of(unit, samples).map(|it| it.median),
            _ => None,
        };
        let medians: Vec<Option<f64>> = row.outcomes.iter().map(median).collect();
        let compared = row.outcomes.iter().zip(references);
        Self {
            workload: row.workload.name,
            what: row.workload.what,
            unit: unit.name(),
            cells: compared
                .map(|(outcome, of)| {
                    let references = of.iter().map(|place| medians[*place]);
                    Cell::new(unit, outcome, references)
                })
                .collect(),
        }
    }
}

impl Cell {
    /// `references` are the medians of those that are compared with it.
    fn new(
        unit: Unit,
        outcome: &Measurement,
        references: impl Iterator<Item = Option<f64>>,
    ) -> Self {
        match outcome {
            Measurement::Measured(samples) => match Figures::of(unit, samples) {
                Some(figures) => {
                    let ratio = |reference| unit.speed_ratio(reference, figures.median);
                    let reference_ratios = references.map(|reference| reference.map(ratio));
                    Cell::Measured { reference_ratios: reference_ratios.collect(), figures }
                }
                None => Cell::Failed { reason: "no sample was taken".to_owned() },
            },
            Measurement::NotApplicable => Cell::NotApplicable,
            Measurement::Skipped(reason) => Cell::Skipped { reason: reason.clone() },
            Measurement::Failed(reason) => Cell::Failed { reason: reason.clone() },
        }
    }

    fn median(&self) -> Option<f64> {
        match self {
            Cell::Measured { figures, .. } => Some(figures.median),
            _ => None,
        }
    }

    /// How many times as fast each of its references is, of which there are `count`.
    fn ratios(&self, count: usize) -> Vec<Option<f64>> {
        match self {
            Cell::Measured { reference_ratios, .. } => reference_ratios.clone(),
            _ => vec![None; count],
        }
    }

    fn text(&self, is_reference: bool, notes: &mut Notes) -> String {
        match self {
            Cell::Measured { figures, .. } if is_reference => figures.text(),
            Cell::Measured { figures, reference_ratios } => {
                let ratio = |ratio: &Option<f64>| {
                    ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}×"))
                };
                let ratios: Vec<String> = reference_ratios.iter().map(ratio).collect();
                format!("{}\n{}", ratios.join(" "), figures.text())
            }
            Cell::NotApplicable => "–".to_owned(),
            Cell::Skipped { reason } => format!("skipped: note {}", notes.number(reason)),
            Cell::Failed { reason } => format!("failed: note {}", notes.number(reason)),
        }
    }
}

impl Figures {
    fn text(&self) -> String {
        let mut text = format!("{} [{}..{}]", short(self.median), short(self.min), short(self.max));
        if let Some(reads) = self.reads {
            let times = self.median / reads;
            text.push_str(&format!("\n{times:.1}× its reads: {reads:.4}"));
        }
        if let Some(service) = &self.service {
            text.push_str(&format!("\n{}", service.text()));
        }
        text
    }
}

fn markdown_row<'a>(cells: impl Iterator<Item = &'a str>) -> String {
    cells.map(|cell| format!("| {cell} ")).collect::<String>() + "|\n"
}

/// Three significant digits.
fn short(figure: f64) -> String {
    match figure {
        ..1.0 => format!("{figure:.3}"),
        ..10.0 => format!("{figure:.2}"),
        ..100.0 => format!("{figure:.1}"),
        ..1e3 => format!("{figure:.0}"),
        ..1e4 => format!("{:.2}k", figure / 1e3),
        ..1e5 => format!("{:.1}k", figure / 1e3),
        _ => format!("{:.0}k", figure / 1e3),
    }
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
        numbered.map(|(at, reason)| format!("Note {}: {reason}\n", at + 1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::file_systems;

    fn samples(seconds: &[u64]) -> Vec<Sample> {
        let of = |&seconds| Sample {
            amount: 60 << 20,
            elapsed: Duration::from_secs(seconds),
            reads: None,
            service: None,
        };
        seconds.iter().map(of).collect()
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        let figures = Figures::of(Unit::Bytes, &samples(&[1, 2, 3, 60])).unwrap();
        assert_eq!((figures.median, figures.min, figures.max), (25.0, 1.0, 60.0));
        let figures = Figures::of(Unit::Once, &samples(&[3, 1, 2])).unwrap();
        assert_eq!((figures.median, figures.min, figures.max), (2.0, 1.0, 3.0));
    }

    #[test]
    fn a_ratio_above_one_means_that_the_reference_is_faster_in_every_unit() {
        for unit in [Unit::Bytes, Unit::Operations("writes"), Unit::Once] {
            let faster = Figures::of(unit, &samples(&[1])).unwrap().median;
            let slower = Figures::of(unit, &samples(&[2])).unwrap().median;
            assert_eq!(unit.speed_ratio(faster, slower), 2.0);
        }
    }

    #[test]
    fn a_mount_is_compared_with_its_own_reads() {
        let mut samples = samples(&[6, 8, 30]);
        samples.iter_mut().for_each(|sample| sample.reads = Some(Duration::from_secs(4)));
        let figures = Figures::of(Unit::Once, &samples).unwrap();
        assert_eq!(figures.text(), "8.00 [6.00..30.0]\n2.0× its reads: 4.0000");
    }

    #[test]
    fn what_the_process_did_is_told_for_each_operation() {
        let service = |requests, wakeups| {
            let processor = Duration::from_millis(40);
            let service = Some(Service { requests, processor, wakeups });
            Sample { amount: 1000, elapsed: Duration::from_secs(1), reads: None, service }
        };
        let unit = Unit::Operations("files");
        let figures = Figures::of(unit, &[service(Some(9800), 4100), service(Some(9800), 4300)]);
        let expected = "1.00k [1.00k..1.00k]\n9.80 requests, 4.20 wake-ups, 40.0 µs";
        assert_eq!(figures.unwrap().text(), expected);
        let uncounted = ServiceFigures::of(Unit::Once, &[service(None, 4100)]).unwrap();
        assert_eq!(uncounted.text(), "4.10k wake-ups, 40.0 ms");
        assert_eq!(ServiceFigures::of(unit, &samples(&[1])), None);
    }

    #[test]
    fn a_page_has_medians_and_ratios_and_no_row_without_a_peer() {
        let cell = |seconds: &[u64]| {
            let references = [Some(20.0)].into_iter();
            Cell::new(Unit::Bytes, &Measurement::Measured(samples(seconds)), references)
        };
        let row = |what, cells| ReportRow { workload: "", what, unit: Unit::Bytes.name(), cells };
        let report = Report {
            machine: Machine::look(std::path::Path::new("/")),
            runs: 1,
            quick: true,
            seed: SEED,
            sizes: Sizes::QUICK.clone(),
            systems: [("ours", vec!["ours"]), ("one", vec!["ours"]), ("two", vec!["ours", "one"])]
                .map(|(name, references)| System { name, what: "", references })
                .into(),
            rows: vec![
                row("write", vec![cell(&[3]), cell(&[1]), Cell::NotApplicable]),
                row("mount", vec![cell(&[3]), Cell::NotApplicable, Cell::NotApplicable]),
            ],
        };
        assert_eq!(
            report.markdown(),
            "| workload | ours | ours / one | ours / two | one / two |\n\
             | --- | --- | --- | --- | --- |\n\
             | write | 20.0 MiB/s | 0.33× | – | – |\n"
        );
    }

    #[test]
    fn a_reason_given_twice_is_noted_once() {
        let mut notes = Notes::default();
        assert_eq!(notes.number("not installed"), 1);
        assert_eq!(notes.number("broken"), 2);
        assert_eq!(notes.number("not installed"), 1);
        assert_eq!(notes.text(), "Note 1: not installed\nNote 2: broken\n");
    }

    #[test]
    fn what_does_nothing_is_compared_with_ours_on_the_same_transport() {
        let all = file_systems::all(std::path::Path::new("nilfs"));
        let mut systems: Vec<&dyn FileSystem> = all.iter().map(AsRef::as_ref).collect();
        let compared = |systems: &[&dyn FileSystem], name: &str| {
            let system = systems.iter().find(|system| system.name() == name).unwrap();
            let places = references(systems, *system);
            places.into_iter().map(|place| systems[place].name()).collect::<Vec<_>>()
        };
        assert_eq!(compared(&systems, "null"), ["nilfs"]);
        assert_eq!(compared(&systems, "null-uring"), ["nilfs-uring"]);
        assert_eq!(compared(&systems, "ext4"), ["nilfs", "nilfs-uring"]);
        systems.retain(|system| system.name() != "nilfs-uring");
        let alone = compared(&systems, "null-uring");
        assert_eq!(alone, ["nilfs"], "the first, where its own is missing");
        assert_eq!(compared(&systems, "ext4"), ["nilfs"]);
    }
}
