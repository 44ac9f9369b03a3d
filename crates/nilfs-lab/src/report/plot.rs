//! Bars of a row, one lane for each file system, as SVG in percent of its width: it fits a phone
//! and a desk, and its text, which stands next to it in HTML, keeps its size.

use maud::{Markup, html};

use super::format_numbers::{count, figure, scale, unit};
use super::table::{Entry, Figure, KNOWN, Row, Shown, without_options};

/// Height of a lane in pixels.
const LANE: u32 = 26;

/// Limits and published figures further out than this many times the largest figure would squeeze
/// the bars; they are told in words.
const FAR: f64 = 2.5;

/// Marks on the axis, about.
const TICKS: f64 = 5.0;

/// The colour of a file system, as a class of the style sheet. It depends on its name alone, so
/// that it is the same in every plot of every report.
pub(super) fn colour(file_system: &str) -> &'static str {
    let name = without_options(file_system);
    let known = KNOWN.iter().find(|(known, _)| *known == name);
    known.map_or("c-other", |(_, colour)| colour)
}

/// What a plot needs to know of its row.
struct Axis {
    /// The figure at its right end.
    end: f64,
    step: f64,
}

impl Axis {
    fn of(row: &Row<'_>) -> Self {
        let largest = row.figures().map(|figure| figure.most).fold(0.0, f64::max);
        let published = row.entries.iter().filter_map(|entry| entry.published.as_ref());
        let published = published.map(|published| published.figure);
        let limits = row.figures().filter_map(|figure| figure.measured.limit);
        let near = |mark: &f64| largest == 0.0 || *mark <= largest * FAR;
        let end = published.chain(limits).filter(near).fold(largest, f64::max);
        let end = if end.is_finite() && end > 0.0 { end * 1.03 } else { 1.0 };
        Self { end, step: tick_step(end) }
    }

    /// Where a figure is, in percent; `None` if beyond the end.
    fn at(&self, figure: f64) -> Option<f64> {
        let at = figure / self.end * 100.0;
        (0.0..=100.0).contains(&at).then_some(at)
    }

    /// With no more decimals than the step needs.
    fn label(&self, tick: f64) -> String {
        let decimals = (-self.step.log10().floor()).clamp(0.0, 6.0) as usize;
        if decimals == 0 { count(tick as u64) } else { format!("{tick:.decimals$}") }
    }

    fn ticks(&self) -> impl Iterator<Item = (f64, f64)> {
        let step = self.step;
        (0_u32..).map(move |n| f64::from(n) * step).map_while(|tick| Some((tick, self.at(tick)?)))
    }
}

/// 1, 2 or 5 times a power of ten.
fn tick_step(end: f64) -> f64 {
    let rough = end / TICKS;
    let power = 10_f64.powf(rough.log10().floor());
    let nice = [1.0, 2.0, 5.0].into_iter().find(|nice| nice * power >= rough);
    nice.unwrap_or(10.0) * power
}

/// The lanes of a row, the axis below, and what the marks are.
pub(super) fn lanes(row: &Row<'_>) -> Markup {
    let axis = Axis::of(row);
    html! {
        div.lanes aria-hidden="true" {
            @for entry in &row.entries { (lane(entry, &axis)) }
            span {}
            svg.axis width="100%" height="18" {
                @for (tick, at) in axis.ticks() {
                    text x=(percent(at)) y="13" text-anchor=(anchor(at)) { (axis.label(tick)) }
                }
            }
            span.unit { (unit(row.unit)) }
        }
        (key(row, &axis))
    }
}

/// Labels at the ends stay inside.
fn anchor(at: f64) -> &'static str {
    match at {
        ..4.0 => "start",
        96.0.. => "end",
        _ => "middle",
    }
}

fn lane(entry: &Entry<'_>, axis: &Axis) -> Markup {
    let found = entry.figure();
    let winner = found.is_some_and(|found| found.rank == 1);
    html! {
        span.who.first[winner] { (entry.file_system) }
        svg.lane width="100%" height=(LANE) {
            @for (_, at) in axis.ticks() {
                line.grid x1=(percent(at)) x2=(percent(at)) y1="0" y2=(LANE) {}
            }
            @if let Some(found) = found { (bar(entry.file_system, found, axis)) }
            @if let Some(published) = &entry.published {
                (diamond(published.figure, axis))
            }
        }
        @match &entry.found {
            Shown::Figure(found) => {
                span.value.first[winner] { (figure(found.measured.median)) }
            }
            Shown::Failed(_) => { span.value.failed { "failed" } }
        }
    }
}

fn bar(file_system: &str, found: &Figure<'_>, axis: &Axis) -> Markup {
    let width = axis.at(found.measured.median).unwrap_or(0.0);
    let ends = axis.at(found.least).zip(axis.at(found.most));
    let limit = found.measured.limit.and_then(|limit| axis.at(limit));
    html! {
        rect class={ "bar " (colour(file_system)) } x="0" y="5" width=(percent(width)) height=(LANE - 10)
            rx="2" {}
        @if let Some((least, most)) = ends.filter(|(least, most)| most - least > 0.2) {
            line.spread x1=(percent(least)) x2=(percent(most)) y1="13" y2="13" {}
            @for end in [least, most] {
                line.spread x1=(percent(end)) x2=(percent(end)) y1="9" y2="17" {}
            }
        }
        @if let Some(at) = limit {
            line.limit x1=(percent(at)) x2=(percent(at)) y1="0" y2=(LANE) {}
        }
    }
}

/// A published figure.
fn diamond(figure: f64, axis: &Axis) -> Markup {
    html! {
        @if let Some(at) = axis.at(figure) {
            svg x=(percent(at)) y="13" overflow="visible" {
                path.published d="M0 -6 L6 0 L0 6 L-6 0 Z" {}
            }
        }
    }
}

/// What the marks of this plot are; only those that it has, and those that are off it.
fn key(row: &Row<'_>, axis: &Axis) -> Markup {
    let limits: Vec<f64> = row.figures().filter_map(|figure| figure.measured.limit).collect();
    let beyond = limits.iter().copied().filter(|limit| axis.at(*limit).is_none());
    let off_limit = beyond
        .fold(None, |most: Option<f64>, limit| Some(most.map_or(limit, |most| most.max(limit))));
    let spread = row.figures().any(|figure| figure.most > figure.least);
    html! {
        p.key aria-hidden="true" {
            @if limits.iter().any(|limit| axis.at(*limit).is_some()) {
                span { i.k-limit {} "the device’s limit" }
            }
            @if let Some(limit) = off_limit {
                span { "the device’s limit is off the scale: " (figure(limit)) " " (unit(row.unit)) }
            }
            @if row.published() > 0 { span { i.k-published {} (published_key(row, axis)) } }
            @if spread { span { i.k-spread {} "least and most of the runs" } }
            span { @if row.unit.more_is_better() { "more is better" } @else { "less is better" } }
        }
    }
}

fn published_key(row: &Row<'_>, axis: &Axis) -> String {
    let beyond = |entry: &Entry<'_>| {
        let published = entry.published.as_ref();
        published.is_some_and(|published| axis.at(published.figure).is_none())
    };
    let off: Vec<&str> =
        row.entries.iter().filter(|entry| beyond(entry)).map(|entry| entry.file_system).collect();
    let mut text = "published".to_owned();
    if let Some(factor) = row.published_factor() {
        text.push_str(&format!(", times {}", scale(factor)));
    }
    if !off.is_empty() {
        text.push_str(&format!("; off the scale: {}", off.join(", ")));
    }
    text
}

fn percent(at: f64) -> String {
    format!("{at:.2}%")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        for end in [0.013, 1.0, 7.3, 99.0, 1609.0, 26_750.0] {
            let axis = Axis { end, step: tick_step(end) };
            let ticks = axis.ticks().count();
            assert!((3..=6).contains(&ticks), "{ticks} ticks up to {end}");
        }
        let axis = Axis { end: 0.7, step: 0.2 };
        assert_eq!(axis.label(0.2 * 3.0), "0.6");
        assert_eq!([tick_step(7.3), tick_step(1609.0)], [2.0, 500.0]);
    }

    #[test]
    fn options_do_not_change_a_colour() {
        assert_eq!(colour("ext4:noatime"), colour("ext4"));
        assert_ne!(colour("nilfs"), colour("nilfs2"));
    }
}
