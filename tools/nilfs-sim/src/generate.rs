//! Random operations that are likely to be interesting: mostly on files that exist, with sizes
//! around the places where something changes (blocks, direct maps, levels of B-trees).

use std::collections::VecDeque;

use nilfs_engine::{RenameMode, Seek, SetAttr, SetTime, Timestamp};
use nilfs_ondisk::inode::{DeviceCode, FileType};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::model::Model;
use crate::name::{Name, Path};
use crate::op::{Op, Target};

/// The largest size that a volume is given, in hundredths of its first.
pub const LARGEST: u8 = 125;

/// What kind of life a generated sequence leads.
#[derive(Debug, Clone, Copy)]
pub struct Profile {
    /// The longest single write in bytes.
    pub write_max: u64,
    /// The size that files seldom exceed, in bytes, where they are not sparse.
    pub file_max: u64,
    /// Whether there are files with data at offsets up to the greatest.
    pub far: bool,
    /// Of 1000 operations, how many are fsync, fdatasync or sync.
    pub syncs: u32,
    /// Of 1000 operations, how many are commits without a flush.
    pub commits: u32,
    /// Of 1000 operations, how many unmount and mount again.
    pub remounts: u32,
    /// Of 1000 operations, how many clean, make or give up snapshots, or delete checkpoints.
    pub administration: u32,
    /// Whether reads fail now and then while the volume is cleaned.
    pub faults: bool,
    /// Of 1000 operations, how many give the volume another size or discard its free space.
    pub sizes: u32,
}

impl Profile {
    /// Everything, in moderation.
    pub const MIXED: Profile = Profile {
        write_max: 20_000,
        file_max: 400_000,
        far: true,
        syncs: 40,
        commits: 20,
        remounts: 10,
        administration: 50,
        faults: false,
        sizes: 0,
    };
    /// Small files and many syncs, so that power cuts have much to lose.
    pub const SYNCS: Profile = Profile {
        write_max: 5_000,
        file_max: 20_000,
        far: true,
        syncs: 200,
        commits: 60,
        remounts: 15,
        administration: 70,
        faults: false,
        sizes: 0,
    };
    /// Large writes that fill a volume.
    pub const GREEDY: Profile = Profile {
        write_max: 60_000,
        file_max: 1_000_000,
        far: false,
        syncs: 30,
        commits: 20,
        remounts: 10,
        administration: 20,
        faults: false,
        sizes: 0,
    };
    /// Much history, made and cleaned away all the time.
    pub const ADMINISTRATION: Profile = Profile {
        write_max: 20_000,
        file_max: 100_000,
        far: false,
        syncs: 60,
        commits: 100,
        remounts: 20,
        administration: 300,
        faults: false,
        sizes: 0,
    };
    /// Everything that a power cut can meet: syncs, cleaning, snapshots, other sizes, and writes that
    /// fill a small volume.
    pub const TURMOIL: Profile = Profile {
        write_max: 8_000,
        file_max: 40_000,
        far: true,
        syncs: 200,
        commits: 40,
        remounts: 15,
        administration: 100,
        faults: false,
        sizes: 40,
    };
    /// A volume that becomes smaller and larger all the time, and so little in it that it can.
    pub const SIZES: Profile = Profile {
        write_max: 10_000,
        file_max: 40_000,
        far: false,
        syncs: 80,
        commits: 60,
        remounts: 20,
        administration: 100,
        faults: false,
        sizes: 120,
    };
}

/// A source of operations. Equal seeds give equal sequences.
#[derive(Debug)]
pub struct Generator {
    random: StdRng,
    profile: Profile,
    ahead: VecDeque<Op>,
    fill: u32,
}

impl Generator {
    /// A generator of the given kind.
    #[must_use]
    pub fn new(seed: u64, profile: Profile) -> Self {
        Self { random: StdRng::seed_from_u64(seed), profile, ahead: VecDeque::new(), fill: 0 }
    }

    /// The next operation for a file system in this state.
    pub fn next_op(&mut self, model: &Model) -> Op {
        if let Some(op) = self.ahead.pop_front() {
            return op;
        }
        let Profile { syncs, commits, remounts, administration, sizes, .. } = self.profile;
        let all =
            1000 + syncs + syncs / 4 + syncs / 8 + commits + remounts + administration + sizes;
        let mut choice = self.random.random_range(0..all);
        for (weight, make) in [
            (syncs, Self::any_sync as fn(&mut Self, &Model) -> Op),
            (commits, |_, _| Op::Commit),
            (remounts, |_, _| Op::Remount),
            (administration, Self::administer),
            (sizes, Self::another_size),
            (80, Self::create),
            (40, Self::create_directory),
            (25, Self::create_special),
            (25, Self::symlink),
            (25, Self::create_nameless),
            (50, Self::link),
            (70, Self::unlink),
            (30, Self::remove_directory),
            (90, Self::rename),
            (250, Self::write),
            (70, Self::truncate),
            (50, Self::set_attr),
            (10, Self::set_flags),
            (60, Self::read),
            (30, Self::seek),
            (20, |this, model| Op::Stat(this.target(model))),
            (10, |this, model| Op::ReadLink(this.path(model, Some(FileType::Symlink)))),
            (20, |this, model| Op::List(this.path(model, Some(FileType::Directory)))),
            (30, Self::open),
            (20, Self::close),
            (15, Self::burst_of_names),
            (syncs / 4, Self::database),
            (syncs / 8, Self::replacement),
        ] {
            if choice < weight {
                let op = make(self, model);
                if self.random.random_range(0..1000) < syncs {
                    let sync = self.sync_after(&op, model);
                    self.ahead.extend(sync);
                }
                return op;
            }
            choice -= weight;
        }
        self.scattered_writes(model)
    }

    /// Fsync of what `op` names: the file itself, its directory, or something that has moved with
    /// it.
    fn sync_after(&mut self, op: &Op, model: &Model) -> Option<Op> {
        let path = match op {
            Op::Create { path, .. }
            | Op::Symlink { path, .. }
            | Op::Unlink(path)
            | Op::RemoveDirectory(path)
            | Op::Link { to: path, .. }
            | Op::Rename { to: path, .. }
            | Op::Write { target: Target::Path(path), .. }
            | Op::SetAttr { target: Target::Path(path), .. } => path,
            _ => return None,
        };
        let mut near = vec![path.clone()];
        near.extend(path.split().map(|(parents, _)| Path(parents.to_vec())));
        if let Op::Rename { from, to, .. } = op {
            let all = model.paths();
            let below = all.iter().filter_map(|(path, _)| path.0.strip_prefix(&from.0[..]));
            near.extend(below.map(|rest| Path([&to.0, rest].concat())));
        }
        self.pick(&near).map(|path| Op::Fsync(Target::Path(path)))
    }

    fn chance(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        if from.is_empty() {
            return None;
        }
        Some(from[self.random.random_range(0..from.len())].clone())
    }

    /// A path that exists, of the kind asked for if there is one; now and then any path.
    fn path(&mut self, model: &Model, kind: Option<FileType>) -> Path {
        if self.chance(6) {
            return self.new_path(model);
        }
        let mut paths = model.paths();
        if !self.chance(5) {
            paths.retain(|(_, found)| kind.is_none_or(|kind| kind == *found));
        }
        match self.pick(&paths) {
            Some((path, _)) => path,
            None => self.new_path(model),
        }
    }

    /// A name in a directory that exists; often nothing has it yet.
    fn new_path(&mut self, model: &Model) -> Path {
        let directories: Vec<Path> = model
            .paths()
            .into_iter()
            .filter(|(path, kind)| *kind == FileType::Directory && path.0.len() < 5)
            .map(|(path, _)| path)
            .collect();
        let directory = self.pick(&directories).unwrap_or_default();
        let name = self.name();
        directory.join(name)
    }

    fn name(&mut self) -> Name {
        match self.random.random_range(0..100) {
            0 => Name::TOO_LONG,
            1..8 => Name(self.random.random_range(Name::LONG..Name::TOO_LONG.0)),
            8..25 => Name(Name::NUMBERED + self.random.random_range(0..200)),
            _ => Name(self.random.random_range(0..8)),
        }
    }

    fn target_of(&mut self, model: &Model, kind: Option<FileType>) -> Target {
        let handles = model.handles();
        if self.chance(25)
            && let Some(handle) = self.pick(&handles)
        {
            return Target::Handle(handle);
        }
        Target::Path(self.path(model, kind))
    }

    fn target(&mut self, model: &Model) -> Target {
        self.target_of(model, None)
    }

    fn file(&mut self, model: &Model) -> Target {
        self.target_of(model, Some(FileType::Regular))
    }

    fn size_of(&self, model: &Model, target: &Target) -> u64 {
        let node = model.find(target).ok().and_then(|id| model.node(id));
        node.map_or(0, |node| node.facts().size)
    }

    fn create(&mut self, model: &Model) -> Op {
        let path = self.new_path(model);
        self.make(path, FileType::Regular)
    }

    fn create_directory(&mut self, model: &Model) -> Op {
        let path = self.new_path(model);
        self.make(path, FileType::Directory)
    }

    fn create_special(&mut self, model: &Model) -> Op {
        let kinds = [FileType::CharDevice, FileType::BlockDevice, FileType::Fifo, FileType::Socket];
        let kind = kinds[self.random.random_range(0..kinds.len())];
        let path = self.new_path(model);
        self.make(path, kind)
    }

    fn make(&mut self, path: Path, kind: FileType) -> Op {
        let rdev = match kind {
            FileType::CharDevice | FileType::BlockDevice => DeviceCode {
                major: self.random.random_range(0..4096),
                minor: self.random.random_range(0..1 << 20),
            },
            _ => DeviceCode::default(),
        };
        let special_bits = if self.chance(5) { self.random.random_range(0..8) << 9 } else { 0 };
        let mode = self.random.random_range(0..0o1000) | special_bits;
        Op::Create { path, kind, mode, rdev }
    }

    /// A file that is written without a name and then gets one, as often as not after a sync.
    fn create_nameless(&mut self, model: &Model) -> Op {
        let directory = self.path(model, Some(FileType::Directory));
        let handle = self.random.random_range(0..4);
        let target = || Target::Handle(handle);
        for _ in 0..self.random.random_range(0..3) {
            let (offset, length) = (self.random.random_range(0..3000), self.length());
            let write = Op::Write { target: target(), offset, length, fill: self.next_fill() };
            self.ahead.push_back(write);
        }
        if self.chance(50) {
            let sync = if self.chance(50) { Op::Fsync(target()) } else { Op::Commit };
            self.ahead.push_back(sync);
        }
        if self.chance(70) {
            let to = self.new_path(model);
            self.ahead.push_back(Op::Link { target: target(), to });
        }
        Op::CreateNameless { directory, mode: self.random.random_range(0..0o1000), handle }
    }

    fn symlink(&mut self, model: &Model) -> Op {
        let length = match self.random.random_range(0..10) {
            0 => self.random.random_range(1000..1100),
            1 => self.random.random_range(1..5000),
            _ => self.random.random_range(1..120),
        };
        let path = self.new_path(model);
        Op::Symlink { path, length }
    }

    fn link(&mut self, model: &Model) -> Op {
        let target = self.file(model);
        let to = self.new_path(model);
        Op::Link { target, to }
    }

    fn unlink(&mut self, model: &Model) -> Op {
        let kind = self.chance(60).then_some(FileType::Regular);
        Op::Unlink(self.path(model, kind))
    }

    fn remove_directory(&mut self, model: &Model) -> Op {
        Op::RemoveDirectory(self.path(model, Some(FileType::Directory)))
    }

    fn rename(&mut self, model: &Model) -> Op {
        let from = self.path(model, None);
        let to = if self.chance(50) { self.path(model, None) } else { self.new_path(model) };
        let mode = match self.random.random_range(0..5) {
            0 => RenameMode::NoReplace,
            1 => RenameMode::Exchange,
            _ => RenameMode::Replace,
        };
        Op::Rename { from, to, mode }
    }

    fn next_fill(&mut self) -> u32 {
        self.fill += 1;
        if self.chance(3) { 0 } else { self.fill }
    }

    fn offset(&mut self, size: u64) -> u64 {
        let file_max = self.profile.file_max;
        match self.random.random_range(0..100) {
            0..35 => size.min(4 * file_max),
            35..70 if size > 0 => self.random.random_range(0..size.min(file_max)),
            70..80 => self.random.random_range(0..12) * 1024,
            80..84 if self.profile.far => {
                let power = self.random.random_range(20..63);
                (1u64 << power) + self.random.random_range(0..5000) - 2500
            }
            84 => u64::MAX >> self.random.random_range(0..3),
            _ => self.random.random_range(0..file_max),
        }
    }

    fn length(&mut self) -> u64 {
        let most = self.profile.write_max;
        match self.random.random_range(0..10) {
            0 => self.random.random_range(1..3),
            1..3 => 1024 * self.random.random_range(1..=most.div_ceil(1024)),
            3..6 => self.random.random_range(1..3000),
            _ => self.random.random_range(1..=most),
        }
    }

    fn write(&mut self, model: &Model) -> Op {
        let target = self.file(model);
        let offset = self.offset(self.size_of(model, &target));
        Op::Write { target, offset, length: self.length(), fill: self.next_fill() }
    }

    /// A few bytes each in many blocks, which makes B-trees grow at little cost.
    fn scattered_writes(&mut self, model: &Model) -> Op {
        let target = Target::Path(self.path(model, Some(FileType::Regular)));
        let stride = 1024 << self.random.random_range(0..10);
        let start = self.random.random_range(0..8) * stride + self.random.random_range(0..1024);
        for nth in 0..self.random.random_range(10..60) {
            let write = Op::Write {
                target: target.clone(),
                offset: start + nth * stride,
                length: self.random.random_range(1..20),
                fill: self.next_fill(),
            };
            self.ahead.push_back(write);
        }
        Op::Stat(target)
    }

    /// As a database does: overwrites in place, each made durable before the next, between
    /// changes elsewhere that are not.
    fn database(&mut self, model: &Model) -> Op {
        let target = self.file(model);
        let size = self.size_of(model, &target).min(self.profile.file_max);
        for _ in 0..self.random.random_range(1..5) {
            if self.chance(30) {
                let elsewhere = self.write(model);
                self.ahead.push_back(elsewhere);
            }
            for _ in 0..self.random.random_range(1..3) {
                let offset = self.random.random_range(0..size.max(1));
                let length = self.random.random_range(1..=3000).min(size - offset.min(size));
                let fill = self.next_fill();
                let write = Op::Write { target: target.clone(), offset, length, fill };
                self.ahead.push_back(write);
            }
            self.ahead.push_back(Op::Fdatasync(target.clone()));
        }
        Op::Fsync(target)
    }

    /// Many names in one directory, so that it has several blocks, and some of them gone again.
    fn burst_of_names(&mut self, model: &Model) -> Op {
        let directory = self.path(model, Some(FileType::Directory));
        let first = self.random.random_range(0..300);
        let count = self.random.random_range(5..60);
        for nth in first..first + count {
            let path = directory.join(Name(Name::NUMBERED + nth));
            let op = self.make(path, FileType::Fifo);
            self.ahead.push_back(op);
        }
        for _ in 0..count / 2 {
            let nth = self.random.random_range(first..first + count);
            let path = directory.join(Name(Name::NUMBERED + nth));
            self.ahead.push_back(Op::Unlink(path));
        }
        Op::List(directory)
    }

    fn truncate(&mut self, model: &Model) -> Op {
        let target = self.file(model);
        let size = self.size_of(model, &target);
        let size = match self.random.random_range(0..10) {
            0..2 => 0,
            2..5 if size > 0 => self.random.random_range(0..size),
            5 => size,
            _ => self.offset(size),
        };
        let mtime = self.chance(10).then(|| SetTime::At(self.time()));
        let changes = SetAttr { size: Some(size), mtime, ..SetAttr::default() };
        Op::SetAttr { target, changes }
    }

    fn set_attr(&mut self, model: &Model) -> Op {
        let target = self.target(model);
        let mut changes = SetAttr::default();
        if self.chance(50) {
            changes.mode = Some(self.random.random_range(0..0o1000));
        }
        if self.chance(30) {
            changes.uid = Some(self.random.random());
            changes.gid = Some(self.random.random_range(0..70_000));
        }
        if self.chance(30) {
            changes.mtime = Some(SetTime::At(self.time()));
        }
        if self.chance(10) {
            changes.ctime = Some(self.time());
        }
        Op::SetAttr { target, changes }
    }

    fn time(&mut self) -> Timestamp {
        Timestamp {
            seconds: self.random.random_range(-(1 << 34)..1 << 34),
            nanoseconds: self.random.random_range(0..1_000_000_000),
        }
    }

    fn set_flags(&mut self, model: &Model) -> Op {
        const IMMUTABLE: u32 = 0x10;
        const APPEND: u32 = 0x20;
        const NODUMP: u32 = 0x40;
        const NOATIME: u32 = 0x80;
        const UNKNOWN: u32 = 0x8000_0000;
        let flags = [0, 0, 0, NODUMP, NOATIME, NODUMP | NOATIME, APPEND, IMMUTABLE, UNKNOWN];
        let flags = flags[self.random.random_range(0..flags.len())];
        let target = self.target(model);
        Op::SetFlags { target, flags }
    }

    fn read(&mut self, model: &Model) -> Op {
        let target = self.file(model);
        let offset = self.offset(self.size_of(model, &target));
        Op::Read { target, offset, length: self.length() }
    }

    fn seek(&mut self, model: &Model) -> Op {
        let target = self.file(model);
        let offset = self.offset(self.size_of(model, &target));
        let what = if self.chance(50) { Seek::Data } else { Seek::Hole };
        Op::Seek { target, offset, what }
    }

    fn open(&mut self, model: &Model) -> Op {
        let path = self.path(model, Some(FileType::Regular));
        let handle = self.random.random_range(0..4);
        Op::Open { path, handle }
    }

    fn close(&mut self, model: &Model) -> Op {
        let handles = model.handles();
        let handle = self.pick(&handles).unwrap_or(0);
        Op::Close(handle)
    }

    fn administer(&mut self, _: &Model) -> Op {
        match self.random.random_range(0..20) {
            0..3 => Op::Checkpoint,
            3..6 => Op::SetSnapshot { nth: self.random.random(), snapshot: true },
            6..8 => Op::FollowRule,
            8..11 => Op::SetSnapshot { nth: self.random.random(), snapshot: false },
            11..13 => Op::RollBack { nth: self.random.random_range(0..8) },
            13..16 => Op::DeleteCheckpoints {
                first: self.random.random(),
                further: self.random.random_range(0..8),
            },
            _ => {
                let periods = [0, 0, 0, 5, 30, 100, 3600];
                let protection = periods[self.random.random_range(0..periods.len())];
                let faults = self.profile.faults.then(|| self.random.random());
                Op::Clean { protection, faults }
            }
        }
    }

    fn another_size(&mut self, _: &Model) -> Op {
        match self.random.random_range(0..3) {
            0 => Op::Trim,
            _ => Op::Resize { percent: self.random.random_range(45..=LARGEST) },
        }
    }

    /// Any of the syncs, each of which promises something else.
    fn any_sync(&mut self, model: &Model) -> Op {
        match self.random.random_range(0..20) {
            0..3 => Op::Sync,
            3 => Op::Fsync(Target::Path(Path::root())),
            4..6 => Op::Fsync(self.target_of(model, Some(FileType::Directory))),
            6..8 => Op::Fsync(self.target(model)),
            8..14 => Op::Fsync(self.file(model)),
            _ => Op::Fdatasync(self.file(model)),
        }
    }

    /// A file is written anew and takes the place of the old one, with fsyncs on the way or without.
    fn replacement(&mut self, model: &Model) -> Op {
        let to = self.path(model, Some(FileType::Regular));
        let from = Path(to.split().map_or(Vec::new(), |(parents, _)| parents.to_vec()));
        let from = from.join(Name(Name::NUMBERED + self.random.random_range(0..200)));
        let create = self.make(from.clone(), FileType::Regular);
        for _ in 0..self.random.random_range(1..3) {
            let offset = self.random.random_range(0..3000);
            let (length, fill) = (self.length(), self.next_fill());
            let target = Target::Path(from.clone());
            self.ahead.push_back(Op::Write { target, offset, length, fill });
        }
        if self.chance(30) {
            self.ahead.push_back(Op::Fsync(Target::Path(from.clone())));
        }
        let mode = if self.chance(20) { RenameMode::Exchange } else { RenameMode::Replace };
        self.ahead.push_back(Op::Rename { from, to: to.clone(), mode });
        if self.chance(30) {
            let elsewhere = self.write(model);
            self.ahead.push_back(elsewhere);
        }
        if self.chance(50) {
            let sync = self.any_sync(model);
            self.ahead.push_back(sync);
        }
        create
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{EPOCH, ThreadClock};
    use crate::outcome::{Facts, Outcome};

    fn root() -> Facts {
        Facts {
            kind: FileType::Directory,
            mode: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: DeviceCode::default(),
            size: 0,
            mtime: EPOCH,
            ctime: EPOCH,
            flags: 0,
        }
    }

    /// A generator that only collects refusals would judge nothing.
    #[test]
    fn most_operations_succeed_and_equal_seeds_give_equal_sequences() {
        let run = |seed| {
            let mut model = Model::new(1024, &root());
            let mut generator = Generator::new(seed, Profile::MIXED);
            let mut refused = 0;
            let mut printed = Vec::new();
            for step in 0..2000 {
                let op = generator.next_op(&model);
                let outcome = model.apply(&op, ThreadClock::at_step(step));
                refused += u32::from(matches!(outcome, Outcome::Refused(_)));
                printed.push(op.to_string());
            }
            assert!(refused < 700, "{refused} of 2000 were refused");
            (printed, model.tree())
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1).0, run(2).0);
    }
}
