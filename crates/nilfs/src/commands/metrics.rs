//! `nilfs metrics`: what is counted while a volume is mounted, for programs.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use serde::Serialize;

use crate::administration::Target;
use crate::metrics::Operation;
use crate::output;

/// Print the counters of a mounted volume in the format of Prometheus
///
/// A mount with -o metrics=127.0.0.1:9321 offers the same at http://127.0.0.1:9321/metrics.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  nilfs metrics /mnt > /var/lib/prometheus/node-exporter/nilfs.prom
  nilfs metrics --json /mnt | jq '.operations[] | select(.errors > 0)'")]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Any file or directory of the mount, or the device; without it, the current directory
    #[arg(value_name = "DIR", default_value = ".", hide_default_value = true)]
    path: PathBuf,
}

#[derive(Serialize)]
struct Record<'a> {
    #[serde(flatten)]
    values: BTreeMap<&'static str, u64>,
    operations: &'a [Operation],
}

/// Prints it.
pub fn run(args: Args) -> anyhow::Result<()> {
    let client = Target::find(&args.path)?.client()?;
    let metrics = client.metrics().with_context(|| args.path.display().to_string())?;
    if args.json {
        let values = metrics.values().into_iter().map(|value| (value.name, value.value)).collect();
        return output::json(&Record { values, operations: &metrics.operations });
    }
    let text = metrics.to_text().context("cannot write the metrics")?;
    Ok(output::out().write_all(text.as_bytes())?)
}
