//! What is put right: as many repairs as somebody may look at, and how many others.

use std::collections::BTreeMap;

use crate::{FINDINGS_PER_RULE, Repair, Risk};

/// Repairs in the order in which they are made.
#[derive(Clone, Default)]
pub(crate) struct Repairs {
    /// Each round may have as many as there are findings in a report, so the later ones are not
    /// here.
    pub(crate) listed: Vec<Repair>,
    /// The others, by their risk.
    pub(crate) omitted: BTreeMap<Risk, u64>,
}

impl Repairs {
    pub(crate) fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    pub(crate) fn count(&self) -> u64 {
        self.listed.len() as u64 + self.omitted.values().sum::<u64>()
    }

    pub(crate) fn push(&mut self, repair: Repair) {
        match self.listed.len() < FINDINGS_PER_RULE {
            true => self.listed.push(repair),
            false => *self.omitted.entry(repair.risk).or_default() += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Concerned;

    /// A million wrong entries took hundreds of megabytes of text.
    #[test]
    fn of_very_many_repairs_the_last_are_counted() {
        let mut repairs = Repairs::default();
        for nth in 0..3 * FINDINGS_PER_RULE as u64 {
            let risk = if nth % 3 == 0 { Risk::Loses } else { Risk::Safe };
            let (fault, action, concerned) = (nth.to_string(), String::new(), Concerned::none());
            repairs.push(Repair { fault, action, risk, concerned });
        }
        assert_eq!(repairs.count(), 3 * FINDINGS_PER_RULE as u64);
        assert_eq!(repairs.listed.len(), FINDINGS_PER_RULE);
        let listed_losing = repairs.listed.iter().filter(|it| it.risk == Risk::Loses).count();
        let losing = repairs.omitted[&Risk::Loses] as usize;
        assert_eq!(losing + listed_losing, FINDINGS_PER_RULE);
    }
}
