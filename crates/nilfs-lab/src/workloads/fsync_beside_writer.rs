//! Somebody saves a small file while a large one is written.

use super::fio::{COMMON, FIO};
use super::{
    Best, Latency, Modes, Setting, Step, Timer, What, Workload, format, mount, pieces, unmount,
};
use crate::report::format_numbers::bytes as in_bytes;
use crate::results::Unit;

const MIB: u64 = 1 << 20;

/// Fsyncs of a small file while a large one is written from start to end.
pub static FSYNC_BESIDE_WRITER: Workload = Workload {
    name: "fsync-beside-writer",
    title: "Fsync while another file is written",
    stands_for: "saving in an editor while a film is copied: a page of a small file is written and \
                 fsynced every 20 ms until another file of 1 GiB is durable; how long the half, 99 of 100 \
                 and the slowest of these fsyncs take, and what is left for the film",
    needs: FIO,
    sources: &[],
    history: true,
    modes: Modes::One,
    bytes_needed: |scale| film_mib(scale) * MIB * 2,
    steps,
};

fn film_mib(scale: f64) -> u64 {
    pieces(1024, scale, 64)
}

fn steps(setting: &Setting) -> Vec<Step> {
    let film = film_mib(setting.scale) * MIB;
    // The job that is measured comes first. It goes on until the other one ends, and both of them
    // with that.
    let about = format!("a page fsynced every 20 ms while {} are written", in_bytes(film));
    let script = format!(
        "fio {COMMON} --exitall --directory=\"$DIR\" \
         --name=small --rw=randwrite --bs=4k --size=64k --fsync=1 --thinktime=20ms \
         --time_based --runtime=1d \
         --name=film --rw=write --bs=1M --size={film} --end_fsync=1 --time_based=0"
    );
    let latencies = [
        ("fsync-p50", Latency::Median),
        ("fsync-p99", Latency::Percentile99),
        ("fsync-max", Latency::Most),
    ];
    let beside = latencies
        .into_iter()
        .fold(Step::task(about, script), |step, (name, which)| {
            step.measured(name, Unit::Milliseconds, What::SyncLatency(which), Best::Unknown)
        })
        .rate("film", film, Timer::Clock, Best::Write(film as f64));
    vec![format(), mount(), beside, unmount()]
}
