//! A broken volume as a repair would leave it, to be read: the plan is laid over the device, in memory, and
//! nothing is written.

use std::collections::BTreeSet;
use std::sync::Arc;

use nilfs_check::Options;
use nilfs_device::Device;
use nilfs_engine::rescue::Rescue;
use nilfs_engine::{Cno, Ino, Tree};

use crate::progress::Observer;
use crate::{Concerned, Loss, Plan, Repair, RepairError, Risk, Settings, plan_observed};

/// Paths of files that a loss names; of more, it has the number.
const MOST_NAMED: usize = 8;

/// Best view of a volume.
pub struct AsRepaired {
    /// The device as it would be, or as it is.
    pub device: Arc<dyn Device>,
    /// The repairs that the device has, if it has any.
    pub plan: Option<Plan>,
    /// Why it is shown as it is, although something is wrong with it.
    obstacle: Option<RepairError>,
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
            Ok(plan) => return Self { device, plan: None, obstacle: plan.obstacle },
            Err(error) => return Self { device, plan: None, obstacle: Some(error) },
        };
        let view = plan.view(&device);
        if plan.risk() == Risk::Loses && newest(&device) > newest(&view) {
            return Self { device, plan: None, obstacle: None };
        }
        Self { device: view, plan: Some(plan), obstacle: None }
    }

    /// Returns what is lost of a checkpoint that the device shows.
    #[must_use]
    pub fn losses(&self, shown: &Tree) -> Losses {
        let Some(plan) = &self.plan else { return self.unknown_losses(shown.cno()) };
        let is_loss =
            |it: &&Repair| it.risk == Risk::Loses && it.concerned.life.contains(&shown.cno());
        let losing = plan.repairs.iter().filter(is_loss).cloned();
        let (adopted, mut repairs): (Vec<Repair>, Vec<Repair>) =
            losing.partition(|it| it.concerned.loss == Loss::Names);
        let files = |repairs: &[Repair]| -> BTreeSet<Ino> {
            repairs.iter().flat_map(|it| it.concerned.files.iter().copied()).collect()
        };
        let damaged = files(&repairs);
        let adopted = &files(&adopted) - &damaged;
        let wanted = damaged.into_iter().filter(|ino| ino.is_of_user());
        let paths = shown.paths(wanted.chain(adopted.iter().copied()).collect());
        let path_of = |ino: &Ino| match &paths.get(ino)?[..] {
            b"" => Some("/".to_owned()),
            path => Some(String::from_utf8_lossy(path).into_owned()),
        };
        for loss in &mut repairs {
            let Concerned { files, names, .. } = &loss.concerned;
            let named =
                files.iter().filter_map(|ino| path_of(ino).or_else(|| names.get(ino).cloned()));
            loss.concerned.paths = named.take(MOST_NAMED).collect();
        }
        // In an older checkpoint they may have the names that are lost.
        let is_adopted = |(ino, path): &(Ino, String)| path.ends_with(&format!("/#{ino}"));
        let adopted = adopted.iter().filter_map(|ino| Some((*ino, path_of(ino)?)));
        let adopted = adopted.filter(is_adopted).map(|(_, path)| path).collect();
        let omitted = plan.omitted.get(&Risk::Loses).copied().unwrap_or_default();
        Losses { repairs, omitted, adopted }
    }

    /// Returns what may be lost of a volume for which no repair is known: how far the logs went on cannot be told.
    fn unknown_losses(&self, shown: Cno) -> Losses {
        let unknown = |obstacle: &RepairError| Repair {
            fault: obstacle.to_string(),
            action: format!(
                "show checkpoint {shown} as it is; what was written after it may be missing"
            ),
            risk: Risk::Loses,
            concerned: Concerned::none(),
        };
        Losses { repairs: self.obstacle.iter().map(unknown).collect(), ..Losses::default() }
    }
}

/// Losses of a checkpoint that is shown as a repair would leave it.
#[derive(Debug, Clone, Default)]
pub struct Losses {
    /// The repairs by which something is lost, with the paths of the files.
    pub repairs: Vec<Repair>,
    /// How many more there are.
    pub omitted: u64,
    /// The paths of files that have lost nothing but their names: those that they have now.
    pub adopted: Vec<String>,
}

/// The newest checkpoint that can be read.
fn newest(device: &Arc<dyn Device>) -> Option<Cno> {
    let mut rescue = Rescue::open(Arc::clone(device), Box::new(|_| {})).ok()?;
    rescue.tree(0).map(|newest| newest.tree.cno())
}
