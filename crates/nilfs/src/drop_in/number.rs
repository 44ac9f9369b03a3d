//! Numbers as nilfs-utils reads them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// The number at the start of a word, as strtoul(3) sees it: 0 if there is none, the greatest if
/// it is too large, and counted down from there if it is negative.
pub fn leading(word: &OsStr) -> u64 {
    let word = word.as_bytes().trim_ascii_start();
    let (negative, digits) = match word.split_first() {
        Some((b'-', digits)) => (true, digits),
        Some((b'+', digits)) => (false, digits),
        _ => (false, word),
    };
    let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
    let number = digits.fold(0_u64, |number, digit| {
        number.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
    });
    if negative && number != u64::MAX { number.wrapping_neg() } else { number }
}

/// A word that is a number and nothing else.
pub fn exact(word: &[u8]) -> Option<u64> {
    let digits = word.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(word).ok().filter(|_| digits)?.parse().ok()
}

/// Why a word is not a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAPeriod {
    /// It is not a number with a unit.
    Invalid,
    /// No time is that long.
    TooLarge,
}

/// A time with a unit: seconds unless it is m, h, d, w, M (31 days) or Y (365 days).
pub fn period(word: &OsStr) -> Result<Duration, NotAPeriod> {
    const MINUTE: f64 = 60.0;
    const DAY: f64 = 24.0 * 60.0 * MINUTE;
    let word = word.to_str().ok_or(NotAPeriod::Invalid)?;
    let number = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &word[number.len()..] {
        "" | "s" => 1.0,
        "m" => MINUTE,
        "h" => 60.0 * MINUTE,
        "d" => DAY,
        "w" => 7.0 * DAY,
        "M" => 31.0 * DAY,
        "Y" => 365.0 * DAY,
        _ => return Err(NotAPeriod::Invalid),
    };
    let number: f64 = number.parse().map_err(|_| NotAPeriod::Invalid)?;
    Duration::try_from_secs_f64(number * unit).map_err(|_| NotAPeriod::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_far_as_they_go() {
        for (word, number) in [
            ("5", 5),
            (" 5x", 5),
            ("x", 0),
            ("", 0),
            ("0x5", 0),
            ("-1", u64::MAX),
            ("99999999999999999999", u64::MAX),
        ] {
            assert_eq!(leading(OsStr::new(word)), number, "{word}");
        }
        assert_eq!(
            [exact(b"12"), exact(b"1x"), exact(b""), exact(b"-1")],
            [Some(12), None, None, None]
        );
    }

    #[test]
    fn periods_have_units() {
        let of = |word| period(OsStr::new(word));
        for (word, seconds) in
            [("90", 90), ("1.5m", 90), ("1h", 3600), ("1M", 2_678_400), ("1Y", 31_536_000)]
        {
            assert_eq!(of(word), Ok(Duration::from_secs(seconds)), "{word}");
        }
        assert_eq!([of("x"), of(""), of("3x")], [Err(NotAPeriod::Invalid); 3]);
        assert_eq!([of("-1"), of("1e30")], [Err(NotAPeriod::TooLarge); 2]);
    }
}
