//! Linux's recovery and ours make the same of a power cut, whenever it comes and whatever of the writes
//! it takes away: both get the same bytes of volumes that are mounted with `fsync=checkpoint`, whose
//! logs Linux knows all of. `NILFS_TEST_SCALE` multiplies the number of lives and of cuts.

use std::fs;
use std::time::Duration;

use nilfs_engine::FsyncBy;
use nilfs_real_kernels::{Manifest, Uml};
use nilfs_sim::generate::Profile;
use nilfs_sim::history::History;
use nilfs_sim::op::Op;
use nilfs_sim::power::{Disk, Survivors};
use nilfs_sim::subject::Mounting;
use nilfs_sim::volume::Shape;
use nilfs_sim::workloads::{of_one, operations, tree};
use nilfs_sim::world::{Settings, World};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::ours::{Mounted, assert_same_but_for_times, scale};

/// Operations of a life.
const OPERATIONS: usize = 400;

/// Power cuts in each life.
const CUTS: usize = 12;

/// Rounds in which each operation is followed by each sync.
const ROUNDS: usize = 3;

/// What lies farther from the beginning of a file takes for ever to be read.
const FAR: u64 = 1 << 20;

const SHAPES: [Shape; 3] = [
    Shape { block_size: 1024, blocks_per_segment: 64, segments: 64 },
    Shape { block_size: 2048, blocks_per_segment: 32, segments: 64 },
    Shape { block_size: 4096, blocks_per_segment: 16, segments: 64 },
];

/// Hundreds of volumes are mounted, in a guest whose system calls are slow.
const MOST_TIME: Duration = Duration::from_secs(3600);

/// Says what is in each volume.
const SCRIPT: &str = r#"
say() {
    mount_nilfs
    manifest "$MNT" >"$IMAGE.linux"
    umount_nilfs
}
each_image "$IMAGES" say
"#;

/// What a device holds after a cut, with a name.
type Crash = (String, Vec<u8>);

fn settings(seed: u64, shape: Shape) -> Settings {
    let mounting = Mounting {
        fsync: FsyncBy::Checkpoint,
        protection: [3600, 0][seed as usize % 2],
        flash_page: [4 << 10, 1 << 10][seed as usize / 2 % 2],
        ..Mounting::READ_WRITE
    };
    Settings { shape, mounting, may_fill: false }
}

/// Cuts the power after these events of a history, each time in a way that is up to chance.
fn cut(history: &History, mut at: Vec<usize>, random: &mut StdRng, what: &str) -> Vec<Crash> {
    at.sort_unstable();
    let (mut disk, mut played) = (Disk::new(history.start.clone()), 0);
    let cut = |at: usize| {
        history.events[played..at].iter().for_each(|event| disk.play(event));
        played = at;
        let corner = Survivors::CORNERS.get(random.random_range(0..8)).copied();
        let survivors = corner.unwrap_or_else(|| Survivors::by_chance(random));
        (format!("{what}, a cut at event {at}, {survivors:?}"), disk.after_cut(survivors))
    };
    at.into_iter().map(cut).collect()
}

/// A life with cuts anywhere in it, or only where the cleaner is at work.
fn crashes_of_a_life(seed: u64, profile: Profile, cleaning: bool) -> Vec<Crash> {
    let shape = SHAPES[seed as usize % SHAPES.len()];
    let profile = Profile { far: false, ..profile };
    let mut world = World::new(settings(seed, shape)).unwrap();
    world.live(seed, profile, OPERATIONS).unwrap_or_else(|failure| panic!("{failure}"));
    let (history, mut random) = (world.history(), StdRng::seed_from_u64(seed));
    let cleaned = history.steps.iter().filter(|it| matches!(it.op, Some(Op::Clean { .. })));
    let moments: Vec<usize> = match cleaning {
        true => cleaned.flat_map(|step| step.began + 1..=step.ended).collect(),
        false => (0..=history.events.len()).collect(),
    };
    let at = (0..CUTS).map(|_| *moments.choose(&mut random).expect("something is written"));
    let at = at.collect();
    let what = format!("seed {seed}, cleaning {cleaning}, {shape}");
    cut(history, at, &mut random, &what)
}

/// Each operation on a small tree with some of the syncs after it, cut off once. `ROUNDS` rounds have all
/// syncs.
fn crashes_of_one_operation(round: usize) -> impl Iterator<Item = Crash> {
    let is_near = |op: &Op| !matches!(op, Op::Write { offset: FAR.., .. });
    let workloads = operations().into_iter().filter(is_near).flat_map(|op| of_one(&op));
    let here = workloads.enumerate().skip(round % ROUNDS).step_by(ROUNDS);
    here.flat_map(move |(nth, workload)| {
        let seed = (round << 32 | nth) as u64;
        let shape = Shape { segments: 40, ..SHAPES[nth / ROUNDS % SHAPES.len()] };
        let ops = [&tree()[..], &workload.ops].concat();
        let world = World::replay(settings(seed, shape), &ops).unwrap();
        let (history, mut random) = (world.history(), StdRng::seed_from_u64(seed));
        let from = history.steps[tree().len()].ended;
        let at = vec![random.random_range(from..=history.events.len())];
        let words: Vec<_> = workload.ops.iter().map(Op::to_string).collect();
        cut(history, at, &mut random, &format!("{}, {shape}", words.join(", then ")))
    })
}

/// Has both recover from the same.
fn compare(crashes: impl Iterator<Item = Crash>) {
    let images = tempfile::tempdir().unwrap();
    let path = |nth: usize| images.path().join(format!("{nth:05}.img"));
    let ours = crashes.enumerate().map(|(nth, (what, bytes))| {
        fs::write(path(nth), bytes).unwrap();
        // That writes nothing.
        let mounted = Mounted::of(&path(nth), "ro");
        let ours = mounted.manifest("");
        mounted.unmount();
        (what, ours)
    });
    let ours: Vec<_> = ours.collect();
    let guest = Uml::new(path(0)).env("IMAGES", images.path()).timeout(MOST_TIME).script(SCRIPT);
    guest.run().unwrap().without_complaint_besides_recovery().unwrap();
    let mut entries = 0;
    for (nth, (what, ours)) in ours.iter().enumerate() {
        let theirs = fs::read_to_string(path(nth).with_extension("img.linux")).unwrap();
        entries += theirs.lines().count();
        assert_same_but_for_times(what, ours, &theirs.parse::<Manifest>().unwrap());
    }
    println!("{} crashes, {entries} files and directories compared", ours.len());
    assert!(entries > 5 * ours.len(), "too little is left to be compared");
}

#[test]
fn linux_and_we_recover_the_same() {
    let lives = 1..=4 * u64::from(scale());
    compare(lives.flat_map(|seed| crashes_of_a_life(seed, Profile::SYNCS, false)));
}

#[test]
fn linux_and_we_recover_the_same_while_the_cleaner_works() {
    let lives = 1..=3 * u64::from(scale());
    compare(lives.flat_map(|seed| crashes_of_a_life(seed, Profile::ADMINISTRATION, true)));
}

#[test]
fn linux_and_we_recover_the_same_of_each_operation() {
    let rounds = 0..scale() as usize;
    compare(rounds.flat_map(crashes_of_one_operation));
}
