//! The report as one page: no script, nothing to load.

use std::path::{Component, Path};

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::agreement::Agreement;
use super::format_numbers::{
    bytes, clock, count, duration, figure, in_unit, percent, scale, times, unit,
};
use super::pictures::Pictures;
use super::plot::{colour, lanes};
use super::table::{Device, Doubt, Entry, Figure, Row, Shown, Standing, Tables, Workload};
use super::{Background, doubts, extent, missing, place, selection};
use crate::file_systems::type_of;
use crate::results::{Measured, Results};
use crate::trace::Count;

const STYLE: &str = include_str!("page.css");

/// The whole page.
pub(super) fn page(results: &Results, tables: &Tables<'_>, background: &dyn Background) -> String {
    let pictures = Pictures::of(results, tables);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Flash lab: " (selection(results)) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                (navigation(tables))
                main {
                    (head(results, tables))
                    (summary(tables, background))
                    (devices(tables, background))
                    (how_to_read())
                    @for device in &tables.devices {
                        (device_section(device, tables, results, &pictures, background))
                    }
                    (surroundings(results))
                }
            }
        }
    };
    page.into_string()
}

fn navigation(tables: &Tables<'_>) -> Markup {
    html! {
        nav aria-label="Contents" {
            a.top href="#top" { "Flash lab" }
            ul {
                li { a href="#summary" { "Which is first" } }
                li { a href="#devices" { "Devices" } }
                li { a href="#reading" { "How to read" } }
                li { a href="#where" { "Where it ran" } }
            }
            @for device in &tables.devices {
                details open[tables.devices.len() == 1] {
                    summary { (device.name) }
                    ul {
                        li { a href={ "#" (device.anchor) } { "All at a glance" } }
                        @for workload in &device.workloads {
                            li { a href={ "#" (workload.anchor) } { (workload.name) } }
                        }
                    }
                }
            }
        }
    }
}

fn head(results: &Results, tables: &Tables<'_>) -> Markup {
    html! {
        header #top {
            h1 { "Flash lab: " (selection(results)) }
            p.lead {
                "File systems side by side on modelled flash: " (extent(tables)) ", at "
                b { (scale(results.scale)) } " of the original sizes, " (place(results))
                ", Linux " b { (results.surroundings.kernel) } "."
            }
            p { "Clock: " (clock(results.clock)) "." }
            @if let Some(missing) = missing(results) { p { b { (missing) } } }
            @if let Some(doubts) = doubts(tables) { (warning(&doubts, tables)) }
        }
    }
}

/// The figures that say little, the worst of them by name.
fn warning(doubts: &str, tables: &Tables<'_>) -> Markup {
    const NAMED: usize = 10;
    let mut figures: Vec<Doubt<'_>> = tables.doubtful().collect();
    figures.sort_by(|a, b| b.spread.total_cmp(&a.spread));
    let others = figures.len().saturating_sub(NAMED);
    html! {
        div.warning role="note" {
            p { b { (doubts) } }
            ul {
                @for doubt in figures.iter().take(NAMED) {
                    li {
                        a href={ "#" (doubt.row.anchor) } {
                            (doubt.file_system) ", " (doubt.workload.name) " " (doubt.row.step)
                        }
                        " on " (doubt.device.name) ": " (times(doubt.spread))
                    }
                }
                @if others > 0 { li { "and " (others) " more" } }
            }
        }
    }
}

fn summary(tables: &Tables<'_>, background: &dyn Background) -> Markup {
    html! {
        section #summary {
            h2 { "Which is first" }
            p.hint { "Steps of workloads in which each is the best, of those it was in." }
            div.scroll tabindex="0" {
                table.matrix {
                    thead {
                        tr {
                            th scope="col" { "File system" }
                            @for device in &tables.devices {
                                th scope="col" { a href={ "#" (device.anchor) } { (device.name) } }
                            }
                        }
                    }
                    tbody {
                        @for name in &tables.file_systems { (standings(name, tables, background)) }
                    }
                    tfoot { (tallies(tables)) }
                }
            }
        }
    }
}

fn standings(name: &str, tables: &Tables<'_>, background: &dyn Background) -> Markup {
    html! {
        tr {
            th scope="row" title=[background.file_system(name)] { (named(name)) }
            @for device in &tables.devices { (standing(device.standing(name))) }
        }
    }
}

fn standing(standing: Standing) -> Markup {
    html! {
        td class=(share(standing)) {
            @if standing.rows > 0 {
                b { (standing.first) } " of " (standing.rows)
                @if standing.as_good > 0 { br; small { (standing.as_good) " within 5 %" } }
                @if standing.failed > 0 { br; small.failed { (standing.failed) " failed" } }
            }
        }
    }
}

/// The more often first, the stronger the colour.
fn share(standing: Standing) -> &'static str {
    match standing.first * 4 {
        0 => "",
        firsts if firsts >= standing.rows * 3 => "good-3",
        firsts if firsts >= standing.rows => "good-2",
        _ => "good-1",
    }
}

fn tallies(tables: &Tables<'_>) -> Markup {
    let tallies: Vec<_> = tables.devices.iter().map(Device::published_tally).collect();
    html! {
        @if tallies.iter().any(|tally| tally.rows > 0) {
            tr {
                th scope="row" { "Published figures" }
                @for tally in &tallies {
                    td {
                        @if tally.rows > 0 {
                            "order agrees in " b { (tally.in_order) } " of " (tally.rows) br;
                            small {
                                (tally.ratios_that_agree) " of " (tally.ratios)
                                " ratios within 30 %"
                            }
                        }
                    }
                }
            }
        }
    }
}

fn devices(tables: &Tables<'_>, background: &dyn Background) -> Markup {
    let header = ["Reads", "Writes", "4 KiB read", "4 KiB write", "Flush"];
    html! {
        section #devices {
            h2 { "Devices and what they can do at best" }
            div.scroll tabindex="0" {
                table {
                    thead {
                        tr {
                            th scope="col" { "Device" }
                            @for name in header { th scope="col" { (name) } }
                        }
                    }
                    tbody { @for device in &tables.devices { (limits(device)) } }
                }
            }
            dl {
                @for device in &tables.devices {
                    @if let Some(about) = background.device(device.name) {
                        dt { (device.name) } dd { (about) }
                    }
                }
            }
        }
    }
}

fn limits(device: &Device<'_>) -> Markup {
    html! {
        tr {
            th scope="row" { a href={ "#" (device.anchor) } { (device.name) } }
            @match device.limits {
                Some(limits) => {
                    td { (figure(limits.sequential_read / 1e6)) " MB/s" }
                    td { (figure(limits.sequential_write / 1e6)) " MB/s" }
                    td { (duration(limits.small_read)) }
                    td { (duration(limits.small_write)) }
                    td { (duration(limits.flush)) }
                }
                None => { td.text colspan="5" { "not known" } }
            }
        }
    }
}

fn how_to_read() -> Markup {
    html! {
        details #reading {
            summary { h2 { "How to read" } }
            dl {
                dt { "Figure" }
                dd { "the median of all runs, with the least and the most of them." }
                dt { "To best" }
                dd { "1.00× is the best of the row; 2.00× is half as good: half the rate, or twice the time." }
                dt { "To limit" }
                dd { "how many times as good the device could be if nothing but it stood in the way." }
                dt { "Sequential runs" }
                dd { "sequences of writes that each began where the one before had ended: the fewer for the same bytes, the more sequential." }
                dt { "Programmed, amplification" }
                dd { "what the device wrote into its flash, its own copies included; and that for each byte it was asked to write." }
                dt { "Pictures of what reached the device" }
                dd { "time runs to the right, and is the device’s own: the whole width is how long it was busy. Addresses grow upwards; what nobody read or wrote is left out. A log is a staircase, writing in place is a cloud. Dashed lines are the steps’ beginnings." }
                dt { "Type" }
                dd { "what the kernel said the mounted file system is. One that is served through FUSE, as ours, is fuse to it." }
                dt { "Published" }
                dd { "what others measured on a real device; seconds and megabytes times the scale of the run, with the original below. Ratios are to the best of theirs: what they published → what was measured here. Pairs closer than 5 % are a tie; a ratio agrees if it is within 30 %." }
            }
        }
    }
}

fn device_section(
    device: &Device<'_>,
    tables: &Tables<'_>,
    results: &Results,
    pictures: &Pictures<'_>,
    background: &dyn Background,
) -> Markup {
    html! {
        section.device id=(device.anchor) {
            h2 { (device.name) }
            (glance(device, tables))
            @for workload in &device.workloads {
                section.workload id=(workload.anchor) {
                    h3 {
                        (workload.name) small { " on " (device.name) }
                    }
                    @if let Some(about) = background.workload(workload.name) { p { (about) } }
                    @if results.scale_of(workload.name) != 1.0 {
                        p.hint {
                            "Sizes of the original; each step says what was done here, at "
                            (scale(results.scale_of(workload.name))) " of them."
                        }
                    }
                    (pictures.show(device.name, workload.name))
                    @for row in &workload.rows {
                        (row_article(row))
                    }
                }
            }
        }
    }
}

/// All rows of a device, each entry as its ratio to the best: a table for all workloads in which the
/// same file systems take part.
fn glance(device: &Device<'_>, tables: &Tables<'_>) -> Markup {
    let mut parts: Vec<(Vec<&str>, Vec<&Workload<'_>>)> = Vec::new();
    for workload in &device.workloads {
        let names = workload.file_systems(&tables.file_systems);
        match parts.iter_mut().find(|(known, _)| *known == names) {
            Some((_, workloads)) => workloads.push(workload),
            None => parts.push((names, vec![workload])),
        }
    }
    html! {
        p.hint { "Ratios to the best of each row; 1.00× is the best, 2.00× half as good." }
        @for (names, workloads) in &parts {
            div.scroll tabindex="0" {
                table.matrix.glance {
                    thead {
                        tr {
                            th scope="col" { "Step" }
                            @for name in names { th scope="col" { (named(name)) } }
                        }
                    }
                    @for workload in workloads { (glance_group(workload, names)) }
                }
            }
        }
    }
}

fn glance_group(workload: &Workload<'_>, names: &[&str]) -> Markup {
    html! {
        tbody {
            tr.group { th scope="rowgroup" { (workload.name) } td colspan=(names.len()) {} }
            @for row in &workload.rows {
                tr {
                    th scope="row" title=(row.about) {
                        a href={ "#" (row.anchor) } { (row.step) } small { " " (unit(row.unit)) }
                    }
                    @for name in names { (glance_cell(row.entry(name))) }
                }
            }
        }
    }
}

fn glance_cell(entry: Option<&Entry<'_>>) -> Markup {
    html! {
        @match entry.map(|entry| &entry.found) {
            None => { td {} }
            Some(Shown::Failed(reason)) => { td.failed title=(reason) { "failed" } }
            Some(Shown::Figure(found)) => {
                td class=(heat(found)) { (found.to_best.map_or_else(|| "–".to_owned(), times)) }
            }
        }
    }
}

/// The further from the best, the stronger the other colour.
fn heat(found: &Figure<'_>) -> &'static str {
    match found.to_best {
        _ if found.rank == 1 => "good-3",
        None => "",
        Some(..=1.05) => "good-1",
        Some(..=1.5) => "",
        Some(..=3.0) => "bad-1",
        Some(..=10.0) => "bad-2",
        Some(_) => "bad-3",
    }
}

fn row_article(row: &Row<'_>) -> Markup {
    html! {
        article id=(row.anchor) {
            h4 { (row.step) small { " " (in_unit(row.unit)) } }
            @if !row.about.is_empty() { p.about { (row.about) } }
            figure { (lanes(row)) }
            div.scroll tabindex="0" {
                table {
                    (row_header(row))
                    tbody { @for entry in &row.entries { (entry_row(entry, row)) } }
                }
            }
            @if let Some(agreement) = &row.agreement {
                p.verdict.differs[!agreement.order_agrees()] { (super::agreement_sentence(agreement)) }
            }
            @if let Some(why) = row.why() { p { (why) } }
            @for source in row.sources() { p.source { "Published: " (source) } }
        }
    }
}

fn row_header(row: &Row<'_>) -> Markup {
    let device = [
        "Read",
        "Written",
        "Discarded",
        "Flushes",
        "Seq. runs",
        "Programmed",
        "Erases",
        "Busy",
        "Type",
    ];
    html! {
        thead {
            tr.groups {
                th {}
                th colspan="4" { "Figure" }
                @if row.published() > 0 { th colspan="2" { "Published" } }
                th colspan="5" { "What reached the device" }
                th colspan="2" { "Flash wear" }
                th { "Time" }
                th {}
            }
            tr {
                th scope="col" { "File system" }
                @for name in ["Median", "Rank", "To best", "To limit"] { th scope="col" { (name) } }
                @if row.published() > 0 {
                    th scope="col" { "Figure" } th scope="col" { "Ratio → here" }
                }
                @for name in device { th scope="col" { (name) } }
            }
        }
    }
}

fn entry_row(entry: &Entry<'_>, row: &Row<'_>) -> Markup {
    html! {
        tr {
            th scope="row" { (named(entry.file_system)) }
            @match &entry.found {
                Shown::Failed(reason) => {
                    td.text.failed colspan="4" { b { "failed" } " " (reason) }
                }
                Shown::Figure(found) => { (figure_cells(found)) }
            }
            @if row.published() > 0 {
                (published_cells(entry, row.agreement.as_ref()))
            }
            @match &entry.found {
                Shown::Failed(_) => { td colspan="9" {} }
                Shown::Figure(found) => { (device_cells(found.measured)) }
            }
        }
    }
}

fn figure_cells(found: &Figure<'_>) -> Markup {
    html! {
        td {
            b { (figure(found.measured.median)) }
            @if found.most > found.least {
                br; small { (figure(found.least)) ".." (figure(found.most)) }
            }
            @if let Some(spread) = found.wide_spread() {
                br; small.off { "differ " (times(spread)) }
            }
        }
        td { (found.rank) }
        td class=(heat(found)) { (found.to_best.map_or_else(|| "–".to_owned(), times)) }
        td { (found.to_limit.map_or_else(|| "–".to_owned(), times)) }
    }
}

fn published_cells(entry: &Entry<'_>, agreement: Option<&Agreement>) -> Markup {
    let ratio = agreement.and_then(|agreement| agreement.ratio(entry.file_system));
    let is_reference = agreement.is_some_and(|known| known.reference == entry.file_system);
    html! {
        td {
            @if let Some(published) = &entry.published {
                (figure(published.figure))
                @if let Some(original) = published.original() {
                    br; small { (figure(original)) " at 1" }
                }
            }
        }
        td {
            @if let Some(ratio) = ratio {
                (figure(ratio.published)) " → " (figure(ratio.measured)) br;
                small.off[!ratio.agrees()] { (percent(ratio.deviation())) }
            } @else if is_reference {
                small { "reference" }
            }
        }
    }
}

fn device_cells(measured: &Measured) -> Markup {
    let (traffic, wear) = (&measured.traffic, &measured.wear);
    html! {
        @for amount in [&traffic.read, &traffic.written, &traffic.discarded] { (amount_cell(amount)) }
        td { (count(traffic.flushes)) }
        td { (count(traffic.sequential_runs)) }
        td {
            (bytes(wear.programmed_bytes))
            @if let Some(amplification) = wear.amplification() {
                br; small { "ampl. " (figure(amplification)) }
            }
        }
        td { (count(wear.erases)) }
        td { (duration(measured.device_seconds)) }
        td {
            (kernel_type(measured.magic))
            @if let Some(link) = measured.trace.as_deref().and_then(relative_link) {
                br; a href=(link) { "trace" }
            }
        }
    }
}

/// Type of the mounted file system, as the kernel said it.
fn kernel_type(magic: u64) -> Markup {
    let number = format!("{magic:#x}");
    html! {
        @match type_of(magic) {
            Some(name) => { span title={ "statfs " (number) } { (name) } }
            None => { code { (number) } }
        }
    }
}

fn amount_cell(amount: &Count) -> Markup {
    html! {
        td {
            @if amount.requests == 0 { span.none { "0" } } @else {
                (bytes(amount.bytes)) br; small { "in " (count(amount.requests)) }
            }
        }
    }
}

/// A link to a file below the directory of the report; `None` if the path leads elsewhere.
fn relative_link(path: &str) -> Option<String> {
    let inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    if path.is_empty() || !Path::new(path).components().all(inside) {
        return None;
    }
    let mut link = "./".to_owned();
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"/-_.".contains(&byte) {
            link.push(char::from(byte));
        } else {
            link.push_str(&format!("%{byte:02X}"));
        }
    }
    Some(link)
}

fn surroundings(results: &Results) -> Markup {
    let place = &results.surroundings;
    let facts = [
        ("Place", self::place(results).to_owned()),
        ("Kernel", place.kernel.clone()),
        ("Machine", place.machine.clone()),
        ("Selection", selection(results)),
        ("Scale", scale(results.scale)),
        ("Clock", clock(results.clock).to_owned()),
    ];
    html! {
        section #where {
            h2 { "Where it ran" }
            dl.facts {
                @for (name, value) in &facts { dt { (name) } dd { (value) } }
                @for (name, version) in &results.versions { dt { (name) } dd { (version) } }
            }
        }
    }
}

/// A file system's colour and name, which may be divided before each option.
fn named(file_system: &str) -> Markup {
    let mut words = file_system.split(':');
    html! {
        i class={ "swatch " (colour(file_system)) } aria-hidden="true" {}
        (words.next().unwrap_or_default())
        @for option in words { wbr; ":" (option) }
    }
}
