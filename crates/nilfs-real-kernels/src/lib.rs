//! nilfs-real-kernels

mod crash;
mod error;
mod fill;
mod kernel_log;
mod manifest;
mod synced;
mod tools;
mod uml;
mod verdict;

pub use crash::CrashWorkload;
pub use error::{Error, Result};
pub use fill::Fill;
pub use kernel_log::KernelLog;
pub use manifest::{Manifest, ParseManifestError};
pub use synced::{SyncedReport, count_synced, verify_synced};
pub use tools::Tools;
pub use uml::{RunningUml, Uml};
pub use verdict::Verdict;
