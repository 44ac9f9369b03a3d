//! What there is to choose from.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};

use super::show;
use nilfs_lab::model::preset;
use nilfs_lab::run::SUITES;
use nilfs_lab::{file_systems, workloads};

/// Show devices, file systems, workloads and suites
#[derive(Debug, Args)]
pub struct ListArgs {
    /// As JSON, with everything that is known of them.
    #[arg(long)]
    json: bool,
}

pub fn list(args: &ListArgs) -> Result<ExitCode> {
    if args.json {
        let text = serde_json::to_string_pretty(&all()).context("cannot make JSON of the list")?;
        show(&format!("{text}\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let devices = preset::all();
    section("Devices (--device)", devices.iter().map(|device| (&*device.name, &*device.title)))?;
    let systems = file_systems::all(Path::new("nilfs"));
    section("File systems (--fs)", systems.iter().map(|system| (&*system.name, system.about)))?;
    show(&format!("  with options after a colon: {}\n", file_systems::OPTIONS.join(", ")))?;
    show(&format!("  nilfs also with {}\n", file_systems::OUR_OPTIONS.join(", ")))?;
    let workloads = workloads::all();
    section("Workloads (--workload)", workloads.iter().map(|all| (all.name, all.stands_for)))?;
    section("Suites (--suite)", SUITES.iter().map(|suite| (suite.name, suite.about)))?;
    Ok(ExitCode::SUCCESS)
}

fn section<'a>(title: &str, entries: impl Iterator<Item = (&'a str, &'a str)>) -> Result<()> {
    const NAME_WIDTH: usize = 21;
    show(&format!("{title}:\n"))?;
    for (name, about) in entries {
        show(&format!("  {name:<NAME_WIDTH$}{}\n", wrapped(about, NAME_WIDTH + 2)))?;
    }
    Ok(())
}

/// Text in lines of at most 100 characters, all but the first set in.
fn wrapped(text: &str, inset: usize) -> String {
    const WIDTH: usize = 100;
    let mut lines = String::new();
    let mut column = inset;
    for word in text.split_whitespace() {
        if column + word.len() + 1 > WIDTH {
            lines.push('\n');
            lines.push_str(&" ".repeat(inset));
            column = inset;
        } else if column > inset {
            lines.push(' ');
            column += 1;
        }
        lines.push_str(word);
        column += word.len();
    }
    lines
}

fn all() -> Value {
    let devices: Vec<Value> = preset::all()
        .iter()
        .map(|device| {
            json!({
                "name": device.name, "title": device.title, "about": device.about.trim(),
                "sources": device.sources, "bytes": device.capacity,
            })
        })
        .collect();
    let systems: Vec<Value> = file_systems::all(Path::new("nilfs"))
        .iter()
        .map(|system| {
            let needs: Vec<&str> = system.needs.iter().map(|program| program.package).collect();
            json!({
                "name": system.name, "title": system.title, "about": system.about,
                "kind": system.kind, "packages": needs,
            })
        })
        .collect();
    let workloads: Vec<Value> = workloads::all()
        .iter()
        .map(|workload| {
            let needs: Vec<&str> = workload.needs.iter().map(|program| program.package).collect();
            json!({
                "name": workload.name, "title": workload.title, "stands_for": workload.stands_for,
                "packages": needs,
            })
        })
        .collect();
    let suites: Vec<Value> = SUITES
        .iter()
        .map(|suite| json!({ "name": suite.name, "about": suite.about, "scale": suite.scale }))
        .collect();
    json!({
        "devices": devices, "file_systems": systems, "options": file_systems::OPTIONS,
        "nilfs_options": file_systems::OUR_OPTIONS,
        "workloads": workloads, "suites": suites,
    })
}
