use nilfs_ondisk::{BlockNr, BlockSize};

use super::*;

/// Volumes from tiny to large: bytes of a block, blocks of a segment, segments.
const VOLUMES: [(u64, u32, u64); 8] = [
    (1024, 16, 64),
    (1024, 128, 96),
    (1024, 256, 400),
    (4096, 64, 48),
    (4096, 128, 80),
    (4096, 2048, 128),
    (4096, 2048, 1 << 17),
    (65536, 2048, 1 << 12),
];

fn geometry((bytes, blocks_per_segment, nsegments): (u64, u32, u64)) -> Geometry {
    Geometry {
        block_size: BlockSize::from_bytes(bytes).unwrap(),
        blocks_per_segment,
        nsegments,
        first_data_block: BlockNr(1),
        reserved_percent: 5,
        inode_size: 128,
        dat_entry_size: 32,
        checkpoint_size: 192,
        segment_usage_size: 16,
    }
}

fn full_dat(geometry: &Geometry) -> u64 {
    blocks(geometry) * geometry.dat_entry_size as u64 / geometry.block_size.bytes64()
}

/// An account where `unused` blocks are not needed, of which `free` are clean.
fn account(geometry: &Geometry, unused: u64, free: u64) -> Account {
    account_with_past(geometry, unused, free, None)
}

/// An account of a volume on which this checkpoint is the last that is kept besides the newest.
fn account_with_past(
    geometry: &Geometry,
    unused: u64,
    free: u64,
    last_kept: Option<Cno>,
) -> Account {
    let needed = Needed { blocks: total(geometry) - unused, last_kept };
    let device = DeviceSpace::new(geometry, free, Some(needed), full_dat(geometry));
    Account { device, ..Account::default() }
}

/// An operation on one page of a file.
fn cost(effect: Effect) -> Cost {
    Cost { pages: 1, inodes: 1, effect }
}

#[test]
fn each_layer_holds_those_below_and_the_reserve_holds_them_all() {
    for volume in VOLUMES {
        let geometry = geometry(volume);
        let layers = Layers::new(&geometry, full_dat(&geometry));
        let Layers { kept, changing, deleting, last } = layers;
        assert!(
            last < deleting && deleting < changing && changing < kept,
            "{volume:?}: {layers:?}"
        );
        let reserve = reserve(&geometry, 0);
        assert!(reserve > changing, "{volume:?}: {reserve} blocks");
        // The smallest has no more than a thousand blocks, and a commit may take sixty.
        if blocks(&geometry) > 2000 {
            assert!(reserve < blocks(&geometry) / 3, "{volume:?}: {reserve} blocks");
        }
    }
}

/// The reserve is as large when the volume is empty as when it is full: what is called available
/// must not shrink by being used.
#[test]
fn filling_a_volume_does_not_make_its_reserve_larger() {
    for volume in VOLUMES {
        let geometry = geometry(volume);
        assert_eq!(reserve(&geometry, 1), reserve(&geometry, full_dat(&geometry)), "{volume:?}");
    }
}

/// As the head of the module has it: what is not clean when an overwrite has to wait suffices for a
/// step that gains more than its commit takes.
#[test]
fn a_step_pays_when_a_full_volume_is_overwritten() {
    for volume in VOLUMES {
        let geometry = geometry(volume);
        let dat = full_dat(&geometry);
        let layers = Layers::new(&geometry, dat);
        let summaries = geometry.nsegments
            * geometry.block_size.blocks_for(SUMMARY_BYTES_PER_BLOCK * u64::from(volume.1));
        let not_clean = reserve(&geometry, dat) - layers.changing - BLOCKS_PER_COMMIT;
        let dead = not_clean - summaries - dat;
        let gained = layers.movable() * dead / blocks(&geometry);
        assert!(gained >= STEP_BLOCKS, "{volume:?}: a step gains {gained} blocks");
    }
}

#[test]
fn only_what_grows_leaves_the_reserve_unused() {
    let geometry = geometry(VOLUMES[4]);
    let reserve = reserve(&geometry, 0);
    let full = account(&geometry, reserve, reserve);
    assert!(!full.leaves_reserve(cost(Effect::Grows)));
    assert!([Effect::Changes, Effect::Frees].map(cost).into_iter().all(|it| full.fits(it, 0)));
    let grown = full.device.growth(Changes::from(cost(Effect::Grows)));
    let room_for_one = account(&geometry, reserve + grown, reserve + grown);
    assert!(room_for_one.leaves_reserve(cost(Effect::Grows)));
}

/// A block that was overwritten under a snapshot counted as if it could be reclaimed, until a checkpoint
/// said that it could not: meanwhile more was called available than could be written.
#[test]
fn what_is_overwritten_under_a_snapshot_takes_room_until_it_is_known_better() {
    let geometry = geometry(VOLUMES[4]);
    let space = Space::default();
    let left = |last_kept| {
        *space.0.lock() = account_with_past(&geometry, 3000, 2000, last_kept);
        let overwritten = Changes { pages: 160, maps: 1, ..Changes::default() };
        space.add(overwritten);
        let left = space.unused_blocks();
        space.add(Changes { grown: 160, ..Changes::default() });
        (left, space.unused_blocks())
    };
    assert_eq!(left(None), (3000, 3000 - 170));
    assert_eq!(left(Some(Cno(7))), (3000 - 170, 3000 - 170));
}

#[test]
fn the_fewer_blocks_are_clean_the_less_may_be_done() {
    let geometry = geometry(VOLUMES[4]);
    let layers = Layers::new(&geometry, full_dat(&geometry));
    let may = |free, effect| account(&geometry, total(&geometry) / 2, free).fits(cost(effect), 0);
    let needed = account(&geometry, 0, 0).needed(Some(cost(Effect::Changes)));
    for (layer, effect) in [
        (layers.kept, Effect::Grows),
        (layers.changing, Effect::Changes),
        (layers.deleting, Effect::Frees),
    ] {
        assert!(may(layer + needed, effect), "{effect:?}");
        assert!(!may(layer + needed - 1, effect), "{effect:?}");
    }
}

/// A claim, what it became, and what a commit took of that: none is missing for a moment, and none
/// is left over.
#[test]
fn a_change_counts_until_the_room_is_what_its_commit_has_left() {
    let geometry = geometry(VOLUMES[4]);
    let ifile = Palloc::new(geometry.block_size, geometry.inode_size);
    let space = Space::default();
    *space.0.lock() = account(&geometry, 3000, 2000);
    let needed = || space.0.lock().needed(None);
    let idle = needed();
    let claim = space.claim(cost(Effect::Grows)).unwrap();
    let claimed = needed();
    assert!(claimed > idle);
    space.add(Changes { pages: 1, grown: 1, maps: 1, ..Changes::default() });
    assert!(space.add_inode(Ino(11), &ifile));
    drop(claim);
    let dirty = needed();
    assert!(dirty > idle && space.is_dirty());
    space.freeze();
    assert!(needed() == dirty && !space.is_dirty());
    space.0.lock().take_over(DeviceSpace::new(&geometry, 1990, None, full_dat(&geometry)));
    assert_eq!((needed(), space.free_blocks()), (idle, 1990));
}

/// Whether its file is overwritten, shortened or committed after a log has taken it.
#[test]
fn a_block_that_a_log_has_is_charged_without_itself_until_it_changes() {
    let geometry = geometry(VOLUMES[4]);
    let space = Space::default();
    *space.0.lock() = account(&geometry, 3000, 2000);
    let needed = || space.0.lock().needed(None);
    let counts = || (needed(), space.free_blocks());
    let idle = counts();
    space.add(Changes { pages: 5, maps: 1, ..Changes::default() });
    let (needed, free) = counts();
    space.add_placed(5);
    assert_eq!(counts(), (needed - 5, free + 5));
    space.remove_placed(2);
    assert_eq!(counts(), (needed - 3, free + 3));
    space.freeze();
    assert_eq!(counts(), (needed - 3, free + 3));
    space.thaw();
    assert_eq!(counts(), idle);
    space.add(Changes { pages: 5, maps: 1, ..Changes::default() });
    space.add_placed(3);
    space.remove_pages(4, 3);
    assert_eq!(space.free_blocks(), free + 4);
}

/// With every block that it compacts, the cleaner moves more for the next.
#[test]
fn the_cleaner_is_never_asked_for_more_than_half_of_what_it_could_gain() {
    let geometry = geometry(VOLUMES[4]);
    let space = Space::default();
    let layers = Layers::new(&geometry, full_dat(&geometry));
    for unused in (layers.kept..total(&geometry)).step_by(100) {
        *space.0.lock() = account(&geometry, unused, layers.changing);
        let overwrite = cost(Effect::Changes);
        let lacks = space.0.lock().needed(Some(overwrite));
        let more = space.missing(Some(overwrite)) - lacks;
        assert!(more <= (unused - layers.changing) / 2, "{more} of {unused}");
    }
}

/// On a card, what is clean ahead of need can take the better part of a minute to make.
#[test]
fn nobody_waits_for_what_is_cleaned_ahead_of_need_on_a_large_volume() {
    let geometry = geometry(VOLUMES[VOLUMES.len() - 1]);
    let space = Space::default();
    let layers = Layers::new(&geometry, full_dat(&geometry));
    *space.0.lock() = account(&geometry, total(&geometry) / 2, layers.changing);
    let grows = cost(Effect::Grows);
    let least = space.0.lock().needed(Some(grows)) + layers.kept - layers.changing;
    assert!(space.waited_for(grows) <= least + geometry.block_size.blocks_for(16 << 20));
    let ahead = 20 * u64::from(geometry.blocks_per_segment);
    assert!(space.missing(Some(grows)) > least + ahead, "that is what is cleaned ahead");
}
