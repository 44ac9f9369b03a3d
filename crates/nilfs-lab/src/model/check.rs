//! Checks of preset fields: what is wrong is named, with the value that was found.

use std::fmt::Display;
use std::ops::RangeInclusive;

/// A field that makes no sense, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nonsense {
    /// The field as it is written in the file: "card.page_bytes".
    pub field: String,
    /// What is wrong with it.
    pub reason: String,
}

impl Nonsense {
    /// Names a field and a reason.
    pub(super) fn new(field: &str, reason: impl Display) -> Self {
        Self { field: field.to_owned(), reason: reason.to_string() }
    }
}

/// The longest time a field can name: a minute.
pub(super) const MICROSECONDS: RangeInclusive<u64> = 0..=60_000_000;
/// Rates in bytes per second that a field can name.
pub(super) const RATE: RangeInclusive<u64> = 1_000..=100_000_000_000;
/// Sizes of pages.
pub(super) const PAGE: RangeInclusive<u64> = 512..=1 << 20;

/// A number must be within bounds.
pub(super) fn within(
    field: &str,
    value: impl Into<u64>,
    bounds: RangeInclusive<u64>,
) -> Result<(), Nonsense> {
    let value = value.into();
    if bounds.contains(&value) {
        return Ok(());
    }
    let (least, most) = bounds.into_inner();
    Err(Nonsense::new(field, format!("is {value}, must be between {least} and {most}")))
}

/// A size must be a multiple of another one.
pub(super) fn multiple(field: &str, value: u64, of: u64, of_what: &str) -> Result<(), Nonsense> {
    if value.is_multiple_of(of) {
        return Ok(());
    }
    Err(Nonsense::new(field, format!("is {value}, must be a multiple of {of_what} ({of})")))
}
