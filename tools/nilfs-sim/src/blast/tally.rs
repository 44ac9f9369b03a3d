//! Figures of what was found of many damaged volumes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::blocks::Holds;
use super::damage::Harm;
use super::samples::Which;
use super::verdict::{Class, Verdict};

/// Images that are counted together: those of a volume with the same damage to the same kind of block.
/// `None`: a run of blocks.
pub type Row = (Which, Option<Holds>, Harm);

/// Figures of one row.
#[derive(Debug, Default)]
struct Figures {
    images: u64,
    refused: u64,
    noise: u64,
    violations: BTreeMap<Class, u64>,
    any: u64,
}

/// Findings so far.
#[derive(Debug, Default)]
pub struct Tally {
    rows: BTreeMap<Row, Figures>,
    /// Bytes lost for each bit that was flipped, after fsck and in a salvage.
    lost: BTreeMap<(Which, &'static str), Vec<u64>>,
}

impl Tally {
    /// Adds a verdict.
    pub fn add(&mut self, row: Row, verdict: &Verdict) {
        let figures = self.rows.entry(row).or_default();
        figures.images += 1;
        figures.refused += u64::from(verdict.is_refused);
        figures.noise += u64::from(verdict.shows_noise);
        figures.any += u64::from(!verdict.violations.is_empty());
        for class in Class::ALL {
            let has = verdict.violations.iter().any(|it| it.class == class);
            *figures.violations.entry(class).or_default() += u64::from(has);
        }
        if row.2 == Harm::Bit {
            let by_fsck = [("fsck and a mount", Some(verdict.lost_by_fsck))];
            for (view, lost) in by_fsck.into_iter().chain([("salvage", verdict.lost_by_salvage)]) {
                self.lost.entry((row.0, view)).or_default().extend(lost);
            }
        }
    }

    /// How many damaged volumes there were.
    #[must_use]
    pub fn images(&self) -> u64 {
        self.rows.values().map(|it| it.images).sum()
    }

    /// How many of them had a violation of a class.
    #[must_use]
    pub fn violations(&self, class: Class) -> u64 {
        self.rows.values().filter_map(|it| it.violations.get(&class)).sum()
    }

    /// The figures as a table for a person.
    #[must_use]
    pub fn table(&self) -> String {
        let mut table = format!(
            "{:<19} {:<13} {:<11} {:>6} {:>6} {:>6} {:>5}",
            "volume", "block", "damage", "images", "any", "refuse", "noise"
        );
        table.extend(Class::ALL.map(|class| format!(" {class:>10}")));
        table.push('\n');
        for ((which, holds, harm), figures) in &self.rows {
            let holds = holds.map_or_else(|| "run".into(), |holds| holds.to_string());
            let Figures { images, refused, noise, any, .. } = figures;
            let _ = write!(
                table,
                "{which:<19} {holds:<13} {harm:<11} {images:>6} {any:>6} {refused:>6} {noise:>5}"
            );
            table.extend(figures.violations.values().map(|count| format!(" {count:>10}")));
            table.push('\n');
        }
        let _ = write!(
            table,
            "{:<19} {:<13} {:<11} {:>6} {:>6} {:>6} {:>5}",
            "all",
            "",
            "",
            self.images(),
            self.rows.values().map(|it| it.any).sum::<u64>(),
            self.rows.values().map(|it| it.refused).sum::<u64>(),
            self.rows.values().map(|it| it.noise).sum::<u64>()
        );
        table.extend(Class::ALL.map(|class| format!(" {:>10}", self.violations(class))));
        table.push_str("\n\nbytes lost per bit flipped\n");
        for ((which, view), lost) in &self.lost {
            let mut lost = lost.clone();
            lost.sort_unstable();
            let at = |percent: usize| {
                lost.get((lost.len() * percent / 100).min(lost.len().saturating_sub(1)))
            };
            let [median, p90, most] = [50, 90, 100].map(|it| at(it).copied().unwrap_or_default());
            let _ = writeln!(
                table,
                "{which:<19} {view:<17} {:>6} bits: median {median}, p90 {p90}, max {most}",
                lost.len()
            );
        }
        table
    }
}
