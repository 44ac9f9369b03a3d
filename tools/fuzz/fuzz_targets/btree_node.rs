//! B-tree nodes: every access stays inside the block, and ranks agree with the entries.

#![no_main]

use libfuzzer_sys::fuzz_target;
use nilfs_ondisk::bmap::{LEVEL_MAX, Node, encode_node};

fuzz_target!(|input: (u8, u64, &[u8])| {
    let (level, key, block) = input;
    let level = level % (LEVEL_MAX + 1);
    let Ok(node) = Node::parse(block, level) else {
        return;
    };
    assert!(node.rank(key) <= node.children());
    let entries: Vec<_> = node.entries().collect();
    if node.validate(None).is_ok() {
        let below = entries.iter().filter(|(first, _)| *first <= key).count();
        assert_eq!(node.rank(key), below);
        let mut written = vec![0; block.len()];
        encode_node(&mut written, level, &entries);
        let again = Node::parse(&written, level).map(|node| node.entries().collect::<Vec<_>>());
        assert_eq!(again, Ok(entries));
    }
});
