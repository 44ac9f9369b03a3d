//! How people read results: tables on the terminal, a Markdown file, and a page that needs nothing
//! but itself; and two sets of results side by side.
//!
//! `table` puts results in order, with ranks and ratios; `terminal`, `markdown` and `html` print
//! it, `plot` draws it, `pictures` shows what reached the devices. Names and reasons come from
//! files and from other programs: every form escapes them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::names::counted;
use crate::results::{Cell, Results};
use table::Tables;

pub mod agreement;
mod compare;
pub(crate) mod format_numbers;
mod html;
mod markdown;
mod pictures;
mod plot;
mod table;
mod terminal;

pub use compare::compare;
pub use format_numbers::figure;
pub use terminal::terminal;

/// What a report says besides the results. A name about which there is nothing to say is left out.
pub trait Background {
    /// What others measured in place of a cell, in its unit.
    fn published(&self, _cell: &Cell) -> Option<Published> {
        None
    }

    /// A device in a sentence.
    fn device(&self, _name: &str) -> Option<String> {
        None
    }

    /// A workload in a sentence: what it stands for.
    fn workload(&self, _name: &str) -> Option<String> {
        None
    }

    /// A file system in a sentence.
    fn file_system(&self, _name: &str) -> Option<String> {
        None
    }
}

/// Only the results.
#[derive(Debug, Clone, Copy, Default)]
pub struct Nothing;

impl Background for Nothing {}

/// What others measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// The figure, at the original size.
    pub figure: f64,
    /// Where it was measured, on what, and when.
    pub source: String,
    /// Why figures of today are others, as far as that is known.
    pub why: Option<String>,
}

/// Writes `report.html` and `report.md` into a directory that exists.
pub fn write(results: &Results, background: &dyn Background, directory: &Path) -> Result<()> {
    let tables = Tables::of(results, background);
    replace(&directory.join("report.md"), &markdown::text(results, &tables, background))?;
    replace(&directory.join("report.html"), &html::page(results, &tables, background))
}

/// Selection of what was to be measured: "quick suite".
fn selection(results: &Results) -> String {
    results.suite.as_ref().map_or("own selection".to_owned(), |name| format!("{name} suite"))
}

/// How much was measured: "2 workloads on 1 device with 4 file systems".
fn extent(tables: &Tables<'_>) -> String {
    format!(
        "{} on {} with {}",
        counted(tables.count_of_workloads(), "workload"),
        counted(tables.devices.len(), "device"),
        counted(tables.count_of_file_systems(), "file system"),
    )
}

/// Where it ran: "in a virtual machine".
fn place(results: &Results) -> &str {
    match results.surroundings.place.as_str() {
        "vm" => "in a virtual machine",
        "host" => "on the machine itself",
        other => other,
    }
}

/// What is missing, if the run was interrupted.
fn missing(results: &Results) -> Option<String> {
    let figures = match results.missing {
        0 => return None,
        1 => "one figure is".to_owned(),
        many => format!("{many} figures are"),
    };
    Some(format!("Interrupted: {figures} still to be measured. The same command goes on."))
}

/// A warning, if there are figures whose runs differ so much that they say little.
fn doubts(tables: &Tables<'_>) -> Option<String> {
    let figures = match tables.doubtful().count() {
        0 => return None,
        1 => "One figure is the median".to_owned(),
        many => format!("{many} figures are medians"),
    };
    Some(format!(
        "{figures} of runs that differ threefold or more: ranks and ratios say little there. \
         Was the machine busy with something else?"
    ))
}

/// What the agreement of a row amounts to, in a sentence or two.
fn agreement_sentence(agreement: &agreement::Agreement) -> String {
    let order = if agreement.pairs == 0 {
        "The published figures are a tie.".to_owned()
    } else if agreement.order_agrees() {
        format!("The order agrees with the published one ({} pairs).", agreement.pairs)
    } else {
        let pairs: Vec<String> = agreement
            .inverted
            .iter()
            .map(|(ahead, behind)| format!("{ahead} before {behind}"))
            .collect();
        format!(
            "The order differs in {} of {} pairs: published {}, here the other way round.",
            pairs.len(),
            agreement.pairs,
            pairs.join(", ")
        )
    };
    format!(
        "{order} {} of {} ratios to {} are within 30 %.",
        agreement.ratios_that_agree(),
        agreement.ratios.len(),
        agreement.reference
    )
}

/// A reader sees the file of before or the whole of the new one.
fn replace(path: &Path, content: &str) -> Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, content)
        .and_then(|()| fs::rename(&new, path))
        .with_context(|| format!("cannot write {}", path.display()))
}
