//! Results put in order for people: devices, their workloads, a row for each step, in the row an
//! entry for each file system, with rank and ratios. All forms of the report print this.

use std::collections::{BTreeMap, BTreeSet};

use super::agreement::{Agreement, Point, best_first, lead};
use super::{Background, Published};
use crate::model::Limits;
use crate::results::{Cell, CellResult, Measured, Results, Unit};

/// A file system is as good as the first if it is within 5 % of it.
const AS_GOOD: f64 = 1.05;

/// Runs that differ by this factor or more say little together: their median could as well be
/// another one.
const WIDE: f64 = 3.0;

/// Our order of file systems, and the class of the style sheet that has the colour of each: both
/// depend on the name alone, so that they are the same in every report.
pub(super) const KNOWN: [(&str, &str); 11] = [
    ("ext2", "c-ext2"),
    ("ext3", "c-ext3"),
    ("ext4", "c-ext4"),
    ("ext4-nojournal", "c-ext4-nojournal"),
    ("btrfs", "c-btrfs"),
    ("btrfs-ssd", "c-btrfs-ssd"),
    ("vfat", "c-vfat"),
    ("f2fs", "c-f2fs"),
    ("f2fs-lfs", "c-f2fs-lfs"),
    ("nilfs2", "c-nilfs2"),
    ("nilfs", "c-nilfs"),
];

/// "ext4" of "ext4:noatime".
pub(super) fn without_options(file_system: &str) -> &str {
    file_system.split(':').next().unwrap_or_default()
}

/// The whole.
pub(super) struct Tables<'a> {
    /// Those known in their order, then others as they were run.
    pub file_systems: Vec<&'a str>,
    pub devices: Vec<Device<'a>>,
}

pub(super) struct Device<'a> {
    pub name: &'a str,
    /// Names the place of the device in a page.
    pub anchor: String,
    pub limits: Option<&'a Limits>,
    pub workloads: Vec<Workload<'a>>,
}

pub(super) struct Workload<'a> {
    pub name: &'a str,
    pub anchor: String,
    pub rows: Vec<Row<'a>>,
}

/// Figures that can be compared: one step, one unit.
pub(super) struct Row<'a> {
    pub step: &'a str,
    /// Description of what the step did; empty in results of older versions.
    pub about: &'a str,
    pub anchor: String,
    pub unit: Unit,
    pub entries: Vec<Entry<'a>>,
    pub agreement: Option<Agreement>,
}

/// A file system in a row.
pub(super) struct Entry<'a> {
    pub file_system: &'a str,
    pub found: Shown<'a>,
    pub published: Option<Reference>,
}

/// A published figure as it can stand next to one of the run.
pub(super) struct Reference {
    /// At the scale of the run.
    pub figure: f64,
    /// Factor by which the published figure was multiplied for that scale.
    pub factor: f64,
    pub source: String,
    pub why: Option<String>,
}

impl Reference {
    fn of(published: Published, unit: Unit, scale: f64) -> Self {
        let Published { figure, source, why } = published;
        let factor = if unit.grows_with_size() { scale } else { 1.0 };
        Self { figure: figure * factor, factor, source, why }
    }

    /// The figure as it was published, if that is another one.
    pub fn original(&self) -> Option<f64> {
        (self.factor != 1.0).then(|| self.figure / self.factor)
    }
}

/// What was found.
pub(super) enum Shown<'a> {
    Figure(Figure<'a>),
    /// Nothing; why.
    Failed(&'a str),
}

/// A figure among others. A ratio is how many times as good the better one is: 1 or more, except
/// where the device's limit is surpassed.
pub(super) struct Figure<'a> {
    pub measured: &'a Measured,
    pub least: f64,
    pub most: f64,
    /// 1 is the best; equal figures have the same.
    pub rank: usize,
    pub to_best: Option<f64>,
    pub to_limit: Option<f64>,
}

/// A figure whose runs differ so much that it says little.
pub(super) struct Doubt<'a> {
    pub device: &'a Device<'a>,
    pub workload: &'a Workload<'a>,
    pub row: &'a Row<'a>,
    pub file_system: &'a str,
    /// The most of the runs in terms of the least.
    pub spread: f64,
}

/// How often a file system is ahead on a device.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    pub rows: usize,
    pub first: usize,
    /// Not first, but within 5 % of it.
    pub as_good: usize,
    pub failed: usize,
}

/// How rows with published figures came out.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct PublishedTally {
    pub rows: usize,
    pub in_order: usize,
    pub ratios: usize,
    pub ratios_that_agree: usize,
}

impl<'a> Tables<'a> {
    pub fn of(results: &'a Results, background: &dyn Background) -> Self {
        let mut tables = Self { file_systems: Vec::new(), devices: Vec::new() };
        let mut anchors = Anchors::default();
        for cell in &results.cells {
            if !tables.file_systems.contains(&cell.file_system.as_str()) {
                tables.file_systems.push(&cell.file_system);
            }
            let device = tables.device(&cell.device, results, &mut anchors);
            let workload = device.workload(&cell.workload, &mut anchors);
            let published = background.published(cell).map(|published| {
                Reference::of(published, cell.unit, results.scale_of(&cell.workload))
            });
            workload.row(cell, &mut anchors).add(cell, published);
        }
        let place =
            |name: &&str| KNOWN.iter().position(|(known, _)| *known == without_options(name));
        tables.file_systems.sort_by_key(|name| place(name).unwrap_or(KNOWN.len()));
        let order = tables.file_systems.clone();
        for row in tables.rows_mut() {
            row.settle(&order);
        }
        tables
    }

    fn device(
        &mut self,
        name: &'a str,
        results: &'a Results,
        anchors: &mut Anchors,
    ) -> &mut Device<'a> {
        let known = self.devices.iter().position(|device| device.name == name);
        let at = known.unwrap_or_else(|| {
            self.devices.push(Device {
                name,
                anchor: anchors.take("at", name),
                limits: results.devices.get(name),
                workloads: Vec::new(),
            });
            self.devices.len() - 1
        });
        &mut self.devices[at]
    }

    fn rows_mut(&mut self) -> impl Iterator<Item = &mut Row<'a>> {
        let workloads = self.devices.iter_mut().flat_map(|device| &mut device.workloads);
        workloads.flat_map(|workload| &mut workload.rows)
    }

    /// How many file systems take part, in however many modes each.
    pub fn count_of_file_systems(&self) -> usize {
        let names = self.file_systems.iter().map(|name| without_options(name));
        names.collect::<BTreeSet<&str>>().len()
    }

    /// How many workloads there are, on however many devices each.
    pub fn count_of_workloads(&self) -> usize {
        let workloads = self.devices.iter().flat_map(|device| &device.workloads);
        workloads.map(|workload| workload.name).collect::<BTreeSet<&str>>().len()
    }

    /// The figures whose runs differ so much that they say little.
    pub fn doubtful(&self) -> impl Iterator<Item = Doubt<'_>> {
        let workloads = self
            .devices
            .iter()
            .flat_map(|device| device.workloads.iter().map(move |workload| (device, workload)));
        workloads.flat_map(|(device, workload)| {
            workload.rows.iter().flat_map(move |row| {
                let entries = row.entries.iter();
                entries.filter_map(move |entry| {
                    let spread = entry.figure()?.wide_spread()?;
                    Some(Doubt { device, workload, row, file_system: entry.file_system, spread })
                })
            })
        })
    }

    /// The row of another set of results that measures the same.
    pub fn row(&self, device: &str, workload: &str, like: &Row<'_>) -> Option<&Row<'a>> {
        let device = self.devices.iter().find(|known| known.name == device)?;
        let workload = device.workloads.iter().find(|known| known.name == workload)?;
        workload.rows.iter().find(|row| row.step == like.step && row.unit == like.unit)
    }
}

impl<'a> Device<'a> {
    fn workload(&mut self, name: &'a str, anchors: &mut Anchors) -> &mut Workload<'a> {
        let known = self.workloads.iter().position(|workload| workload.name == name);
        let at = known.unwrap_or_else(|| {
            let anchor = anchors.take(&self.anchor, name);
            self.workloads.push(Workload { name, anchor, rows: Vec::new() });
            self.workloads.len() - 1
        });
        &mut self.workloads[at]
    }

    pub fn rows(&self) -> impl Iterator<Item = &Row<'a>> {
        self.workloads.iter().flat_map(|workload| &workload.rows)
    }

    pub fn standing(&self, file_system: &str) -> Standing {
        let mut standing = Standing::default();
        let entries = self.rows().filter_map(|row| row.entry(file_system));
        for entry in entries {
            standing.rows += 1;
            match &entry.found {
                Shown::Failed(_) => standing.failed += 1,
                Shown::Figure(figure) if figure.rank == 1 => standing.first += 1,
                Shown::Figure(figure) => {
                    let as_good = figure.to_best.is_some_and(|ratio| ratio <= AS_GOOD);
                    standing.as_good += usize::from(as_good);
                }
            }
        }
        standing
    }

    pub fn published_tally(&self) -> PublishedTally {
        let mut tally = PublishedTally::default();
        for agreement in self.rows().filter_map(|row| row.agreement.as_ref()) {
            tally.rows += 1;
            tally.in_order += usize::from(agreement.order_agrees());
            tally.ratios += agreement.ratios.len();
            tally.ratios_that_agree += agreement.ratios_that_agree();
        }
        tally
    }
}

impl<'a> Workload<'a> {
    fn row(&mut self, cell: &'a Cell, anchors: &mut Anchors) -> &mut Row<'a> {
        let same = |row: &Row<'_>| row.step == cell.step && row.unit == cell.unit;
        let known = self.rows.iter().position(same);
        let at = known.unwrap_or_else(|| {
            self.rows.push(Row {
                step: &cell.step,
                about: &cell.about,
                anchor: anchors.take(&self.anchor, &cell.step),
                unit: cell.unit,
                entries: Vec::new(),
                agreement: None,
            });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }

    /// The file systems that have an entry in any row, in the given order.
    pub fn file_systems(&self, order: &[&'a str]) -> Vec<&'a str> {
        let takes_part = |name: &&str| self.rows.iter().any(|row| row.entry(name).is_some());
        order.iter().copied().filter(takes_part).collect()
    }
}

impl<'a> Row<'a> {
    /// A later cell of the same file system replaces an earlier one: it was run again.
    fn add(&mut self, cell: &'a Cell, published: Option<Reference>) {
        let found = match &cell.outcome {
            CellResult::Measured(measured) => Shown::Figure(Figure::of(measured)),
            CellResult::Failed(reason) => Shown::Failed(reason),
        };
        let entry = Entry { file_system: &cell.file_system, found, published };
        match self.entries.iter_mut().find(|known| known.file_system == cell.file_system) {
            Some(known) => *known = entry,
            None => self.entries.push(entry),
        }
    }

    /// Ranks and ratios need all entries.
    fn settle(&mut self, order: &[&str]) {
        self.entries.sort_by_key(|entry| order.iter().position(|name| *name == entry.file_system));
        let more_is_better = self.unit.more_is_better();
        let mut medians: Vec<f64> =
            self.figures().map(|figure| figure.measured.median).filter(|m| m.is_finite()).collect();
        medians.sort_by(|a, b| best_first(*a, *b, more_is_better));
        for entry in &mut self.entries {
            if let Shown::Figure(figure) = &mut entry.found {
                figure.settle(&medians, more_is_better);
            }
        }
        self.agreement = Agreement::of(&self.points(), more_is_better);
    }

    fn points(&self) -> Vec<Point> {
        let point = |entry: &Entry<'_>| {
            let published = entry.published.as_ref()?.figure;
            let measured = entry.figure()?.measured.median;
            Some(Point { file_system: entry.file_system.to_owned(), published, measured })
        };
        self.entries.iter().filter_map(point).collect()
    }

    pub fn figures(&self) -> impl Iterator<Item = &Figure<'a>> {
        self.entries.iter().filter_map(Entry::figure)
    }

    pub fn entry(&self, file_system: &str) -> Option<&Entry<'a>> {
        self.entries.iter().find(|entry| entry.file_system == file_system)
    }

    /// How many entries have a published figure.
    pub fn published(&self) -> usize {
        self.entries.iter().filter(|entry| entry.published.is_some()).count()
    }

    /// Factor by which published figures were multiplied, if they were.
    pub fn published_factor(&self) -> Option<f64> {
        let mut published = self.entries.iter().filter_map(|entry| entry.published.as_ref());
        published.find(|published| published.factor != 1.0).map(|published| published.factor)
    }

    /// Why the figures are others than the published ones, where they are and that is known.
    pub fn why(&self) -> Option<&str> {
        let agreement = self.agreement.as_ref()?;
        if agreement.order_agrees() && agreement.ratios_that_agree() == agreement.ratios.len() {
            return None;
        }
        self.entries.iter().find_map(|entry| entry.published.as_ref()?.why.as_deref())
    }

    /// Where published figures come from, each source once. If there are several, the file systems
    /// stand before each.
    pub fn sources(&self) -> Vec<String> {
        let mut sources: Vec<(&str, Vec<&str>)> = Vec::new();
        for entry in &self.entries {
            let Some(published) = &entry.published else { continue };
            match sources.iter_mut().find(|(source, _)| *source == published.source) {
                Some((_, names)) => names.push(entry.file_system),
                None => sources.push((&published.source, vec![entry.file_system])),
            }
        }
        let several = sources.len() > 1;
        let line = |(source, names): (&str, Vec<&str>)| {
            if several { format!("{}: {source}", names.join(", ")) } else { source.to_owned() }
        };
        sources.into_iter().map(line).collect()
    }
}

impl<'a> Entry<'a> {
    pub fn figure(&self) -> Option<&Figure<'a>> {
        match &self.found {
            Shown::Figure(figure) => Some(figure),
            Shown::Failed(_) => None,
        }
    }
}

impl<'a> Figure<'a> {
    fn of(measured: &'a Measured) -> Self {
        let runs = measured.runs.iter().copied().chain([measured.median]);
        Self {
            measured,
            least: runs.clone().fold(f64::INFINITY, f64::min),
            most: runs.fold(f64::NEG_INFINITY, f64::max),
            rank: 0,
            to_best: None,
            to_limit: None,
        }
    }

    /// The most of the runs in terms of the least, if that is so much that the figure says little.
    pub fn wide_spread(&self) -> Option<f64> {
        let spread = self.most / self.least;
        (spread.is_finite() && spread >= WIDE).then_some(spread)
    }

    /// `medians` is all of the row, the best first.
    fn settle(&mut self, medians: &[f64], more_is_better: bool) {
        let median = self.measured.median;
        let worse = |best: &f64| best_first(*best, median, more_is_better).is_lt();
        self.rank = 1 + medians.iter().take_while(|best| worse(best)).count();
        let ratio = |good: f64| {
            let ratio = lead(good, median, more_is_better);
            (ratio.is_finite() && ratio > 0.0).then_some(ratio)
        };
        self.to_best = medians.first().and_then(|best| ratio(*best));
        self.to_limit = self.measured.limit.and_then(ratio);
    }
}

/// Names for places in a page, each given once.
#[derive(Default)]
struct Anchors {
    taken: BTreeMap<String, usize>,
}

impl Anchors {
    /// `above` is the place around it; the page's own places do not begin as the devices do.
    fn take(&mut self, above: &str, name: &str) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
        let name: String = name.chars().map(plain).collect();
        let anchor = format!("{above}-{name}");
        let times = self.taken.entry(anchor.clone()).or_default();
        *times += 1;
        if *times == 1 { anchor } else { format!("{anchor}.{times}") }
    }
}
