//! Numbers as people read them: three significant digits, units of 1000.

use crate::results::{Clock, Unit};

/// Groups digits without letting a line break between them.
const THIN_SPACE: char = '\u{202f}';

/// A figure with three significant digits; from 1000 on, all before the point.
#[must_use]
pub fn figure(figure: f64) -> String {
    if !figure.is_finite() {
        return "–".to_owned();
    }
    let size = figure.abs();
    match size {
        0.0 => "0".to_owned(),
        ..0.001 => format!("{figure:.1e}"),
        ..0.01 => format!("{figure:.5}"),
        ..0.1 => format!("{figure:.4}"),
        ..0.9995 => format!("{figure:.3}"),
        ..9.995 => format!("{figure:.2}"),
        ..99.95 => format!("{figure:.1}"),
        ..9999.5 => format!("{figure:.0}"),
        _ => grouped(&format!("{figure:.0}")),
    }
}

/// A whole number.
pub(crate) fn count(number: u64) -> String {
    if number < 10_000 { number.to_string() } else { grouped(&number.to_string()) }
}

fn grouped(digits: &str) -> String {
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        let left = digits.len() - at;
        if at > 0 && left.is_multiple_of(3) && !text.ends_with('-') {
            text.push(THIN_SPACE);
        }
        text.push(digit);
    }
    text
}

/// Bytes in units of 1000.
pub(crate) fn bytes(bytes: u64) -> String {
    let number = bytes as f64;
    match bytes {
        0 => "0".to_owned(),
        1..1000 => format!("{bytes} B"),
        1000..1_000_000 => format!("{} kB", figure(number / 1e3)),
        1_000_000..1_000_000_000 => format!("{} MB", figure(number / 1e6)),
        _ => format!("{} GB", figure(number / 1e9)),
    }
}

/// A time, however short.
pub(super) fn duration(seconds: f64) -> String {
    match seconds {
        0.0 => "0".to_owned(),
        ..1e-3 => format!("{} µs", figure(seconds * 1e6)),
        ..1.0 => format!("{} ms", figure(seconds * 1e3)),
        _ => format!("{} s", figure(seconds)),
    }
}

/// "1.25×"
pub(super) fn times(ratio: f64) -> String {
    format!("{}×", figure(ratio))
}

/// "+9 %"
pub(super) fn percent(deviation: f64) -> String {
    format!("{:+.0} %", deviation * 100.0).replace("-0 %", "+0 %").replace('-', "−")
}

/// The part of the original sizes: "1/8".
pub(crate) fn scale(scale: f64) -> String {
    const LARGEST: u32 = 10_000;
    let is_near = |number: f64| (number - number.round()).abs() < 1e-9 * number;
    match (1..=LARGEST).map(f64::from).find(|whole| is_near(scale * whole)) {
        Some(1.0) => format!("{scale:.0}"),
        Some(whole) => format!("{:.0}/{whole:.0}", scale * whole),
        None => figure(scale),
    }
}

/// The unit of a figure.
pub(super) fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::MegabytesPerSecond => "MB/s",
        Unit::PerSecond => "/s",
        Unit::Seconds => "s",
        Unit::Milliseconds => "ms",
        Unit::Megabytes => "MB",
    }
}

/// The unit of a figure in words.
pub(super) fn in_unit(unit: Unit) -> &'static str {
    match unit {
        Unit::MegabytesPerSecond => "in MB/s",
        Unit::PerSecond => "operations per second",
        Unit::Seconds => "in seconds",
        Unit::Milliseconds => "in milliseconds",
        Unit::Megabytes => "in MB",
    }
}

/// What the clock is.
pub(super) fn clock(clock: Clock) -> &'static str {
    match clock {
        Clock::Paced => "paced: the device really took as long as its model says",
        Clock::Busy => {
            "busy: the device really took as long as its model says; the sum of the times it was busy"
        }
        Clock::Device => {
            "device time: the sum of the times in which the model was busy, while nobody waited"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_count() {
        let read: Vec<String> = [0.0, 0.0123, 0.5, 0.9996, 7.126, 53.21, 367.7, 2675.4, 26_750.0]
            .into_iter()
            .map(figure)
            .collect();
        let expected =
            ["0", "0.0123", "0.500", "1.00", "7.13", "53.2", "368", "2675", "26\u{202f}750"];
        assert_eq!(read, expected);
    }

    #[test]
    fn bytes_and_times_have_their_unit() {
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(367_700_000), "368 MB");
        assert_eq!(bytes(4_294_967_296), "4.29 GB");
        assert_eq!(duration(0.000_25), "250 µs");
        assert_eq!(duration(0.0123), "12.3 ms");
    }

    #[test]
    fn a_deviation_has_its_sign() {
        assert_eq!(percent(0.094), "+9 %");
        assert_eq!(percent(-0.31), "−31 %");
        assert_eq!(percent(-0.001), "+0 %");
    }

    #[test]
    fn a_scale_is_a_fraction() {
        assert_eq!(scale(0.125), "1/8");
        assert_eq!(scale(1.0), "1");
        assert_eq!(scale(3.0 / 16.0), "3/16");
        assert_eq!(scale(0.3), "3/10");
        assert_eq!(scale(1.0 / std::f64::consts::PI), "0.318");
    }
}
