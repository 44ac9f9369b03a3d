//! Which segment is taken next, and that the counters say what the entries say.

use proptest::prelude::*;

use super::*;
use crate::fixtures::{empty_volume, open};
use crate::volume::Volume;

const SEGMENTS: u64 = 40;

fn sufile(volume: &Volume) -> SufileEdit {
    SufileEdit::new(volume.source(), volume.sufile().unwrap())
}

fn any(_: SegNum) -> bool {
    true
}

#[test]
fn segments_are_taken_one_after_the_other_around_the_end_until_none_is_left() {
    let volume = open(&empty_volume(SEGMENTS));
    let (source, mut sufile) = (volume.source(), sufile(&volume));
    let clean = sufile.clean(source).unwrap();
    let taken: Vec<SegNum> =
        (0..clean.len()).map(|_| sufile.allocate(source, &any).unwrap()).collect();
    assert_eq!(taken, clean, "the first were taken by mkfs");
    assert!(matches!(sufile.allocate(source, &any), Err(Error::NoSpace)));
    let (early, late) = (clean[1], clean[clean.len() - 2]);
    sufile.free(source, late).unwrap();
    sufile.free(source, early).unwrap();
    // The last that was taken is the last of the volume: the search goes on at its start.
    assert_eq!(sufile.allocate(source, &any).unwrap(), early);
    assert_eq!(sufile.allocate(source, &any).unwrap(), late);
}

#[test]
fn a_segment_that_is_to_be_avoided_is_not_taken_even_if_it_is_the_last() {
    let volume = open(&empty_volume(SEGMENTS));
    let (source, mut sufile) = (volume.source(), sufile(&volume));
    let odd = |segment: SegNum| segment.0 % 2 == 1;
    let even = |segment: SegNum| !odd(segment);
    while let Ok(segment) = sufile.allocate(source, &even) {
        assert_eq!(segment.0 % 2, 0);
    }
    assert!(sufile.clean(source).unwrap().iter().all(|segment| odd(*segment)));
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Allocate,
    Adopt(usize),
    Free(usize),
    MarkBad(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Allocate),
        2 => (0usize..64).prop_map(Step::Adopt),
        3 => (0usize..64).prop_map(Step::Free),
        1 => (0usize..64).prop_map(Step::MarkBad),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_counters_follow_the_entries(steps in prop::collection::vec(step(), 1..60)) {
        let volume = open(&empty_volume(SEGMENTS));
        let (source, mut sufile) = (volume.source(), sufile(&volume));
        let mut in_use: Vec<SegNum> = Vec::new();
        for step in steps {
            let clean = sufile.clean(source).unwrap();
            match step {
                Step::Allocate => match sufile.allocate(source, &any) {
                    Ok(segment) => {
                        prop_assert!(clean.contains(&segment));
                        in_use.push(segment);
                    }
                    Err(error) => prop_assert!(matches!(error, Error::NoSpace) && clean.is_empty()),
                },
                Step::Adopt(nth) if !clean.is_empty() => {
                    let segment = clean[nth % clean.len()];
                    // Twice: a segment is filled by several steps of the cleaner.
                    sufile.adopt(source, segment, 3, 1).unwrap();
                    sufile.adopt(source, segment, 5, 1).unwrap();
                    in_use.push(segment);
                }
                Step::Free(nth) if !in_use.is_empty() => {
                    let segment = in_use.swap_remove(nth % in_use.len());
                    sufile.free(source, segment).unwrap();
                }
                Step::MarkBad(nth) if !in_use.is_empty() => {
                    let segment = in_use.swap_remove(nth % in_use.len());
                    sufile.mark_bad(source, segment).unwrap();
                }
                Step::Adopt(_) | Step::Free(_) | Step::MarkBad(_) => {}
            }
            let clean = sufile.clean(source).unwrap();
            prop_assert_eq!(sufile.clean_segments(source).unwrap(), clean.len() as u64);
            prop_assert!(in_use.iter().all(|segment| !clean.contains(segment)));
        }
    }
}
