//! A rewritten map says of every block what a plain map in memory says, and every block is either
//! still in it or dead, whatever the history.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use nilfs_device::{IoSlice, MemoryDevice};
use nilfs_ondisk::bmap::{Root, encode_node};
use nilfs_ondisk::{BlockNr, BlockSize, FileBlock, Geometry};
use proptest::prelude::*;

use super::edit::{Update, rewrite};
use super::{Pointers, Source};
use crate::block::{bytes_mut, zeroed};
use crate::store::{Store, Verify};

/// Nodes of 1 KiB have 63 children at most, so trees grow high soon.
fn store() -> Store {
    let geometry = Geometry {
        block_size: BlockSize::from_bytes(1024).unwrap(),
        blocks_per_segment: 1024,
        nsegments: 32,
        first_data_block: BlockNr(4),
        reserved_percent: 5,
        inode_size: 128,
        dat_entry_size: 32,
        checkpoint_size: 192,
        segment_usage_size: 16,
    };
    Store::new(Arc::new(MemoryDevice::new(33 << 20)), geometry, 0, Verify::None)
}

/// One step of a history: a cut, then blocks that are set (true) or made holes.
type Step = (Option<u64>, BTreeMap<u64, bool>);

fn keys() -> impl Strategy<Value = BTreeMap<u64, bool>> {
    let near = (0u64..400, 0u64..500, any::<bool>()).prop_map(|(start, len, _)| {
        (start..start + len).map(|key| (key, true)).collect::<BTreeMap<_, _>>()
    });
    let sparse = prop::collection::btree_map(
        prop_oneof![0u64..8, 0u64..5000, any::<u64>().prop_map(|key| key >> 1)],
        prop::bool::weighted(0.7),
        0..120,
    );
    prop_oneof![near, sparse]
}

fn history() -> impl Strategy<Value = Vec<Step>> {
    let cut = prop::option::weighted(0.3, prop_oneof![Just(0u64), 0u64..6000]);
    prop::collection::vec((cut, keys()), 1..8)
}

struct World {
    store: Store,
    root: Root,
    model: BTreeMap<u64, u64>,
    nodes: BTreeSet<u64>,
    next: u64,
}

impl World {
    fn source(&self) -> Source<'_> {
        Source { store: &self.store, pointers: Pointers::Physical }
    }

    fn step(&mut self, (cut, keys): &Step) {
        let updates: Vec<Update> = keys
            .iter()
            .map(|(&key, &set)| {
                self.next += 1;
                (FileBlock(key), set.then_some(1 << 40 | self.next))
            })
            .collect();
        let mut map = rewrite(self.source(), &self.root, cut.map(FileBlock), &updates).unwrap();
        let before = self.model.len() + self.nodes.len();
        let mut dead: BTreeSet<u64> = map.dead.iter().copied().collect();
        assert_eq!(dead.len(), map.dead.len(), "nothing dies twice");
        if let Some(cut) = cut {
            for (_, pointer) in self.model.split_off(cut) {
                assert!(dead.remove(&pointer), "a cut block is dead");
            }
        }
        for (key, pointer) in &updates {
            let old = match pointer {
                Some(pointer) => self.model.insert(key.0, *pointer),
                None => self.model.remove(&key.0),
            };
            assert!(old.is_none_or(|old| dead.remove(&old)), "a replaced block is dead");
        }
        for pointer in dead {
            assert!(self.nodes.remove(&pointer), "all other dead blocks are nodes");
        }
        let base = self.next + 4;
        self.next += map.nodes.len() as u64;
        map.resolve(|nth| base + nth as u64, |data| data);
        for (nth, node) in map.nodes.iter().enumerate() {
            let mut block = zeroed(self.store.block_size());
            encode_node(bytes_mut(&mut block), node.level, &node.entries);
            let address = base + nth as u64;
            self.store.write_run(BlockNr(address), &[IoSlice::new(&block)]).unwrap();
            self.nodes.insert(address);
        }
        self.root = Root::parse(&map.root.encode()).unwrap();
        let after = self.model.len() + self.nodes.len();
        assert_eq!(after as i64 - before as i64, map.block_delta, "blocks are counted");
    }

    fn compare(&self) {
        let mut found = BTreeMap::new();
        let mut all = |key: FileBlock, pointer| {
            found.insert(key.0, pointer);
            Ok(ControlFlow::Continue(()))
        };
        self.source().scan(&self.root, FileBlock(0), &mut all).unwrap();
        assert_eq!(found, self.model);
        let last = self.source().last_mapped(&self.root).unwrap();
        assert_eq!(last.map(|key| key.0), self.model.keys().last().copied());
        for key in self.model.keys().flat_map(|key| [key.saturating_sub(1), *key, key + 1]) {
            let found = self.source().lookup(&self.root, FileBlock(key)).unwrap();
            assert_eq!(found, self.model.get(&key).copied(), "block {key}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_map_is_what_its_history_made_it(history in history()) {
        let mut world = World {
            store: store(),
            root: Root::default(),
            model: BTreeMap::new(),
            nodes: BTreeSet::new(),
            next: 0,
        };
        for step in &history {
            world.step(step);
            world.compare();
        }
    }
}
