//! What iozone did, done by fio; and how fio's report is read.

use anyhow::{Context, Result};
use serde_json::Value;

use super::{
    Best, Latency, Modes, Setting, Step, Timer, Workload, format, mount, pieces, remount, unmount,
};
use crate::command::last_lines;
use crate::file_systems::Program;
use crate::report::format_numbers::{bytes as in_bytes, count as in_words};

/// The package that has fio.
pub(super) const FIO: &[Program] = &[Program { name: "fio", package: "fio" }];

/// The line that runs fio on a file; the options say what it does. The seed makes every file system
/// write the same places.
pub(super) fn fio(name: &str, file: &str, options: &str) -> String {
    format!("fio --name={name} --filename=\"$DIR/{file}\" {} {options}", COMMON)
}

/// What every job has in common.
pub(super) const COMMON: &str = "--ioengine=psync --thread --fallocate=none --create_on_open=1 \
     --randseed=4 --allrandrepeat=1 --output-format=json";

/// Records of 4 KiB, as iozone was used on cards.
pub static IOZONE: Workload = Workload {
    name: "iozone",
    title: "4 KiB records",
    stands_for: "the iozone tables of card and phone comparisons: a 1 GB file written and read \
                 through the page cache, in order and at random, and a 100 MB file with an fsync \
                 after each record",
    needs: FIO,
    sources: &[],
    history: true,
    modes: Modes::One,
    bytes_needed: |scale| (records(scale) * 2 + synced_records(scale) * 4) * 4096,
    steps: iozone,
};

fn records(scale: f64) -> u64 {
    pieces(262_144, scale, 4096)
}

fn synced_records(scale: f64) -> u64 {
    pieces(25_600, scale, 512)
}

fn iozone(setting: &Setting) -> Vec<Step> {
    let (count, synced) = (records(setting.scale), synced_records(setting.asked));
    let reads = records(setting.asked);
    let (bytes, synced_bytes) = (count * 4096, synced * 4096);
    let job = |name: &str, calls: u64, about: String, file: &str, options: &str| {
        Step::task(about, fio(name, file, options)).calls(calls)
    };
    let (records, some) = (in_words(count), in_words(reads));
    let (syncs, synced_size) = (in_words(synced), in_bytes(synced_bytes));
    let whole = |rw: &str| format!("--rw={rw} --bs=4k --size={bytes}");
    let each = |rw: &str| format!("--rw={rw} --bs=4k --size={synced_bytes} --fsync=1");
    let by = Timer::Fio;
    let all_written = Best::Write(bytes as f64);
    let all_synced = Best::Synced { times: synced as f64, bytes: 4096.0 };

    let mut steps = vec![format(), mount()];
    let about = format!("a file of {} written in records of 4 KiB, and an fsync", in_bytes(bytes));
    let end_synced = |rw: &str| format!("{} --end_fsync=1", whole(rw));
    steps.push(job("write", count, about, "file", &end_synced("write")).rate(
        "write",
        bytes,
        by,
        all_written,
    ));
    steps.extend(remount());
    let about = format!("its {records} records overwritten at random, and an fsync");
    steps.push(job("random-write", count, about, "file", &end_synced("randwrite")).per_second(
        "random-write",
        count,
        by,
        all_written,
    ));
    steps.extend(remount());
    let about = format!("its {} read in order, none of them cached", in_bytes(bytes));
    steps.push(job("read", count, about, "file", &whole("read")).rate(
        "read",
        bytes,
        by,
        Best::Read(bytes as f64),
    ));
    steps.extend(remount());
    let about = format!("{some} of its records read at random, none of them cached");
    let options = format!("{} --io_size={}", whole("randread"), reads * 4096);
    steps.push(job("random-read", reads, about, "file", &options).per_second(
        "random-read",
        reads,
        by,
        Best::SmallReads(reads as f64),
    ));
    steps.extend(remount());
    let about = format!("{synced_size} written in {syncs} records, an fsync after each");
    steps.push(job("write-fsync", synced * 2, about, "synced", &each("write")).rate(
        "write-fsync",
        synced_bytes,
        by,
        all_synced,
    ));
    steps.extend(remount());
    let about = format!("the {syncs} records overwritten at random, an fsync after each");
    steps.push(
        job("random-write-fsync", synced * 2, about, "synced", &each("randwrite")).per_second(
            "random-write-fsync",
            synced,
            by,
            all_synced,
        ),
    );
    steps.push(unmount());
    steps
}

/// What fio says about the first of its jobs; any others are only its surroundings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report {
    /// How long it read or wrote, the last fsync included.
    pub seconds: f64,
    /// The median of the times that syncs took, what 99 of 100 are below, and the longest, in
    /// milliseconds; `None` if there were none.
    sync_latencies: Option<[f64; 3]>,
}

impl Report {
    /// Reads the JSON that fio prints, perhaps after other messages.
    ///
    /// # Errors
    /// It is not such a report, or a job has failed.
    pub fn read(printed: &str) -> Result<Self> {
        let start = printed
            .find('{')
            .with_context(|| format!("fio printed no report: {}", last_lines(printed, 2)))?;
        let report: Value =
            serde_json::from_str(&printed[start..]).context("fio's report cannot be read")?;
        let jobs = report["jobs"].as_array().context("fio's report has no jobs")?;
        for job in jobs {
            let error = job["error"].as_i64().context("fio does not say how a job ended")?;
            anyhow::ensure!(error == 0, "fio's job failed with error {error}");
        }
        let job = jobs.first().context("fio had no job")?;
        let runtime = |direction: &str| job[direction]["runtime"].as_f64().unwrap_or(0.0);
        let milliseconds = runtime("write") + runtime("read");
        anyhow::ensure!(milliseconds > 0.0, "fio did nothing that takes a millisecond");
        let syncs = &job["sync"]["lat_ns"];
        let percentile = |which: &str| syncs["percentile"][which].as_f64();
        let sync_latencies = percentile("50.000000")
            .zip(percentile("99.000000"))
            .zip(syncs["max"].as_f64())
            // fio counts in ranges and names the end of one, which can lie beyond the longest.
            .map(|((median, high), most)| [median, high, most].map(|ns| ns.min(most) / 1e6));
        Ok(Self { seconds: milliseconds / 1e3, sync_latencies })
    }

    /// How long a sync took, in milliseconds, if there was any.
    #[must_use]
    pub fn sync_latency(&self, which: Latency) -> Option<f64> {
        let [median, high, most] = self.sync_latencies?;
        Some(match which {
            Latency::Median => median,
            Latency::Percentile99 => high,
            Latency::Most => most,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_found_after_messages_and_a_failed_job_is_no_figure() {
        let job = r#"note
            {"jobs": [{"error": 0, "write": {"runtime": 1500}, "read": {"runtime": 0},
             "sync": {"lat_ns": {"max": 9000000,
                                 "percentile": {"50.000000": 1000000, "99.000000": 2500000}}}},
             {"error": 0}]}"#;
        let report = Report::read(job).unwrap();
        assert!((report.seconds - 1.5).abs() < 1e-9);
        let latencies = [Latency::Median, Latency::Percentile99, Latency::Most];
        let latencies = latencies.map(|which| report.sync_latency(which).unwrap());
        assert!(latencies.iter().zip([1.0, 2.5, 9.0]).all(|(a, b)| (a - b).abs() < 1e-9));
        let beyond = Report::read(&job.replace("9000000", "2400000")).unwrap();
        assert_eq!(beyond.sync_latency(Latency::Percentile99), Some(2.4));
        assert!(Report::read(&job.replacen("\"error\": 0", "\"error\": 28", 1)).is_err());
        assert!(Report::read(&job.replace("{\"error\": 0}", "{\"error\": 28}")).is_err());
        assert!(Report::read("fio: no space").is_err());
    }
}
