//! Map files of ddrescue: what is not finished is not read, and a rescue by any map ends.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use nilfs_device::{Device, MaskedDevice, MemoryDevice};
use nilfs_engine::rescue::Rescue;
use nilfs_fuzz::forgery::sound;
use nilfs_fuzz::tour::walk;

#[path = "../../../crates/nilfs/src/commands/salvage/map.rs"]
mod map;

/// Parts that an input has besides its text.
const MAX_PARTS: usize = 6;

/// From, bytes, and whether it has been read.
type Part = (u32, u32, bool);

fuzz_target!(|input: (u8, [Option<Part>; MAX_PARTS], &str)| {
    let (which, parts, text) = input;
    rescue_by(which, text);
    // The parts are laid over the volume: it has a MiB and a half.
    let mut lines = "# a map\n0 ? 1\n".to_string();
    let parts = parts.into_iter().flatten();
    let parts: Vec<_> = parts.map(|(from, bytes, read)| (from % (2 << 20), bytes, read)).collect();
    for (from, bytes, read) in &parts {
        lines += &format!("{from:#x} {bytes} {}\n", if *read { "+" } else { "-" });
    }
    let unread = rescue_by(which, &lines).expect("these lines are right");
    for (from, bytes, read) in parts {
        let (from, end) = (u64::from(from), u64::from(from) + u64::from(bytes));
        assert!(!read || !unread.iter().any(|range| range.start.max(from) < range.end.min(end)));
    }
});

/// Reads a volume through a map, if it is one. Returns what it has not.
fn rescue_by(which: u8, text: &str) -> Option<Vec<std::ops::Range<u64>>> {
    let unread = map::unread(text).ok()?;
    assert!(unread.windows(2).all(|pair| pair[0].end <= pair[1].start), "{unread:?}");
    let device = Arc::new(MemoryDevice::from(sound(which)));
    let size = device.size();
    let masked = Arc::new(MaskedDevice::new(device, unread.clone()));
    for range in unread.iter().filter(|range| !range.is_empty() && range.start < size) {
        for at in [range.start, range.end.min(size) - 1] {
            assert!(masked.read_at(at, &mut [0]).is_err(), "{at} is read in spite of {unread:?}");
        }
    }
    if let Ok(mut rescue) = Rescue::open(masked, Box::new(|_| ())) {
        for nth in 0..3 {
            if let Some(found) = rescue.tree(nth) {
                walk(&found.tree);
            }
        }
    }
    Some(unread)
}
