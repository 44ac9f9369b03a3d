//! What a report says besides the figures.

use std::path::Path;

use nilfs_lab::report::{self, Background, Published};
use nilfs_lab::results::Cell;
use nilfs_lab::run::Plan;
use nilfs_lab::{file_systems, published, workloads};

/// What the tables of the lab know, and the devices of a plan.
pub struct Known<'a>(&'a Plan);

impl<'a> Known<'a> {
    pub fn new(plan: &'a Plan) -> Self {
        Self(plan)
    }
}

impl Background for Known<'_> {
    fn published(&self, cell: &Cell) -> Option<Published> {
        let found = published::figure(&cell.workload, &cell.step, &cell.device, &cell.file_system)?;
        let others: Vec<String> = found
            .others
            .iter()
            .map(|(circumstance, figure)| format!("{circumstance}: {}", report::figure(*figure)))
            .collect();
        let source = match others.as_slice() {
            [] => found.source,
            others => format!("{} ({})", found.source, others.join(", ")),
        };
        let same = found.unit == cell.unit;
        same.then_some(Published { figure: found.figure, source, why: found.why })
    }

    fn device(&self, name: &str) -> Option<String> {
        let table = self.0.tables.iter().find(|table| table.device.name == name)?;
        Some(format!("{}. {}", table.device.title, table.device.about.trim()))
    }

    fn workload(&self, name: &str) -> Option<String> {
        workloads::find(name).ok().map(|found| format!("{}: {}", found.title, found.stands_for))
    }

    fn file_system(&self, name: &str) -> Option<String> {
        let found = file_systems::find(name, Path::new("nilfs")).ok()?;
        Some(format!("{}: {}", found.title, found.about))
    }
}
