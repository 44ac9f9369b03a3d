//! Mail that must not be lost.

use super::fio::{COMMON, FIO};
use super::{Best, Setting, Step, Timer, Workload, format, mount, pieces, unmount};

/// A new file and an fsync for every message.
pub static MAIL_SPOOL: Workload = Workload {
    name: "mail-spool",
    title: "Mail spool",
    stands_for: "a mail server's queue: for every message of 4 KiB a new file, durable before the \
                 next one comes",
    needs: FIO,
    sources: &[],
    history: true,
    access_times: false,
    bytes_needed: |scale| messages(scale) * 8192 * 2,
    steps,
};

fn messages(scale: f64) -> u64 {
    pieces(8000, scale, 64)
}

fn steps(setting: &Setting) -> Vec<Step> {
    let count = messages(setting.scale);
    let deliver = Step::script(format!(
        "mkdir \"$DIR/spool\"; fio --name=mail --directory=\"$DIR/spool\" --rw=write --bs=4k \
         --filesize=4k --nrfiles={count} --openfiles=1 --file_service_type=sequential --fsync=1 \
         {COMMON}"
    ));
    let best = Best::Synced { times: count as f64, bytes: 4096.0 };
    let delivered = deliver.per_second("deliver", count, Timer::Fio, best);
    vec![format(), mount(), delivered.written("deliver-written", Best::Unknown), unmount()]
}
