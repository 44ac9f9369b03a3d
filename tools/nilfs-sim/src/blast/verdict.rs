//! Faults of what a user gets of a damaged volume.
//!
//! * *Panic*: anything does.
//! * *Silent step back*: a mount, or a check, is content although something is missing that the damage
//!   may not cost.
//! * *Disagreement*: they do not see the same newest checkpoint, or one refuses what another shows.
//! * *Lost more*: a repair, a salvage or rescue mode gives less than the damage has left.
//! * *Unnamed*: what is lost is not named, by path.
//! * *Laundered*: after a repair, a check that reads all content finds no error, content is wrong, and a scrub
//!   does not name it either.
//! * *Wrong exit*: "nothing is lost", "0 lost" or "repaired", and it is not so.
//! * *Unrepaired*: fsck leaves errors that are not about what is lost.
//! * *Undo*: what a repair has done cannot be taken back.
//!
//! Nothing is lost by damage that a power cut may have done: what had not been flushed was not durable. Nor by zeros
//! from some block to the end of the log: the volume is as it was before that was written.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use nilfs_check::{Finding, Report, Rule, Severity};
use nilfs_engine::{Cno, Ino};

use super::blocks::Holds;
use super::cost::{Cost, Loss, LossKind, bytes_of};
use super::damage::{Damage, Patient};
use super::picture::{PANIC, Picture};
use super::samples::Sample;
use super::views::{Fsck, Repaired, Salvaged, Shown, fsck, look, mount, salvage};

/// A kind of violation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Something panics.
    Panic,
    /// Something is missing, and nothing says so.
    StepBack,
    /// Two views differ.
    Disagree,
    /// More is lost than what was damaged.
    LostMore,
    /// A loss is not named.
    Unnamed,
    /// Wrong content gets a right checksum.
    Laundered,
    /// An exit code that is not true.
    WrongExit,
    /// Errors are left.
    Unrepaired,
    /// A repair cannot be taken back.
    Undo,
}

impl Class {
    /// All there are.
    pub const ALL: [Self; 9] = [
        Self::Panic,
        Self::StepBack,
        Self::Disagree,
        Self::LostMore,
        Self::Unnamed,
        Self::Laundered,
        Self::WrongExit,
        Self::Unrepaired,
        Self::Undo,
    ];

    /// Whether it is about what is lost.
    fn is_of_loss(self) -> bool {
        !matches!(self, Self::Panic | Self::Disagree | Self::Unrepaired | Self::Undo)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Panic => "panic",
            Self::StepBack => "step back",
            Self::Disagree => "disagree",
            Self::LostMore => "lost more",
            Self::Unnamed => "unnamed",
            Self::Laundered => "laundered",
            Self::WrongExit => "wrong exit",
            Self::Unrepaired => "unrepaired",
            Self::Undo => "undo",
        })
    }
}

/// Something that a user should not get.
#[derive(Debug, Clone)]
pub struct Violation {
    /// Of which kind.
    pub class: Class,
    /// Where it was seen.
    pub view: &'static str,
    /// Observation, in words.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.class, self.view, self.what)
    }
}

/// How a damaged volume is judged.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Violations of the promises.
    pub violations: Vec<Violation>,
    /// Bytes of files that are lost after fsck and a mount.
    pub lost_by_fsck: u64,
    /// Bytes of files that are lost in a salvage, if there was one.
    pub lost_by_salvage: Option<u64>,
    /// Whether a mount that writes refuses.
    pub is_refused: bool,
    /// Mounts that show wrong content of files as if it were right. Without checksums of content, that
    /// is no violation.
    pub shows_noise: bool,
    /// Observations, for a person.
    pub seen: Vec<String>,
}

/// Damages a volume, and looks at it in every way. `nilfs` is the program that salvages, if it is to.
/// `None`: the damage changes nothing.
#[must_use]
pub fn judge(sample: &Sample, damage: &Damage, seed: u64, nilfs: Option<&Path>) -> Option<Verdict> {
    let patient = &damage.inflict(sample, seed)?;
    let cost = damage.cost(sample);
    let mut judge = Judge { sample, damage, cost, verdict: Verdict::default() };
    let newest = judge.mounts(patient);
    judge.rescue(patient, newest);
    for scrub in [false, true] {
        match fsck(patient, scrub) {
            Ok(seen) => judge.fsck(&seen, scrub, newest, patient),
            Err(why) => judge.without_plan(&why, patient, scrub),
        }
    }
    if let Some(nilfs) = nilfs {
        match salvage(nilfs, patient, &sample.picture) {
            Ok(salvaged) => judge.salvage(&salvaged),
            Err(error) => judge.add(Class::Panic, "salvage", error.to_string()),
        }
    }
    let mut verdict = judge.verdict;
    if damage.may_be_torn(sample) || damage.has_unwritten_the_end(sample) {
        verdict.violations.retain(|it| !it.class.is_of_loss());
    }
    Some(verdict)
}

struct Judge<'a> {
    sample: &'a Sample,
    damage: &'a Damage,
    cost: Cost,
    verdict: Verdict,
}

impl Judge<'_> {
    fn add(&mut self, class: Class, view: &'static str, what: impl Into<String>) {
        let what = what.into();
        let class = if what.contains(PANIC) { Class::Panic } else { class };
        self.verdict.violations.push(Violation { class, view, what });
    }

    fn see(&mut self, view: &str, what: impl fmt::Display) {
        self.verdict.seen.push(format!("{view}: {what}"));
    }

    fn losses(&self, found: &Picture, is_repaired: bool) -> Vec<Loss> {
        self.cost.losses(&self.sample.picture, found, is_repaired)
    }

    /// Mounts the volume. Returns the checkpoint that a mount shows which only looks.
    fn mounts(&mut self, patient: &Patient) -> Option<Cno> {
        let written = mount(patient.dyn_device());
        let read = look(patient.dyn_device(), false);
        for (view, seen) in [("mount", &written), ("mount -o ro", &read)] {
            match seen {
                Shown::Refused(why) => {
                    self.see(view, why);
                    if why == PANIC {
                        self.add(Class::Panic, view, why);
                    }
                }
                Shown::Files(cno, picture) => self.mounted(view, *cno, picture),
            }
        }
        self.verdict.is_refused = matches!(written, Shown::Refused(_));
        match (&written, &read) {
            (Shown::Refused(why), Shown::Files(..)) => {
                self.add(Class::Disagree, "mount", format!("refuses what -o ro shows: {why}"));
            }
            (Shown::Files(..), Shown::Refused(why)) => {
                self.add(
                    Class::Disagree,
                    "mount -o ro",
                    format!("refuses what a mount shows: {why}"),
                );
            }
            (Shown::Files(_, one), Shown::Files(_, other)) => {
                if let Some(path) = one.difference(other) {
                    self.add(Class::Disagree, "mount", format!("-o ro shows {path} otherwise"));
                }
            }
            _ => {}
        }
        read.files().map(|(cno, _)| cno)
    }

    fn mounted(&mut self, view: &'static str, cno: Cno, picture: &Picture) {
        let losses = self.losses(picture, false);
        self.see(view, format!("checkpoint {cno}, {}", list(&losses)));
        let silent = |loss: &&Loss| !loss.fails && !loss.unproven;
        let more: Vec<_> = losses.iter().filter(|it| !it.allowed).filter(silent).cloned().collect();
        if !more.is_empty() {
            self.add(Class::StepBack, view, format!("checkpoint {cno}, {}", list(&more)));
        }
        let allowed = losses.iter().filter(|it| it.allowed).filter(silent);
        let (noise, unnamed): (Vec<_>, Vec<_>) = allowed.cloned().partition(is_content);
        self.verdict.shows_noise |= !noise.is_empty();
        if !unnamed.is_empty() {
            self.add(Class::Unnamed, view, list(&unnamed));
        }
    }

    fn rescue(&mut self, patient: &Patient, newest: Option<Cno>) {
        let view = "mount -o ro,rescue";
        match look(patient.dyn_device(), true) {
            Shown::Refused(why) => {
                self.see(view, &why);
                self.add(Class::LostMore, view, why);
            }
            Shown::Files(cno, picture) => {
                let losses = self.losses(&picture, false);
                self.see(view, format!("checkpoint {cno}, {}", list(&losses)));
                let more: Vec<_> = losses.iter().filter(|it| !it.allowed).cloned().collect();
                if !more.is_empty() {
                    self.add(Class::LostMore, view, format!("checkpoint {cno}, {}", list(&more)));
                }
                // A view of the repaired volume may be a checkpoint further.
                if newest.is_some_and(|newest| newest > cno) {
                    self.add(
                        Class::Disagree,
                        view,
                        format!("checkpoint {cno}, -o ro shows {newest:?}"),
                    );
                }
            }
        }
    }

    /// fsck says that it can do nothing.
    fn without_plan(&mut self, why: &str, patient: &Patient, scrub: bool) {
        let view = name_of(scrub);
        self.see(view, why);
        self.add(Class::Unrepaired, view, why);
        if !scrub {
            self.verdict.lost_by_fsck = self.lost_in(&mount(patient.dyn_device()));
        }
    }

    /// Bytes that are lost if this is all that there is.
    fn lost_in(&self, seen: &Shown) -> u64 {
        let nothing = Picture::default();
        let picture = seen.files().map_or(&nothing, |(_, picture)| picture);
        bytes_of(&self.losses(picture, true), &self.sample.picture)
    }

    fn fsck(&mut self, seen: &Fsck, scrub: bool, newest: Option<Cno>, patient: &Patient) {
        let view = name_of(scrub);
        match &seen.before {
            Ok(report) => {
                let errors = report.errors().count();
                self.see(view, format!("checkpoint {}, {errors} errors", report.newest));
                report.findings.iter().for_each(|it| self.see(view, it));
                self.checked(view, report, newest);
            }
            Err(why) => {
                self.see(view, why);
                if newest.is_some() {
                    self.add(Class::Disagree, view, format!("{why}; -o ro shows the volume"));
                }
            }
        }
        let obstacle = seen.obstacle.iter().map(|it| format!("obstacle: {it}"));
        seen.told.iter().cloned().chain(obstacle).for_each(|it| self.see(view, it));
        let Some(after) = &seen.after else {
            let shown = mount(patient.dyn_device());
            if !scrub {
                self.verdict.lost_by_fsck = self.lost_in(&shown);
            }
            if let Some((_, picture)) = shown.files() {
                let losses = self.losses(picture, true);
                self.name(view, seen, &losses, scrub);
            }
            let left = seen.before.as_ref().map_or(1, |report| self.errors_besides(report).count());
            if left > 0 {
                let why = seen.obstacle.clone().or_else(|| seen.told.first().cloned());
                self.add(Class::Unrepaired, view, why.unwrap_or_else(|| "no repair".into()));
            }
            return;
        };
        if let Err(why) = &after.undone {
            self.add(Class::Undo, view, why);
        }
        if !scrub {
            self.verdict.lost_by_fsck = self.lost_in(&after.shown);
        }
        let (cno, picture) = match &after.shown {
            Shown::Files(cno, picture) => (*cno, picture),
            Shown::Refused(why) => {
                self.see(view, format!("then a mount: {why}"));
                return self.add(Class::LostMore, view, format!("then a mount refuses: {why}"));
            }
        };
        let losses = self.losses(picture, true);
        self.see(view, format!("then a mount: checkpoint {cno}, {}", list(&losses)));
        let more: Vec<_> = losses.iter().filter(|it| !it.allowed).cloned().collect();
        if !more.is_empty() {
            self.add(
                Class::LostMore,
                view,
                format!("then a mount: checkpoint {cno}, {}", list(&more)),
            );
            if seen.is_safe {
                self.add(Class::WrongExit, view, format!("\"nothing is lost\": {}", list(&more)));
            }
        }
        self.name(view, seen, &losses, scrub);
        match &after.report {
            Err(why) => self.add(Class::Unrepaired, view, why),
            Ok(report) => {
                let left: Vec<String> =
                    self.errors_besides(report).map(ToString::to_string).collect();
                if let Some(first) = left.first() {
                    self.add(
                        Class::Unrepaired,
                        view,
                        format!("{} errors are left: {first}", left.len()),
                    );
                }
                // What is lost with an inode is told of by the loss of that.
                let is_of_inode = |it: &Loss| it.allowed && self.is_of_inode(it);
                let is_silent = |it: &&Loss| {
                    is_content(it) && !it.fails && !is_of_inode(it) && !self.is_named_by(after, it)
                };
                let silent: Vec<Loss> = losses.iter().filter(is_silent).cloned().collect();
                if report.is_consistent() && !silent.is_empty() {
                    self.add(Class::Laundered, view, list(&silent));
                }
            }
        }
    }

    /// Judges what a check says of the newest checkpoint.
    fn checked(&mut self, view: &'static str, report: &Report, newest: Option<Cno>) {
        let is_content = report.worst().is_none_or(|worst| worst < Severity::Warning);
        if report.newest < self.sample.newest && is_content {
            let what = format!("nothing is wrong with checkpoint {}", report.newest);
            self.add(Class::StepBack, view, what);
        }
        match newest {
            Some(newest) if newest != report.newest => {
                let what = format!("checkpoint {}, -o ro shows {newest}", report.newest);
                self.add(Class::Disagree, view, what);
            }
            None if report.is_consistent() => {
                self.add(Class::Disagree, view, "no error; mounts refuse the volume");
            }
            _ => {}
        }
    }

    /// Errors of a check that are not about what is damaged: blocks stay known as bad whose content
    /// cannot be made anew, and which are not needed any more.
    fn errors_besides<'r>(&self, report: &'r Report) -> impl Iterator<Item = &'r Finding> {
        // Content of a file of the past cannot be made anew either.
        let of_past = self.damage.blocks(self.sample).filter_map(|it| it.content_of);
        let lost: BTreeSet<Ino> = self.cost.ranges.keys().copied().chain(of_past).collect();
        let logs: BTreeSet<_> = self.damage.blocks(self.sample).map(|it| it.log).collect();
        // What is made up for the target of a link moves with the checksum that it had.
        let mut blocks = self.damage.blocks(self.sample);
        let may_have_moved = blocks.any(|it| it.holds == Holds::Content);
        report.errors().filter(move |it| {
            let of_file = it.place.ino.is_some_and(|ino| lost.contains(&ino));
            let of_log = matches!(it.rule, Rule::Log | Rule::RollForward)
                && it.place.log.is_some()
                && logs.contains(&it.place.log);
            let has_moved = may_have_moved && it.rule == Rule::Log;
            !of_file && !of_log && !has_moved
        })
    }

    /// Judges whether each loss is named that may be. Without a look at the content of files, it is not known
    /// what of that is wrong, or cannot be read.
    fn name(&mut self, view: &'static str, seen: &Fsck, losses: &[Loss], scrub: bool) {
        let numbers: BTreeSet<Ino> = match &seen.before {
            Ok(report) => report.findings.iter().filter_map(|it| it.place.ino).collect(),
            Err(_) => BTreeSet::new(),
        };
        let told = || seen.before.iter().flat_map(|it| &it.findings).map(ToString::to_string);
        let told: Vec<String> = told().chain(seen.told.iter().cloned()).collect();
        let is_named = |ino: Ino| {
            let says = |text: &String| has_number(text, "inode", ino.0);
            numbers.contains(&ino) || told.iter().any(says)
        };
        let number = |path: &[u8]| self.sample.picture.files.get(path).map(|it| it.ino);
        // What a summary has said that cannot be read is not known, but where it was.
        let blocks = self.damage.blocks(self.sample).map(|it| it.number).collect::<Vec<_>>();
        let names_place =
            blocks.iter().any(|it| told.iter().any(|text| has_number(text, "block", *it)));
        let is_known = |loss: &&Loss| {
            if names_place && self.is_of_summary(loss) {
                return true;
            }
            let of_file = number(&loss.path).is_some_and(is_named);
            let mut above = above(&loss.path);
            let of_directory =
                !is_content(loss) && above.any(|path| number(path).is_some_and(is_named));
            let mut paths = self.paths_of(&loss.path).into_iter();
            let of_path = paths.any(|path| {
                let kept = format!("kept: {path}: ");
                told.iter().any(|text| text.starts_with(&kept))
            });
            of_file || of_directory || of_path || seen.named.contains(&loss.path)
        };
        let unnamed: Vec<Loss> = losses
            .iter()
            .filter(|it| it.allowed && !it.unproven && it.kind != LossKind::Extra)
            .filter(|it| scrub || !self.is_of_content(it))
            .filter(|it| !is_known(it))
            .cloned()
            .collect();
        if !unnamed.is_empty() {
            self.add(Class::Unnamed, view, list(&unnamed));
        }
    }

    /// Whether a scrub of the repaired volume names all bytes of a loss: they are unverified.
    fn is_named_by(&self, after: &Repaired, loss: &Loss) -> bool {
        let LossKind::Range(lost) = &loss.kind else { return false };
        let number = self.sample.picture.files.get(&loss.path).map(|it| it.ino);
        let mut parts: Vec<_> =
            number.and_then(|ino| after.known.get(&ino)).into_iter().flatten().collect();
        parts.sort_unstable_by_key(|part| part.offset);
        let reached = parts.iter().fold(lost.start, |reached, part| match part.offset <= reached {
            true => reached.max(part.end()),
            false => reached,
        });
        reached >= lost.end
    }

    /// Paths of a file: those that it had, and that in lost+found.
    fn paths_of(&self, path: &[u8]) -> Vec<String> {
        let files = &self.sample.picture.files;
        let Some(ino) = files.get(path).map(|it| it.ino) else { return Vec::new() };
        let same = files.iter().filter(|(_, file)| file.ino == ino);
        let had = same.map(|(path, _)| String::from_utf8_lossy(path).into_owned());
        had.chain([format!("lost+found/#{ino}")]).collect()
    }

    /// Whether all of it was in blocks of content that are damaged.
    fn is_of_content(&self, loss: &Loss) -> bool {
        let LossKind::Range(lost) = &loss.kind else { return false };
        let number = self.sample.picture.files.get(&loss.path).map(|it| it.ino);
        let mut content = Cost::default();
        let blocks = self.damage.blocks(self.sample).filter(|it| it.holds == Holds::Content);
        blocks.for_each(|it| content.add(&it.cost));
        number.is_some_and(|ino| content.has_range(ino, lost))
    }

    /// Whether it is lost because its inode may be.
    fn is_of_inode(&self, loss: &Loss) -> bool {
        let number = self.sample.picture.files.get(&loss.path).map(|it| it.ino);
        number.is_some_and(|ino| self.cost.inodes.contains(&ino))
    }

    /// Whether it is lost with the summary of a sync log, which alone knew of it.
    fn is_of_summary(&self, loss: &Loss) -> bool {
        let number = self.sample.picture.files.get(&loss.path).map(|it| it.ino);
        let mut summaries = self.damage.blocks(self.sample).filter(|it| it.holds == Holds::Summary);
        summaries.any(|it| number.is_some_and(|ino| it.cost.inodes.contains(&ino)))
    }

    fn salvage(&mut self, seen: &Salvaged) {
        let view = "salvage";
        let losses = self.losses(&seen.files, true);
        let exit = seen.exit.map_or_else(|| "a signal".into(), |exit| exit.to_string());
        self.see(
            view,
            format!("exit {exit}, checkpoint {}, {}; {}", seen.cno, list(&losses), seen.message),
        );
        self.verdict.lost_by_salvage = Some(bytes_of(&losses, &self.sample.picture));
        if seen.exit.is_none_or(|exit| exit > 100) {
            return self.add(Class::Panic, view, format!("exit {exit}: {}", seen.message));
        }
        let more: Vec<_> = losses.iter().filter(|it| !it.allowed).cloned().collect();
        if !more.is_empty() {
            self.add(Class::LostMore, view, format!("checkpoint {}, {}", seen.cno, list(&more)));
        }
        if seen.exit == Some(0) && losses.iter().any(|it| !it.unproven) {
            self.add(Class::WrongExit, view, format!("exit 0: {}", list(&losses)));
        }
        let is_whole = |path: &[u8]| seen.states.get(path).is_none_or(|state| state == "whole");
        let is_unnamed = |loss: &&Loss| {
            is_whole(&loss.path)
                && self.paths_of(&loss.path).iter().all(|path| is_whole(path.as_bytes()))
                && (is_content(loss) || above(&loss.path).all(is_whole))
        };
        let unnamed: Vec<Loss> = losses
            .iter()
            .filter(|it| it.allowed && !it.unproven && it.kind != LossKind::Extra)
            .filter(|it| !self.is_of_summary(it))
            .filter(is_unnamed)
            .cloned()
            .collect();
        if !unnamed.is_empty() {
            self.add(Class::Unnamed, view, list(&unnamed));
        }
    }
}

/// Whether a text names one of many things, by its number.
fn has_number(text: &str, what: &str, number: u64) -> bool {
    let words = format!("{what} {number}");
    let mut found = text.match_indices(&words);
    found.any(|(at, _)| !text[at + words.len()..].starts_with(|next: char| next.is_ascii_digit()))
}

fn name_of(scrub: bool) -> &'static str {
    if scrub { "fsck --scrub" } else { "fsck" }
}

/// The directories above a path: with the name of one, the way to all below it is lost.
fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let slashes = (0..path.len()).rev().filter(|at| path[*at] == b'/');
    slashes.map(|at| &path[..at]).chain((!path.is_empty()).then_some(&path[..0]))
}

/// Whether a loss is of bytes of a file that is there.
fn is_content(loss: &Loss) -> bool {
    matches!(loss.kind, LossKind::Range(_))
}

/// Losses that are listed.
const LISTED: usize = 4;

fn list(losses: &[Loss]) -> String {
    if losses.is_empty() {
        return "all is there".into();
    }
    let first: Vec<String> = losses.iter().take(LISTED).map(ToString::to_string).collect();
    let more = losses.len().saturating_sub(LISTED);
    let more = if more > 0 { format!("; and {more} more") } else { String::new() };
    format!("{}{more}", first.join("; "))
}
