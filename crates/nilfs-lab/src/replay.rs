//! Replaying a trace: how long a device would have been busy with it.

use std::time::Duration;

use crate::model::{Model, Wear, serve};
use crate::trace::Trace;

/// What a device made of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct Replayed {
    /// How long it was busy.
    pub total: Duration,
    /// How long it was busy between each mark and the next one, or the end, under the mark's name.
    pub phases: Vec<(String, Duration)>,
    /// How long it was busy with each request, and with earlier ones until this one came.
    pub times: Vec<Duration>,
    /// What its flash suffered, what came before the trace included.
    pub wear: Wear,
}

/// Serves all requests of a trace, with the pauses that were between them where the device is not
/// slower than that.
pub fn replay(trace: &Trace, model: &mut dyn Model) -> Replayed {
    let times: Vec<Duration> =
        trace.requests.iter().map(|request| serve(model, request).1).collect();
    let ends = trace.marks.iter().skip(1).map(|mark| mark.before).chain([times.len()]);
    let phases = trace
        .marks
        .iter()
        .zip(ends)
        .map(|(mark, end)| (mark.name.clone(), busy(&times, mark.before, end)))
        .collect();
    Replayed { total: times.iter().sum(), phases, times, wear: model.wear() }
}

/// The sum over some of the requests; none if the marks of a damaged trace name none.
fn busy(times: &[Duration], begin: usize, end: usize) -> Duration {
    times.get(begin..end).unwrap_or_default().iter().sum()
}
