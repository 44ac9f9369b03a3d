//! Ticks of axes: where, as a part of the axis, and what is written there.

/// Ticks of an axis, at most.
const MOST_TICKS: f64 = 9.0;
const BYTE_UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Addresses at powers of two.
pub(super) fn address_ticks(device_bytes: u64) -> Vec<(f64, String)> {
    let size = device_bytes as f64;
    let mut step = 1.0;
    while size / step > MOST_TICKS {
        step *= 2.0;
    }
    ticks(size, step).map(|value| (value / size, bytes_text(value))).collect()
}

/// Times at 1, 2, 5, 10, …
pub(super) fn time_ticks(seconds: f64) -> Vec<(f64, String)> {
    let mut step = 1e-9;
    for factor in [2.0, 2.5, 2.0].into_iter().cycle() {
        if seconds / step <= MOST_TICKS {
            break;
        }
        step *= factor;
    }
    let (unit, factor) = match seconds {
        short if short < 1e-3 => ("µs", 1e6),
        medium if medium < 1.0 => ("ms", 1e3),
        _ => ("s", 1.0),
    };
    let text = |value: f64| format!("{} {unit}", rounded(value * factor));
    ticks(seconds, step).map(|value| (value / seconds, text(value))).collect()
}

/// Multiples of a step; none on an axis without length.
fn ticks(end: f64, step: f64) -> impl Iterator<Item = f64> {
    let count = if end > 0.0 { (end / step * (1.0 + 1e-9)) as usize + 1 } else { 0 };
    (0..count).map(move |number| number as f64 * step)
}

/// A size with its unit, as short as it can be.
pub(super) fn bytes_text(bytes: f64) -> String {
    let mut value = bytes;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < BYTE_UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{} {}", rounded(value), BYTE_UNITS[unit])
}

/// Three digits, without zeros at the end.
fn rounded(value: f64) -> String {
    let digits =
        if value >= 100.0 { 0 } else { 3 - value.abs().log10().floor().max(0.0) as usize - 1 };
    let text = format!("{value:.digits$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}
