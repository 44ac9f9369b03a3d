//! Where threads come from: the operating system, or a simulation in which a seed decides how they
//! interleave.

#[cfg(feature = "shuttle")]
pub(crate) use shuttle::{thread, thread_local};
#[cfg(not(feature = "shuttle"))]
pub(crate) use std::{thread, thread_local};

#[cfg(feature = "shuttle")]
pub(crate) use crate::interleaving::taking_time;

/// A device as it is: here, the operating system sees to it that other threads go on meanwhile.
#[cfg(not(feature = "shuttle"))]
pub(crate) fn taking_time(
    device: std::sync::Arc<dyn nilfs_device::Device>,
) -> std::sync::Arc<dyn nilfs_device::Device> {
    device
}
