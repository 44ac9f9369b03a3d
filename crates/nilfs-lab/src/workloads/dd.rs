//! One file, written and read by dd.

use super::{
    Best, Modes, Setting, Step, Timer, What, Workload, format, mount, pieces, remount, unmount,
};
use crate::report::format_numbers::bytes as in_bytes;
use crate::results::Unit;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A file of 4 GB, written and read back.
pub static BIG_FILE: Workload = Workload {
    name: "big-file",
    title: "One big file",
    stands_for: "a film copied to a stick and watched: 4 GB written in pieces of 64 KiB with a \
                 sync, then read back cold",
    needs: &[],
    sources: &[],
    history: true,
    modes: Modes::One,
    bytes_needed: |scale| big_file_pieces(scale) * 64 * KIB,
    steps: big_file,
};

fn big_file_pieces(scale: f64) -> u64 {
    pieces(65_536, scale, 64)
}

fn big_file(setting: &Setting) -> Vec<Step> {
    let count = big_file_pieces(setting.scale);
    let bytes = (count * 64 * KIB) as f64;
    let size = in_bytes(count * 64 * KIB);
    let write = Step::task(
        format!("a file of {size} written in pieces of 64 KiB, and a sync"),
        format!("dd if=/dev/zero of=\"$DIR/big\" bs=64k count={count} status=none; $SYNC \"$DIR\""),
    );
    let read = Step::task(
        format!("its {size} read back, none of them cached"),
        "dd if=\"$DIR/big\" of=/dev/null bs=64k status=none",
    );
    let mut steps = vec![format(), mount(), write.seconds("write", Best::Write(bytes))];
    steps.extend(remount());
    steps.push(read.seconds("read", Best::Read(bytes)));
    steps.push(unmount());
    steps
}

/// How blogs measure.
pub static DD: Workload = Workload {
    name: "dd",
    title: "dd",
    stands_for: "the test of many blog posts: 100 MB and 1 GB from /dev/zero with bs=4k, stopped \
                 when dd ends and, better, when all is durable",
    needs: &[],
    sources: &[],
    history: true,
    modes: Modes::One,
    bytes_needed: |scale| {
        pieces(25_600, scale, 64) * 8 * KIB + pieces(262_144, scale, 640) * 8 * KIB
    },
    steps: dd,
};

fn dd(setting: &Setting) -> Vec<Step> {
    let mut steps = vec![format(), mount()];
    for (name, pages) in [("small", 25_600), ("large", 262_144)] {
        let count = pieces(pages, setting.scale, pages / 400);
        let bytes = count * 4 * KIB;
        let write = |file: &str| {
            format!("dd if=/dev/zero of=\"$DIR/{name}-{file}\" bs=4k count={count} status=none")
        };
        let about = |until| format!("{} written with bs=4k, until {until}", in_bytes(bytes));
        let cached = What::Time { amount: bytes as f64, by: Timer::Clock, memory: true };
        steps.push(Step::task(about("dd ends"), write("cached")).measured(
            name,
            Unit::MegabytesPerSecond,
            cached,
            Best::Unknown,
        ));
        let all_written = Best::Write(bytes as f64);
        steps.push(Step::script("$SYNC \"$DIR\"").costs(all_written));
        let synced = format!("{}; $SYNC \"$DIR\"", write("synced"));
        steps.push(Step::task(about("all is durable"), synced).rate(
            &format!("{name}-sync"),
            bytes,
            Timer::Clock,
            all_written,
        ));
    }
    steps.push(unmount());
    steps
}

/// Writes that are each durable before the next begins.
pub static DD_SYNC: Workload = Workload {
    name: "dd-sync",
    title: "dd with oflag=sync",
    stands_for: "every piece durable before the next: 1024 of 4 KiB, 4 and 256 of 1 MiB",
    needs: &[],
    sources: &[],
    history: true,
    modes: Modes::One,
    bytes_needed: |scale| {
        let mib = pieces(4, scale, 4) + pieces(256, scale, 4);
        mib * MIB + pieces(1024, scale, 16) * 4 * KIB
    },
    steps: dd_sync,
};

fn dd_sync(setting: &Setting) -> Vec<Step> {
    let sizes = [
        ("4k", 4 * KIB, "4 KiB", pieces(1024, setting.scale, 16)),
        ("1m-few", MIB, "1 MiB", pieces(4, setting.scale, 4)),
        ("1m-many", MIB, "1 MiB", pieces(256, setting.scale, 4)),
    ];
    let mut steps = vec![format(), mount()];
    for (name, size, in_words, count) in sizes {
        let about = format!("{count} × {in_words}, each durable before the next");
        let script = Step::task(
            about,
            format!(
                "dd if=/dev/zero of=\"$DIR/{name}\" bs={size} count={count} oflag=sync status=none"
            ),
        );
        let best = Best::Synced { times: count as f64, bytes: size as f64 };
        steps.push(script.rate(name, size * count, Timer::Clock, best));
    }
    steps.push(unmount());
    steps
}
