//! Pages for the files with settings, from the list of settings.

use super::notes::Notes;
use super::page::Page;
use super::text::{self, Block};
use crate::config::{CLEANERD_HELP, SETTINGS, VALUES_HELP};

/// One page for each file.
pub fn pages() -> Vec<Page> {
    vec![
        page(
            "nilfs.toml",
            "settings of the cleaner of nilfs",
            &["/etc/nilfs.toml"],
            &[
                "A file in TOML with one table, cleaner. What it does not say is taken from \
                 nilfs_cleanerd.conf(5), and else by default; the words after -o of nilfs-mount(1) win \
                 over both. If anything is wrong with the file, none of it counts: the volume is \
                 mounted, and a warning names the line.",
                "A mount reads it when it begins, and again when its process gets the signal HUP or \
                 nilfs-clean(8) -c asks for it.",
            ],
            settings(),
            VALUES_HELP,
        ),
        page(
            "nilfs_cleanerd.conf",
            "settings of the cleaner of nilfs, in the format of nilfs-utils",
            &["/etc/nilfs_cleanerd.conf"],
            &[
                "Each line has a keyword and its value; # begins a comment. The file comes with \
                 nilfs-utils and spells out the defaults of its daemon, which nobody has chosen. So for \
                 the policy, the number of segments in a step and the pauses, a value that is the \
                 daemon's default changes nothing here: say it in nilfs.toml(5) if it is meant.",
                "A line that is wrong is named in a warning, and does not count.",
            ],
            Vec::new(),
            CLEANERD_HELP,
        ),
    ]
}

/// The settings of our own file.
fn settings() -> Vec<Block> {
    SETTINGS.iter().map(|it| Block::Item(it.names(), sentence(&it.explanation()))).collect()
}

fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).chain(['.']).collect()
}

fn page(
    name: &str,
    summary: &str,
    files: &[&str],
    about: &[&str],
    settings: Vec<Block>,
    help: &str,
) -> Page {
    let mut page = Page {
        name: name.to_owned(),
        section: 5,
        summary: summary.to_owned(),
        synopsis: files.iter().map(|file| (*file).to_owned()).collect(),
        sections: Vec::new(),
        see_also: Vec::new(),
    };
    let about = about.iter().map(|text| Block::Paragraph((*text).to_owned()));
    page.add("DESCRIPTION", about.collect());
    page.add("SETTINGS", settings);
    for section in text::sections(help) {
        let title = section.title.map_or("DESCRIPTION".into(), |title| title.to_uppercase());
        page.add(&title, section.blocks);
    }
    Notes::of(&page.reference()).add_to(&mut page);
    page
}
