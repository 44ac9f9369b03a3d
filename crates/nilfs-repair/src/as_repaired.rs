//! A broken volume as a repair would leave it, to be read: the plan is laid over the device, in memory, and
//! nothing is written.

use std::sync::Arc;

use nilfs_check::Options;
use nilfs_device::Device;
use nilfs_engine::Cno;
use nilfs_engine::rescue::Rescue;

use crate::progress::Observer;
use crate::{Plan, Risk, Settings, plan_observed};

/// Best view of a volume.
pub struct AsRepaired {
    /// The device as it would be, or as it is.
    pub device: Arc<dyn Device>,
    /// The repairs that the device has, if it has any.
    pub plan: Option<Plan>,
}

impl AsRepaired {
    /// Finds out how a volume would be. Where no repair is known, it is as it is, and so where a newer
    /// checkpoint can be read of that than the repair would keep.
    #[must_use]
    pub fn new(device: Arc<dyn Device>, observer: &Observer) -> Self {
        // A volume that has lost its identity is not given another one by being looked at.
        let settings = Settings { uuid: [0; 16], accept: false, in_view: true };
        // The content of files is read by those who want it, and judged then.
        let options = Options { read_content: false, ..Options::default() };
        let plan = match plan_observed(&device, &options, settings, observer) {
            Ok(plan) if plan.can_be_applied() => plan,
            Ok(_) | Err(_) => return Self { device, plan: None },
        };
        let view = plan.view(&device);
        if plan.risk() == Risk::Loses && newest(&device) > newest(&view) {
            return Self { device, plan: None };
        }
        Self { device: view, plan: Some(plan) }
    }
}

/// The newest checkpoint that can be read.
fn newest(device: &Arc<dyn Device>) -> Option<Cno> {
    let mut rescue = Rescue::open(Arc::clone(device), Box::new(|_| {})).ok()?;
    rescue.tree(0).map(|newest| newest.tree.cno())
}
