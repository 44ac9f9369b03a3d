//! Device models against what is known about such devices in closed form.

use std::time::Duration;

use nilfs_lab::model::Model;
use nilfs_lab::model::preset::{self, Preset};
use nilfs_lab::replay::replay;
use nilfs_lab::trace::{DeviceRequest, Kind, Mark, Trace};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const MIB: u64 = 1 << 20;
const SEED: u64 = 4;

/// A device, and requests one after the other without pauses.
struct Bench {
    model: Box<dyn Model>,
    now: Duration,
}

impl Bench {
    fn new(preset: &Preset, device_bytes: u64) -> Self {
        let model = preset.model(device_bytes).unwrap_or_else(|error| panic!("{error}"));
        Self { model, now: Duration::ZERO }
    }

    fn ask(&mut self, kind: Kind, offset: u64, bytes: u64) -> Duration {
        let time = self.model.serve(&DeviceRequest { kind, offset, bytes, at: self.now });
        self.now += time;
        time
    }

    fn write(&mut self, offset: u64, bytes: u64) -> Duration {
        self.ask(Kind::Write, offset, bytes)
    }

    fn read(&mut self, offset: u64, bytes: u64) -> Duration {
        self.ask(Kind::Read, offset, bytes)
    }

    fn flush(&mut self) -> Duration {
        self.ask(Kind::Flush, 0, 0)
    }
}

/// A built-in preset with some of its fields set to something else.
fn altered(name: &str, section: &str, fields: &[(&str, toml::Value)]) -> Preset {
    let mut table = toml::Table::try_from(find(name)).expect("a preset is a table");
    let inner = table[section].as_table_mut().expect("a section is a table");
    for (field, value) in fields {
        assert!(inner.contains_key(*field), "no field {field}");
        inner.insert((*field).to_owned(), value.clone());
    }
    preset::parse("altered", &toml::to_string(&table).expect("a table is TOML"))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn find(name: &str) -> Preset {
    preset::find(name).unwrap_or_else(|error| panic!("{error}"))
}

fn size(bytes: u64) -> toml::Value {
    toml::Value::Integer(i64::try_from(bytes).expect("sizes are small"))
}

fn per_second(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64()
}

#[track_caller]
fn assert_close(found: f64, expected: f64, part: f64, what: &str) {
    let off = (found / expected - 1.0).abs();
    assert!(off <= part, "{what}: {found} instead of {expected}, off by {:.1} %", off * 100.0);
}

/// Write amplification of greedy collection under uniform random writes, by the mean field of
/// blocks that lose their pages one by one: a block of b pages begins full, stays U/i writes with i
/// valid pages of U on the device, and is collected as soon as it is among the emptiest, at m
/// valid pages on average. Then physical / U = b · (1/(m+1) + … + 1/b) / (b − m), with m between
/// whole numbers by sharing the last step; and each collection gains b − m of b pages.
fn greedy_amplification(pages_per_block: u32, physical: f64, valid: f64) -> f64 {
    let b = f64::from(pages_per_block);
    let spread = |m: f64| {
        let whole = m.ceil();
        let full_steps: f64 =
            (whole as u32 + 1..=pages_per_block).map(|i| 1.0 / f64::from(i)).sum();
        b * (full_steps + (whole - m) / whole.max(1.0)) / (b - m)
    };
    let (mut low, mut high) = (0.0, b - 1e-6);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        // The more is valid in a victim, the less flash there is for each valid page.
        if spread(middle) > physical / valid { low = middle } else { high = middle }
    }
    b / (b - low)
}

const PAGES_PER_BLOCK: u32 = 32;
const PAGE: u64 = 4096;

/// An SSD of one channel, with nothing but the collector to explain what it costs.
fn plain_ssd(used_percent: u64) -> Preset {
    altered(
        "x18-m",
        "ssd",
        &[
            ("channels", size(1)),
            ("pages_per_block", size(PAGES_PER_BLOCK.into())),
            ("buffer_bytes", size(2 * PAGE)),
            ("spare_percent", size(10)),
            ("idle_free_percent", size(0)),
            ("used_percent", size(used_percent)),
        ],
    )
}

#[test]
fn greedy_collection_amplifies_as_the_closed_form_says() {
    let preset = plain_ssd(0);
    let device = 1024 * u64::from(PAGES_PER_BLOCK) * PAGE;
    // Two stripes stay erased, and one is half full.
    let physical = (1024.0 * 1.1 - 2.5) * f64::from(PAGES_PER_BLOCK);
    for percent in [50, 70, 80, 90, 100] {
        let valid = device / PAGE * percent / 100;
        let mut bench = Bench::new(&preset, device);
        for page in 0..valid {
            bench.write(page * PAGE, PAGE);
        }
        let mut random = StdRng::seed_from_u64(SEED);
        let mut overwrite = |count: u64| {
            for _ in 0..count {
                bench.write(random.random_range(0..valid) * PAGE, PAGE);
            }
            bench.model.wear()
        };
        let before = overwrite(10 * valid);
        let after = overwrite(10 * valid);
        let programmed = after.programmed_bytes - before.programmed_bytes;
        let found = programmed as f64 / (after.host_bytes - before.host_bytes) as f64;
        let expected = greedy_amplification(PAGES_PER_BLOCK, physical, valid as f64);
        assert_close(found, expected, 0.02, &format!("{percent} % full, seed {SEED}"));
    }
}

#[test]
fn a_used_disk_without_discards_is_in_balance_from_the_first_write_on() {
    let preset = plain_ssd(100);
    let pages = 1024 * u64::from(PAGES_PER_BLOCK);
    let physical = (1024.0 * 1.1 - 2.5) * f64::from(PAGES_PER_BLOCK);
    let mut bench = Bench::new(&preset, pages * PAGE);
    let mut random = StdRng::seed_from_u64(SEED);
    for _ in 0..2 * pages {
        bench.write(random.random_range(0..pages) * PAGE, PAGE);
    }
    let found = bench.model.wear().amplification().expect("something was written");
    let expected = greedy_amplification(PAGES_PER_BLOCK, physical, pages as f64);
    assert_close(found, expected, 0.05, &format!("seed {SEED}"));
}

#[test]
fn pauses_do_not_make_flash_faster_than_it_is() {
    let preset = find("ssd-2009");
    let total = |pause: Duration| {
        let write = |number: u32| DeviceRequest {
            kind: Kind::Write,
            offset: u64::from(number) * MIB,
            bytes: MIB,
            at: pause * number,
        };
        let mut requests: Vec<DeviceRequest> = (0..128).map(write).collect();
        requests.push(DeviceRequest { kind: Kind::Flush, offset: 0, bytes: 0, at: pause * 128 });
        let trace = Trace { device_bytes: 512 * MIB, requests, marks: Vec::new() };
        let mut model = preset.model(trace.device_bytes).expect("a built-in preset");
        replay(&trace, &mut *model).total.as_secs_f64()
    };
    let limit = preset.limits().unwrap().sequential_write;
    let expected = (128 * MIB) as f64 / limit;
    for pause in [0, 3, 20] {
        let found = total(Duration::from_millis(pause));
        assert_close(found, expected, 0.1, &format!("{pause} ms between requests"));
    }
    // When it is idle for long it programs what it would have kept, and not while data comes in.
    let link = 128.0 * 1048576.0 / 230e6;
    let found = total(Duration::from_secs(1));
    assert!((expected..expected + link * 1.1).contains(&found), "{found} s");
}

#[test]
fn trimmed_flash_is_collected_without_copying() {
    let preset = altered("ssd-2009", "ssd", &[("used_percent", size(100))]);
    let device = 256 * MIB;
    let amplification = |discard: bool| {
        let mut bench = Bench::new(&preset, device);
        if discard {
            bench.ask(Kind::Discard, 0, device);
        }
        for _ in 0..2 {
            for piece in 0..device / 2 / MIB {
                bench.write(piece * MIB, MIB);
            }
        }
        bench.model.wear().amplification().expect("something was written")
    };
    let (with, without) = (amplification(true), amplification(false));
    assert!(with < 1.01, "{with} with discard");
    assert!(without > 1.5, "{without} without");
}

#[test]
fn one_stream_more_than_units_can_be_open_falls_off_the_cliff() {
    for name in ["microsd-2012", "microsd-cheap", "usb-2010", "olpc-sd", "microsd-a1", "emmc"] {
        let preset = find(name);
        let card = preset.card.clone().expect("a card");
        let streams = u64::from(card.open_units);
        let rate = |streams: u64| {
            let device = card.fat_bytes + card.unit_bytes * (streams + 1);
            let mut bench = Bench::new(&preset, device);
            let rounds = 16;
            for round in 0..rounds {
                for unit in 0..streams {
                    let base = card.fat_bytes + unit * card.unit_bytes;
                    bench.write(base + round * card.page_bytes, card.page_bytes);
                }
            }
            per_second(rounds * streams * card.page_bytes, bench.now)
        };
        let page = Duration::from_micros(card.write_overhead_us.into()).as_secs_f64()
            + card.page_bytes as f64 / card.write_bytes_per_second as f64;
        let (fits, too_many) = (rate(streams), rate(streams + 1));
        assert_close(fits, card.page_bytes as f64 / page, 0.001, name);
        // Each page now costs nearly all of a unit.
        let unit = card.unit_bytes as f64 / card.copy_bytes_per_second as f64;
        let expected = card.page_bytes as f64 / (page + unit);
        assert_close(too_many, expected, 0.15, name);
    }
}

#[test]
fn a_unit_that_is_written_again_and_again_stays_open() {
    let preset = find("usb-2010");
    let card = preset.card.clone().expect("a card");
    let mut bench = Bench::new(&preset, 128 * MIB);
    let page = |unit: u64, page: u64| (1 + unit) * card.unit_bytes + page * card.page_bytes;
    let first = bench.write(page(0, 0), card.page_bytes);
    for other in 1..20 {
        bench.write(page(other, 0), card.page_bytes);
        assert_eq!(bench.write(page(0, other), card.page_bytes), first, "next to {other} others");
    }
}

#[test]
fn a_linear_unit_written_backwards_is_merged_and_a_random_one_is_not() {
    let device = 64 * MIB;
    let backwards = |name: &str| {
        let preset = find(name);
        let card = preset.card.clone().expect("a card");
        let mut bench = Bench::new(&preset, device);
        let pages = card.unit_bytes / card.page_bytes;
        for page in (0..pages).rev() {
            bench.write(card.fat_bytes + page * card.page_bytes, card.page_bytes);
        }
        // Closing it costs nothing: all of it is new.
        for unit in 2..3 + u64::from(card.open_units).min(12) {
            bench.write(card.fat_bytes + unit * card.unit_bytes, card.page_bytes);
        }
        per_second(card.unit_bytes, bench.now)
    };
    assert!(backwards("microsd-2012") > 9e6, "random: {}", backwards("microsd-2012"));
    assert!(backwards("usb-2010") < 0.1e6, "linear: {}", backwards("usb-2010"));
}

#[test]
fn a_stream_costs_its_bytes_at_the_rate_and_its_overheads() {
    let preset = altered(
        "usb-2010",
        "card",
        &[
            ("write_bytes_per_second", size(8_192_000)),
            ("read_bytes_per_second", size(16_384_000)),
            ("write_overhead_us", size(700)),
            ("read_overhead_us", size(300)),
            ("flush_us", size(1000)),
        ],
    );
    let mut bench = Bench::new(&preset, 64 * MIB);
    let (requests, bytes) = (512, 65_536);
    let total = |bench: &mut Bench, kind| -> Duration {
        (0..requests).map(|n| bench.ask(kind, 16 * MIB + n * bytes, bytes)).sum()
    };
    // 65 536 bytes are 8 ms and 4 ms.
    assert_eq!(total(&mut bench, Kind::Write), Duration::from_micros(requests * 8700));
    assert_eq!(total(&mut bench, Kind::Read), Duration::from_micros(requests * 4300));
    assert_eq!(bench.flush(), Duration::from_micros(1000));
    let wear = bench.model.wear();
    assert_eq!(wear.programmed_bytes, wear.host_bytes);
    assert_eq!((wear.erases, wear.most_erases), (8, 1));
}

#[test]
fn a_random_unit_is_merged_when_its_log_is_full() {
    let preset = find("microsd-2012");
    let card = preset.card.clone().expect("a card");
    let log = card.unit_bytes + card.log_spare_bytes;
    let mut bench = Bench::new(&preset, 64 * MIB);
    for write in 0..log / card.page_bytes {
        bench.write(card.unit_bytes + write % 2 * card.page_bytes, card.page_bytes);
    }
    assert_eq!(bench.model.wear().programmed_bytes, log);
    // The log has two pages that count, and no room for all the others.
    bench.write(card.unit_bytes, card.page_bytes);
    let wear = bench.model.wear();
    assert_eq!(wear.programmed_bytes, log + card.unit_bytes + card.page_bytes);
    assert_eq!(wear.erases, 3);
}

#[test]
fn what_was_discarded_is_not_copied() {
    let preset = find("microsd-a1");
    let card = preset.card.clone().expect("a card");
    let amplification = |discard: bool| {
        let mut bench = Bench::new(&preset, 512 * MIB);
        if discard {
            bench.ask(Kind::Discard, 0, 512 * MIB);
        }
        for unit in 2..100 {
            bench.write(unit * card.unit_bytes, card.page_bytes);
        }
        bench.model.wear().amplification().expect("something was written")
    };
    assert!((amplification(true) - 1.0).abs() < f64::EPSILON);
    assert!(amplification(false) > 50.0);
}

#[test]
fn a_unit_that_is_rewritten_wears_all_blocks_that_are_free() {
    let preset = find("emmc");
    let mut bench = Bench::new(&preset, 256 * MIB);
    for _ in 0..100 {
        bench.write(64 * MIB, 4 * MIB);
    }
    let wear = bench.model.wear();
    assert_eq!((wear.erases, wear.most_erases), (100, 1));
}

#[test]
fn small_writes_cost_pages_and_next_to_nothing_more_in_the_fat_area() {
    let preset = find("microsd-2012");
    let card = preset.card.clone().expect("a card");
    let scattered = |base: u64| {
        let mut bench = Bench::new(&preset, 64 * MIB);
        for write in 0..50 {
            bench.write(base + write * 7 % 50 * 2 * card.page_bytes, 4096);
            bench.flush();
        }
        bench.model.wear().amplification().expect("something was written")
    };
    assert!((scattered(0) - 1.0).abs() < f64::EPSILON);
    assert!((scattered(card.fat_bytes) - 4.0).abs() < f64::EPSILON);
}

#[test]
fn small_writes_to_coarsely_mapped_flash_rewrite_all_that_is_mapped_together() {
    let preset = find("ssd-first");
    let ssd = preset.ssd.clone().expect("an SSD");
    let mut bench = Bench::new(&preset, 256 * MIB);
    for write in 0..64 {
        bench.write(write * 37 % 64 * 4 * MIB + 4096, 4096);
        // On four channels 511 pages are read, a block erased, and 512 pages programmed.
        let expected = Duration::from_micros(100 + 128 * 50 + 2000 + 128 * 166 + 200);
        assert_eq!(bench.flush(), expected);
    }
    let found = bench.model.wear().amplification().expect("something was written");
    assert_close(found, ssd.mapping_bytes as f64 / 4096.0, 0.001, "amplification");
}

#[test]
fn a_write_that_fits_the_buffer_is_paid_for_by_the_flush() {
    let mut bench = Bench::new(&find("ssd-2009"), 256 * MIB);
    let written: Duration = (0..16).map(|n| bench.write(n * 3 * MIB, 4096)).sum();
    let flushed = bench.flush();
    assert_eq!(flushed - bench.flush(), Duration::from_micros(2 * 257 + 2000));
    assert!(written < flushed);

    // After a pause there is nothing left to do.
    bench.write(0, 4096);
    bench.now += Duration::from_secs(1);
    assert_eq!(bench.flush(), Duration::from_micros(1040));
}

#[test]
fn idle_time_is_used_to_collect() {
    let device = 256 * MIB;
    let busy = |idle_free_percent: u64| -> Duration {
        let preset = altered(
            "ssd-2009",
            "ssd",
            &[
                ("used_percent", size(100)),
                ("buffer_bytes", size(65_536)),
                ("idle_free_percent", size(idle_free_percent)),
            ],
        );
        let mut bench = Bench::new(&preset, device);
        let mut random = StdRng::seed_from_u64(SEED);
        let mut busy = Duration::ZERO;
        for write in 0..20_000 {
            if write % 500 == 0 {
                bench.now += Duration::from_secs(10);
            }
            busy += bench.write(random.random_range(0..device / 4096) * 4096, 4096);
        }
        busy
    };
    let (never, always) = (busy(0), busy(3));
    assert!(always * 2 < never, "{always:?} instead of {never:?}, seed {SEED}");
}

#[test]
fn a_read_goes_before_what_is_being_programmed() {
    let end = |read: bool| {
        let preset = find("ssd-2009");
        let mut bench = Bench::new(&preset, 256 * MIB);
        bench.write(0, 16 * MIB);
        if read {
            let time = bench.read(64 * MIB, 4096);
            let limit = preset.limits().unwrap().small_read;
            assert_close(time.as_secs_f64(), limit, 0.001, "read");
        }
        bench.flush();
        bench.now
    };
    assert_eq!(end(true) - end(false), Duration::from_micros(60));
}

#[test]
fn a_flush_fills_up_the_page_that_small_writes_share() {
    let mut bench = Bench::new(&find("nvme"), 256 * MIB);
    let programmed = |bench: &Bench| bench.model.wear().programmed_bytes;
    bench.write(0, 4096);
    bench.flush();
    assert_eq!(programmed(&bench), 16_384);
    for n in 0..4 {
        bench.write(MIB * n, 4096);
    }
    bench.flush();
    assert_eq!(programmed(&bench), 32_768);
}

#[test]
fn the_disk_waits_for_its_arm_and_for_the_platter() {
    let preset = find("disk-5400");
    let device = 1024 * MIB;
    let mut bench = Bench::new(&preset, device);
    let mut random = StdRng::seed_from_u64(SEED);
    let count = 4000;
    for _ in 0..count {
        bench.read(random.random_range(0..device / 4096) * 4096, 4096);
    }
    let mean = bench.now.as_secs_f64() / f64::from(count);
    assert_close(mean, preset.limits().unwrap().small_read, 0.02, &format!("seed {SEED}"));
}

#[test]
fn every_built_in_device_reaches_its_limits() {
    let presets = preset::all();
    assert!(presets.len() >= 11);
    for mut preset in presets {
        let name = &preset.name.clone();
        assert_eq!(preset, find(name), "{name} is found by its name");
        // As it comes out of its box.
        if let Some(ssd) = &mut preset.ssd {
            ssd.used_percent = 0;
        }
        // A disk is fastest at its beginning only.
        let device = if preset.disk.is_some() { preset.capacity } else { 1024 * MIB };
        let limits = preset.limits().unwrap();
        let stream = |kind: Kind, step: u64, count: u64| {
            let mut bench = Bench::new(&preset, device);
            // After the FAT area. What comes first fills buffers.
            let begin = 16 * MIB;
            for n in 0..count / 2 {
                bench.ask(kind, begin + n * step, step);
            }
            let from = bench.now;
            for n in count / 2..count {
                bench.ask(kind, begin + n * step, step);
            }
            (bench.now - from).as_secs_f64() / (count - count / 2) as f64
        };
        let large = preset.request_bytes;
        let count = 192 * MIB / large;
        let read = large as f64 / stream(Kind::Read, large, count);
        assert_close(read, limits.sequential_read, 0.01, &format!("{name}: sequential read"));
        let write = large as f64 / stream(Kind::Write, large, count);
        assert_close(write, limits.sequential_write, 0.01, &format!("{name}: sequential write"));
        let small = stream(Kind::Write, 4096, 16_384);
        assert_close(small, limits.small_write, 0.01, &format!("{name}: small write"));

        let mut bench = Bench::new(&preset, device);
        assert_close(
            bench.flush().as_secs_f64().max(1e-9),
            limits.flush.max(1e-9),
            0.001,
            &format!("{name}: flush"),
        );
        if preset.disk.is_none() {
            let read = bench.read(512 * MIB, 4096).as_secs_f64();
            assert_close(read, limits.small_read, 0.001, &format!("{name}: small read"));
        }
    }
}

#[test]
fn the_card_of_2012_is_plausible_by_the_published_figures() {
    let mut bench = Bench::new(&find("microsd-2012"), 256 * MIB);
    let mib = MIB as f64;
    let pieces = 64 * MIB / 131_072;
    let read: Duration = (0..pieces).map(|n| bench.read(16 * MIB + n * 131_072, 131_072)).sum();
    assert_close(per_second(64 * MIB, read) / mib, 16.8, 0.03, "sequential read, MiB/s");
    let read: Duration = (0..64).map(|n| bench.read(n * 37 % 64 * MIB, 4096)).sum();
    assert_close(per_second(64, read), 1600.0, 0.05, "random read, IOPS");
    let written: Duration = (0..128).map(|n| bench.write(16 * MIB + n * 524_288, 524_288)).sum();
    assert_close(per_second(64 * MIB, written) / mib, 10.6, 0.05, "sequential write, MiB/s");
    // F2FS writes data and a node for each fsync, at two places; it made 258 in a second.
    let mut synced = Duration::ZERO;
    for n in 0..200 {
        synced += bench.write(128 * MIB + n * 4096, 4096) + bench.write(192 * MIB + n * 4096, 4096);
        synced += bench.flush();
    }
    assert_close(per_second(200, synced), 258.0, 0.1, "data and node, each second");
    // VFAT writes a file of 100 MB in place, and its directory entry; it made 260 in a second.
    let mut random = StdRng::seed_from_u64(SEED);
    let count = 25_600;
    let synced: Duration = (0..count)
        .map(|_| {
            let record = bench.write(16 * MIB + random.random_range(0..count) * 4096, 4096);
            record + bench.write(8 * MIB, 4096) + bench.flush()
        })
        .sum();
    assert_close(per_second(count, synced), 260.0, 0.3, &format!("in place, seed {SEED}"));
}

#[test]
fn the_stick_of_2010_is_plausible_by_the_published_figures() {
    let mut bench = Bench::new(&find("usb-2010"), 256 * MIB);
    let (step, count) = (122_880, 1024);
    let seconds = |time: Duration| time.as_secs_f64() * 4096.0 * MIB as f64 / (step * count) as f64;
    let written: Duration = (0..count).map(|n| bench.write(16 * MIB + n * step, step)).sum();
    assert_close(seconds(written), 552.0, 0.03, "4 GB written, s");
    let read: Duration = (0..count).map(|n| bench.read(16 * MIB + n * step, step)).sum();
    assert_close(seconds(read), 208.0, 0.03, "4 GB read, s");
}

#[test]
fn the_a1_card_keeps_what_its_class_promises() {
    let preset = find("microsd-a1");
    let mut bench = Bench::new(&preset, 1024 * MIB);
    let mut random = StdRng::seed_from_u64(SEED);
    let mut place = || 256 * MIB + random.random_range(0..65_536) * 4096;
    let count = 65_536;
    let written: Duration = (0..count).map(|_| bench.write(place(), 4096)).sum();
    let read: Duration = (0..count).map(|_| bench.read(place(), 4096)).sum();
    let (written, read) = (per_second(count, written), per_second(count, read));
    assert!(written >= 500.0, "{written} writes a second, seed {SEED}");
    assert!(read >= 1500.0, "{read} reads a second, seed {SEED}");
}

/// Requests of all kinds at random, some with pauses before.
fn some_trace(device_bytes: u64) -> Trace {
    let mut random = StdRng::seed_from_u64(SEED);
    let mut at = Duration::ZERO;
    let mut request = |_| {
        at += Duration::from_micros(random.random_range(0..3) * random.random_range(0..40_000));
        let kind = match random.random_range(0..20) {
            0 => Kind::Flush,
            1 => Kind::Discard,
            2..8 => Kind::Read,
            _ => Kind::Write,
        };
        if kind == Kind::Flush {
            return DeviceRequest { kind, offset: 0, bytes: 0, at };
        }
        let bytes = 512 * random.random_range(1..200);
        let offset = random.random_range(0..(device_bytes - bytes) / 512) * 512;
        DeviceRequest { kind, offset, bytes, at }
    };
    let requests: Vec<DeviceRequest> = (0..3000).map(&mut request).collect();
    let mark =
        |before: usize, name: &str| Mark { before, at: requests[before].at, name: name.to_owned() };
    let marks = vec![mark(100, "begin"), mark(1000, "middle"), mark(2000, "last")];
    Trace { device_bytes, requests, marks }
}

#[test]
fn a_replayed_trace_takes_the_same_time_to_the_nanosecond() {
    let trace = some_trace(256 * MIB);
    for preset in preset::all() {
        let once = replay(&trace, &mut *preset.model(trace.device_bytes).expect("a model"));
        let again = replay(&trace, &mut *preset.model(trace.device_bytes).expect("a model"));
        assert_eq!(once, again, "{}, seed {SEED}", preset.name);
        let names: Vec<&str> = once.phases.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["begin", "middle", "last"]);
        let before: Duration = once.times[..100].iter().sum();
        let phases: Duration = once.phases.iter().map(|(_, time)| *time).sum();
        assert_eq!(before + phases, once.total, "{}", preset.name);
    }
}

#[test]
fn requests_beyond_the_end_are_cut_off() {
    for preset in preset::all() {
        let mut bench = Bench::new(&preset, 64 * MIB + 4096);
        for (offset, bytes) in [(64 * MIB, 8 * MIB), (u64::MAX - 511, 512), (u64::MAX, u64::MAX)] {
            for kind in [Kind::Write, Kind::Read, Kind::Discard] {
                bench.ask(kind, offset, bytes);
            }
        }
        bench.flush();
        assert_eq!(bench.model.wear().host_bytes, 4096, "{}", preset.name);
    }
}

/// What is said about a preset that was changed in one place.
fn complaint(name: &str, from: &str, to: &str) -> String {
    let text = toml::to_string(&find(name)).expect("a preset is TOML");
    assert!(text.contains(from), "{name} has no {from}");
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("own.toml");
    std::fs::write(&path, text.replacen(from, to, 1)).expect("a file");
    let error = preset::find(path.to_str().expect("a plain path")).expect_err(to);
    let text = error.to_string();
    assert!(text.contains("own.toml"), "{text}");
    text
}

#[test]
fn a_nonsensical_preset_is_refused_with_field_and_reason() {
    for (name, from, to, expected) in [
        ("emmc", "open_units = 128", "open_units = 0", "card.open_units is 0, must be between 1"),
        ("emmc", "page_bytes = 16384", "page_bytes = 100", "card.page_bytes is 100, must be"),
        (
            "emmc",
            "unit_bytes = 4194304",
            "unit_bytes = 4194305",
            "must be a multiple of page_bytes",
        ),
        ("emmc", "fat_bytes = 8388608", "fat_bytes = 1000", "card.fat_bytes is 1000, must be"),
        ("emmc", "copy_bytes_per_second = 40000000", "copy_bytes_per_second = 0", "is 0, must be"),
        ("emmc", "writing = \"random\"", "writing = \"fast\"", "unknown variant `fast`"),
        ("emmc", "open_units = 128", "open_units = -1", "open_units = -1"),
        ("emmc", "open_units = 128", "open_unit = 128", "unknown field `open_unit`"),
        ("emmc", "open_units = 128\n", "", "missing field `open_units`"),
        ("emmc", "[card]", "[tape]", "unknown field `tape`"),
        ("emmc", "capacity = 16000000000", "capacity = 5", "capacity is 5, must be"),
        (
            "emmc",
            "request_bytes = 524288",
            "request_bytes = 5000",
            "request_bytes is 5000, must be",
        ),
        ("emmc", "queue_depth = 1", "queue_depth = 0", "queue_depth is 0, must be between 1"),
        ("emmc", "name = \"emmc\"", "name = \"e/mmc\"", "name is 'e/mmc', must be"),
        ("nvme", "mapping_bytes = 4096", "mapping_bytes = 5000", "ssd.mapping_bytes is"),
        ("nvme", "buffer_bytes = 33554432", "buffer_bytes = 1", "ssd.buffer_bytes is 1, must be"),
        ("nvme", "channels = 16", "channels = 0", "ssd.channels is 0, must be between 1"),
        ("nvme", "spare_percent = 9", "spare_percent = 0", "ssd.spare_percent is 0, must be"),
        ("nvme", "used_percent = 0", "used_percent = 101", "ssd.used_percent is 101, must be"),
        ("disk-5400", "rotations_per_minute = 5400", "rotations_per_minute = 0", "is 0, must be"),
        ("disk-5400", "inner_bytes_per_second = 45", "inner_bytes_per_second = 450", "disk.inner_"),
    ] {
        let found = complaint(name, from, to);
        assert!(found.contains(expected), "{to}: {found}");
    }
}

#[test]
fn a_preset_needs_exactly_one_kind_of_device() {
    let text = toml::to_string(&find("emmc")).expect("a preset is TOML");
    let text = text.split("[card]").next().expect("a beginning");
    let error = preset::parse("own", text).expect_err("nothing in it").to_string();
    assert_eq!(error, "own: card, ssd, disk exactly one of them must be there");
}

#[test]
fn a_device_that_is_not_there_is_answered_with_those_that_are() {
    let error = preset::find("flopy").expect_err("no such device").to_string();
    assert!(error.contains("\"flopy\"") && error.contains("microsd-2012, "), "{error}");
    let error = preset::find("/nowhere/own.toml").expect_err("no such file").to_string();
    assert!(error.starts_with("cannot read /nowhere/own.toml: "), "{error}");
    assert!(find("emmc").model(0).is_err());
    assert!(find("nvme").model(u64::MAX).is_err());
    assert!(find("disk-5400").model(u64::MAX).is_err());
}
