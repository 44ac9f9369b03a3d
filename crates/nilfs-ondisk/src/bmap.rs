//! Block maps: from a block of a file to a pointer (docs/format.md §7). The root is in the inode
//! and is either direct or the root of a B-tree; the other nodes are blocks.
//!
//! ```text
//! root (56 bytes)   | flags level nchildren pad | 3 keys        | 3 pointers        |   B-tree
//!                   | 0     -     -         -   | 6 pointers for blocks 0..5        |   direct
//! node (one block)  | flags level nchildren pad | 8 pad | M keys | M pointers |
//! ```
//!
//! Keys and pointers stand at places given by the greatest number of children `M`, not by the
//! number there is. Whether a pointer is a physical or a virtual block number depends on the file,
//! so it is a bare number here.

use crate::{BlockSize, FormatError};

/// Bytes of the root in the inode.
pub const ROOT_SIZE: usize = 56;
/// Pointers of a direct map.
pub const DIRECT_POINTERS: usize = 6;
/// Most children of a B-tree root.
pub const ROOT_MAX_CHILDREN: usize = 3;
/// Levels of nodes are 1 up to this one, exclusive.
pub const LEVEL_MAX: u8 = 14;

const FLAG_ROOT: u8 = 1;
const NODE_KEYS: usize = 16;

/// A key and its pointer.
pub type Entry = (u64, u64);

/// The decoded root of a block map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// Pointers for the blocks 0 to 5; 0 is a hole.
    Direct([u64; DIRECT_POINTERS]),
    /// The root of a B-tree.
    Tree {
        /// Level of the root; its children are one level below, level 0 is data.
        level: u8,
        /// At most three entries with ascending keys.
        entries: Vec<Entry>,
    },
}

impl Default for Root {
    fn default() -> Self {
        Root::Direct([0; DIRECT_POINTERS])
    }
}

impl Root {
    /// Reads the root from an inode.
    ///
    /// # Errors
    /// A level, a number of children or an order of keys that the format forbids.
    pub fn parse(bytes: &[u8; ROOT_SIZE]) -> Result<Self, FormatError> {
        const STRUCTURE: &str = "block map root";
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        if bytes[0] & FLAG_ROOT == 0 {
            return Ok(Root::Direct(std::array::from_fn(|nth| word(8 + nth * 8))));
        }
        let level = bytes[1];
        let children = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
        if !(1..LEVEL_MAX).contains(&level) {
            return Err(FormatError::field(STRUCTURE, "level", level, "1 to 13"));
        }
        if children > ROOT_MAX_CHILDREN || (children == 0 && level > 1) {
            return Err(FormatError::field(STRUCTURE, "nchildren", children, "1 to 3"));
        }
        let entries: Vec<Entry> =
            (0..children).map(|nth| (word(8 + nth * 8), word(32 + nth * 8))).collect();
        check_order(STRUCTURE, &entries)?;
        Ok(Root::Tree { level, entries })
    }

    /// Whether it leads to no block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Root::Direct(pointers) => pointers.iter().all(|pointer| *pointer == 0),
            Root::Tree { entries, .. } => entries.is_empty(),
        }
    }

    /// The bytes for the inode.
    ///
    /// # Panics
    /// If there are more than three entries: the caller has built a root that cannot exist.
    #[must_use]
    pub fn encode(&self) -> [u8; ROOT_SIZE] {
        let mut bytes = [0; ROOT_SIZE];
        let mut put = |at: usize, word: u64| bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        match self {
            Root::Direct(pointers) => {
                for (nth, pointer) in pointers.iter().enumerate() {
                    put(8 + nth * 8, *pointer);
                }
            }
            Root::Tree { level, entries } => {
                assert!(entries.len() <= ROOT_MAX_CHILDREN, "a root has at most three children");
                for (nth, (key, pointer)) in entries.iter().enumerate() {
                    put(8 + nth * 8, *key);
                    put(32 + nth * 8, *pointer);
                }
                bytes[0] = FLAG_ROOT;
                bytes[1] = *level;
                bytes[2] = entries.len() as u8;
            }
        }
        bytes
    }
}

/// Most children of a node block.
#[must_use]
pub const fn max_children(block_size: BlockSize) -> usize {
    (block_size.bytes() - NODE_KEYS) / 16
}

/// A node block, read in place.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    block: &'a [u8],
    children: usize,
}

impl<'a> Node<'a> {
    /// Reads the header of a node that must be of the given level. Accesses through the result
    /// stay inside the block whatever the node contains.
    ///
    /// # Errors
    /// A header that the format forbids.
    pub fn parse(block: &'a [u8], level: u8) -> Result<Self, FormatError> {
        const STRUCTURE: &str = "B-tree node";
        if block.len() < 1024 {
            let (have, need) = (block.len() as u64, 1024);
            return Err(FormatError::Short { structure: STRUCTURE, have, need });
        }
        if block[0] & FLAG_ROOT != 0 {
            return Err(FormatError::field(STRUCTURE, "flags", block[0], "no root flag"));
        }
        if block[1] != level {
            return Err(FormatError::field(STRUCTURE, "level", block[1], level));
        }
        let children = usize::from(u16::from_le_bytes([block[2], block[3]]));
        let most = (block.len() - NODE_KEYS) / 16;
        if !(1..=most).contains(&children) {
            return Err(FormatError::field(
                STRUCTURE,
                "nchildren",
                children,
                format!("1 to {most}"),
            ));
        }
        Ok(Self { block, children })
    }

    /// Checks what [`Node::parse`] leaves out because it costs a pass over the node: the keys
    /// ascend. `first_key` is the key by which the parent knows the node.
    ///
    /// # Errors
    /// Keys out of order, or a first key that is not the parent's (docs/format.md §7.2).
    pub fn validate(&self, first_key: Option<u64>) -> Result<(), FormatError> {
        const STRUCTURE: &str = "B-tree node";
        if let Some(expected) = first_key
            && self.key(0) != expected
        {
            return Err(FormatError::field(STRUCTURE, "first key", self.key(0), expected));
        }
        for nth in 1..self.children {
            if self.key(nth) <= self.key(nth - 1) {
                let expected = format!("more than {}", self.key(nth - 1));
                return Err(FormatError::field(STRUCTURE, "key", self.key(nth), expected));
            }
        }
        Ok(())
    }

    /// Number of children, at least 1.
    #[must_use]
    pub fn children(&self) -> usize {
        self.children
    }

    /// Key of the nth child.
    #[must_use]
    pub fn key(&self, nth: usize) -> u64 {
        self.word(NODE_KEYS + nth * 8)
    }

    /// Pointer to the nth child.
    #[must_use]
    pub fn pointer(&self, nth: usize) -> u64 {
        self.word(NODE_KEYS + ((self.block.len() - NODE_KEYS) / 16 + nth) * 8)
    }

    /// All entries in order.
    pub fn entries(self) -> impl Iterator<Item = Entry> + 'a {
        (0..self.children).map(move |nth| (self.key(nth), self.pointer(nth)))
    }

    /// The number of leading children whose key is at most `key`.
    #[must_use]
    pub fn rank(&self, key: u64) -> usize {
        let (mut low, mut high) = (0, self.children);
        while low < high {
            let middle = low.midpoint(high);
            if self.key(middle) <= key { low = middle + 1 } else { high = middle }
        }
        low
    }

    fn word(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.block[at..at + 8]);
        u64::from_le_bytes(word)
    }
}

/// Writes a node into a zeroed block.
///
/// # Panics
/// If the entries do not fit, which is a bug of the caller.
pub fn encode_node(block: &mut [u8], level: u8, entries: &[Entry]) {
    let most = (block.len() - NODE_KEYS) / 16;
    assert!((1..=most).contains(&entries.len()), "a node has 1 to {most} children");
    block[1] = level;
    block[2..4].copy_from_slice(&(entries.len() as u16).to_le_bytes());
    for (nth, (key, pointer)) in entries.iter().enumerate() {
        let at = NODE_KEYS + nth * 8;
        block[at..at + 8].copy_from_slice(&key.to_le_bytes());
        let at = NODE_KEYS + (most + nth) * 8;
        block[at..at + 8].copy_from_slice(&pointer.to_le_bytes());
    }
}

fn check_order(structure: &'static str, entries: &[Entry]) -> Result<(), FormatError> {
    for pair in entries.windows(2) {
        if pair[1].0 <= pair[0].0 {
            let expected = format!("more than {}", pair[0].0);
            return Err(FormatError::field(structure, "key", pair[1].0, expected));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The maxima of docs/format.md §7.2, and pointers placed by the maximum.
    #[test]
    fn nodes_have_the_maxima_and_places_of_the_format() {
        for (bs, most) in [(1024, 63), (2048, 127), (4096, 255), (65536, 4095)] {
            assert_eq!(max_children(BlockSize::from_bytes(bs).unwrap()), most);
        }
        let mut block = vec![0; 1024];
        encode_node(&mut block, 1, &[(7, 70), (9, 90)]);
        assert_eq!(block[16], 7);
        assert_eq!(block[16 + 8 * 63 + 8], 90);
        let node = Node::parse(&block, 1).unwrap();
        assert_eq!(node.entries().collect::<Vec<_>>(), [(7, 70), (9, 90)]);
        assert_eq!([node.rank(6), node.rank(7), node.rank(8), node.rank(9)], [0, 1, 1, 2]);
        assert!(node.validate(Some(7)).is_ok() && node.validate(Some(6)).is_err());
    }

    /// A shrunken B-tree leaves garbage after the first byte of a direct map (trap of §7.1).
    #[test]
    fn a_direct_map_ignores_stale_header_bytes() {
        let mut bytes = Root::Direct([5, 0, 0, 0, 0, 6]).encode();
        bytes[..4].copy_from_slice(&[0, 1, 3, 0]);
        assert_eq!(Root::parse(&bytes).unwrap(), Root::Direct([5, 0, 0, 0, 0, 6]));
    }

    #[test]
    fn a_root_round_trips_and_bad_ones_are_refused() {
        let root = Root::Tree { level: 2, entries: vec![(0, 11), (300, 12)] };
        let bytes = root.encode();
        assert_eq!(Root::parse(&bytes).unwrap(), root);
        for (at, value) in [(1, 0), (1, 14), (2, 4), (2, 0), (8, 255)] {
            let mut broken = bytes;
            broken[at] = value;
            if at == 8 {
                broken[9] = 255;
            }
            assert!(Root::parse(&broken).is_err(), "byte {at} = {value}");
        }
    }
}
