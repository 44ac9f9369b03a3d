//! Numbers of bytes as people write them, with binary units; [`nilfs_ondisk::ByteCount`] shows
//! them.

/// A number of bytes, with a binary unit if it ends with a letter.
pub fn parse(text: &str) -> Result<u64, String> {
    if text.starts_with(['+', '-']) {
        // `nilfs resize +1G` means a change. Where that is not possible, the sign must not be
        // ignored.
        return Err("the size itself is wanted here, without a sign".to_owned());
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| "expected a size such as 512M or 4G")?;
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        unit => return Err(format!("{unit} is none of the units K, M, G and T")),
    };
    // What no file can have is a mistake.
    number
        .checked_mul(1 << shift)
        .filter(|bytes| i64::try_from(*bytes).is_ok())
        .ok_or_else(|| "too large".to_owned())
}

/// The size that a volume shall have, as [`Change::parse`] reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The size in bytes.
    To(u64),
    /// Bytes to be added.
    Grow(u64),
    /// Bytes to be taken away.
    Shrink(u64),
}

impl Change {
    /// Reads a size, which is a change if it has a sign.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bytes = text.strip_prefix(['+', '-']).unwrap_or(text);
        if !bytes.starts_with(|first: char| first.is_ascii_digit()) {
            return Err("expected a size such as 512M, or +512M or -512M for a change".to_owned());
        }
        let bytes = parse(bytes)?;
        Ok(match text.chars().next() {
            Some('+') => Self::Grow(bytes),
            Some('-') => Self::Shrink(bytes),
            _ => Self::To(bytes),
        })
    }

    /// Returns the size of a volume of `bytes` after the change; `None` if no volume can have it.
    pub fn apply(self, bytes: u64) -> Option<u64> {
        match self {
            Self::To(bytes) => Some(bytes),
            Self::Grow(more) => bytes.checked_add(more).filter(|sum| i64::try_from(*sum).is_ok()),
            Self::Shrink(fewer) => bytes.checked_sub(fewer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sign_makes_a_difference_of_a_size() {
        for (text, change, of_a_gib) in [
            ("500M", Change::To(500 << 20), Some(500 << 20)),
            ("+500M", Change::Grow(500 << 20), Some(1524 << 20)),
            ("-500M", Change::Shrink(500 << 20), Some(524 << 20)),
            ("-2G", Change::Shrink(2 << 30), None),
            ("+7000000T", Change::Grow(7_000_000 << 40), Some((7_000_000 << 40) + (1 << 30))),
        ] {
            assert_eq!(Change::parse(text), Ok(change), "{text}");
            assert_eq!(change.apply(1 << 30), of_a_gib, "{text}");
        }
        assert_eq!(Change::Grow(i64::MAX as u64).apply(1 << 30), None);
        for text in ["+", "-", "+-5", "--5", "++5M", "+5X"] {
            assert!(Change::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_read_with_binary_units() {
        for (text, size) in [("4096", 4096), ("1k", 1024), ("512M", 512 << 20), ("4GiB", 4 << 30)] {
            assert_eq!(parse(text), Ok(size));
        }
        for text in ["", "G", "4X", "-1", "+1", "9999999T"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
