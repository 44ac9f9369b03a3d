//! A full volume says so when something is written, never later: what was accepted can be
//! committed, and reading, deleting, unmounting and mounting go on, also after a power cut.

use nilfs_engine::{RenameMode, SetAttr};
use nilfs_ondisk::inode::{DeviceCode, FileType};
use nilfs_sim::cuts::{Cuts, Moment};
use nilfs_sim::generate::Profile;
use nilfs_sim::name::{Name, Path};
use nilfs_sim::op::{Op, Target};
use nilfs_sim::seeds::for_each_seed;
use nilfs_sim::shrink::shrink;
use nilfs_sim::subject::Mounting;
use nilfs_sim::volume::Shape;
use nilfs_sim::world::{Failure, Settings, World};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Segments of the smallest volume that can be made.
const SMALLEST: u64 = 16;
/// Rounds of work on volumes of every size.
const ROUNDS: u16 = 10;
/// Operations at a time until the volume is full.
const ROUND: usize = 100;
/// How often the volume must have said that it is full before the world ends.
const REFUSALS: usize = 8;
const CUTS: usize = 8;
/// Power cuts one after the other, with nothing that could clean in between.
const CUTS_IN_A_ROW: u64 = 16;

fn settings(seed: u64) -> Settings {
    Settings {
        shape: Shape {
            block_size: 1024,
            blocks_per_segment: [16, 32, 128][seed as usize % 3],
            segments: 20 + seed % 5 * 6,
        },
        mounting: Mounting {
            protection: [0, 30, 3600][seed as usize / 3 % 3],
            discard: seed % 2 == 1,
            ..Mounting::READ_WRITE
        },
        may_fill: true,
    }
}

fn fill(settings: Settings, seed: u64) -> Result<World, Failure> {
    let mut world = World::new(settings).map_err(|what| Failure { ops: Vec::new(), what })?;
    for round in 0.. {
        world.live(seed + (round << 32), Profile::GREEDY, ROUND)?;
        if world.refused_for_space() >= REFUSALS {
            break;
        }
    }
    Ok(world)
}

fn end(settings: Settings, seed: u64, world: World) -> Result<u64, String> {
    let cuts = Cuts { settings, ops_afterwards: 3 };
    cuts.in_a_row(world.history(), CUTS_IN_A_ROW, Moment::End, seed)?;
    let history = world.end()?;
    Cuts { settings, ops_afterwards: 20 }.somewhere(&history, CUTS, seed)
}

#[test]
fn what_was_accepted_can_be_committed() {
    for_each_seed("what_was_accepted_can_be_committed", 12, |seed| {
        let settings = settings(seed);
        let ended = fill(settings, seed).and_then(|world| {
            let ops = world.ops().to_vec();
            end(settings, seed, world).map_err(|what| Failure { ops, what })
        });
        if let Err(failure) = ended {
            let fails = |ops: &[Op]| {
                let world = World::replay(settings, ops);
                world.and_then(|world| end(settings, seed, world)).err()
            };
            panic!("seed {seed}, {}: {}", settings.shape, shrink(failure, fails));
        }
    });
}

/// The dearest changes: single blocks all over large files, whose old addresses lie all over the
/// DAT. They must not cost more than was reckoned when they were accepted.
#[test]
fn scattered_overwrites_can_be_committed() {
    for_each_seed("scattered_overwrites_can_be_committed", 3, |seed| {
        let mut random = StdRng::seed_from_u64(seed);
        let shape = Shape { block_size: 1024, blocks_per_segment: 64, segments: 90 };
        // Only a past that may not be given up makes the volume full.
        let mounting = Mounting { hard_protection: true, ..Mounting::READ_WRITE };
        let settings = Settings { shape, mounting, may_fill: true };
        let mut world = World::new(settings).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        let mut step = |op: &Op| {
            world.step(op).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
            world.refused_for_space()
        };
        let file = |nth| Path::root().join(Name(nth));
        for nth in 0..3 {
            let (kind, rdev) = (FileType::Regular, DeviceCode::default());
            step(&Op::Create { path: file(nth), kind, mode: 0o644, rdev });
        }
        let mut fill = 0;
        let mut overwrite = |random: &mut StdRng, length| {
            fill += 1;
            let target = Target::Path(file(random.random_range(0..3)));
            let offset = random.random_range(0..700) * 1024;
            Op::Write { target, offset, length, fill }
        };
        for _ in 0..25 {
            for _ in 0..20 {
                step(&overwrite(&mut random, 3000));
            }
            step(&Op::Commit);
        }
        while step(&overwrite(&mut random, 1)) < REFUSALS {}
        step(&Op::Sync);
        world.end().unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    });
}

/// What makes nothing longer is never refused, however full the volume is and whatever of the past
/// is protected.
#[test]
fn scattered_overwrites_of_a_full_volume_are_accepted_for_ever() {
    for_each_seed("scattered_overwrites_of_a_full_volume_are_accepted_for_ever", 3, |seed| {
        let mut random = StdRng::seed_from_u64(seed);
        let shape = Shape { block_size: 1024, blocks_per_segment: 64, segments: 60 };
        let protection = [3600, 30, 0][seed as usize % 3];
        let mounting = Mounting { protection, ..Mounting::READ_WRITE };
        let settings = Settings { shape, mounting, may_fill: true };
        let mut world = World::new(settings).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        let mut step = |op: &Op| {
            world.step(op).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
            world.refused_for_space()
        };
        let path = Path::root().join(Name(0));
        let (kind, rdev) = (FileType::Regular, DeviceCode::default());
        step(&Op::Create { path: path.clone(), kind, mode: 0o644, rdev });
        let write = |block: u64, blocks: u64, fill: u32| {
            let (offset, length) = (block * 1024, blocks * 1024);
            Op::Write { target: Target::Path(path.clone()), offset, length, fill }
        };
        let mut size = 0;
        let mut refused = 0;
        for piece in [40, 1] {
            while step(&write(size, piece, 1)) == refused {
                size += piece;
            }
            refused += 1;
        }
        for nth in 0..1200 {
            let op = write(random.random_range(0..size), 1, nth);
            assert_eq!(step(&op), refused, "seed {seed}: overwrite {nth} was refused");
            if nth % 100 == 0 {
                step(&Op::Sync);
            }
        }
        world.end().unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    });
}

/// Work of every kind, in which each allocation of a segment can be the one for which there is none.
fn work(round: u16) -> Vec<Op> {
    let path = |nth: u16| Path::root().join(Name(Name::NUMBERED + nth));
    let inside = |nth| path(1000).join(Name(Name::NUMBERED + nth));
    let (rdev, fill) = (DeviceCode::default(), u32::from(round));
    let create = |path| Op::Create { path, kind: FileType::Regular, mode: 0o644, rdev };
    let write =
        |path, offset, length| Op::Write { target: Target::Path(path), offset, length, fill };
    let directory = Op::Create { path: path(1000), kind: FileType::Directory, mode: 0o755, rdev };
    let shorter = SetAttr { size: Some(9000), ..SetAttr::default() };
    let mode = if round.is_multiple_of(2) { RenameMode::Replace } else { RenameMode::Exchange };
    let mut ops = vec![
        directory,
        create(path(round)),
        write(path(round), 0, 30_000),
        Op::Fsync(Target::Path(path(round))),
        create(inside(round)),
        write(inside(round), 200_000, 12_000),
        Op::Symlink { path: path(500 + round), length: 900 },
        Op::Commit,
        write(path(round / 2), 5_000, 14_000),
        Op::Fdatasync(Target::Path(path(round / 2))),
        Op::SetAttr { target: Target::Path(path(round / 3)), changes: shorter },
        Op::Link { target: Target::Path(path(round)), to: inside(300 + round) },
        Op::Rename { from: inside(round), to: path(round / 2), mode },
    ];
    match round % 4 {
        1 => ops.extend([Op::Checkpoint, Op::SetSnapshot { nth: 0, snapshot: true }]),
        2 => ops.push(Op::Sync),
        3 => ops.push(Op::Remount),
        _ => ops.push(Op::RollBack { nth: 2 }),
    }
    ops
}

/// The same work on volumes of every size, from the smallest to one that has room for all of it: so each
/// allocation of a segment is once the first for which there is none.
#[test]
fn each_allocation_can_find_the_volume_full() {
    let (mut refused, mut segments) = (usize::MAX, SMALLEST);
    while refused > 0 {
        let shape = Shape { block_size: 1024, blocks_per_segment: 32, segments };
        let protection = [0, 3600][segments as usize % 2];
        let mounting = Mounting { protection, ..Mounting::READ_WRITE };
        let settings = Settings { shape, mounting, may_fill: true };
        let lived = Loops::new(settings, segments).and_then(|mut loops| {
            // The smallest volumes have room for hardly anything.
            let usage = loops.world.usage()?;
            let has_room = usage.available > usage.total / 4;
            for op in (0..ROUNDS).flat_map(work) {
                loops.world.step(&op)?;
            }
            refused = loops.world.refused_for_space();
            let cuts = Cuts { settings, ops_afterwards: 3 };
            cuts.in_a_row(loops.world.history(), 1, Moment::End, segments)?;
            loops.empty()?;
            loops.world.step(&Op::Sync)?;
            if has_room {
                let create = loops.create(ROUNDS);
                loops.must(&create)?;
            }
            cuts.somewhere(&loops.world.end()?, CUTS, segments)
        });
        lived.unwrap_or_else(|what| panic!("{shape}: {what}"));
        segments += 1;
    }
    println!("volumes of {SMALLEST} to {} segments", segments - 1);
    assert!(segments > SMALLEST + 20, "the smallest volumes must be too small for the work");
}

/// Soft protection: of a past that is larger than the volume, as much stays as there is room for.
#[test]
fn no_more_of_the_past_is_given_up_than_there_is_no_room_for() {
    for_each_seed("no_more_of_the_past_is_given_up_than_there_is_no_room_for", 3, |seed| {
        let shape = Shape { block_size: 1024, blocks_per_segment: 64, segments: 90 };
        let settings = Settings { shape, mounting: Mounting::READ_WRITE, may_fill: false };
        let mut random = StdRng::seed_from_u64(seed);
        let mut world = World::new(settings).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        let mut step =
            |op: &Op| world.step(op).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        let path = |nth| Path::root().join(Name(Name::NUMBERED + nth));
        let (kind, rdev) = (FileType::Regular, DeviceCode::default());
        for nth in 0..150 {
            step(&Op::Create { path: path(nth), kind, mode: 0o644, rdev });
            let (target, length) = (Target::Path(path(nth)), random.random_range(40..80) * 1024);
            step(&Op::Write { target, offset: 0, length, fill: nth.into() });
            step(&Op::Commit);
            if let Some(old) = nth.checked_sub(3) {
                step(&Op::Unlink(path(old)));
            }
        }
        assert!(world.given_up() > 10, "seed {seed}: the volume was too large for this test");
        world.end().unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    });
}

/// Ways to fill a volume.
#[derive(Debug, Clone, Copy)]
enum Filling {
    OneHugeFile,
    RandomSizes,
    Overwriting,
    Snapshots,
}

const FILLINGS: [Filling; 4] =
    [Filling::OneHugeFile, Filling::RandomSizes, Filling::Overwriting, Filling::Snapshots];
/// Operations after which a volume must be full, if it can get full at all.
const PATIENCE: usize = 1000;
/// How many times a volume is filled and emptied.
const LOOPS: usize = 2;

/// A volume that is filled and emptied in loops, as somebody does who forgets nothing.
struct Loops {
    world: World,
    random: StdRng,
    fill: u32,
}

impl Loops {
    fn new(settings: Settings, seed: u64) -> Result<Self, String> {
        let random = StdRng::seed_from_u64(seed);
        Ok(Self { world: World::new(settings)?, random, fill: 0 })
    }

    /// Does an operation; false if the volume has no room for it.
    fn try_to(&mut self, op: &Op) -> Result<bool, String> {
        let before = self.world.refused_for_space();
        self.world.step(op)?;
        Ok(self.world.refused_for_space() == before)
    }

    fn must(&mut self, op: &Op) -> Result<(), String> {
        match self.try_to(op)? {
            true => Ok(()),
            false => {
                let usage = self.world.usage()?;
                Err(format!("{op}: no space, but that must always work; {usage:?}"))
            }
        }
    }

    fn create(&self, nth: u16) -> Op {
        let path = Path::root().join(Name(Name::NUMBERED + nth));
        Op::Create { path, kind: FileType::Regular, mode: 0o644, rdev: DeviceCode::default() }
    }

    fn write(&mut self, nth: u16, offset: u64, length: u64) -> Op {
        self.fill += 1;
        let target = Target::Path(Path::root().join(Name(Name::NUMBERED + nth)));
        Op::Write { target, offset, length, fill: self.fill }
    }

    /// Operations that fill the volume sooner or later.
    fn next(&mut self, filling: Filling, nth: usize) -> Vec<Op> {
        let number = nth as u16;
        match filling {
            Filling::OneHugeFile if nth == 0 => vec![self.create(0)],
            Filling::OneHugeFile => vec![self.write(0, nth as u64 * 50_000, 50_000)],
            Filling::RandomSizes => {
                let length = self.random.random_range(1..150_000);
                vec![self.create(number), self.write(number, 0, length)]
            }
            Filling::Overwriting if nth == 0 => vec![self.create(0), self.write(0, 0, 60_000)],
            Filling::Overwriting => {
                let offset = self.random.random_range(0..50) * 1024;
                vec![self.write(0, offset, 8_000), Op::Commit]
            }
            Filling::Snapshots if nth == 0 => vec![self.create(0)],
            Filling::Snapshots => {
                let snapshot = Op::SetSnapshot { nth: 0, snapshot: true };
                vec![self.write(0, 0, 100_000), Op::Checkpoint, snapshot]
            }
        }
    }

    /// Fills the volume, unless it cleans itself fast enough.
    fn fill(&mut self, filling: Filling) -> Result<(), String> {
        for nth in 0..PATIENCE {
            for op in self.next(filling, nth) {
                if !self.try_to(&op)? {
                    return Ok(());
                }
            }
            // Overwriting in place never needs more than what is overwritten.
            if matches!(filling, Filling::Overwriting) && nth > 150 {
                return Ok(());
            }
        }
        Err("the volume does not get full".into())
    }

    /// Deletes everything, also the past.
    fn empty(&mut self) -> Result<(), String> {
        for (path, kind) in self.world.model().paths().into_iter().skip(1).rev() {
            let directory = kind == FileType::Directory;
            self.must(&if directory { Op::RemoveDirectory(path) } else { Op::Unlink(path) })?;
        }
        for _ in 0..self.world.snapshots() {
            self.must(&Op::SetSnapshot { nth: 0, snapshot: false })?;
        }
        Ok(())
    }

    /// Most of an empty volume can be written.
    fn write_again(&mut self) -> Result<(), String> {
        let create = self.create(0);
        self.must(&create)?;
        let shape = self.world.settings().shape;
        let all = shape.segments * u64::from(shape.blocks_per_segment);
        for nth in 0..all / 4 / 40 {
            let write = self.write(0, nth * 40_960, 40_960);
            self.must(&write)?;
        }
        self.must(&Op::Unlink(Path::root().join(Name(Name::NUMBERED))))
    }

    fn live(&mut self, filling: Filling) -> Result<(), String> {
        for _ in 0..LOOPS {
            self.fill(filling)?;
            if self.random.random() {
                self.world.step(&Op::Remount)?;
            }
            self.empty()?;
            self.write_again()?;
        }
        Ok(())
    }
}

fn settings_of_loops(seed: u64) -> Settings {
    Settings {
        shape: Shape {
            block_size: 1024,
            blocks_per_segment: [64, 128][seed as usize / 4 % 2],
            segments: 64 + seed % 3 * 8,
        },
        mounting: Mounting { protection: 0, discard: seed % 2 == 1, ..Mounting::READ_WRITE },
        may_fill: true,
    }
}

/// After everything was deleted, there is room again, without anybody asking for it.
#[test]
fn filled_and_emptied_in_loops() {
    for_each_seed("filled_and_emptied_in_loops", 4, |seed| {
        let (settings, filling) = (settings_of_loops(seed), FILLINGS[seed as usize % 4]);
        let lived = Loops::new(settings, seed).and_then(|mut loops| {
            let lived = loops.live(filling);
            let ops = loops.world.ops().len();
            lived.map_err(|what| format!("after {ops} operations: {what}"))?;
            let history = loops.world.end()?;
            Cuts { settings, ops_afterwards: 10 }.somewhere(&history, CUTS, seed)
        });
        lived.unwrap_or_else(|what| panic!("seed {seed}, {filling:?}, {}: {what}", settings.shape));
    });
}
