//! The report as Markdown: tables only.

use super::agreement::Agreement;
use super::format_numbers::{
    bytes, clock, count, duration, figure, in_unit, percent, scale, times,
};
use super::table::{Device, Entry, Figure, Row, Shown, Tables};
use super::{Background, doubts, extent, missing, selection};
use crate::results::{Measured, Results};

/// The whole file.
pub(super) fn text(results: &Results, tables: &Tables<'_>, background: &dyn Background) -> String {
    let mut text = format!(
        "# Flash lab: {}\n\n{}, at scale {}.\n\n{}",
        plain(&selection(results)),
        extent(tables),
        scale(results.scale),
        place(results, tables)
    );
    text.push_str(&standings(tables));
    text.push_str(&limits(tables, background));
    for device in &tables.devices {
        text.push_str(&format!("\n## {}\n", plain(device.name)));
        for workload in &device.workloads {
            text.push_str(&format!("\n### {}\n", plain(workload.name)));
            if let Some(about) = background.workload(workload.name) {
                text.push_str(&format!("\n{}\n", plain(&about)));
            }
            workload.rows.iter().for_each(|row| text.push_str(&row_text(row)));
        }
    }
    text
}

fn place(results: &Results, tables: &Tables<'_>) -> String {
    let surroundings = &results.surroundings;
    let mut facts = vec![
        ("Selection".to_owned(), selection(results)),
        ("Scale".to_owned(), scale(results.scale)),
        ("Clock".to_owned(), clock(results.clock).to_owned()),
        ("Place".to_owned(), super::place(results).to_owned()),
        ("Kernel".to_owned(), surroundings.kernel.clone()),
        ("Machine".to_owned(), surroundings.machine.clone()),
    ];
    facts.extend(results.versions.iter().map(|(name, version)| (name.clone(), version.clone())));
    let rows = facts.iter().map(|(name, value)| vec![plain(name), plain(value)]);
    let warnings = [missing(results), doubts(tables)];
    let warnings: String = warnings.iter().flatten().map(|text| format!("{text}\n\n")).collect();
    warnings + &table(&["Where it ran", ""], rows)
}

/// How often each is first, on each device.
fn standings(tables: &Tables<'_>) -> String {
    let header: Vec<String> = ["First in".to_owned()]
        .into_iter()
        .chain(tables.devices.iter().map(|device| plain(device.name)))
        .collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let rows = tables.file_systems.iter().map(|name| {
        let standings = tables.devices.iter().map(|device| standing(device, name));
        [plain(name)].into_iter().chain(standings).collect()
    });
    format!("\n{}", table(&header, rows))
}

fn standing(device: &Device<'_>, file_system: &str) -> String {
    let standing = device.standing(file_system);
    if standing.rows == 0 {
        return String::new();
    }
    let mut text = format!("{} of {}", standing.first, standing.rows);
    if standing.as_good > 0 {
        text.push_str(&format!(", {} within 5 %", standing.as_good));
    }
    if standing.failed > 0 {
        text.push_str(&format!(", {} failed", standing.failed));
    }
    text
}

fn limits(tables: &Tables<'_>, background: &dyn Background) -> String {
    let header =
        ["Device", "Reads, MB/s", "Writes, MB/s", "4 KiB read", "4 KiB write", "Flush", ""];
    let rows = tables.devices.iter().map(|device| {
        let figures = device.limits.map_or_else(Default::default, |limits| {
            [
                figure(limits.sequential_read / 1e6),
                figure(limits.sequential_write / 1e6),
                duration(limits.small_read),
                duration(limits.small_write),
                duration(limits.flush),
            ]
        });
        let about = background.device(device.name).unwrap_or_default();
        [plain(device.name)].into_iter().chain(figures).chain([plain(&about)]).collect()
    });
    format!("\n{}", table(&header, rows))
}

fn row_text(row: &Row<'_>) -> String {
    let mut heading = format!("\n#### {}, {}\n\n", plain(row.step), in_unit(row.unit));
    if !row.about.is_empty() {
        heading.push_str(&format!("{}\n\n", plain(row.about)));
    }
    let with_published = row.published() > 0;
    let mut header = vec![
        "File system",
        "Median",
        "Runs",
        "Rank",
        "To best",
        "To limit",
        "Read",
        "Written",
        "Discarded",
        "Flushes",
        "Sequential runs",
        "Programmed",
        "Erases",
        "Amplification",
        "Device busy",
    ];
    if with_published {
        header.extend(["Published", "Ratio, published → here"]);
    }
    let rows = row.entries.iter().map(|entry| {
        let mut line = entry_line(entry);
        line.resize(15, String::new());
        if with_published {
            line.extend(published(entry, row.agreement.as_ref()));
        }
        line
    });
    format!("{heading}{}{}", table(&header, rows), agreement_sentence(row))
}

fn entry_line(entry: &Entry<'_>) -> Vec<String> {
    let mut line = vec![plain(entry.file_system)];
    match &entry.found {
        Shown::Failed(reason) => line.push(format!("failed: {}", plain(reason))),
        Shown::Figure(found) => {
            line.extend(standing_cells(found));
            line.extend(device_cells(found.measured));
        }
    }
    line
}

fn standing_cells(found: &Figure<'_>) -> [String; 5] {
    let ratio = |ratio: Option<f64>| ratio.map_or_else(String::new, times);
    [
        figure(found.measured.median),
        runs(found),
        found.rank.to_string(),
        ratio(found.to_best),
        ratio(found.to_limit),
    ]
}

/// The least and the most, and a warning where they are far apart.
fn runs(found: &Figure<'_>) -> String {
    let range = format!("{}..{}", figure(found.least), figure(found.most));
    match found.wide_spread() {
        Some(spread) => format!("{range}, differ {}", times(spread)),
        None => range,
    }
}

fn device_cells(measured: &Measured) -> [String; 9] {
    let (traffic, wear) = (&measured.traffic, &measured.wear);
    let amount = |amount: &crate::trace::Count| {
        format!("{} in {}", bytes(amount.bytes), count(amount.requests))
    };
    [
        amount(&traffic.read),
        amount(&traffic.written),
        amount(&traffic.discarded),
        count(traffic.flushes),
        count(traffic.sequential_runs),
        bytes(wear.programmed_bytes),
        count(wear.erases),
        wear.amplification().map_or_else(String::new, figure),
        duration(measured.device_seconds),
    ]
}

fn published(entry: &Entry<'_>, agreement: Option<&Agreement>) -> [String; 2] {
    let published = entry.published.as_ref();
    let ratio = agreement.and_then(|agreement| agreement.ratio(entry.file_system));
    [
        published.map_or_else(String::new, |published| {
            let here = figure(published.figure);
            let original = published.original();
            original.map_or(here.clone(), |original| format!("{here} ({} at 1)", figure(original)))
        }),
        ratio.map_or_else(String::new, |ratio| {
            let (theirs, ours) = (figure(ratio.published), figure(ratio.measured));
            format!("{theirs} → {ours} ({})", percent(ratio.deviation()))
        }),
    ]
}

fn agreement_sentence(row: &Row<'_>) -> String {
    let mut text = String::new();
    if let Some(agreement) = &row.agreement {
        text.push_str(&format!("\n{}\n", plain(&super::agreement_sentence(agreement))));
    }
    if let Some(why) = row.why() {
        text.push_str(&format!("\n{}\n", plain(why)));
    }
    for source in row.sources() {
        text.push_str(&format!("\nPublished: {}\n", plain(&source)));
    }
    text
}

fn table(header: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let names: Vec<String> = header.iter().map(|name| (*name).to_owned()).collect();
    let rule: Vec<String> =
        (0..header.len()).map(|at| if at == 0 { "---" } else { "---:" }.to_owned()).collect();
    let rows: String = rows.map(|row| line(&row)).collect();
    format!("{}{}{rows}", line(&names), line(&rule))
}

/// Text that Markdown shows as it is, on one line.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    for c in text.chars() {
        match c {
            '<' => plain.push_str("&lt;"),
            '>' => plain.push_str("&gt;"),
            '&' => plain.push_str("&amp;"),
            '|' | '\\' | '`' | '*' | '_' | '[' | ']' | '#' | '~' | '!' => plain.extend(['\\', c]),
            c if c.is_control() => plain.push(' '),
            c => plain.push(c),
        }
    }
    plain
}
