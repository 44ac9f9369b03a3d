//! Numbers as nilfs-utils reads them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// The number at the start of a word, as strtoul(3) sees it: 0 if there is none, the greatest if
/// it is too large, and counted down from there if it is negative.
pub fn leading(word: &OsStr) -> u64 {
    split(word.as_bytes()).map_or(0, |(number, _)| number)
}

/// The number at the start of a word, as strtol(3) sees it: 0 if there is none.
pub fn signed(word: &OsStr) -> i64 {
    let (negative, number, _) = parts(word.as_bytes());
    let size = i64::try_from(number).unwrap_or(i64::MAX);
    if negative { -size } else { size }
}

/// As [`leading`], with what follows the number; `None` if there is no number.
pub fn split(word: &[u8]) -> Option<(u64, &[u8])> {
    let (negative, number, rest) = parts(word);
    let has_digit = word.len() > rest.len() && word[word.len() - rest.len() - 1].is_ascii_digit();
    let wraps = negative && number != u64::MAX;
    has_digit.then_some((if wraps { number.wrapping_neg() } else { number }, rest))
}

/// Whether there is a minus, the digits' number, as far as it can be held, and what follows.
fn parts(word: &[u8]) -> (bool, u64, &[u8]) {
    let word = word.trim_ascii_start();
    let (negative, word) = match word.split_first() {
        Some((b'-', rest)) => (true, rest),
        Some((b'+', rest)) => (false, rest),
        _ => (false, word),
    };
    let end = word.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(word.len());
    let (digits, rest) = word.split_at(end);
    let number = digits.iter().fold(0_u64, |number, digit| {
        number.saturating_mul(10).saturating_add(u64::from(digit - b'0'))
    });
    (negative, number, rest)
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
        let of = |word| signed(OsStr::new(word));
        assert_eq!([of("5%"), of("-1"), of("x"), of("99999999999999999999")], [5, -1, 0, i64::MAX]);
        assert_eq!(split(b"4/x"), Some((4, &b"/x"[..])));
        assert_eq!(split(b"-1"), Some((u64::MAX, &b""[..])));
        assert_eq!([split(b""), split(b"-"), split(b"x1")], [None; 3]);
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
