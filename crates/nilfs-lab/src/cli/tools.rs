//! One device or one trace at a time.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};

use super::{say, show};
use nilfs_lab::cleanup::on_signals;
use nilfs_lab::draw::trace_svg;
use nilfs_lab::export::{Export, ExportOptions};
use nilfs_lab::model::preset;
use nilfs_lab::probe::{self, Extent};
use nilfs_lab::replay;
use nilfs_lab::trace::Trace;

/// Find out what a device is like, with reads and writes in the manner of flashbench
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// A preset, by name or path (.toml); or a real device, such as /dev/sdx.
    device: String,
    /// Write to a real device, too. Everything on it is lost.
    #[arg(long)]
    destructive: bool,
    /// Write what was found as a preset; its name is that of the file.
    #[arg(long, value_name = "FILE")]
    preset: Option<PathBuf>,
}

pub fn probe(args: &ProbeArgs) -> Result<ExitCode> {
    /// Some hundred units of any card; the time of a model does not matter.
    const MODEL_BYTES: u64 = 4 << 30;
    let path = Path::new(&args.device);
    let is_preset = path.extension().is_some_and(|extension| extension == "toml");
    let findings = if path.exists() && !is_preset {
        let extent = if args.destructive { Extent::Destructive } else { Extent::ReadOnly };
        probe::device(path, extent)?
    } else {
        let preset = preset::find(&args.device)?;
        let bytes = preset.capacity.min(MODEL_BYTES) / SECTOR_BYTES * SECTOR_BYTES;
        probe::model(preset.model(bytes)?, bytes, Extent::Destructive)?
    };
    show(&format!("{}\n", findings.table()))?;
    if let Some(file) = &args.preset {
        let name = file.file_stem().context("the preset needs a file name")?;
        let text = findings.preset_toml(&name.to_string_lossy())?;
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        show(&format!("{}\n", file.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

const SECTOR_BYTES: u64 = 512;

/// Say how long other devices would have taken for a trace
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// A trace that was kept by run or by export.
    trace: PathBuf,
    /// Devices: names of presets, or paths of your own [default: all presets].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    device: Vec<String>,
}

pub fn replay(args: &ReplayArgs) -> Result<ExitCode> {
    let trace = load(&args.trace)?;
    let devices = match args.device.as_slice() {
        [] => preset::all(),
        names => names.iter().map(|name| Ok(preset::find(name)?)).collect::<Result<Vec<_>>>()?,
    };
    let mut replayed = Vec::new();
    for device in &devices {
        let mut model = device.model(trace.device_bytes)?;
        replayed.push(replay::replay(&trace, &mut *model));
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    let names = devices.iter().map(|device| device.name.clone());
    table.set_header(std::iter::once("seconds".to_owned()).chain(names));
    let phases = replayed.first().map_or(0, |first| first.phases.len());
    for at in 0..phases {
        // After a step there is rarely anything to wait for.
        if replayed.iter().all(|one| one.phases[at].1.is_zero()) {
            continue;
        }
        let name = replayed[0].phases[at].0.clone();
        let times = replayed.iter().map(|one| seconds(one.phases[at].1));
        table.add_row(std::iter::once(name).chain(times));
    }
    let totals = replayed.iter().map(|one| seconds(one.total));
    table.add_row(std::iter::once("in all".to_owned()).chain(totals));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    show(&format!("{table}\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn seconds(time: std::time::Duration) -> String {
    format!("{:.3}", time.as_secs_f64())
}

/// Draw a trace: where on the device something happened, over time
#[derive(Debug, Args)]
pub struct DrawArgs {
    /// A trace that was kept by run or by export.
    trace: PathBuf,
    /// The picture [default: the trace's name, with .svg].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// What stands above it [default: the trace's name].
    #[arg(long)]
    title: Option<String>,
}

pub fn draw(args: &DrawArgs) -> Result<ExitCode> {
    let trace = load(&args.trace)?;
    let name = args.trace.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let out = args.out.clone().unwrap_or_else(|| args.trace.with_extension("svg"));
    let svg = trace_svg(&trace, args.title.as_deref().unwrap_or(&name));
    fs::write(&out, svg).with_context(|| format!("cannot write {}", out.display()))?;
    show(&format!("{}\n", out.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn load(path: &Path) -> Result<Trace> {
    Ok(Trace::load(path)?)
}

/// Serve an image as a modelled device, for a loop device or a virtual machine of your own
///
/// Prints the file to use, and serves it until its standard input ends or has a line.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The image; made if it is not there.
    image: PathBuf,
    /// The device: a preset, by name or path.
    #[arg(long, value_name = "NAME")]
    device: String,
    /// Its size in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    size: u64,
    /// Answer at once, instead of when the modelled device would.
    #[arg(long)]
    no_pace: bool,
    /// Save what reached the device.
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

pub fn export(args: &ExportArgs) -> Result<ExitCode> {
    on_signals(|| ())?;
    let bytes = args.size << 20;
    let preset = preset::find(&args.device)?;
    let model = preset.model(bytes)?;
    let export = Export::start(ExportOptions {
        image: args.image.clone(),
        bytes,
        model: Some(model),
        pace: !args.no_pace,
        queue_depth: preset.queue_depth,
        keep_data: None,
    })?;
    show(&format!("{}\n", export.path().display()))?;
    say("Enter ends it.");
    let mut one = [0];
    std::io::stdin().read(&mut one).context("cannot read standard input")?;
    let end = export.mark("end");
    let trace = export.end()?;
    if let Some(path) = &args.trace {
        trace.save(path)?;
    }
    let (requests, busy) = (end.requests, end.busy.as_secs_f64());
    show(&format!("{requests} requests, device busy for {busy:.3} s\n"))?;
    Ok(ExitCode::SUCCESS)
}
