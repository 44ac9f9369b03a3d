//! A listing of a directory neither skips nor repeats a name that is there all the time, whatever
//! happens to other names meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use nilfs_device::MemoryDevice;
use nilfs_engine::RenameMode;
use nilfs_ondisk::inode::{DeviceCode, FileType};
use nilfs_sim::name::{Name, Path};
use nilfs_sim::op::Op;
use nilfs_sim::seeds::for_each_seed;
use nilfs_sim::subject::{Mounting, Subject};
use nilfs_sim::volume::Shape;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Names with an even number stay; those with an odd number come and go.
const NAMES: u16 = 400;

fn path(number: u16) -> Path {
    Path::root().join(Name(Name::NUMBERED + number))
}

fn create(number: u16) -> Op {
    let rdev = DeviceCode::default();
    Op::Create { path: path(number), kind: FileType::Fifo, mode: 0o644, rdev }
}

fn change(random: &mut StdRng) -> Op {
    let mut odd = || random.random_range(0..NAMES) | 1;
    let (one, other) = (odd(), odd());
    match random.random_range(0..5) {
        0 => create(one),
        1 => Op::Unlink(path(one)),
        2 => Op::Rename { from: path(one), to: path(other), mode: RenameMode::Replace },
        3 => Op::Rename { from: path(one), to: path(other), mode: RenameMode::Exchange },
        _ => Op::Commit,
    }
}

#[test]
fn names_that_stay_are_listed_once() {
    for_each_seed("names_that_stay_are_listed_once", 20, |seed| {
        let mut random = StdRng::seed_from_u64(seed);
        let device = Arc::new(MemoryDevice::from(Shape::SMALL.format()));
        let mut subject = Subject::mount(device, Mounting::READ_WRITE)
            .unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        for _ in 0..NAMES {
            subject.apply(&create(random.random_range(0..NAMES) | 1));
        }
        (0..NAMES).step_by(2).for_each(|number| drop(subject.apply(&create(number))));
        let listed = subject.list_slowly(&Path::root(), |subject| {
            for _ in 0..random.random_range(0..30) {
                subject.apply(&change(&mut random));
            }
        });
        let mut times: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        for name in listed.unwrap_or_else(|what| panic!("seed {seed}: {what}")) {
            *times.entry(name).or_default() += 1;
        }
        for number in (0..NAMES).step_by(2) {
            let name = Name(Name::NUMBERED + number);
            let times = times.get(&name.bytes()).copied().unwrap_or(0);
            assert_eq!(times, 1, "seed {seed}: times that {name} was listed");
        }
    });
}
