//! The kernel's switch without which no FUSE mount is served through io_uring.

use std::fs;

use anyhow::{Context, Result, anyhow};

use crate::workloads::Skip;

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Does what needs it, with the switch on meanwhile. Mounts keep what they began with.
pub fn allowed<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let skip = |error| anyhow!(Skip(format!("{SWITCH}: {error}")));
    let before = fs::read_to_string(SWITCH).map_err(skip)?;
    fs::write(SWITCH, "Y").map_err(skip)?;
    let done = work();
    fs::write(SWITCH, before.trim()).with_context(|| format!("cannot restore {SWITCH}"))?;
    done
}
