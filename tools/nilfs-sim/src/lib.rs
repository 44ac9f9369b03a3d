//! Seeded worlds: random lives of a file system, held against a model that is too simple to be
//! wrong, with power cuts, full volumes, failing devices and crowds of threads.
//!
//! ```text
//! seed → Generator → Op ─┬→ Model ────→ Outcome ┐
//!                        └→ Subject ──→ Outcome ┴→ equal?      World: one life
//!                              │ engine
//!                              └→ Medium ─────────→ Event… → History
//!                                                      └→ Disk::after_cut → mount → Oracle: may
//!                                                         this History leave that?    Cuts
//! ```
//!
//! One seed stands for one world, so a failure is replayed by its seed; what fails is made short by
//! leaving operations out before it is shown. With threads that is so where the seed decides how they
//! interleave, too: `interleaving`, with the feature `shuttle`. Only [`subject`] and [`past`] call
//! the engine; the [`model`] knows nothing of it, and the [`oracle`] only how it is mounted.

pub mod blast;
pub mod clock;
pub mod crowd;
pub mod cuts;
pub mod faults;
pub mod generate;
pub mod history;
#[cfg(feature = "shuttle")]
pub mod interleaving;
pub mod lives;
pub mod medium;
pub mod model;
pub mod name;
pub mod op;
pub mod oracle;
pub mod outcome;
pub mod past;
pub mod power;
pub mod seeds;
pub mod shrink;
pub mod subject;
mod threads;
pub mod tree;
pub mod volume;
pub mod workloads;
pub mod world;
