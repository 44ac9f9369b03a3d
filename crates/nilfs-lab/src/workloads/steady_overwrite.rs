//! Overwriting until every free block has been used and given back more than once.

use super::fio::{FIO, fio};
use super::{Best, Latency, Modes, Setting, Step, Timer, What, Workload, format, mount, unmount};
use crate::report::format_numbers::bytes as in_bytes;
use crate::results::Unit;

/// What a file system and a device can go on doing for ever.
pub static STEADY_OVERWRITE: Workload = Workload {
    name: "steady-overwrite",
    title: "Overwriting for ever",
    stands_for: "a database on a device that is 50, 80 or 90 % full, after cleaners of file system \
                 and device have come into balance: 4 KiB anywhere, an fdatasync every 32",
    needs: FIO,
    sources: &[],
    history: false,
    modes: Modes::One,
    // It fills whatever device there is.
    bytes_needed: |_| 64 << 20,
    steps,
};

/// Writes between two syncs.
const SYNC_INTERVAL: u64 = 32;

/// What writing this many bytes at random usually costs: between a log, which puts them one after
/// the other, and writing each in its place.
fn scattered(bytes: u64) -> Best {
    Best::Synced { times: (bytes / 4096) as f64 / 3.0, bytes: 4096.0 }
}

fn steps(setting: &Setting) -> Vec<Step> {
    let mut steps = Vec::new();
    for percent in [50, 80, 90] {
        // A part of what the file system itself says it has room for, in whole MiB.
        let room = format!(
            "set -- $(stat -f -c '%a %S' \"$DIR\"); mib=$(( $1 * $2 / 1048576 * {percent} / 100 ))"
        );
        let fill = "--rw=write --bs=1M --size=${mib}M --end_fsync=1";
        let overwrite = |bytes: u64| {
            let options = "--rw=randwrite --bs=4k --norandommap";
            let sync = format!("--fdatasync={SYNC_INTERVAL}");
            format!("{options} --size=$(stat -c %s \"$DIR/file\") --io_size={bytes} {sync}")
        };
        // Several steps of any cleaner: one more or less must not decide.
        let measured = (setting.device_bytes / 4) >> 20 << 20;
        let writes = measured / 4096;
        let best = Best::Synced {
            times: (writes / SYNC_INTERVAL) as f64,
            bytes: (SYNC_INTERVAL * 4096) as f64,
        };
        let name = format!("full-{percent}");
        let about = format!(
            "{} overwritten anywhere in a file that takes {percent} % of the room",
            in_bytes(measured)
        );
        let fill = format!("{room}\n{}", fio("fill", "file", fill));
        let filled = Best::Write((setting.device_bytes / 100 * percent) as f64);
        steps.extend([format(), mount(), Step::script(fill).costs(filled)]);
        // All that was free is written over: from here on cleaning is paid for.
        let free = setting.device_bytes / 100 * (100 - percent);
        let balance = fio("balance", "file", &overwrite(free));
        steps.push(Step::script(balance).costs(scattered(free)).calls(free / 4096));
        steps.push(
            Step::task(about, fio("overwrite", "file", &overwrite(measured)))
                .per_second(&name, writes, Timer::Fio, best)
                .written(&format!("{name}-written"), Best::Write(measured as f64))
                .measured(
                    &format!("{name}-p99"),
                    Unit::Milliseconds,
                    What::SyncLatency(Latency::Percentile99),
                    Best::Unknown,
                )
                .costs(scattered(measured))
                .calls(writes),
        );
        steps.push(unmount());
    }
    steps
}
