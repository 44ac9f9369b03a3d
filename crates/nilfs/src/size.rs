//! Numbers of bytes as people write and read them, with binary units.

/// A number of bytes for people: three digits and a binary unit.
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 {
        format!("{value} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

/// A number of bytes, with a binary unit if it ends with a letter.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        unit => return Err(format!("{unit} is none of the units K, M, G and T")),
    };
    let number: u64 = digits.parse().map_err(|_| "not a number of bytes such as 512M or 4G")?;
    // What no file can have is a mistake.
    number
        .checked_mul(1 << shift)
        .filter(|bytes| i64::try_from(*bytes).is_ok())
        .ok_or_else(|| "too large".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_binary_units() {
        for (text, size) in [("4096", 4096), ("1k", 1024), ("512M", 512 << 20), ("4GiB", 4 << 30)] {
            assert_eq!(parse(text), Ok(size));
        }
        for text in ["", "G", "4X", "-1", "9999999T"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_have_binary_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (4 << 30, "4 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(human(bytes), text);
        }
    }
}
