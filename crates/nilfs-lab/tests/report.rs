//! What a report promises: every figure and every failure is in it, in every form; it needs nothing
//! but itself; whatever a name contains, it is only a name; a phone can show it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use nilfs_lab::draw::{Picture, Strokes};
use nilfs_lab::model::{Limits, Wear};
use nilfs_lab::place::Surroundings;
use nilfs_lab::report::{self, Background, Nothing, Published};
use nilfs_lab::results::{Cell, CellResult, Clock, Drawn, Measured, Results, Unit};
use nilfs_lab::trace::{Count, Kind, Traffic};

/// Markup, a quote, Markdown, and what a terminal obeys.
const HOSTILE: &str = "<script>alert(1)</script>\"'&amp;|`*\u{1b}[2J\n# x";

/// What was found of a step: file systems with their runs, or the reason of a failure.
type Figures<'a> = &'a [(&'a str, Result<&'a [f64], &'a str>)];

const CARD_2012: [(&str, f64); 4] =
    [("ext4", 1073.0), ("nilfs2", 1462.0), ("f2fs", 2675.0), ("vfat", 1108.0)];

/// The published random writes of the card of 2012.
struct Others;

impl Background for Others {
    fn published(&self, cell: &Cell) -> Option<Published> {
        let known = CARD_2012.iter().find(|(name, _)| *name == cell.file_system);
        let asked = cell.device == "microsd-2012" && cell.step == "random-write";
        known.filter(|_| asked).map(|(_, figure)| Published {
            figure: *figure,
            source: "F2FS on a class-10 card, 2012, https://example.org/f2fs".to_owned(),
            why: Some("Cards have changed.".to_owned()),
        })
    }

    fn workload(&self, name: &str) -> Option<String> {
        (name == "iozone").then(|| "A 1 GB file in records of 4 KiB, through fio.".to_owned())
    }

    fn device(&self, name: &str) -> Option<String> {
        (name == "microsd-2012").then(|| "Class-10 microSD card of 2012, 16 GB.".to_owned())
    }
}

fn measured(runs: &[f64]) -> Measured {
    let mut sorted = runs.to_vec();
    sorted.sort_by(f64::total_cmp);
    let median = sorted[sorted.len() / 2];
    Measured {
        runs: runs.to_vec(),
        median,
        magic: 0x3434,
        wall_seconds: 61.0,
        device_seconds: 58.4,
        traffic: Traffic {
            read: Count { requests: 41, bytes: 336_000 },
            written: Count { requests: 11_877, bytes: 134_217_728 },
            discarded: Count::default(),
            flushes: 12,
            sequential_runs: 96,
        },
        wear: Wear {
            host_bytes: 134_217_728,
            programmed_bytes: 187_904_819,
            erases: 45,
            most_erases: 3,
            erase_blocks: 512,
            erases_spread: 0.4,
        },
        limit: None,
        trace: None,
    }
}

fn limits(write: f64, read: f64) -> Limits {
    Limits {
        sequential_read: read,
        sequential_write: write,
        small_read: 0.0006,
        small_write: 0.0014,
        flush: 0.0001,
    }
}

/// Adds a row.
fn row(results: &mut Results, at: [&str; 3], unit: Unit, limit: Option<f64>, found: Figures<'_>) {
    for (file_system, outcome) in found {
        let outcome = match outcome {
            Ok(runs) => CellResult::Measured(Measured { limit, ..measured(runs) }),
            Err(reason) => CellResult::Failed((*reason).to_owned()),
        };
        let [device, workload, step] = at.map(str::to_owned);
        let file_system = (*file_system).to_owned();
        let about = format!("{step}: 16 × 1 MiB");
        results.cells.push(Cell { device, workload, step, about, file_system, unit, outcome });
    }
}

/// Adds the picture of a staircase, with this many bytes of strokes.
fn picture(results: &mut Results, at: [&str; 3], bytes: usize) {
    let path: String = "M0 1h240M5 2h7".chars().cycle().take(bytes).collect();
    let strokes = |kind| Strokes { kind, level: 2, path: path.clone() };
    let [device, workload, file_system] = at.map(str::to_owned);
    let picture = Picture {
        seconds: 12.5,
        bytes: 64 << 20,
        strokes: vec![strokes(Kind::Discard), strokes(Kind::Read), strokes(Kind::Write)],
        steps: vec![(0.0, HOSTILE.to_owned()), (0.5, "read".to_owned())],
    };
    results.pictures.push(Drawn { device, workload, file_system, seconds: 61.0, picture });
}

/// Several devices, workloads and file systems; two failures.
fn results() -> Results {
    let mut results = Results {
        surroundings: Surroundings {
            place: "vm".to_owned(),
            kernel: "6.12.48+deb13-amd64".to_owned(),
            machine: "QEMU TCG on AMD EPYC 7R13, 2 cores".to_owned(),
        },
        suite: Some("published".to_owned()),
        scale: 0.125,
        clock: Clock::Paced,
        versions: [("mkfs.ext4", "1.47.2"), ("mkfs.f2fs", "1.16.0"), ("fio", "3.39")]
            .map(|(name, version)| (name.to_owned(), version.to_owned()))
            .into(),
        ..Results::default()
    };
    results.devices.insert("microsd-2012".to_owned(), limits(11e6, 17e6));
    results.devices.insert("usb-2010".to_owned(), limits(8e6, 19e6));
    let no_module = "the kernel 6.12.48 has no file system f2fs: modprobe f2fs says not found";
    row(
        &mut results,
        ["microsd-2012", "iozone", "sequential-write"],
        Unit::MegabytesPerSecond,
        Some(11.3),
        &[
            ("ext4", Ok(&[7.11, 7.32, 7.46])),
            ("ext4:noatime", Ok(&[7.21, 7.39, 7.52])),
            ("nilfs2", Ok(&[6.63, 6.82, 6.91])),
            ("f2fs", Ok(&[10.1, 10.4, 10.7])),
            ("vfat", Ok(&[7.01, 7.28, 7.36])),
            ("nilfs", Ok(&[10.8, 10.9, 11.1])),
        ],
    );
    row(
        &mut results,
        ["microsd-2012", "iozone", "random-write"],
        Unit::PerSecond,
        Some(2744.0),
        &[
            ("ext4", Ok(&[1001.0, 1107.0, 1193.0])),
            ("nilfs2", Ok(&[1391.0, 1523.0, 1604.0])),
            ("f2fs", Ok(&[2417.0, 2534.0, 2601.0])),
            ("vfat", Ok(&[602.0, 711.0, 799.0])),
            ("nilfs", Ok(&[2655.0, 2688.0, 2701.0])),
        ],
    );
    row(
        &mut results,
        ["microsd-2012", "mount", "first-after-format"],
        Unit::Milliseconds,
        None,
        &[
            ("ext4", Ok(&[13.7])),
            ("nilfs2", Ok(&[917.0])),
            ("f2fs", Err(no_module)),
            ("nilfs", Ok(&[12.9])),
        ],
    );
    row(
        &mut results,
        ["usb-2010", "big-file", "write"],
        Unit::Seconds,
        Some(62.5),
        &[
            ("ext2", Ok(&[111.4, 112.9, 113.2])),
            ("ext3", Ok(&[102.3, 103.6, 104.8])),
            ("ext4-nojournal", Ok(&[67.2, 68.3, 68.9])),
            ("btrfs", Ok(&[69.1, 69.7, 70.8])),
            ("btrfs-ssd", Ok(&[68.8, 70.3, 71.1])),
            ("nilfs2", Err("mount: wrong fs type, bad option, bad superblock on /dev/vdb")),
            ("nilfs", Ok(&[63.4, 63.8, 64.1])),
        ],
    );
    for name in ["ext4", "f2fs", "nilfs"] {
        picture(&mut results, ["microsd-2012", "iozone", name], 28);
    }
    picture(&mut results, ["usb-2010", "big-file", "nilfs"], 28);
    results
}

fn written(results: &Results, background: &dyn Background) -> (String, String) {
    let directory = tempfile::tempdir().unwrap();
    report::write(results, background, directory.path()).unwrap();
    let read = |name| fs::read_to_string(directory.path().join(name)).unwrap();
    (read("report.html"), read("report.md"))
}

/// The values of an attribute, as they stand in the page.
fn attributes<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
    let start = format!(" {name}=\"");
    let values = page.split(start.as_str()).skip(1);
    values.map(|rest| rest.split('"').next().unwrap()).collect()
}

/// The part of a page that belongs to a step.
fn article<'a>(page: &'a str, anchor: &str) -> &'a str {
    let from = page.find(&format!("<article id=\"{anchor}\"")).expect("the step has its article");
    page[from..].split("</article>").next().unwrap()
}

/// The part of an article that belongs to a file system in its table.
fn table_row<'a>(article: &'a str, file_system: &str) -> &'a str {
    let name = format!("</i>{}</th>", file_system.replace(':', "<wbr>:"));
    article.split("<tr>").find(|row| row.contains(&name)).expect("the file system has its row")
}

#[test]
fn every_measured_cell_is_in_every_form() {
    let results = results();
    let (page, markdown) = written(&results, &Others);
    let terminal = report::terminal(&results, &Others);
    for cell in &results.cells {
        let anchor = format!("at-{}-{}-{}", cell.device, cell.workload, cell.step);
        let row = table_row(article(&page, &anchor), &cell.file_system);
        let CellResult::Measured(found) = &cell.outcome else { continue };
        // Three digits are what is printed of each of these.
        let figure = match found.median {
            ..10.0 => format!("{:.2}", found.median),
            ..100.0 => format!("{:.1}", found.median),
            _ => format!("{:.0}", found.median),
        };
        assert!(row.contains(&format!("<b>{figure}</b>")), "{anchor}: {figure} in {row}");
        assert!(row.contains("134 MB") && row.contains("in 11\u{202f}877") && row.contains("1.40"));
        assert!(markdown.contains(&format!("| {} | {figure} |", cell.file_system)), "{figure}");
        assert!(terminal.contains(&format!(" {figure} ")), "{figure} in {terminal}");
    }
}

#[test]
fn a_failure_gives_its_reason_and_no_figure() {
    let results = results();
    let (page, markdown) = written(&results, &Nothing);
    let terminal = report::terminal(&results, &Nothing);
    for reason in ["has no file system f2fs", "wrong fs type, bad option"] {
        assert!(page.contains(reason) && markdown.contains(reason) && terminal.contains(reason));
    }
    let failed = table_row(article(&page, "at-microsd-2012-mount-first-after-format"), "f2fs");
    assert!(failed.contains("has no file system f2fs") && !failed.contains("134 MB"), "{failed}");
    assert!(terminal.contains("failed: note 1") && terminal.contains("Note 2: mount: wrong fs"));
}

#[test]
fn the_best_is_first_whether_more_or_less_is_better() {
    let (page, _) = written(&results(), &Nothing);
    let rates = article(&page, "at-microsd-2012-iozone-random-write");
    assert!(table_row(rates, "nilfs").contains("<td>1</td><td class=\"good-3\">1.00×</td>"));
    assert!(table_row(rates, "ext4").contains("<td>4</td><td class=\"bad-1\">2.43×</td>"));
    let seconds = article(&page, "at-usb-2010-big-file-write");
    assert!(table_row(seconds, "nilfs").contains("<td>1</td><td class=\"good-3\">1.00×</td>"));
    assert!(table_row(seconds, "nilfs").contains("<td>1.02×</td>"), "to the device's limit");
    assert!(table_row(seconds, "ext2").contains("<td>6</td><td class=\"bad-1\">1.77×</td>"));
    let summary = page.split("id=\"devices\"").next().unwrap();
    assert!(summary.contains("<b>3</b> of 3") && summary.contains("<b>1</b> of 1"));
}

#[test]
fn published_figures_stand_next_to_ours_with_how_they_agree() {
    let results = results();
    let (page, markdown) = written(&results, &Others);
    let row = article(&page, "at-microsd-2012-iozone-random-write");
    assert!(table_row(row, "vfat").contains("<td>1108</td><td>0.414 → 0.281"));
    assert!(table_row(row, "vfat").contains("<small class=\"off\">−32 %</small>"));
    // ext4 and vfat are too close in the published figures to be a pair.
    let verdict = "The order agrees with the published one (5 pairs). 2 of 3 ratios to f2fs are \
                   within 30 %.";
    assert!(row.contains(verdict), "{row}");
    assert!(markdown.contains(verdict));
    assert!(row.contains("Cards have changed."), "one ratio differs, and this is why: {row}");
    assert!(markdown.contains("Cards have changed."));
    assert!(row.contains("Published: F2FS on a class-10 card, 2012"));
    assert!(report::terminal(&results, &Others).contains("published 1108"));
    let untouched = article(&page, "at-microsd-2012-iozone-sequential-write");
    assert!(!untouched.contains("Published"));
}

#[test]
fn a_page_needs_nothing_but_itself_and_its_links_lead_somewhere() {
    let mut results = results();
    for (at, trace) in
        ["traces/a b#1.trace", "/etc/passwd", "../x", "javascript:alert(1)"].into_iter().enumerate()
    {
        let CellResult::Measured(measured) = &mut results.cells[at].outcome else { continue };
        measured.trace = Some(trace.to_owned());
    }
    let (page, _) = written(&results, &Others);
    for foreign in ["<script", "<link", "<img", "<iframe", "<object", " src=", "url(", "@import"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    let ids = attributes(&page, "id");
    let unique: BTreeSet<&str> = ids.iter().copied().collect();
    assert_eq!(unique.len(), ids.len(), "a place has one name");
    let (inner, outer): (Vec<&str>, Vec<&str>) =
        attributes(&page, "href").into_iter().partition(|link| link.starts_with('#'));
    inner.iter().for_each(|link| assert!(unique.contains(&link[1..]), "{link} leads nowhere"));
    assert_eq!(outer, ["./traces/a%20b%231.trace", "./javascript%3Aalert%281%29"]);
}

#[test]
fn a_name_is_only_a_name() {
    let mut results = results();
    results.suite = Some(HOSTILE.to_owned());
    results.surroundings.kernel = HOSTILE.to_owned();
    results.versions.insert(HOSTILE.to_owned(), HOSTILE.to_owned());
    results.devices.insert(HOSTILE.to_owned(), limits(1e6, 1e6));
    let at = [HOSTILE, HOSTILE, HOSTILE];
    let found: Figures<'_> = &[(HOSTILE, Ok(&[4.0])), ("ext4", Err(HOSTILE))];
    row(&mut results, at, Unit::Seconds, None, found);
    let (page, markdown) = written(&results, &Others);
    assert!(!page.contains("<script") && page.contains("&lt;script&gt;alert(1)"));
    assert!(!markdown.contains("<script") && !markdown.contains("\n# x"));
    let columns = |line: &str| line.replace("\\|", "").matches('|').count();
    for (line, next) in markdown.lines().zip(markdown.lines().skip(1)) {
        let inside = line.starts_with('|') && next.starts_with('|');
        assert!(!inside || columns(line) == columns(next), "a name makes no columns: {next}");
    }
    let before = results.clone();
    results.suite = None;
    for text in [report::terminal(&results, &Others), report::compare(&before, &results)] {
        assert!(!text.contains('\u{1b}') && text.contains("<script>"), "{text}");
    }
}

#[test]
fn pictures_never_make_a_page_too_large_to_be_sent() {
    let mut results = Results::default();
    let devices: Vec<String> = (0..9).map(|number| format!("device-{number}")).collect();
    let workloads: Vec<String> = (0..9).map(|number| format!("workload-{number}")).collect();
    for device in &devices {
        for workload in &workloads {
            row(&mut results, [device, workload, "x"], Unit::Seconds, None, &[("ext4", Ok(&[1.]))]);
            picture(&mut results, [device, workload, "ext4"], 30_000);
        }
    }
    let (page, _) = written(&results, &Nothing);
    assert!(page.len() < 5_000_000, "{} bytes", page.len());
    for device in &devices {
        let first = page.split(&format!("id=\"at-{device}-workload-0\"")).nth(1).expect(device);
        let before_figures = first.split("<article").next().unwrap();
        assert!(before_figures.contains("t-write"), "{device} has a picture");
    }
}

#[test]
fn a_selection_of_ones_own_is_no_suite_in_any_form() {
    let forms = |results: &Results| {
        let (page, markdown) = written(results, &Others);
        [page, markdown, report::terminal(results, &Others)]
    };
    for form in forms(&results()) {
        assert!(form.to_lowercase().contains("published suite"), "{form}");
    }
    let own = Results { suite: None, ..results() };
    for form in forms(&own) {
        assert!(form.to_lowercase().contains("own selection") && !form.contains("suite"), "{form}");
        // ext4 and ext4:noatime are one.
        assert!(form.contains("3 workloads on 2 devices with 10 file systems"), "{form}");
    }
    assert!(report::compare(&results(), &own).contains("  selection: published suite → own"));
}

#[test]
fn every_form_says_what_a_step_did_and_what_was_mounted() {
    let (page, markdown) = written(&results(), &Others);
    for form in [&page, &markdown, &report::terminal(&results(), &Others)] {
        assert!(form.contains("random-write: 16 × 1 MiB"), "{form}");
    }
    let row = table_row(article(&page, "at-microsd-2012-iozone-random-write"), "nilfs2");
    assert!(row.contains("<span title=\"statfs 0x3434\">nilfs2</span>"), "{row}");
}

/// A published figure of seconds at the original size stood next to one of an eighth of it.
#[test]
fn published_amounts_are_scaled_as_the_run_is() {
    struct Seconds;
    impl Background for Seconds {
        fn published(&self, cell: &Cell) -> Option<Published> {
            let figure = 893.0;
            let asked = cell.unit == Unit::Seconds && cell.file_system == "ext2";
            asked.then(|| Published { figure, source: "others".to_owned(), why: None })
        }
    }
    let (page, markdown) = written(&results(), &Seconds);
    let row = table_row(article(&page, "at-usb-2010-big-file-write"), "ext2");
    assert!(row.contains("<td>112<br><small>893 at 1</small></td>"), "{row}");
    assert!(markdown.contains("112 (893 at 1)"), "{markdown}");
    assert!(report::terminal(&results(), &Seconds).contains("(893 at scale 1)"));
    let (page, _) = written(&Results { scale: 1.0, ..results() }, &Seconds);
    let row = table_row(article(&page, "at-usb-2010-big-file-write"), "ext2");
    assert!(row.contains("<td>893</td>"), "{row}");
}

#[test]
fn runs_that_differ_threefold_are_warned_of_in_every_form() {
    let forms = |most: f64| {
        let mut results = results();
        let at = ["microsd-2012", "iozone", "spread"];
        let found: Figures<'_> = &[("ext4", Ok(&[10.0, 20.0, most])), ("nilfs", Ok(&[1.0]))];
        row(&mut results, at, Unit::Seconds, None, found);
        let (page, markdown) = written(&results, &Others);
        [page, markdown, report::terminal(&results, &Others)]
    };
    for form in forms(29.9) {
        assert!(!form.contains("threefold") && !form.contains("differ "), "{form}");
    }
    for form in forms(30.0) {
        assert!(form.contains("One figure is the median of runs that differ threefold"), "{form}");
        assert!(form.contains("differ 3.00×"), "{form}");
    }
    let [page, ..] = forms(45.0);
    let warning = page.split("class=\"warning\"").nth(1).unwrap().split("</div>").next().unwrap();
    let link = "<a href=\"#at-microsd-2012-iozone-spread\">ext4, iozone spread</a>";
    assert!(warning.contains(link) && warning.contains("4.50×"), "{warning}");
}

#[test]
fn a_report_replaces_the_one_before() {
    let directory = tempfile::tempdir().unwrap();
    report::write(&results(), &Nothing, directory.path()).unwrap();
    report::write(&Results::default(), &Nothing, directory.path()).unwrap();
    let names: BTreeSet<OsString> =
        fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["report.html", "report.md"].map(OsString::from).into());
    let page = fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert!(!page.contains("microsd-2012") && page.ends_with("</html>"));
}

#[test]
fn a_comparison_tells_a_change_from_the_spread_of_runs() {
    let rows = |found: Figures<'_>| {
        let mut results = Results { scale: 1.0, ..Results::default() };
        row(&mut results, ["card", "iozone", "write"], Unit::Seconds, None, found);
        results
    };
    let before = rows(&[
        ("ext2", Ok(&[10.0, 11.0, 12.0])),
        ("ext3", Ok(&[10.0, 11.0, 12.0])),
        ("ext4", Ok(&[10.0, 11.0, 12.0])),
        ("btrfs", Ok(&[10.0])),
        ("f2fs", Ok(&[10.0])),
        ("vfat", Ok(&[10.0])),
        ("nilfs", Err("no")),
    ]);
    let after = rows(&[
        ("ext2", Ok(&[11.5, 12.5, 13.5])),
        ("ext3", Ok(&[5.0, 5.5, 6.0])),
        ("ext4", Ok(&[21.0, 22.0, 23.0])),
        ("btrfs", Ok(&[19.0, 20.0])),
        ("f2fs", Err("gone")),
        ("nilfs", Ok(&[1.0])),
    ]);
    let text = report::compare(&before, &after);
    for change in
        ["0.880×  =", "2.00×  better", "0.500×  WORSE", "0.500×  WORSE?", "FAILS NOW", "new"]
    {
        assert!(text.contains(change), "{change} in {text}");
    }
    assert!(text.contains("11.0 → 5.50") && text.contains("failed → 1.00"));
    let tally = "1 better, 2 worse, 1 within the spread of runs (=), 1 new, 1 fail now.";
    assert!(text.contains(tally), "{text}");
    assert!(text.contains("Only in the first: card, iozone, write, vfat"));
    assert!(!text.contains("not measured alike"));
}

#[test]
fn a_comparison_says_what_was_not_alike() {
    let before = results();
    let mut after = results();
    after.scale = 1.0;
    after.surroundings.place = "host".to_owned();
    let text = report::compare(&before, &after);
    assert!(text.contains("  scale: 1/8 → 1\n") && text.contains("  place: vm → host\n"), "{text}");
    assert!(!text.contains("kernel:"));
}

/// A browser that can be had without a display; none, and the test says so.
fn browser() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome"];
    std::env::split_paths(&path)
        .flat_map(|directory| names.map(|name| directory.join(name)))
        .find(|program| program.is_file())
}

fn run_browser(browser: &Path, directory: &Path, page: &str, options: &[&str]) -> String {
    let mut profile = OsString::from("--user-data-dir=");
    profile.push(directory.join("profile"));
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
        .args(["--disable-background-networking", "--no-first-run"])
        .arg(profile)
        .args(options)
        .arg(format!("file://{}", directory.join(page).display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A page that holds the report in a frame of a width, which windows cannot be as narrow as, and
/// says how wide it is really, how many of its tables have to be moved sideways, and whether the
/// first cell of every row stays in its place then, with nothing seen through it.
fn framed(report: &str, width: u32) -> String {
    let report = report.replace('&', "&amp;").replace('"', "&quot;");
    format!(
        "<!doctype html><body style='margin:0'><output></output>\
         <iframe style='border:0' width={width} height=2400 srcdoc=\"{report}\"></iframe><script>\
         onload = () => {{\
           const view = document.querySelector('iframe').contentWindow;\
           const page = view.document.documentElement;\
           const tables = [...page.querySelectorAll('.scroll')];\
           const cut = tables.filter(t => t.scrollWidth > t.clientWidth);\
           cut.forEach(t => t.scrollLeft = 200);\
           const stays = t => [...t.querySelectorAll('tr > :first-child')].every(cell => \
             cell.getBoundingClientRect().left - t.getBoundingClientRect().left < 1 && \
             cell.getBoundingClientRect().width < t.clientWidth / 2 && \
             view.getComputedStyle(cell).backgroundColor.startsWith('rgb('));\
           document.querySelector('output').textContent =\
             `wide=${{page.scrollWidth}} cut=${{cut.length}} stay=${{cut.every(stays)}}`;\
         }}</script>"
    )
}

/// Returns what such a frame says of the report: the width of the report, how many of its tables are cut,
/// and whether the first columns of those tables stay.
fn measured_in(browser: &Path, directory: &Path, report: &str, width: u32) -> (u32, u32, bool) {
    fs::write(directory.join("frame.html"), framed(report, width)).unwrap();
    let dom = run_browser(browser, directory, "frame.html", &["--dump-dom"]);
    let said = dom.split("<output>").nth(1).unwrap().split('<').next().unwrap();
    let value = |name: &str| {
        let value = said.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("{name} in {said}"))
    };
    let number = |name: &str| value(name).parse().unwrap();
    (number("wide"), number("cut"), value("stay") == "true")
}

#[test]
fn a_browser_shows_it_on_a_desk_and_on_a_phone_by_day_and_by_night() {
    let Some(browser) = browser() else {
        eprintln!("skipped: no chromium here to show the page");
        return;
    };
    let mut results = results();
    let found: Figures<'_> = &[(HOSTILE, Ok(&[4.0])), ("ext4", Err(HOSTILE))];
    row(&mut results, [HOSTILE; 3], Unit::Seconds, None, found);
    picture(&mut results, [HOSTILE; 3], 28);
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    report::write(&results, &Others, directory).unwrap();
    let page = fs::read_to_string(directory.join("report.html")).unwrap();
    fs::write(directory.join("phone.html"), framed(&page, 360)).unwrap();

    let dom = run_browser(&browser, directory, "report.html", &["--dump-dom"]);
    let steps = 5;
    assert_eq!(dom.matches("<article").count(), steps);
    // Three on the card, one on the stick, one on what has a strange name; a legend for each.
    assert_eq!(dom.matches("<figure class=\"trace\"").count(), 5);
    assert_eq!(dom.matches("class=\"t-write l2\" d=\"M0 1h240").count(), 5);
    assert_eq!(dom.matches("class=\"k-write\"").count(), 3);
    assert!(dom.matches("<rect").count() >= 20 && dom.contains("has no file system f2fs"));
    let colour = "class=\"bar c-nilfs\"";
    assert_eq!(dom.matches(colour).count(), 4, "a file system has one colour in all plots");
    assert!(!dom.contains("<script"), "a name has become a script");

    // Five tables of steps, and others, are wider than a phone.
    let (wide, cut, stay) = measured_in(&browser, directory, &page, 360);
    assert!(wide == 360 && cut >= 5 && stay, "{wide} {cut} {stay}");

    let picture = |name: &str, page: &str, scheme: &str| {
        let file = directory.join(name);
        let target = format!("--screenshot={}", file.display());
        let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
        run_browser(&browser, directory, page, &[&target, &scheme, "--window-size=1280,2400"]);
        fs::read(file).unwrap()
    };
    for (day, night, page) in [
        ("desk-day.png", "desk-night.png", "report.html"),
        ("phone-day.png", "phone-night.png", "phone.html"),
    ] {
        let (day, night) = (picture(day, page, "1"), picture(night, page, "0"));
        assert!(day.starts_with(b"\x89PNG") && day.len() > 20_000, "{page}: an empty picture");
        assert_ne!(day, night, "{page}: the page does not follow the colour scheme");
    }
}

/// The last columns of every table were cut off, and those of a workload with many modes far away.
#[test]
fn no_table_is_cut_on_a_screen_of_1280_points() {
    let Some(browser) = browser() else {
        eprintln!("skipped: no chromium here to show the page");
        return;
    };
    let mut results = results();
    let modes = ["strictatime", "relatime", "noatime"];
    let names: Vec<String> = ["ext2", "ext3", "ext4", "ext4-nojournal"]
        .iter()
        .flat_map(|name| modes.map(|mode| format!("{name}:{mode}")))
        .collect();
    let found: Vec<(&str, Result<&[f64], &str>)> =
        names.iter().map(|name| (name.as_str(), Ok(&[10_000.0, 33_000.0][..]))).collect();
    row(&mut results, ["microsd-2012", "life", "git-clone"], Unit::Megabytes, Some(12.3), &found);
    let directory = tempfile::tempdir().unwrap();
    let (page, _) = written(&results, &Others);
    assert_eq!(measured_in(&browser, directory.path(), &page, 1280), (1280, 0, true));
}
