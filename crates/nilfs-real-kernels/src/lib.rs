//! nilfs-real-kernels

mod error;
mod fill;
mod kernel_log;
mod manifest;
mod tools;
mod uml;
mod verdict;

pub use error::{Error, Result};
pub use fill::Fill;
pub use kernel_log::KernelLog;
pub use manifest::{Manifest, ParseManifestError};
pub use tools::Tools;
pub use uml::{RunningUml, Uml};
pub use verdict::Verdict;
