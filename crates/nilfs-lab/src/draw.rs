//! A trace as a picture: address over time, coloured by kind. It shows at a glance what is
//! written in order and what is written here and there.
//!
//! The plane is divided into cells, so that the size of the picture does not depend on the number
//! of requests; a cell is the more opaque the larger the part of its bytes that was asked for.
//! The SVG is written by hand: all cells of a colour are one path of horizontal strokes, which is
//! a small part of what the rectangles of a plotting library take, and colours come from style
//! rules that follow the reader's light or dark page.

mod axis;
mod cells;
mod small;

use std::fmt::Write as _;

use crate::trace::{Kind, Trace, Traffic};
use axis::{address_ticks, bytes_text, time_ticks};
use cells::{Cells, LEVELS};

pub use small::{COLUMNS as PICTURE_COLUMNS, Picture, ROWS as PICTURE_ROWS, Strokes};

/// Size of the picture.
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 486.0;
/// The plane inside it.
const LEFT: f64 = 78.0;
const TOP: f64 = 62.0;
const PLANE_WIDTH: f64 = 860.0;
const PLANE_HEIGHT: f64 = 330.0;
/// The strip of flushes below the plane.
const STRIP_TOP: f64 = TOP + PLANE_HEIGHT + 6.0;
const STRIP_HEIGHT: f64 = 14.0;
const STRIP_END: f64 = STRIP_TOP + STRIP_HEIGHT;

/// Cells along the time and along the address.
const COLUMNS: usize = 430;
const ROWS: usize = 110;
const CELL_WIDTH: f64 = PLANE_WIDTH / COLUMNS as f64;
const CELL_HEIGHT: f64 = PLANE_HEIGHT / ROWS as f64;

/// From a cell of which little was asked for to one of which much was.
const OPACITIES: [f64; LEVELS] = [0.5, 0.75, 1.0];

/// Marks beyond these would hide the picture.
const MOST_MARKS: usize = 24;
const MARK_CHARACTERS: usize = 28;
const MARK_CHARACTER_WIDTH: f64 = 6.2;
/// Names of marks stand in this many lines at most.
const MARK_LINES: usize = 3;

/// What is drawn, from the bottom up, with the name in style rules and in the legend.
const LAYERS: [(Kind, &str, &str); 3] =
    [(Kind::Discard, "d", "discard"), (Kind::Read, "r", "read"), (Kind::Write, "w", "write")];

const STYLE: &str = "
.trace{color-scheme:light dark;font:13px system-ui,sans-serif;color:#1c1c1c;--w:#c2410c;--r:#1d6fd1;--d:#8a8f98;--f:#7c3aed}
.trace text{fill:currentColor}.trace .title{font-weight:600;font-size:15px}
.trace .axis{stroke:currentColor;fill:none}.trace .grid{stroke:currentColor;opacity:.13}
.trace .mark{stroke:currentColor;opacity:.55;stroke-dasharray:2 3}.trace .name{font-size:11px;opacity:.8}
.trace .w{stroke:var(--w)}.trace .r{stroke:var(--r)}.trace .d{stroke:var(--d)}.trace .f{stroke:var(--f)}
@media(prefers-color-scheme:dark){.trace{color:#e6e6e6;--w:#fb923c;--r:#60a5fa;--d:#7d838c;--f:#c4a5ff}}
";

/// Draws a whole trace. `title` may hold anything.
#[must_use]
pub fn trace_svg(trace: &Trace, title: &str) -> String {
    let cells = Cells::of(trace, COLUMNS, ROWS);
    let mut svg = format!(
        "<svg class=\"trace\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         role=\"img\"><title>{0}</title><style>{STYLE}</style>\
         <text class=\"title\" x=\"{LEFT}\" y=\"20\">{0}</text>\n",
        escape(title)
    );
    legend(&mut svg, &Traffic::of(&trace.requests));
    axes(&mut svg, trace.device_bytes, cells.seconds());
    for (kind, class, _) in LAYERS {
        for level in 0..LEVELS {
            let strokes = strokes(&cells, kind, level);
            layer(&mut svg, class, level, CELL_HEIGHT, &strokes);
        }
    }
    for level in 0..LEVELS {
        layer(&mut svg, "f", level, STRIP_HEIGHT, &flush_strokes(&cells, level));
    }
    marks(&mut svg, trace, cells.seconds());
    svg.push_str("</svg>\n");
    svg
}

fn layer(svg: &mut String, class: &str, level: usize, width: f64, strokes: &str) {
    if !strokes.is_empty() {
        let opacity = OPACITIES[level];
        let _ = writeln!(
            svg,
            "<path class=\"{class}\" opacity=\"{opacity}\" stroke-width=\"{width}\" \
             d=\"{strokes}\"/>"
        );
    }
}

/// The cells of one kind and level, as horizontal strokes.
fn strokes(cells: &Cells, kind: Kind, level: usize) -> String {
    let mut path = String::new();
    for row in 0..ROWS {
        // Addresses grow upwards.
        let y = TOP + (ROWS - 1 - row) as f64 * CELL_HEIGHT + CELL_HEIGHT / 2.0;
        runs(&mut path, (LEFT, y), COLUMNS, CELL_WIDTH, |column| {
            cells.level(kind, column, row) == Some(level)
        });
    }
    path
}

fn flush_strokes(cells: &Cells, level: usize) -> String {
    let mut path = String::new();
    let y = STRIP_TOP + STRIP_HEIGHT / 2.0;
    runs(&mut path, (LEFT, y), COLUMNS, CELL_WIDTH, |column| {
        cells.flush_level(column) == Some(level)
    });
    path
}

/// A row of cells; neighbours that are on become one stroke.
fn runs(
    path: &mut String,
    (left, y): (f64, f64),
    columns: usize,
    cell_width: f64,
    is_on: impl Fn(usize) -> bool,
) {
    let mut column = 0;
    while column < columns {
        let length = (column..columns).take_while(|&column| is_on(column)).count();
        if length > 0 {
            let (x, width) = (left + column as f64 * cell_width, length as f64 * cell_width);
            let _ = write!(path, "M{x} {y}h{width}");
        }
        column += length.max(1);
    }
}

fn legend(svg: &mut String, traffic: &Traffic) {
    let counted = |name: &str, count: crate::trace::Count| {
        format!("{name} {} in {} requests", bytes_text(count.bytes as f64), count.requests)
    };
    let entries = [
        ("w", counted("write", traffic.written)),
        ("r", counted("read", traffic.read)),
        ("d", counted("discard", traffic.discarded)),
        ("f", format!("{} flushes", traffic.flushes)),
    ];
    for (number, (class, text)) in entries.into_iter().enumerate() {
        let x = LEFT + number as f64 * 232.0;
        let _ = writeln!(
            svg,
            "<path class=\"{class}\" stroke-width=\"11\" d=\"M{x} 41h11\"/>\
             <text x=\"{}\" y=\"45\">{text}</text>",
            x + 17.0
        );
    }
}

fn axes(svg: &mut String, device_bytes: u64, seconds: f64) {
    let (right, bottom) = (LEFT + PLANE_WIDTH, TOP + PLANE_HEIGHT);
    for (value, text) in address_ticks(device_bytes) {
        let y = bottom - value * PLANE_HEIGHT;
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            LEFT - 7.0,
            y + 4.5
        );
    }
    for (value, text) in time_ticks(seconds) {
        let x = LEFT + value * PLANE_WIDTH;
        let _ = writeln!(
            svg,
            "<path class=\"grid\" d=\"M{x:.1} {TOP}V{STRIP_END}\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{text}</text>",
            STRIP_END + 17.0
        );
    }
    let _ = writeln!(
        svg,
        "<path class=\"axis\" d=\"M{LEFT} {TOP}V{bottom}H{right}M{LEFT} {STRIP_END}H{right}\"/>\
         <text x=\"{}\" y=\"{}\" text-anchor=\"end\">flush</text>\
         <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">time since the recording began</text>\
         <text transform=\"translate(14 {})rotate(-90)\" text-anchor=\"middle\">address</text>",
        LEFT - 7.0,
        STRIP_TOP + 11.5,
        LEFT + PLANE_WIDTH / 2.0,
        STRIP_END + 37.0,
        TOP + PLANE_HEIGHT / 2.0,
    );
}

fn marks(svg: &mut String, trace: &Trace, seconds: f64) {
    // Where the last name of each line ends. A name that would cover another is left out.
    let mut ends = [0.0; MARK_LINES];
    for mark in trace.marks.iter().take(MOST_MARKS) {
        let x = LEFT + (mark.at.as_secs_f64() / seconds).min(1.0) * PLANE_WIDTH;
        let _ = writeln!(svg, "<path class=\"mark\" d=\"M{x:.1} {TOP}V{STRIP_END}\"/>");
        let name: String = mark.name.chars().take(MARK_CHARACTERS).collect();
        let end = x + 8.0 + name.chars().count() as f64 * MARK_CHARACTER_WIDTH;
        let free = ends.iter().position(|&taken| taken <= x);
        let Some(line) = free.filter(|_| end <= LEFT + PLANE_WIDTH) else { continue };
        ends[line] = end;
        let _ = writeln!(
            svg,
            "<text class=\"name\" x=\"{:.1}\" y=\"{}\">{}</text>",
            x + 4.0,
            TOP + 12.0 + line as f64 * 13.0,
            escape(&name)
        );
    }
}

/// Text that XML takes for text; characters that it does not allow at all are left out.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            control if control.is_control() => escaped.push(' '),
            '\u{fffe}' | '\u{ffff}' => (),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::trace::{DeviceRequest, Mark};

    fn request(kind: Kind, offset: u64, bytes: u64, millis: u64) -> DeviceRequest {
        DeviceRequest { kind, offset, bytes, at: Duration::from_millis(millis) }
    }

    fn path_of<'a>(svg: &'a str, class: &str) -> Vec<&'a str> {
        let start = format!("<path class=\"{class}\" opacity");
        svg.lines().filter(|line| line.starts_with(&start)).collect()
    }

    #[test]
    fn a_million_scattered_requests_make_a_small_picture() {
        let kinds = [Kind::Read, Kind::Write, Kind::Flush, Kind::Discard];
        let requests = (0..1_000_000u64)
            .map(|i| {
                let kind = kinds[(i % 4) as usize];
                let offset = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (1 << 18) * 4096;
                request(kind, offset, 4096, i)
            })
            .collect();
        let trace = Trace { device_bytes: 1 << 30, requests, marks: Vec::new() };
        let svg = trace_svg(&trace, "scattered");
        assert!(svg.len() < 2_000_000, "{} bytes", svg.len());
    }

    #[test]
    fn a_request_is_drawn_where_and_when_it_was() {
        // The last quarter of the device, at the end of the first half of the time.
        let gib = 1 << 30;
        let requests =
            vec![request(Kind::Write, 3 * gib, gib, 499), request(Kind::Flush, 0, 0, 1000)];
        let trace = Trace { device_bytes: 4 * gib, requests, marks: Vec::new() };
        let svg = trace_svg(&trace, "");
        let [path] = path_of(&svg, "w")[..] else { panic!("one level: {svg}") };
        let strokes: Vec<&str> = path.split('M').skip(1).collect();
        assert!(strokes.len().abs_diff(ROWS / 4) <= 1, "a quarter of the rows");
        for stroke in strokes {
            let (x, y) = stroke.split_once('h').unwrap().0.split_once(' ').unwrap();
            let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
            assert!((x - (LEFT + PLANE_WIDTH / 2.0)).abs() < 2.0 * CELL_WIDTH, "{stroke}");
            assert!(y < TOP + PLANE_HEIGHT / 4.0 + CELL_HEIGHT, "{stroke}");
        }
        assert_eq!(path_of(&svg, "f").len(), 1);
        assert!(path_of(&svg, "r").is_empty() && path_of(&svg, "d").is_empty());
    }

    #[test]
    fn nothing_in_a_trace_or_title_breaks_the_picture() {
        let mark = |name: &str| Mark { before: 0, at: Duration::ZERO, name: name.to_owned() };
        let hostile = "</title><script>alert(1)</script>&\"\u{0}\n";
        let requests = vec![request(Kind::Discard, 0, u64::MAX, 0)];
        let traces = [
            Trace::default(),
            Trace { device_bytes: 0, requests: requests.clone(), marks: vec![mark(hostile)] },
            Trace { device_bytes: u64::MAX, requests, marks: Vec::new() },
        ];
        for trace in traces {
            let svg = trace_svg(&trace, hostile);
            assert!(!svg.contains("<script") && !svg.contains('\u{0}'));
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            assert!(svg.ends_with("</svg>\n"));
        }
    }
}
