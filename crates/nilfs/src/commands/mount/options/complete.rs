//! Completions of the words after `-o`.

use std::ffi::OsStr;

use clap_complete::engine::CompletionCandidate;

use super::definitions::OPTIONS;
use crate::definition;

/// The lists that a list may become when its last word is completed.
pub fn complete(list: &OsStr) -> Vec<CompletionCandidate> {
    let list = list.to_string_lossy();
    let begun = list.rfind(',').map_or(0, |comma| comma + 1);
    let (before, start) = list.split_at(begun);
    let fitting = definition::completions(OPTIONS).filter(|word| word.starts_with(start));
    fitting.map(|word| CompletionCandidate::new(format!("{before}{word}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(list: &str) -> Vec<String> {
        let candidates = complete(OsStr::new(list));
        candidates.iter().map(|it| it.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn the_last_word_of_a_list_is_completed() {
        assert_eq!(completed("nob"), ["nobarrier"]);
        assert_eq!(completed("ro,cp"), ["ro,cp="]);
        assert_eq!(completed("ro,order="), ["ro,order=relaxed", "ro,order=strict"]);
        assert!(completed("").contains(&"metrics=".to_owned()));
        assert_eq!(completed("ro,frob"), [] as [&str; 0]);
    }
}
