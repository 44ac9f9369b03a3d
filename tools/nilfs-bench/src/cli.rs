//! The command line, checked and turned into a plan.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use nilfs_lab::cleanup::{Undo, register};

use crate::checking;
use crate::cleaning_latency;
use crate::file_systems::{self, FileSystem, OURS};
use crate::machine::Machine;
use crate::null_fs;
use crate::past;
use crate::report::Report;
use crate::schedule::{Plan, execute};
use crate::sizes::Sizes;
use crate::soak;
use crate::workloads::{self, Workload};
use crate::write_amplification;

/// Compares our file system with its peers, in one table of ratios.
///
/// All volumes lie, in turns, on one image whose blocks are all allocated, as on a device; only the
/// volume of the mount rows is sparse.
///
/// Needs root, to mount the peers and to drop the kernel's caches. Exit status: 0 if ours was
/// measured in every row (or the reference, where ours is not among the chosen), 1 if it failed in
/// one, 2 if nothing could be measured.
#[derive(Parser)]
#[command(name = "nilfs-bench", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Mode>,
    #[command(flatten)]
    bench: Bench,
}

#[derive(Subcommand)]
enum Mode {
    /// Mount the file system that does nothing, and serve it until it is unmounted.
    NullFs(null_fs::Options),
    /// Count what cleaning costs in the long run. Needs no root.
    WriteAmplification(write_amplification::Options),
    /// Time looking into the past, and the present with a door to it.
    Past(past::Options),
    /// Time checking a volume, compared with reading it and with the checkers of others.
    Checking(checking::Options),
    /// Time an fsync while the cleaner is busy. Needs no root.
    CleaningLatency(cleaning_latency::Options),
    /// Work on a mount for hours, with all background work on, and see that nothing grows.
    Soak(soak::Options),
}

#[derive(Args)]
struct Bench {
    /// How often to measure each row on each file system.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Rows to measure, by name or by the first words of it ("sync"); all by default.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    workload: Vec<String>,
    /// File systems to measure; all by default. The first is the reference of the ratios.
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    fs: Vec<String>,
    /// Scaled-down sizes: shows that everything works, not how fast it is.
    #[arg(long)]
    quick: bool,
    /// Directory for the images, some 12 GiB [default: the directory for temporary files].
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Our command.
    #[arg(long, value_name = "PATH", default_value = "target/release/nilfs")]
    nilfs: PathBuf,
    /// Archive for kernel-unpack [default: /usr/src/linux-source-*.tar.xz].
    #[arg(long, value_name = "PATH")]
    kernel_source: Option<PathBuf>,
    /// Print the results as JSON instead of the table.
    #[arg(long)]
    json: bool,
    /// Print medians and ratios as a table in Markdown.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    /// List the rows and the file systems, and measure nothing.
    #[arg(long)]
    list: bool,
}

/// Does what the command line says.
pub fn run() -> Result<ExitCode> {
    let cli = Cli::parse();
    match cli.command {
        Some(Mode::NullFs(options)) => {
            null_fs::serve(&options)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Mode::Past(options)) => {
            past::run(&options)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Mode::Checking(options)) => {
            checking::run(&options)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Mode::CleaningLatency(options)) => {
            cleaning_latency::run(&options)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Mode::Soak(options)) => {
            soak::run(&options)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Mode::WriteAmplification(options)) => {
            write_amplification::run(&options)?;
            Ok(ExitCode::SUCCESS)
        }
        None => bench(&cli.bench),
    }
}

fn bench(options: &Bench) -> Result<ExitCode> {
    let all_systems = file_systems::all(&options.nilfs);
    if options.list {
        list(&all_systems);
        return Ok(ExitCode::SUCCESS);
    }
    let sizes = if options.quick { Sizes::QUICK } else { Sizes::FULL };
    let plan = Plan {
        workloads: select_workloads(&options.workload)?,
        systems: select_systems(&all_systems, &options.fs)?,
        runs: options.runs,
        sizes: &sizes,
        kernel_source: options.kernel_source.as_deref(),
    };
    let parent = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = tempfile::Builder::new()
        .prefix("nilfs-bench-")
        .tempdir_in(&parent)
        .with_context(|| format!("cannot make a directory for the images in {}", parent.display()))?
        .keep();
    let _remove = register(Undo::Remove(dir.clone()));
    let machine = Machine::look(&parent);
    let rows = execute(&plan, &dir)?;
    let report = Report::new(machine, &plan, &rows, options.quick);
    if options.json {
        println!("{}", report.json()?);
    } else if options.markdown {
        print!("{}", report.markdown());
    } else {
        println!("{}", report.text());
    }
    Ok(if report.reference_failed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn list(systems: &[Box<dyn FileSystem>]) {
    println!("Workloads:");
    for workload in workloads::ALL {
        println!("  {:<18}{}", workload.name, workload.what);
    }
    println!("File systems:");
    for system in systems {
        println!("  {:<18}{}", system.name(), system.what());
    }
}

/// The rows whose name is, or begins with, one of the words; in the order of the table.
fn select_workloads(words: &[String]) -> Result<Vec<&'static Workload>> {
    let fits = |name: &str, word: &str| {
        name.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    };
    for word in words {
        if !workloads::ALL.iter().any(|workload| fits(workload.name, word)) {
            bail!("there is no workload \"{word}\"; --list shows all");
        }
    }
    let wanted = |name: &str| words.is_empty() || words.iter().any(|word| fits(name, word));
    Ok(workloads::ALL.iter().filter(|workload| wanted(workload.name)).collect())
}

/// The file systems named, ours first if it is among them, for the first is the reference.
fn select_systems<'a>(
    all: &'a [Box<dyn FileSystem>],
    names: &[String],
) -> Result<Vec<&'a dyn FileSystem>> {
    if names.is_empty() {
        return Ok(all.iter().map(AsRef::as_ref).collect());
    }
    let mut chosen: Vec<&dyn FileSystem> = Vec::new();
    for name in names {
        let Some(system) = all.iter().find(|system| system.name() == name) else {
            bail!("there is no file system \"{name}\"; --list shows all");
        };
        if chosen.iter().all(|other| other.name() != name) {
            chosen.push(system.as_ref());
        }
    }
    chosen.sort_by_key(|system| system.name() != OURS);
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn names(words: &[&str]) -> Result<Vec<&'static str>> {
        let words: Vec<String> = words.iter().map(ToString::to_string).collect();
        Ok(select_workloads(&words)?.into_iter().map(|workload| workload.name).collect())
    }

    #[test]
    fn a_family_is_chosen_by_its_first_words() {
        let sync = ["sync-append-1", "sync-append-8", "sync-random-1", "sync-random-8"];
        assert_eq!(names(&["sync"]).unwrap(), sync);
        assert_eq!(names(&["sync-append"]).unwrap(), sync[..2]);
        assert_eq!(names(&["stat", "seq-read"]).unwrap(), ["seq-read", "stat"]);
        assert_eq!(names(&[]).unwrap().len(), workloads::ALL.len());
    }

    #[test]
    fn a_word_that_fits_nothing_is_refused() {
        assert!(names(&["syn"]).unwrap_err().to_string().contains("\"syn\""));
    }

    #[test]
    fn ours_is_the_reference_wherever_it_is_named() {
        let all = file_systems::all(Path::new("nilfs"));
        let chosen = select_systems(&all, &["null".to_owned(), OURS.to_owned()]).unwrap();
        let chosen: Vec<_> = chosen.iter().map(|system| system.name()).collect();
        assert_eq!(chosen, [OURS, "null"]);
    }
}
