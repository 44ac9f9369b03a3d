//! Two pointers to one block: the file keeps it for which its log says that it was written, and the
//! other pointer leads to its own block again, or to none.

mod support;

use nilfs_repair::Risk;
use support::{BLOCK_SIZES, Image, Patient, heals_with, read, vblock, write};

/// The pointers of an inode's map, if it has no nodes.
const DIRECT: usize = 56 + 8;
const I_BLOCKS: usize = 0;

#[test]
fn two_virtual_blocks_at_one_place() {
    for (one, other) in [("direct", "sparse"), ("sparse", "direct"), ("tree", "many")] {
        heals_with(Risk::Safe, |image| {
            let first = |image: &Image, name: &str| {
                let blocks = image.blocks_of(image.named(name));
                let live = blocks.into_iter().rev().find(|it| !it.info.is_node()).unwrap();
                let (entry, at) = image.dat_entry(vblock(live));
                (vblock(live), read(&image.block(entry.block)[at..], 0))
            };
            let (_, taken) = first(image, other);
            let (wrong, _) = first(image, one);
            image.edit_dat(wrong, |entry| write(entry, 0, taken));
        });
    }
}

#[test]
fn two_pointers_to_one_virtual_block() {
    heals_with(Risk::Safe, |image| {
        let (direct, many) = (image.named("moved"), image.named("many"));
        let taken = vblock(image.data(many, 0)).0;
        image.edit_inode(direct, |inode| write(inode, DIRECT, taken));
    });
}

/// The block after the end was never there.
#[test]
fn a_pointer_to_what_another_file_has_is_taken_out() {
    for block_size in BLOCK_SIZES {
        let mut image = Image::by_linux(block_size);
        let (moved, many) = (image.named("moved"), image.named("many"));
        let taken = vblock(image.data(many, 0)).0;
        image.edit_inode(moved, |inode| {
            write(inode, DIRECT + 8, taken);
            let blocks = read(inode, I_BLOCKS);
            write(inode, I_BLOCKS, blocks + block_size / 512);
        });
        let patient = Patient::new(image);
        let healed = patient.is_healed(Risk::Loses);
        let plan = Patient::new(healed).plan();
        assert!(plan.repairs.is_empty());
    }
}

#[test]
fn the_plan_says_what_becomes_a_hole() {
    let mut image = Image::by_linux(4096);
    let (moved, many) = (image.named("moved"), image.named("many"));
    let taken = vblock(image.data(many, 0)).0;
    image.edit_inode(moved, |inode| write(inode, DIRECT + 8, taken));
    let repairs = Patient::new(image).plan().repairs;
    // Of many files, those are of one kind of which the same is done.
    let action = "make a hole of the 4096 bytes at byte 4096";
    let hole =
        repairs.iter().find(|it| it.action == action).unwrap_or_else(|| panic!("{repairs:?}"));
    assert!(hole.to_string().ends_with(&format!(": moved: {action}")), "{hole}");
}
