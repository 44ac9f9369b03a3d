//! What is counted while a volume is mounted: for programs that watch it, as Prometheus text or
//! JSON.

mod endpoint;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use nilfs_engine::{CleanerState, Status};
use nilfs_fuse::OperationCounts;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet, text};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Registry, Unit};
use serde::{Deserialize, Serialize};

pub use endpoint::Endpoint;

/// What puts them together.
pub type Gatherer = Arc<dyn Fn() -> Metrics + Send + Sync>;

/// All that is counted, of one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// The volume and its cleaner.
    pub status: Status,
    /// What programs have asked of the mount, by kind.
    pub operations: Vec<Operation>,
}

/// What has become of the requests of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    pub operation: String,
    pub count: u64,
    pub errors: u64,
    /// Seconds that all of them took together.
    #[serde(rename = "total_seconds")]
    pub seconds: f64,
    pub durations: Vec<LatencyBucket>,
}

/// Requests that took about the same time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LatencyBucket {
    /// Seconds that the slowest of them can have taken; `None`: any time.
    #[serde(rename = "up_to_seconds")]
    pub up_to: Option<f64>,
    pub count: u64,
}

impl Metrics {
    /// Puts together what the engine and the front end have counted.
    pub fn new(status: Status, operations: &[OperationCounts]) -> Self {
        let operations = operations.iter().map(|counts| Operation {
            operation: counts.operation.to_owned(),
            count: counts.count,
            errors: counts.errors,
            seconds: counts.time.as_secs_f64(),
            durations: counts
                .buckets
                .iter()
                .map(|bucket| LatencyBucket {
                    up_to: bucket.up_to.map(|up_to| up_to.as_secs_f64()),
                    count: bucket.count,
                })
                .collect(),
        });
        Self { status, operations: operations.collect() }
    }

    /// As OpenMetrics text, which Prometheus reads.
    pub fn to_text(&self) -> Result<String, fmt::Error> {
        let mut registry = Registry::with_prefix("nilfs");
        registry.register_collector(Box::new(self.clone()));
        let mut out = String::new();
        text::encode(&mut out, &registry)?;
        Ok(out)
    }

    /// The numbers without a label.
    pub fn values(&self) -> Vec<Value> {
        let status = &self.status;
        let cleaner = &status.cleaner;
        let segment = u64::from(status.geometry.blocks_per_segment);
        let block = status.geometry.block_size.bytes64();
        let running = u64::from(status.state == CleanerState::Running);
        let counter = |name, help, value| Value { name, help, total: true, value };
        let gauge = |name, help, value| Value { name, help, total: false, value };
        vec![
            gauge("uptime_seconds", "Seconds since the mount", status.uptime),
            gauge("newest_checkpoint", "Number of the newest checkpoint", status.cno.0),
            gauge("dirty_bytes", "Changed bytes in memory", status.dirty_bytes),
            gauge(
                "writing_stopped",
                "1 if an error has ended all writing",
                status.stopped.is_some().into(),
            ),
            gauge("segment_bytes", "Bytes of a segment", segment * block),
            gauge("segments", "Segments of the volume", status.geometry.nsegments),
            gauge("clean_segments", "Segments that are clean", status.clean_segments),
            gauge("kept_segments", "Segments that writers leave clean", status.kept_segments),
            gauge(
                "refused_segments",
                "Segments that are kept out of use, because they hold what is needed, or may, although \
                 they count as clean; see nilfs fsck",
                status.refused_segments,
            ),
            counter("log_bytes", "Bytes in all logs", status.blocks_written * block),
            counter("user_bytes", "Bytes of files in them", status.user_blocks_written * block),
            counter(
                "checkpoint_data_bytes",
                "Bytes of files that checkpoints wrote",
                status.data_blocks * block,
            ),
            counter(
                "checkpoint_metadata_bytes",
                "Bytes of everything else that checkpoints wrote",
                status.metadata_blocks * block,
            ),
            counter(
                "data_sync_bytes",
                "Bytes of data-sync logs, which make files durable without a checkpoint",
                status.data_sync_blocks * block,
            ),
            counter(
                "cache_hits",
                "Metadata blocks that were wanted and in memory",
                status.cache_hits,
            ),
            counter("cache_misses", "Metadata blocks that had to be read", status.cache_misses),
            gauge("cleaner_running", "1 while the cleaner works", running),
            counter(
                "lifetime_user_bytes",
                "Bytes of files in logs, since the volume was made",
                status.lifetime_user_bytes,
            ),
            counter(
                "lifetime_log_bytes",
                "Bytes in all logs, since the volume was made",
                status.lifetime_written_bytes,
            ),
            counter(
                "lifetime_freed_segments",
                "Segments made clean, since the volume was made",
                status.lifetime_segments_freed,
            ),
            counter("cleaner_steps", "Steps of the cleaner", cleaner.steps),
            counter("cleaner_freed_segments", "Segments made clean", cleaner.segments_freed),
            counter("cleaner_moved_bytes", "Live bytes moved", cleaner.blocks_moved * block),
            counter("cleaner_log_bytes", "Bytes of its logs", cleaner.blocks_written * block),
            counter(
                "cleaner_deleted_checkpoints",
                "Checkpoints given up for the space that they kept",
                cleaner.checkpoints_deleted,
            ),
            counter(
                "cleaner_skipped_segments",
                "Segments not cleaned because they are damaged",
                cleaner.segments_skipped,
            ),
        ]
    }
}

/// A number with its name.
#[derive(Debug, Clone, Copy)]
pub struct Value {
    pub name: &'static str,
    help: &'static str,
    /// Whether it only grows.
    total: bool,
    pub value: u64,
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for Value { name, help, total, value } in self.values() {
            match total {
                true => encode(&mut encoder, name, help, &ConstCounter::new(value))?,
                false => encode(&mut encoder, name, help, &ConstGauge::new(value as i64))?,
            }
        }
        let help = "Requests that failed";
        let mut errors =
            encoder.encode_descriptor("operation_errors", help, None, MetricType::Counter)?;
        for operation in &self.operations {
            let label = [("operation", operation.operation.as_str())];
            errors
                .encode_family(&label)?
                .encode_counter::<NoLabelSet, u64, u64>(&operation.errors, None)?;
        }
        let (name, help) = ("operation_duration", "Time that requests took");
        let unit = Unit::Seconds;
        let mut durations =
            encoder.encode_descriptor(name, help, Some(&unit), MetricType::Histogram)?;
        for operation in &self.operations {
            let label = [("operation", operation.operation.as_str())];
            let buckets = operation.durations.iter();
            let buckets: Vec<_> = buckets
                .map(|bucket| (bucket.up_to.unwrap_or(f64::INFINITY), bucket.count))
                .collect();
            let none: Option<&HashMap<usize, _>> = None;
            durations.encode_family(&label)?.encode_histogram::<NoLabelSet>(
                operation.seconds,
                operation.count,
                &buckets,
                none,
            )?;
        }
        Ok(())
    }
}

fn encode<M: EncodeMetric + TypedMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &M,
) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, M::TYPE)?)
}
