//! nilfs-real-kernels

mod crash;
mod error;
mod fill;
mod image;
mod kernel_log;
pub mod linux;
mod manifest;
mod nilfs_utils;
mod synced;
mod tools;
mod uml;
mod verdict;

pub use crash::CrashWorkload;
pub use error::{Error, Result};
pub use fill::Fill;
pub use image::LinuxImage;
pub use kernel_log::KernelLog;
pub use manifest::{Manifest, ParseManifestError};
pub use nilfs_utils::{NilfsUtils, ToolOutput};
pub use synced::{SyncedReport, count_synced, verify_synced};
pub use tools::Tools;
pub use uml::{RunningUml, Uml};
pub use verdict::Verdict;
