//! Sync logs that cannot be rolled forward, though later ones could be: they are lost, or need what is. In the
//! place of each comes a sync log without records, which changes nothing.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use nilfs_device::{Device, IoSlice};
use nilfs_engine::{Log, RecoveryPlan, Verify, Volume};
use nilfs_ondisk::roll_forward::Records;
use nilfs_ondisk::summary::{LOGBGN, LOGEND, LogHeader, NewLog};
use nilfs_ondisk::{BlockNr, Cno, Ino};

use crate::draft::Draft;
use crate::superblocks;
use crate::sync_logs::files_in;

/// Logs that are passed over at most: each takes one more recovery on trial.
const MOST: usize = 64;

/// The sync logs that were passed over.
#[derive(Default)]
pub(crate) struct PassedOver {
    /// Where lost ones began.
    pub(crate) missing: Vec<BlockNr>,
    /// Logs that need what is lost.
    pub(crate) contradicting: Vec<Log>,
    /// Files that later ones change, which may lack what is lost.
    pub(crate) later: BTreeSet<Ino>,
}

/// Passes over the sync logs of a draft that keep later ones from being rolled forward, of which a recovery has this
/// plan. Returns these, or `None` if no later one is the better for it.
///
/// # Errors
/// The corrections cannot be kept.
pub(crate) fn pass_over(draft: &mut Draft, plan: &RecoveryPlan) -> io::Result<Option<PassedOver>> {
    let mut passed = PassedOver::default();
    let mut step = Step::of(draft, plan);
    let Some(first) = step.as_ref().map(|step| step.records.clone()) else { return Ok(None) };
    while let Some(next) = step.take() {
        next.apply(draft)?;
        match next.contradicting {
            Some(log) => passed.contradicting.push(log),
            None => passed.missing.push(next.at),
        }
        let Some(plan) = recovery_plan(draft) else { return Ok(None) };
        let later =
            plan.applied.iter().filter(|log| number_of(log, first.base) > Some(first.number));
        passed.later = later.flat_map(files_in).filter(|ino| ino.is_of_user()).collect();
        let count = passed.missing.len() + passed.contradicting.len();
        step = Step::of(draft, &plan).filter(|_| count < MOST);
    }
    Ok((!passed.later.is_empty()).then_some(passed))
}

fn recovery_plan(draft: &Draft) -> Option<RecoveryPlan> {
    let device: Arc<dyn Device> = Arc::clone(&draft.device) as Arc<dyn Device>;
    Volume::open_with(device, Verify::Rescue).ok()?.recovery_plan().ok()
}

/// Logs without records in the place of one log, or of several that are lost one after the other.
struct Step {
    at: BlockNr,
    /// The block after the last of them.
    end: BlockNr,
    /// How many there are.
    count: u64,
    /// A log next to them, or what one of them was.
    header: LogHeader,
    /// The first of them has these.
    records: Records,
    /// The log that was there, if there was one.
    contradicting: Option<Log>,
}

impl Step {
    /// Returns the first step to later logs that could be rolled forward, if there are any.
    fn of(draft: &Draft, plan: &RecoveryPlan) -> Option<Self> {
        let stops_at = plan.stops_at?;
        let device: Arc<dyn Device> = Arc::clone(&draft.device) as Arc<dyn Device>;
        let volume = Volume::open_with(device, Verify::Rescue).ok()?;
        let base = volume.last_log().cno;
        let last = plan.applied.iter().rev().find_map(|log| number_of(log, base));
        let number = last.unwrap_or(0) + 1;
        let numbered = plan.lost.iter().filter_map(|log| Some((log, number_of(log, base)?)));
        let mut later = numbered.skip_while(|(_, found)| *found < number).peekable();
        let contradicting = later.next_if(|(log, found)| log.start == stops_at && *found == number);
        let (_, next) = later.peek()?;
        let records = Records { base, number, unflushed: Some(0), records: Vec::new() };
        match contradicting {
            Some((log, _)) => Some(Self::over(log, records)),
            None => Self::over_gap(&volume, stops_at, (records, *next)),
        }
    }

    /// Passes over a log that is there.
    fn over(log: &Log, records: Records) -> Self {
        let end = log.start.plus(log.header.nblocks.into());
        let contradicting = Some(log.clone());
        Self { at: log.start, end, count: 1, header: log.header, records, contradicting }
    }

    /// Passes over what is lost in a segment from a block on, before the log with the number `next`. Logs may come
    /// first of which only content is damaged: the next that is there will say that they were durable.
    fn over_gap(volume: &Volume, from: BlockNr, (records, next): (Records, u64)) -> Option<Self> {
        let (mut at, mut number) = (from, records.number);
        let geometry = volume.geometry();
        let segment = geometry.segment_of(from);
        let logs = volume.logs_beyond_damage(segment);
        for log in logs.iter().skip_while(|log| log.start < from) {
            let found = number_of(log, records.base);
            if log.start != at || found.is_some_and(|found| found != number) {
                break;
            }
            (at, number) = (at.plus(log.header.nblocks.into()), number + found.map_or(0, |_| 1));
        }
        let count = next.checked_sub(number).filter(|count| *count > 0)?;
        let beyond = logs.iter().find(|log| log.start >= at);
        let end = beyond.map_or(geometry.segment_end(segment), |log| log.start);
        let header = beyond.or(logs.last())?.header;
        let records = Records { number, ..records };
        let has_room = end.0.checked_sub(at.0).is_some_and(|room| room >= count);
        has_room.then_some(Self { at, end, count, header, records, contradicting: None })
    }

    /// Writes these logs into the draft, and has their segment emptied: the next checkpoint has what came after
    /// them, and needs them no more.
    fn apply(&self, draft: &mut Draft) -> io::Result<()> {
        let size = draft.block_size()?;
        for nth in 0..self.count {
            let at = self.at.plus(nth);
            let end = if nth + 1 == self.count { self.end } else { at.plus(1) };
            let records = Records { number: self.records.number + nth, ..self.records.clone() };
            let header = NewLog {
                flags: LOGBGN | LOGEND,
                seq: self.header.seq,
                create: self.header.create,
                next: self.header.next,
                cno: self.header.cno,
                summary_blocks: 1,
                block_sums: false,
            };
            let payload = end.0 - at.0 - 1;
            if let Some(summary) = draft.summary(at, &header, (&[], &records.encode()), payload)? {
                draft.device.write_at(at.0 * size, &[IoSlice::new(&summary)])?;
            }
        }
        let superblock = superblocks::best(&*draft.device).map_err(io::Error::other)?;
        draft.segments.insert(superblock.geometry().segment_of(self.at));
        Ok(())
    }
}

/// The number of a log among those after a checkpoint, if it is one of them.
fn number_of(log: &Log, base: Cno) -> Option<u64> {
    let records = log.records().ok().flatten().filter(|records| records.base == base);
    records.map(|records| records.number)
}
