//! Linux's recovery and ours make the same of a power cut, whenever it comes and whatever of the writes
//! it takes away: both get the same bytes of volumes that are mounted with `fsync=checkpoint`, whose
//! logs Linux knows all of. `NILFS_TEST_SCALE` multiplies the number of lives.

mod common {
    pub mod ours;
}

use std::fs;

use common::ours::{Image, assert_same_but_for_times, scale};
use nilfs_engine::FsyncBy;
use nilfs_real_kernels::{Manifest, Uml};
use nilfs_sim::generate::Profile;
use nilfs_sim::power::{Disk, Survivors};
use nilfs_sim::subject::Mounting;
use nilfs_sim::volume::Shape;
use nilfs_sim::world::{Settings, World};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// Operations of a life.
const OPERATIONS: usize = 400;

/// Power cuts in each life.
const CUTS: usize = 12;

/// Every crash image is copied onto the one disk that the guest has, so all have one size.
const SHAPES: [Shape; 3] = [
    Shape { block_size: 1024, blocks_per_segment: 64, segments: 64 },
    Shape { block_size: 2048, blocks_per_segment: 32, segments: 64 },
    Shape { block_size: 4096, blocks_per_segment: 16, segments: 64 },
];

/// Mounts one after the other and says what is there.
const SCRIPT: &str = r#"
for image in "$IMAGES"/*.img; do
    dd if="$image" of="$DEV" bs=1M conv=fsync status=none
    mount_nilfs
    manifest "$MNT" >"$image.linux"
    umount_nilfs
done
"#;

/// What the device holds after cuts all over a life, each with a name.
fn crashes(seed: u64) -> Vec<(String, Vec<u8>)> {
    let mounting = Mounting {
        fsync: FsyncBy::Checkpoint,
        protection: [3600, 0][seed as usize % 2],
        flash_page: [4 << 10, 1 << 10][seed as usize / 2 % 2],
        ..Mounting::READ_WRITE
    };
    let shape = SHAPES[seed as usize % SHAPES.len()];
    // What lies far from the beginning of a file takes for ever to be read.
    let profile = Profile { far: false, ..Profile::SYNCS };
    let mut world = World::new(Settings { shape, mounting, may_fill: false }).unwrap();
    world.live(seed, profile, OPERATIONS).unwrap_or_else(|failure| panic!("{failure}"));
    let (history, mut random) = (world.history(), StdRng::seed_from_u64(seed));
    let mut at: Vec<usize> =
        (0..CUTS).map(|_| random.random_range(0..=history.events.len())).collect();
    at.sort_unstable();
    let (mut disk, mut played) = (Disk::new(history.start.clone()), 0);
    let cut = |at: usize| {
        history.events[played..at].iter().for_each(|event| disk.play(event));
        played = at;
        let corner = Survivors::CORNERS.get(random.random_range(0..8)).copied();
        let survivors = corner.unwrap_or_else(|| Survivors::by_chance(&mut random));
        let what = format!("seed {seed}, {shape}, a cut at event {at}, {survivors:?}");
        (what, disk.after_cut(survivors))
    };
    at.into_iter().map(cut).collect()
}

#[test]
fn linux_and_we_recover_the_same() {
    let crashes: Vec<_> = (1..=4 * u64::from(scale())).flat_map(crashes).collect();
    let images = tempfile::tempdir().unwrap();
    let path = |nth: usize| images.path().join(format!("{nth:05}.img"));
    for (nth, (_, bytes)) in crashes.iter().enumerate() {
        fs::write(path(nth), bytes).unwrap();
    }
    let disk = Image::of_bytes(&vec![0; crashes[0].1.len()]);
    let guest = Uml::new(disk.path()).env("IMAGES", images.path()).script(SCRIPT);
    guest.run().unwrap().without_complaint_besides_recovery().unwrap();
    let mut entries = 0;
    for (nth, (what, bytes)) in crashes.iter().enumerate() {
        let theirs = fs::read_to_string(path(nth).with_extension("img.linux")).unwrap();
        let image = Image::of_bytes(bytes);
        let mounted = image.mount("ro");
        let ours = mounted.manifest("");
        mounted.unmount();
        entries += theirs.lines().count();
        assert_same_but_for_times(what, &ours, &theirs.parse::<Manifest>().unwrap());
    }
    println!("{} crashes, {entries} files and directories compared", crashes.len());
    assert!(entries > 5 * crashes.len(), "the lives have left too little to be compared");
}
