//! The blast radius of damage: what a volume loses when some of its blocks go bad.
//!
//! ```text
//! seed → Sample ── Blocks: what each block in use holds
//!          │          │
//!          │      Damage ──► what it may cost ─────────────────────────┐
//!          └──────► Patient: the damaged copy                          │
//!                     ├ mount, mount -o ro, -o ro,rescue ──► Picture ──┤
//!                     ├ check, fsck ──► mount, undo ───────► Picture ──┼─► Verdict
//!                     └ salvage ───────────────────────────► Picture ──┘
//! ```
//!
//! A block that is damaged may cost what only it had: bytes of a file, names of a directory, inodes,
//! records of a sync log. All else must be there whichever way the volume is looked at, and what is
//! not must be named. [`verdict`] has the rules.

pub mod blocks;
pub mod cost;
pub mod damage;
pub mod picture;
pub mod samples;
pub mod tally;
pub mod verdict;
pub mod views;
