//! Paths as single words: every byte that is not a printing ASCII character is written `\xHH`.

use std::fmt::Write;

/// The bytes as one word of printing characters.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut word = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_graphic() && byte != b'\\' {
            word.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(word, "\\x{byte:02x}");
        }
    }
    word
}

/// The bytes that `escape` made the word of; nothing if it made no such word.
pub(crate) fn unescape(word: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte == b'\\' {
            let digits = after.strip_prefix(b"x")?.get(..2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = &after[3..];
        } else {
            bytes.push(byte);
            rest = after;
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_as_part_of_one_word() {
        let bytes: Vec<u8> = (0..=255).collect();
        let word = escape(&bytes);
        assert!(word.bytes().all(|byte| byte.is_ascii_graphic()), "{word}");
        assert_eq!(unescape(&word), Some(bytes));
    }

    #[test]
    fn a_broken_escape_is_refused() {
        for word in ["\\", "\\x", "\\x4", "\\y41", "\\xzz"] {
            assert_eq!(unescape(word), None, "{word}");
        }
    }
}
