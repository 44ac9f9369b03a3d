//! Sums of what erase blocks have suffered.

use super::Wear;

/// The wear of blocks that were erased so often; each stands for `width` erase blocks that are
/// always erased together.
pub(super) fn of_blocks(
    host_bytes: u64,
    programmed_bytes: u64,
    erases: impl Iterator<Item = u32> + Clone,
    width: u64,
) -> Wear {
    let count = erases.clone().count() as u64;
    let sum: u64 = erases.clone().map(u64::from).sum();
    let mean = if count == 0 { 0.0 } else { sum as f64 / count as f64 };
    let squares: f64 = erases.clone().map(|n| (f64::from(n) - mean).powi(2)).sum();
    Wear {
        host_bytes,
        programmed_bytes,
        erases: sum * width,
        most_erases: erases.max().unwrap_or(0).into(),
        erase_blocks: count * width,
        erases_spread: if count == 0 { 0.0 } else { (squares / count as f64).sqrt() },
    }
}
