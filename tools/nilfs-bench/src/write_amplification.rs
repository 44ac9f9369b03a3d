//! What cleaning costs in the long run: blocks written for each block that a program writes, on a
//! volume that is as full as it stays and is overwritten all the time. Counted, not timed, on a
//! device in memory. Checkpoints and the cleaner come as they come in a mount: so two runs are
//! never quite the same.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use comfy_table::{Table, presets};
use nilfs_device::{Device, MemoryDevice};
use nilfs_engine::mkfs::{self, Parameters};
use nilfs_engine::{CleanerOptions, Filesystem, InodeRef, MountOptions, NewInode, Policy, Status};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::Serialize;

use crate::sizes::SEED;

const BLOCK: u64 = 4096;
/// `S_IFREG`.
const REGULAR: u16 = 0o100_000;
/// Small segments, so that a small volume has as many as a large one, as 16 GiB of 8 MiB each.
const BLOCKS_PER_SEGMENT: u32 = 256;
/// What a program can expect at best, by how much of the volume is live (%): all blocks equally
/// likely to be overwritten, the fullest segments' content gone for good before they are cleaned.
const UNIFORM_LIMIT: [(u64, f64); 4] = [(50, 1.26), (70, 1.88), (80, 2.69), (90, 5.18)];
/// The same if a tenth of the blocks gets nine tenths of the writes and lies apart.
const HOT_COLD_LIMIT: [(u64, f64); 4] = [(50, 1.07), (70, 1.25), (80, 1.48), (90, 2.34)];

/// What to measure.
#[derive(Args)]
pub struct Options {
    /// Megabytes of the volume.
    #[arg(long, default_value_t = 2048)]
    size: u64,
    /// How often the volume is overwritten before counting begins, and while it lasts.
    #[arg(long, default_value_t = 1)]
    turns: u64,
    /// Policies of the cleaner: timestamp, greedy, cost-benefit; all by default.
    #[arg(long, value_delimiter = ',')]
    policy: Vec<String>,
    /// How much of the volume is live, in percent; 50, 70, 80 and 90 by default.
    #[arg(long, value_delimiter = ',')]
    live: Vec<u64>,
    /// Print the results as JSON instead of the table.
    #[arg(long)]
    json: bool,
}

/// Where programs write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Pattern {
    Uniform,
    HotCold,
}

impl Pattern {
    /// A block of a file of this many blocks.
    fn next(self, random: &mut SmallRng, blocks: u64) -> u64 {
        match self {
            Self::Uniform => random.random_range(0..blocks),
            Self::HotCold => {
                let hot = blocks / 10;
                match random.random_bool(0.9) {
                    true => random.random_range(0..hot),
                    false => random.random_range(hot..blocks),
                }
            }
        }
    }

    fn limit(self, live: u64) -> Option<f64> {
        let limits = if self == Self::Uniform { UNIFORM_LIMIT } else { HOT_COLD_LIMIT };
        limits.iter().find(|(percent, _)| *percent == live).map(|(_, limit)| *limit)
    }
}

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    pattern: Pattern,
    live_percent: u64,
    policy: String,
    /// Blocks of programs and blocks that the cleaner moved, for each that programs wrote.
    data: f64,
    /// All other blocks in all logs, likewise.
    metadata: f64,
    limit: Option<f64>,
}

/// Measures and prints.
pub fn run(options: &Options) -> Result<()> {
    let policies = policies(&options.policy)?;
    let lives = if options.live.is_empty() { vec![50, 70, 80, 90] } else { options.live.clone() };
    let mut rows = Vec::new();
    for pattern in [Pattern::Uniform, Pattern::HotCold] {
        for &live in &lives {
            for &(name, policy) in &policies {
                let row = measure(options, pattern, live, name, policy)
                    .with_context(|| format!("{pattern:?}, {live} % live, {name}"))?;
                rows.push(row);
            }
        }
    }
    match options.json {
        true => println!("{}", serde_json::to_string_pretty(&rows)?),
        false => println!("{}", table(&rows)),
    }
    Ok(())
}

fn policies(names: &[String]) -> Result<Vec<(&'static str, Policy)>> {
    let all = [
        ("timestamp", Policy::Timestamp),
        ("greedy", Policy::Greedy),
        ("cost-benefit", Policy::CostBenefit),
    ];
    if let Some(unknown) = names.iter().find(|name| all.iter().all(|(known, _)| known != name)) {
        bail!("there is no policy \"{unknown}\"; known are timestamp, greedy and cost-benefit");
    }
    let chosen = |name: &str| names.is_empty() || names.iter().any(|other| other == name);
    Ok(all.into_iter().filter(|(name, _)| chosen(name)).collect())
}

fn measure(
    options: &Options,
    pattern: Pattern,
    live: u64,
    name: &str,
    policy: Policy,
) -> Result<Row> {
    let (fs, file, blocks) = filled_volume(options.size << 20, live, policy)?;
    let mut random = SmallRng::seed_from_u64(SEED);
    let turn = (options.size << 20) / BLOCK;
    let _threads = fs.start_background()?;
    overwrite(&fs, &file, pattern, &mut random, blocks, options.turns * turn)?;
    let before = fs.status();
    overwrite(&fs, &file, pattern, &mut random, blocks, options.turns * turn)?;
    let after = fs.status();
    fs.unmount()?;
    let difference = |value: fn(&Status) -> u64| (value(&after) - value(&before)) as f64;
    let user = difference(|status| status.user_blocks_written);
    let all = difference(|status| status.blocks_written);
    let moved = difference(|status| status.cleaner.blocks_moved);
    Ok(Row {
        pattern,
        live_percent: live,
        policy: name.into(),
        data: 1.0 + moved / user,
        metadata: (all - moved) / user - 1.0,
        limit: pattern.limit(live),
    })
}

/// A volume of which a file takes this many percent.
fn filled_volume(
    bytes: u64,
    live: u64,
    policy: Policy,
) -> Result<(Arc<Filesystem>, InodeRef, u64)> {
    let device = MemoryDevice::new(bytes);
    let mut parameters = Parameters::new([1; 16], 1, 1);
    parameters.blocks_per_segment = BLOCKS_PER_SEGMENT;
    mkfs::format(&device, &parameters)?;
    let device: Arc<dyn Device> = Arc::new(device);
    let cleaner = CleanerOptions { policy, protection: Duration::ZERO, ..Default::default() };
    let fs = Filesystem::mount(device, MountOptions { cleaner, ..MountOptions::default() })?;
    let new = NewInode { mode: REGULAR | 0o644, uid: 0, gid: 0, rdev: Default::default() };
    let file = fs.create(&fs.root()?.inode, b"file", &new)?.inode;
    // As df shows it: what is kept back is no room, and metadata take theirs.
    let blocks = fs.stat_fs()?.available * live / 100 * 98 / 100;
    for first in (0..blocks).step_by(64) {
        let count = 64.min(blocks - first);
        fs.write(&file, first * BLOCK, &vec![1; (count * BLOCK) as usize])?;
    }
    fs.sync()?;
    Ok((fs, file, blocks))
}

fn overwrite(
    fs: &Filesystem,
    file: &InodeRef,
    pattern: Pattern,
    random: &mut SmallRng,
    blocks: u64,
    count: u64,
) -> Result<()> {
    let content = vec![2; BLOCK as usize];
    for _ in 0..count {
        let block = pattern.next(random, blocks);
        fs.write(file, block * BLOCK, &content)?;
    }
    Ok(fs.commit().map(|_| ())?)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "writes",
        "live",
        "policy",
        "data",
        "limit",
        "data / limit",
        "metadata",
        "in all",
    ]);
    for row in rows {
        table.add_row([
            format!("{:?}", row.pattern).to_lowercase(),
            format!("{} %", row.live_percent),
            row.policy.clone(),
            format!("{:.2}", row.data),
            row.limit.map_or("-".into(), |limit| format!("{limit:.2}")),
            row.limit.map_or("-".into(), |limit| format!("{:.2}", row.data / limit)),
            format!("+ {:.2}", row.metadata),
            format!("{:.2}", row.data + row.metadata),
        ]);
    }
    table
}
