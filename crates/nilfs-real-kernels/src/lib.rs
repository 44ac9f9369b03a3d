//! nilfs-real-kernels

mod error;
mod kernel_log;
mod tools;
mod uml;
mod verdict;

pub use error::{Error, Result};
pub use kernel_log::KernelLog;
pub use tools::Tools;
pub use uml::{RunningUml, Uml};
pub use verdict::Verdict;
