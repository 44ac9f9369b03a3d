//! The manual pages.
//!
//! Nothing that a program prints as its help is written a second time here. Options come from the
//! definition of the command line, and lists from the texts that help and pages have in common
//! (`text` reads these). `notes` adds what no help says: examples, files, related pages. `page`
//! turns a page into roff.

mod commands;
mod notes;
mod page;
mod programs;
mod settings;
mod text;

pub use page::Page;

/// All pages, those of the drop-ins included.
pub fn pages() -> Vec<Page> {
    let mut pages = commands::pages();
    pages.extend(programs::pages());
    pages.extend(settings::pages());
    pages
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_reference_leads_to_a_page_of_ours_or_of_somebody_else_s() {
        let others = [
            "cp(1)",
            "diff(1)",
            "fsck(8)",
            "fstab(5)",
            "fusermount3(1)",
            "jq(1)",
            "losetup(8)",
            "mount(8)",
            "nilfs(4)",
            "patch(1)",
            "sync(1)",
            "umount(8)",
            "wipefs(8)",
        ];
        let pages = pages();
        let known: HashSet<String> = pages.iter().map(Page::reference).collect();
        for page in &pages {
            for reference in page.see_also() {
                assert!(
                    known.contains(reference) || others.contains(&reference.as_str()),
                    "{} refers to {reference}",
                    page.reference()
                );
            }
        }
    }
}
