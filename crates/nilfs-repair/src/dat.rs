//! The DAT of a draft: where virtual blocks are, and which checkpoints have them.

use std::collections::HashMap;

use nilfs_device::Device;
use nilfs_ondisk::bmap::{Node, Root};
use nilfs_ondisk::dat::DatEntry;
use nilfs_ondisk::palloc::Palloc;
use nilfs_ondisk::super_root::SuperRoot;
use nilfs_ondisk::{BlockNr, FileBlock, Geometry, VBlockNr};

/// The DAT as a super root names it.
pub(crate) struct Dat<'d> {
    device: &'d dyn Device,
    geometry: Geometry,
    layout: Palloc,
    root: Root,
    blocks: HashMap<u64, Option<Vec<u8>>>,
}

impl<'d> Dat<'d> {
    /// The DAT to which the super root in a block leads, if that is one.
    pub(crate) fn open(
        device: &'d dyn Device,
        (geometry, seed): (Geometry, u32),
        super_root: BlockNr,
    ) -> Option<Self> {
        let super_root = SuperRoot::parse(&read(device, &geometry, super_root)?, &geometry, seed);
        let root = Root::parse(&super_root.ok()?.dat.i_bmap).ok()?;
        Some(Self::new(device, geometry, root))
    }

    /// The DAT with this block map.
    pub(crate) fn new(device: &'d dyn Device, geometry: Geometry, root: Root) -> Self {
        let layout = Palloc::new(geometry.block_size, geometry.dat_entry_size);
        Self { device, geometry, layout, root, blocks: HashMap::new() }
    }

    /// The entry of a virtual block, whether or not it is in use.
    pub(crate) fn entry(&mut self, vblock: VBlockNr) -> Option<DatEntry> {
        let slot = self.layout.entry(vblock.0);
        if !self.blocks.contains_key(&slot.block.0) {
            let found = self.block(slot.block);
            self.blocks.insert(slot.block.0, found);
        }
        let block = self.blocks.get(&slot.block.0)?.as_ref()?;
        DatEntry::parse(&block[slot.offset..]).ok()
    }

    fn block(&self, wanted: FileBlock) -> Option<Vec<u8>> {
        let (mut level, mut pointer) = match &self.root {
            Root::Direct(pointers) => {
                (0, *pointers.get(usize::try_from(wanted.0).ok()?).filter(|it| **it != 0)?)
            }
            Root::Tree { level, entries } => {
                let (key, pointer) = entries.iter().rev().find(|(key, _)| *key <= wanted.0)?;
                if *level == 1 && *key != wanted.0 {
                    return None;
                }
                (level - 1, *pointer)
            }
        };
        while level > 0 {
            let bytes = read(self.device, &self.geometry, BlockNr(pointer))?;
            let node = Node::parse(&bytes, level).ok()?;
            let nth = node.rank(wanted.0).checked_sub(1)?;
            if level == 1 && node.key(nth) != wanted.0 {
                return None;
            }
            (level, pointer) = (level - 1, node.pointer(nth));
        }
        read(self.device, &self.geometry, BlockNr(pointer))
    }
}

/// A block of the volume, if it is one and can be read.
pub(crate) fn read(device: &dyn Device, geometry: &Geometry, block: BlockNr) -> Option<Vec<u8>> {
    let mut bytes = vec![0; geometry.block_size.bytes()];
    let offset = geometry.block_size.address_of(block).filter(|_| geometry.has_block(block))?;
    device.read_at(offset, &mut bytes).ok()?;
    Some(bytes)
}
