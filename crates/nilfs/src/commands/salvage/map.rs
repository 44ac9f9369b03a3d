//! Map files of ddrescue: which parts of a device have been read.
//!
//! ```text
//! # comments
//! 0x00120000     ?               1        where it is, what it is doing, which pass
//! 0x00000000  0x00117000  +               from, bytes, status: + is what has been read
//! ```

use std::ops::Range;

use anyhow::{Context, bail};

/// The status of what has been read.
const FINISHED: &str = "+";

/// The parts, in bytes, that have not been read: all that the map does not call finished.
pub fn unread(text: &str) -> anyhow::Result<Vec<Range<u64>>> {
    let lines = (1..).zip(text.lines());
    let lines = lines.filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let mut finished = Vec::new();
    for (nth, line) in lines.skip(1) {
        let part = part(line).with_context(|| format!("line {nth}"))?;
        finished.extend(part.filter(|part| !part.is_empty()));
    }
    finished.sort_unstable_by_key(|part| part.start);
    let mut end = 0;
    let mut unread = Vec::new();
    for part in finished {
        unread.push(end..part.start.max(end));
        end = end.max(part.end);
    }
    unread.push(end..u64::MAX);
    Ok(unread)
}

/// What a line says; `None` if that has not been read.
fn part(line: &str) -> anyhow::Result<Option<Range<u64>>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [start, bytes, status] = words[..] else {
        bail!("expected a position, a size and a status");
    };
    let (start, bytes) = (number(start)?, number(bytes)?);
    let end = start.checked_add(bytes).context("the part is too large")?;
    Ok((status == FINISHED).then_some(start..end))
}

fn number(word: &str) -> anyhow::Result<u64> {
    let digits = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X"));
    let number = match digits {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => word.parse(),
    };
    number.ok().with_context(|| format!("{word} is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_but_what_is_finished_is_unread() {
        let map = "# Mapfile. Created by GNU ddrescue version 1.27\n\
                   # current_pos  current_status  current_pass\n\
                   0x00120000     ?               1\n\
                   #      pos        size  status\n\
                   0x00000000  0x00001000  +\n\
                   0x00001000  0x00000200  -\n\
                   4608 512 *\n\
                   0x00001400  0x00000C00  +\n";
        assert_eq!(unread(map).unwrap(), [0..0, 0x1000..0x1400, 0x2000..u64::MAX]);
        assert_eq!(unread("").unwrap(), std::slice::from_ref(&(0..u64::MAX)));
    }

    #[test]
    fn a_line_that_is_no_part_is_named() {
        for (line, says) in [
            ("0x0 0x10", "line 2: expected a position, a size and a status"),
            ("0x0 many +", "line 2: many is not a number"),
            ("0xffffffffffffffff 1 +", "line 2: the part is too large"),
        ] {
            let error = unread(&format!("0 ?\n{line}\n")).unwrap_err();
            assert_eq!(format!("{error:#}"), says);
        }
    }
}
