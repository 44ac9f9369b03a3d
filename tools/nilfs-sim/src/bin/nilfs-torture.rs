//! `nilfs-torture`: power cuts for as long as there is time, and figures of what was tried.
//!
//! The test suite has all workloads of one operation and some of two. Here, all of two are tried with
//! every way of syncing, as many of three as there is time for, and long lives with cleaning,
//! snapshots, rollbacks and other sizes; each on all processors. Or all of two, however long it takes.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use nilfs_sim::cuts::Cuts;
use nilfs_sim::faults;
use nilfs_sim::generate::Profile;
use nilfs_sim::lives::{live_and_cut, settings, settings_of_turmoil};
use nilfs_sim::op::Op;
use nilfs_sim::workloads::{Workload, of_one, of_two, operations};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};

/// Cuts the power of file systems in memory, at every write, lets their devices fail, and judges what
/// is left.
#[derive(Parser)]
#[command(
    version,
    about,
    after_help = "Examples:\n  \
    nilfs-torture --minutes 60\n  \
    nilfs-torture --seed 7      the same again: the same workloads in the same order\n  \
    nilfs-torture --pairs       every two operations with every sync: hours"
)]
struct Arguments {
    /// How long it goes on, besides all workloads of one operation, which are always tried
    #[arg(long, value_name = "N", default_value_t = 10)]
    minutes: u64,

    /// Try all workloads of one and of two operations, and nothing else, however many minutes that takes
    #[arg(long)]
    pairs: bool,

    /// What chance begins with [default: another one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// A kind of workload.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    One,
    Two,
    Three,
    Administration,
    Turmoil,
    Faults,
}

const KINDS: [(Kind, &str); 6] = [
    (Kind::One, "one operation, every sync"),
    (Kind::Two, "two operations, every sync"),
    (Kind::Three, "three operations, some syncs"),
    (Kind::Administration, "200 operations with cleaning, snapshots, rollbacks"),
    (Kind::Turmoil, "150 operations of all kinds, sizes and trims, full at times"),
    (Kind::Faults, "25 such operations while the device fails"),
];

/// Cuts of a long life.
const CUTS_OF_A_LIFE: usize = 40;

/// Faults of a device in one life.
const FAULTS_OF_A_LIFE: usize = 30;

/// Workloads of three operations that are tried together.
const SAMPLE: usize = 20;

/// Pairs of operations after which there is a line about them.
const LINE_AFTER: u64 = 20;

/// What was tried of one kind.
#[derive(Default)]
struct Tried {
    workloads: AtomicU64,
    states: AtomicU64,
    /// Processor time, about, in milliseconds: what was tried was tried by one thread.
    milliseconds: AtomicU64,
}

/// Something for a thread to try.
enum Work {
    /// All workloads of one operation.
    One(Op),
    /// All workloads of two operations.
    Two(Op, Op),
    /// Some of three, from this seed.
    Three(u64),
    /// A life from this seed.
    Life(Kind, u64),
    /// A life from this seed, on a device that fails.
    Faults(u64),
}

impl Work {
    fn kind(&self) -> Kind {
        match self {
            Self::One(_) => Kind::One,
            Self::Two(..) => Kind::Two,
            Self::Three(_) => Kind::Three,
            Self::Life(kind, _) => *kind,
            Self::Faults(_) => Kind::Faults,
        }
    }

    /// Returns the number of workloads, and of states of the device that were judged.
    fn run(&self) -> Result<(u64, u64), String> {
        match self {
            Self::One(operation) => cut_all(of_one(operation)),
            Self::Two(first, second) => cut_all(of_two(first, second)),
            Self::Three(seed) => {
                let mut random = StdRng::seed_from_u64(*seed);
                let operations = operations();
                let mut any = || operations.choose(&mut random).cloned();
                let threes: Vec<Op> = (0..3 * SAMPLE).filter_map(|_| any()).collect();
                let workloads = threes.chunks(3).map(|ops| Workload::by_chance(ops, &mut random));
                cut_all(workloads.collect())
            }
            Self::Life(kind, seed) => {
                let turmoil = *kind == Kind::Turmoil;
                let settings = if turmoil { settings_of_turmoil(*seed) } else { settings(*seed) };
                let life =
                    if turmoil { (Profile::TURMOIL, 150) } else { (Profile::ADMINISTRATION, 200) };
                let cuts = Cuts { settings, ops_afterwards: 20 };
                let cut = |history: &_| cuts.somewhere(history, CUTS_OF_A_LIFE, *seed);
                Ok((1, live_and_cut(settings, *seed, life, cut)?))
            }
            Self::Faults(seed) => {
                fail_somewhere(*seed).map_err(|what| format!("life {seed}: {what}"))
            }
        }
    }
}

fn cut_all(workloads: Vec<Workload>) -> Result<(u64, u64), String> {
    let mut states = 0;
    for workload in &workloads {
        states += workload.cut()?;
    }
    Ok((workloads.len() as u64, states))
}

fn fail_somewhere(seed: u64) -> Result<(u64, u64), String> {
    let life = faults::Workload::by_chance(settings_of_turmoil(seed), seed)?.rehearse()?;
    let mut faults = life.failures();
    faults.shuffle(&mut StdRng::seed_from_u64(seed));
    faults.truncate(FAULTS_OF_A_LIFE);
    let judged: Result<Vec<u64>, String> = faults.into_iter().map(|how| life.fail(how)).collect();
    Ok((1, judged?.iter().sum()))
}

/// All workloads of one operation.
fn ones() -> impl Iterator<Item = Work> {
    operations().into_iter().map(Work::One)
}

/// Every two operations, in an order that is up to chance.
fn pairs(random: &mut StdRng) -> Vec<Work> {
    let operations = operations();
    let with_each = |first: &Op| {
        let first = first.clone();
        operations.iter().map(move |second| Work::Two(first.clone(), second.clone()))
    };
    let mut pairs: Vec<Work> = operations.iter().flat_map(with_each).collect();
    pairs.shuffle(random);
    pairs
}

/// What is tried, in its order: without end.
fn works(seed: u64) -> impl Iterator<Item = Work> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut pairs = pairs(&mut random);
    let further = (0_usize..).map(move |nth| match nth % 5 {
        0 => pairs.pop().unwrap_or_else(|| Work::Three(random.random())),
        1 => Work::Three(random.random()),
        2 => Work::Life(Kind::Administration, random.random()),
        3 => Work::Life(Kind::Turmoil, random.random()),
        _ => Work::Faults(random.random()),
    });
    ones().chain(further)
}

/// What is to be done, and how far it is.
struct Task {
    works: Mutex<Box<dyn Iterator<Item = Work> + Send>>,
    began: Instant,
    /// After that, nothing begins that is not tried in any case; `None`: all is tried.
    length: Option<Duration>,
    progress: ProgressBar,
}

impl Task {
    fn new(arguments: &Arguments, seed: u64) -> Self {
        let (works, length, progress): (Box<dyn Iterator<Item = Work> + Send>, _, _) = if arguments
            .pairs
        {
            let all: Vec<Work> = ones().chain(pairs(&mut StdRng::seed_from_u64(seed))).collect();
            let bar = bar(all.len() as u64, "{pos} of {len} in {elapsed}, {eta} left");
            (Box::new(all.into_iter()), None, bar)
        } else {
            let length = Duration::from_secs(60 * arguments.minutes);
            let bar = bar(length.as_secs(), "{elapsed} of {duration}");
            (Box::new(works(seed)), Some(length), bar)
        };
        Self { works: Mutex::new(works), began: Instant::now(), length, progress }
    }

    fn next(&self) -> Option<Work> {
        let is_late = self.length.is_some_and(|length| self.began.elapsed() >= length);
        self.works.lock().next().filter(|work| work.kind() == Kind::One || !is_late)
    }

    /// Says how far it is when one more has been tried.
    fn advance(&self, tried: &[Tried]) {
        self.progress.set_message(format!("{} states judged", states(tried)));
        if self.length.is_some() {
            return self.progress.set_position(self.began.elapsed().as_secs());
        }
        self.progress.inc(1);
        let (done, all) = (self.progress.position(), self.progress.length().unwrap_or(0));
        // Where there is no terminal, somebody reads it later.
        if self.progress.is_hidden() && done.is_multiple_of(LINE_AFTER) {
            println!("{done} of {all}, {} states judged", states(tried));
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let seed = arguments.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    println!("seed {seed} (again with --seed {seed})");
    let task = Task::new(&arguments, seed);
    let tried: [Tried; KINDS.len()] = Default::default();
    let failure = Mutex::new(None::<String>);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while failure.lock().is_none() {
                    let Some(work) = task.next() else { return };
                    if let Err(what) = try_one(&work, &tried) {
                        failure.lock().get_or_insert(what);
                    }
                    task.advance(&tried);
                }
            });
        }
    });
    task.progress.finish_and_clear();
    print!("{}", table(&tried));
    println!(
        "{} states of the device judged in {} s with {threads} threads",
        states(&tried),
        task.began.elapsed().as_secs()
    );
    match failure.into_inner() {
        None => ExitCode::SUCCESS,
        Some(what) => {
            eprintln!("nilfs-torture: seed {seed}: {what}");
            ExitCode::FAILURE
        }
    }
}

/// A bar that ends at `length`, followed by how far that is.
fn bar(length: u64, how_far: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(&format!("{{wide_bar}} {how_far}, {{msg}}"));
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style)
}

fn try_one(work: &Work, tried: &[Tried]) -> Result<(), String> {
    let began = Instant::now();
    let (workloads, states) = work.run()?;
    let took = began.elapsed().as_millis() as u64;
    for (it, _) in tried.iter().zip(KINDS).filter(|(_, (kind, _))| *kind == work.kind()) {
        it.workloads.fetch_add(workloads, Ordering::Relaxed);
        it.states.fetch_add(states, Ordering::Relaxed);
        it.milliseconds.fetch_add(took, Ordering::Relaxed);
    }
    Ok(())
}

fn states(tried: &[Tried]) -> u64 {
    tried.iter().map(|it| it.states.load(Ordering::Relaxed)).sum()
}

fn table(tried: &[Tried]) -> String {
    let width = KINDS.iter().map(|(_, name)| name.len()).max().unwrap_or(0);
    let mut table =
        format!("{:width$}  {:>9}  {:>12}  {:>8}\n", "", "workloads", "crash states", "CPU");
    for ((_, name), it) in KINDS.iter().zip(tried) {
        let [workloads, states, milliseconds] =
            [&it.workloads, &it.states, &it.milliseconds].map(|it| it.load(Ordering::Relaxed));
        let seconds = format!("{} s", milliseconds / 1000);
        table += &format!("{name:width$}  {workloads:>9}  {states:>12}  {seconds:>8}\n");
    }
    table
}
