//! `nilfs-blast`: damages every block of small volumes in every way, and says what a user loses by it.

use std::panic;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use nilfs_sim::blast::damage::{Damage, Harm};
use nilfs_sim::blast::samples::{Sample, Which};
use nilfs_sim::blast::tally::{Row, Tally};
use nilfs_sim::blast::verdict::{Verdict, judge};
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

/// Damages every block of small volumes in every way, and says what a user loses by it
#[derive(Parser)]
#[command(
    version,
    about,
    after_help = "Examples:\n  \
    nilfs-blast --sample 20 --nilfs target/debug/nilfs\n  \
    nilfs-blast --volume crashed-4k --harm bit\n  \
    nilfs-blast --volume crashed-4k --harm bit --block 117       one of them, and all that was seen"
)]
struct Arguments {
    /// Which volumes: clean-4k, crashed-1k, linux-4k, lived-in-crashed-1k, full-4k, … [default: all]
    #[arg(long, value_name = "VOLUME")]
    volume: Vec<Which>,

    /// Which damage: bit, zeros, garbage, unreadable, stale, swapped [default: all]
    #[arg(long, value_name = "DAMAGE")]
    harm: Vec<Harm>,

    /// Only this block; all that was seen is printed
    #[arg(long, value_name = "N")]
    block: Option<u64>,

    /// Only this run of bytes; all that was seen is printed
    #[arg(long, value_name = "FROM..TO", value_parser = run, conflicts_with = "block")]
    run: Option<std::ops::Range<u64>>,

    /// Damage runs of 4, 16, 64 and 512 KiB, too, that begin every so many KiB
    #[arg(long, value_name = "KIB")]
    runs: Option<u64>,

    /// Try one in N of all
    #[arg(long, value_name = "N", default_value_t = 1)]
    sample: usize,

    /// What volumes, bits and noise are made from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// The program that salvages; without one, nothing is salvaged
    #[arg(long, value_name = "PROGRAM")]
    nilfs: Option<PathBuf>,

    /// Print each violation
    #[arg(short, long)]
    verbose: bool,
}

fn run(text: &str) -> Result<std::ops::Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("a run is FROM..TO, in bytes")?;
    let number = |text: &str| text.parse().map_err(|_| format!("{text} is not a number"));
    Ok(number(from)?..number(to)?)
}

/// The lengths of runs.
const RUNS: [u64; 4] = [4 << 10, 16 << 10, 64 << 10, 512 << 10];

/// All that is to be tried with a volume.
fn damages(sample: &Sample, arguments: &Arguments) -> Vec<(Row, Damage)> {
    let which = sample.which;
    let harms = if arguments.harm.is_empty() { &Harm::ALL[..] } else { &arguments.harm };
    let mut damages: Vec<(Row, Damage)> = Vec::new();
    if arguments.run.is_none() {
        let blocks = sample.blocks.iter();
        for block in blocks.filter(|it| arguments.block.is_none_or(|number| number == it.number)) {
            let of = |harm: &Harm| {
                ((which, Some(block.holds), *harm), Damage::of_block(sample, block.number, *harm))
            };
            damages.extend(harms.iter().map(of));
        }
    }
    let harms: Vec<Harm> =
        harms.iter().filter(|it| matches!(it, Harm::Zeros | Harm::Unreadable)).copied().collect();
    let mut add = |bytes: std::ops::Range<u64>| {
        damages.extend(
            harms
                .iter()
                .map(|harm| ((which, None, *harm), Damage { harm: *harm, bytes: bytes.clone() })),
        );
    };
    if let Some(run) = &arguments.run {
        add(run.clone());
    }
    if let (Some(step), None) = (arguments.runs, arguments.block) {
        let size = sample.content.len() as u64;
        for length in RUNS {
            (0..size).step_by(step as usize * 1024).for_each(|at| add(at..(at + length).min(size)));
        }
    }
    damages
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let which = if arguments.volume.is_empty() { &Which::ALL[..] } else { &arguments.volume };
    let tally = Mutex::new(Tally::default());
    let began = Instant::now();
    for which in which {
        let sample = match which.make(arguments.seed) {
            Ok(sample) => sample,
            Err(why) => {
                eprintln!("nilfs-blast: {which}: {why}");
                return ExitCode::FAILURE;
            }
        };
        // A panic is told as a violation.
        let usual = panic::take_hook();
        panic::set_hook(Box::new(|_| {}));
        try_all(&sample, &arguments, &tally);
        panic::set_hook(usual);
    }
    let tally = tally.into_inner();
    print!("{}", tally.table());
    println!("{} damaged volumes judged in {} s", tally.images(), began.elapsed().as_secs());
    ExitCode::SUCCESS
}

fn try_all(sample: &Sample, arguments: &Arguments, tally: &Mutex<Tally>) {
    let mut damages = damages(sample, arguments);
    damages.shuffle(&mut StdRng::seed_from_u64(arguments.seed));
    damages.truncate(damages.len().div_ceil(arguments.sample.max(1)));
    let progress = bar(sample, damages.len() as u64);
    let next = Mutex::new(damages.into_iter());
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((row, damage)) = { next.lock().next() } {
                    if let Some(verdict) = try_one(sample, &damage, arguments) {
                        tell(sample, &damage, row, &verdict, arguments);
                        tally.lock().add(row, &verdict);
                    }
                    progress.inc(1);
                }
            });
        }
    });
    progress.finish_and_clear();
}

fn try_one(sample: &Sample, damage: &Damage, arguments: &Arguments) -> Option<Verdict> {
    nilfs_sim::clock::ThreadClock::set(nilfs_sim::clock::ThreadClock::at_step(1_000_000));
    judge(sample, damage, arguments.seed, arguments.nilfs.as_deref())
}

fn tell(sample: &Sample, damage: &Damage, row: Row, verdict: &Verdict, arguments: &Arguments) {
    let is_one = arguments.block.is_some() || arguments.run.is_some();
    if !is_one && (!arguments.verbose || verdict.violations.is_empty()) {
        return;
    }
    let size = sample.block_bytes();
    let which = match row.1 {
        Some(holds) => format!("--block {}  ({holds})", damage.bytes.start / size),
        None => format!("--run {}..{}", damage.bytes.start, damage.bytes.end),
    };
    let mut text = format!(
        "--seed {} --volume {} --harm {} {which}\n",
        arguments.seed, sample.which, damage.harm
    );
    if is_one {
        let blocks = damage.blocks(sample).map(|it| format!(" {} {}", it.number, it.holds));
        text += &format!("  damaged:{}\n", blocks.collect::<String>());
        verdict.seen.iter().for_each(|seen| text += &format!("  {seen}\n"));
    }
    verdict.violations.iter().for_each(|it| text += &format!("  ! {it}\n"));
    print!("{text}");
}

fn bar(sample: &Sample, length: u64) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{msg} {wide_bar} {pos} of {len} in {elapsed}, {eta} left");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style).with_message(sample.which.to_string())
}
