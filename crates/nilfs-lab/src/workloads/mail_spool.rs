//! Mail that must not be lost.

use super::fio::{COMMON, FIO};
use super::{
    Best, CALLS_OF_A_FILE, Modes, Setting, Step, Timer, Workload, format, mount, pieces, unmount,
};
use crate::report::format_numbers::count as in_words;

/// A new file and an fsync for every message.
pub static MAIL_SPOOL: Workload = Workload {
    name: "mail-spool",
    title: "Mail spool",
    stands_for: "a mail server's queue: for every message of 4 KiB a new file, durable before the \
                 next one comes; delivered by one process, by 8 and by 64 at the same time",
    needs: FIO,
    sources: &[],
    history: true,
    modes: Modes::One,
    bytes_needed: |scale| messages(scale) * 8192 * 6,
    steps,
};

fn messages(scale: f64) -> u64 {
    pieces(8000, scale, 512)
}

fn steps(setting: &Setting) -> Vec<Step> {
    let mut steps = vec![format(), mount()];
    for (name, writers) in [("deliver", 1), ("deliver-8", 8), ("deliver-64", 64)] {
        let each = messages(setting.scale) / writers;
        let count = each * writers;
        let by = if writers == 1 { "one process".to_owned() } else { format!("{writers} at once") };
        let about = format!("{} messages of 4 KiB, each a durable file, by {by}", in_words(count));
        let script = format!(
            "mkdir \"$DIR/{name}\"; fio --name=mail --directory=\"$DIR/{name}\" --rw=write --bs=4k \
             --numjobs={writers} --group_reporting --filesize=4k --nrfiles={each} --openfiles=1 \
             --file_service_type=sequential --fsync=1 {COMMON}"
        );
        // Those who wait at the same time can share a flush.
        let best = Best::Synced { times: each as f64, bytes: (writers * 4096) as f64 };
        let delivered = Step::task(about, script).calls(count * CALLS_OF_A_FILE).per_second(
            name,
            count,
            Timer::Fio,
            best,
        );
        steps.push(delivered.written(&format!("{name}-written"), Best::Unknown));
    }
    steps.push(unmount());
    steps
}
