//! Whether figures agree with those of others: the same order, and the same ratios.
//!
//! Absolute figures depend on a device that nobody has any more. Which is ahead of which, and by
//! how much, is what a model has to predict.

use std::cmp::Ordering;

/// Two figures closer than this, one by the other, are no order: readings of the same device
/// differ as much from run to run.
const TIE: f64 = 1.05;

/// Ratios agree if neither is larger than the other by more than this.
const TOLERANCE: f64 = 1.3;

/// A file system that both have measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// Its name.
    pub file_system: String,
    /// The figure of the others.
    pub published: f64,
    /// Ours.
    pub measured: f64,
}

/// What came out of the comparison of a row.
#[derive(Debug, Clone, PartialEq)]
pub struct Agreement {
    /// The first by the published figures: the one that ratios are to.
    pub reference: String,
    /// Pairs that are not a tie, by the published figures.
    pub pairs: usize,
    /// Pairs the other way round here: ahead by the published figures, ahead here.
    pub inverted: Vec<(String, String)>,
    /// All but the reference.
    pub ratios: Vec<Ratio>,
}

/// A file system's figure divided by that of the reference.
#[derive(Debug, Clone, PartialEq)]
pub struct Ratio {
    /// Its name.
    pub file_system: String,
    /// By the published figures.
    pub published: f64,
    /// By ours.
    pub measured: f64,
}

impl Ratio {
    /// By how much ours is larger: 0.1 for a tenth.
    #[must_use]
    pub fn deviation(&self) -> f64 {
        self.measured / self.published - 1.0
    }

    /// Whether ours is within 30 %: neither is more than 1.3 times the other.
    #[must_use]
    pub fn agrees(&self) -> bool {
        let quotient = self.measured / self.published;
        (1.0 / TOLERANCE..=TOLERANCE).contains(&quotient)
    }
}

impl Agreement {
    /// Compares a row. `None` with fewer than two figures that are above zero on both sides.
    #[must_use]
    pub fn of(points: &[Point], more_is_better: bool) -> Option<Self> {
        let usable = |figure: f64| figure.is_finite() && figure > 0.0;
        let mut points: Vec<&Point> = points
            .iter()
            .filter(|point| usable(point.published) && usable(point.measured))
            .collect();
        points.sort_by(|a, b| best_first(a.published, b.published, more_is_better));
        let (reference, others) = points.split_first()?;
        if others.is_empty() {
            return None;
        }
        let mut agreement = Self {
            reference: reference.file_system.clone(),
            pairs: 0,
            inverted: Vec::new(),
            ratios: others.iter().map(|point| ratio(point, reference)).collect(),
        };
        for (at, ahead) in points.iter().enumerate() {
            for behind in &points[at + 1..] {
                agreement.count_pair(ahead, behind, more_is_better);
            }
        }
        Some(agreement)
    }

    fn count_pair(&mut self, ahead: &Point, behind: &Point, more_is_better: bool) {
        if lead(ahead.published, behind.published, more_is_better) < TIE {
            return;
        }
        self.pairs += 1;
        if lead(behind.measured, ahead.measured, more_is_better) >= TIE {
            self.inverted.push((ahead.file_system.clone(), behind.file_system.clone()));
        }
    }

    /// Whether no pair is the other way round.
    #[must_use]
    pub fn order_agrees(&self) -> bool {
        self.inverted.is_empty()
    }

    /// How many ratios are within 30 %.
    #[must_use]
    pub fn ratios_that_agree(&self) -> usize {
        self.ratios.iter().filter(|ratio| ratio.agrees()).count()
    }

    /// The ratio of a file system; `None` for the reference and for strangers.
    #[must_use]
    pub fn ratio(&self, file_system: &str) -> Option<&Ratio> {
        self.ratios.iter().find(|ratio| ratio.file_system == file_system)
    }
}

/// How many times as good `figure` is as `other`.
pub(super) fn lead(figure: f64, other: f64, more_is_better: bool) -> f64 {
    if more_is_better { figure / other } else { other / figure }
}

/// The order of figures, the best first.
pub(super) fn best_first(a: f64, b: f64, more_is_better: bool) -> Ordering {
    if more_is_better { b.total_cmp(&a) } else { a.total_cmp(&b) }
}

fn ratio(point: &Point, reference: &Point) -> Ratio {
    Ratio {
        file_system: point.file_system.clone(),
        published: point.published / reference.published,
        measured: point.measured / reference.measured,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points(figures: &[(&str, f64, f64)]) -> Vec<Point> {
        let point = |&(name, published, measured): &(&str, f64, f64)| Point {
            file_system: name.to_owned(),
            published,
            measured,
        };
        figures.iter().map(point).collect()
    }

    fn pair(ahead: &str, behind: &str) -> (String, String) {
        (ahead.to_owned(), behind.to_owned())
    }

    #[test]
    fn a_faster_machine_with_the_same_ratios_agrees() {
        let row = points(&[("ext4", 1073.0, 10_730.0), ("f2fs", 2675.0, 26_750.0)]);
        let agreement = Agreement::of(&row, true).unwrap();
        assert_eq!(agreement.reference, "f2fs");
        assert!(agreement.order_agrees());
        assert_eq!((agreement.pairs, agreement.ratios_that_agree()), (1, 1));
        assert!(agreement.ratio("ext4").unwrap().deviation().abs() < 1e-9);
    }

    #[test]
    fn every_inverted_pair_is_named_in_the_published_order() {
        let row = points(&[("a", 4.0, 1.0), ("b", 2.0, 2.0), ("c", 1.0, 3.0)]);
        let agreement = Agreement::of(&row, true).unwrap();
        assert_eq!(agreement.inverted, [pair("a", "b"), pair("a", "c"), pair("b", "c")]);
        assert!(!agreement.order_agrees());
    }

    #[test]
    fn of_seconds_fewer_are_ahead() {
        let row = points(&[("ext2", 893.0, 90.0), ("ext4", 552.0, 55.0), ("nilfs2", 808.0, 95.0)]);
        let agreement = Agreement::of(&row, false).unwrap();
        assert_eq!(agreement.reference, "ext4");
        assert_eq!(agreement.inverted, [pair("nilfs2", "ext2")]);
    }

    #[test]
    fn a_tie_on_either_side_is_no_order() {
        let published_tie = points(&[("ext3", 237.0, 300.0), ("nilfs2", 239.0, 200.0)]);
        let agreement = Agreement::of(&published_tie, false).unwrap();
        assert_eq!((agreement.pairs, agreement.order_agrees()), (0, true));
        let tie_here = points(&[("ext3", 100.0, 201.0), ("nilfs2", 200.0, 200.0)]);
        let agreement = Agreement::of(&tie_here, false).unwrap();
        assert_eq!((agreement.pairs, agreement.order_agrees()), (1, true));
    }

    #[test]
    fn thirty_percent_is_the_same_up_and_down() {
        let within = |measured| {
            let row = points(&[("best", 10.0, 10.0), ("other", 5.0, measured)]);
            Agreement::of(&row, true).unwrap().ratios[0].agrees()
        };
        assert!(within(6.49) && within(3.86));
        assert!(!within(6.51) && !within(3.84));
    }

    #[test]
    fn one_file_system_or_a_figure_of_nothing_compares_with_nobody() {
        assert_eq!(Agreement::of(&points(&[("a", 1.0, 1.0)]), true), None);
        assert_eq!(Agreement::of(&points(&[("a", 1.0, 1.0), ("b", 0.0, 1.0)]), true), None);
        assert_eq!(Agreement::of(&points(&[("a", 1.0, 1.0), ("b", 1.0, f64::NAN)]), true), None);
    }
}
