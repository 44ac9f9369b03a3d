//! Each rule, broken once and kept once, in histories that nobody had to live.

use nilfs_engine::{SetAttr, SetTime, Timestamp};
use nilfs_ondisk::inode::DeviceCode;

use super::*;
use crate::clock::{EPOCH, ThreadClock};
use crate::history::Root;
use crate::name::Name;
use crate::outcome::Facts;

/// Events that an operation takes.
const EVENTS: usize = 10;

/// What all histories begin with: the files a and b of two blocks each in the directory d, synced.
fn beginning() -> Vec<Op> {
    vec![
        create("d", FileType::Directory),
        create("d/a", FileType::Regular),
        create("d/b", FileType::Regular),
        write("d/a", 0, 2048, 1),
        write("d/b", 0, 2048, 1),
        Op::Sync,
    ]
}

/// A path of letters, as in "d/a".
fn path(text: &str) -> Path {
    let letters = text.bytes().filter(u8::is_ascii_lowercase);
    Path(letters.map(|letter| Name(u16::from(letter - b'a'))).collect())
}

fn file(text: &str) -> Target {
    Target::Path(path(text))
}

fn create(text: &str, kind: FileType) -> Op {
    Op::Create { path: path(text), kind, mode: 0o644, rdev: DeviceCode::default() }
}

fn write(text: &str, offset: u64, length: u64, fill: u32) -> Op {
    Op::Write { target: file(text), offset, length, fill }
}

fn rename(from: &str, to: &str, mode: RenameMode) -> Op {
    Op::Rename { from: path(from), to: path(to), mode }
}

fn set(text: &str, changes: SetAttr) -> Op {
    Op::SetAttr { target: file(text), changes }
}

fn chmod(text: &str) -> Op {
    set(text, SetAttr { mode: Some(0o700), ..SetAttr::default() })
}

fn truncate(text: &str, size: u64) -> Op {
    set(text, SetAttr { size: Some(size), ..SetAttr::default() })
}

fn touch(text: &str, seconds: i64) -> Op {
    let time = Timestamp { seconds, nanoseconds: 0 };
    set(text, SetAttr { mtime: Some(SetTime::At(time)), ..SetAttr::default() })
}

fn fsync(text: &str) -> Op {
    Op::Fsync(file(text))
}

fn fdatasync(text: &str) -> Op {
    Op::Fdatasync(file(text))
}

/// A life, after which the power is cut.
struct Life {
    order: Order,
    steps: Vec<Step>,
}

impl Life {
    /// The beginning, and then `ops`, of which the first is moment 1.
    fn of(ops: &[Op]) -> Self {
        Self::in_order(Order::Relaxed, ops)
    }

    fn in_order(order: Order, ops: &[Op]) -> Self {
        let root = Facts {
            kind: FileType::Directory,
            mode: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            rdev: DeviceCode::default(),
            size: 0,
            mtime: EPOCH,
            ctime: EPOCH,
            flags: 0,
        };
        let mut model = Model::new(1024, &root);
        let mut steps: Vec<Step> = Vec::new();
        for op in beginning().iter().chain(ops) {
            let nth = steps.len();
            let outcome = model.apply(op, ThreadClock::at_step(nth as u64));
            steps.push(Step {
                began: nth * EVENTS,
                ended: (nth + 1) * EVENTS,
                promise: Promise::of(op, &outcome, &model, order, Root::Volume),
                state: model.clone(),
                past: Past::default(),
                op: Some(op.clone()),
            });
        }
        Self { order, steps }
    }

    /// The state at a moment; 0 is the beginning.
    fn at(&self, moment: usize) -> Model {
        let mut state = self.steps[beginning().len() - 1 + moment].state.clone();
        state.close_all();
        state
    }

    /// The names of moment `n`, with the content of a file as it was at moment `m`.
    fn mixed(&self, n: usize, name: &str, m: usize) -> Model {
        with(self.at(n), name, &self.at(m), name)
    }

    /// Whether the last operation may have left `found`, when it had just ended.
    fn may_leave(&self, found: &Model) -> bool {
        self.may_leave_at(self.steps.len() * EVENTS, found)
    }

    fn may_leave_at(&self, at: usize, found: &Model) -> bool {
        self.judge(at, &found.tree()).is_ok()
    }

    fn judge(&self, at: usize, found: &Tree) -> Result<Model, String> {
        Crash { steps: &self.steps, at, order: self.order }.state(found)
    }
}

/// `state` with the content that the file `from` has in `other`, in its file `name`.
fn with(mut state: Model, name: &str, other: &Model, from: &str) -> Model {
    let node =
        |state: &Model, name| state.find(&file(name)).ok().and_then(|id| state.node(id).cloned());
    let node = node(other, from).expect("the file exists at both moments");
    let id = state.find(&file(name)).expect("the file exists at both moments");
    state.set_content(id, &node, &node.facts());
    state
}

#[test]
fn names_are_those_of_one_moment_not_before_the_last_sync_and_not_after_the_cut() {
    let ops = [
        create("x", FileType::Fifo),
        fsync("d"),
        create("y", FileType::Fifo),
        create("z", FileType::Fifo),
        chmod("z"),
    ];
    let life = Life::of(&ops);
    let cut = (beginning().len() + 3) * EVENTS + 1;
    let allowed: Vec<bool> = (0..=5).map(|n| life.may_leave_at(cut, &life.at(n))).collect();
    assert_eq!(allowed, [false, true, true, true, true, false]);
}

#[test]
fn every_sync_makes_all_names_and_attributes_durable() {
    for changed in
        [create("x", FileType::Regular), chmod("d/b"), rename("d/b", "b", RenameMode::Replace)]
    {
        // The file d/a has not changed.
        for sync in [fsync("d/a"), fdatasync("d/a"), fsync("d"), fsync(""), Op::Sync] {
            let life = Life::of(&[changed.clone(), sync.clone()]);
            assert!(life.may_leave(&life.at(2)), "{changed}, {sync}");
            assert!(!life.may_leave(&life.at(0)), "{changed} is lost after {sync}");
        }
        let life = Life::of(&[changed.clone(), Op::Commit]);
        assert!(life.may_leave(&life.at(0)), "{changed}");
    }
}

#[test]
fn an_operation_is_there_whole() {
    let life = Life::of(&[rename("d/a", "x", RenameMode::Replace)]);
    let (before, after) = (life.at(0).tree(), life.at(1).tree());
    let mut both = after.clone();
    both.files.extend(before.files.clone());
    let mut neither = before.clone();
    neither.files.retain(|path, _| after.files.contains_key(path));
    let cut = life.steps.len() * EVENTS;
    assert!(life.judge(cut, &before).is_ok() && life.judge(cut, &after).is_ok());
    assert!(life.judge(cut, &both).is_err() && life.judge(cut, &neither).is_err());
}

#[test]
fn a_time_that_was_chosen_is_an_attribute() {
    let life = Life::of(&[touch("d/a", 5), fsync("d/b")]);
    assert!(life.may_leave(&life.at(2)));
    let mut lost = life.at(2);
    let id = lost.find(&file("d/a")).unwrap_or(Model::ROOT);
    let node = life.at(0).node(id).cloned().expect("the file has been there all the time");
    lost.set_content(id, &node, &node.facts());
    assert!(!life.may_leave(&lost), "the content is right, but the time is lost");
}

#[test]
fn each_file_has_a_moment_of_its_own() {
    let ops = [write("d/b", 0, 100, 2), write("d/a", 0, 100, 3), fsync("d/a")];
    let life = Life::of(&ops);
    let without_b = life.mixed(3, "d/b", 0);
    assert!(life.may_leave(&life.at(3)));
    assert!(life.may_leave(&without_b), "b was never synced");
    assert!(!life.may_leave(&life.mixed(3, "d/a", 1)), "a was");
    let strict = Life::in_order(Order::Strict, &ops);
    assert!(strict.may_leave(&strict.at(3)));
    assert!(!strict.may_leave(&without_b), "the strict order keeps the order of everything");
}

#[test]
fn content_is_not_newer_than_the_cut() {
    let life = Life::of(&[write("d/a", 0, 100, 2), write("d/a", 100, 100, 3)]);
    let cut = (beginning().len() + 1) * EVENTS;
    assert!(life.may_leave_at(cut, &life.at(1)));
    assert!(!life.may_leave_at(cut, &life.at(2)));
}

#[test]
fn content_is_no_mixture_of_moments() {
    let first = write("d/a", 0, 1024, 2);
    let second = write("d/a", 1024, 1024, 3);
    let life = Life::of(&[first, second.clone(), truncate("d/a", 1500)]);
    let mut without_the_first = life.at(0);
    without_the_first.apply(&second, ThreadClock::at_step(beginning().len() as u64 + 1));
    assert!(!life.may_leave(&without_the_first));
    let mut size_alone = life.at(1);
    size_alone.apply(&truncate("d/a", 1500), ThreadClock::at_step(beginning().len() as u64 + 2));
    assert!(!life.may_leave(&size_alone));
    assert!((0..=3).all(|moment| life.may_leave(&life.at(moment))));
}

#[test]
fn a_new_file_may_be_empty() {
    let ops = [create("x", FileType::Regular), write("x", 0, 3000, 2), fsync("d/a")];
    let life = Life::of(&ops);
    assert!(life.may_leave(&life.mixed(3, "x", 1)));
    assert!(!life.may_leave(&life.at(0)), "but its name is there");
    let synced = Life::of(&[&ops[..2], &[fsync("x")]].concat());
    assert!(!synced.may_leave(&synced.mixed(3, "x", 1)));
}

#[test]
fn what_replaces_a_file_has_its_content() {
    for mode in [RenameMode::Replace, RenameMode::Exchange] {
        let ops = [
            create("x", FileType::Regular),
            write("x", 0, 3000, 2),
            rename("x", "d/a", mode),
            write("d/a", 0, 100, 3),
            fsync("d/b"),
        ];
        let life = Life::of(&ops);
        let content_of = |moment| with(life.at(5), "d/a", &life.at(moment), "x");
        assert!(life.may_leave(&with(life.at(5), "d/a", &life.at(3), "d/a")), "as it was then");
        assert!(!life.may_leave(&content_of(1)), "empty, {mode:?}");
        let unsynced = Life::of(&ops[..4]);
        assert!((0..=4).all(|moment| unsynced.may_leave(&unsynced.at(moment))));
        assert!(unsynced.may_leave(&unsynced.mixed(2, "x", 1)), "there was no rename yet");
    }
    let ops = [
        create("x", FileType::Regular),
        write("x", 0, 9, 2),
        rename("x", "y", RenameMode::Replace),
    ];
    let life = Life::of(&ops);
    let empty = with(life.at(3), "y", &life.at(1), "x");
    assert!(life.may_leave(&empty), "nothing was replaced");
}

#[test]
fn both_sides_of_an_exchange_have_their_content() {
    let ops = [write("d/b", 0, 9, 2), rename("d/a", "d/b", RenameMode::Exchange)];
    let life = Life::of(&ops);
    assert!(life.may_leave(&life.at(2)));
    assert!(!life.may_leave(&with(life.at(2), "d/a", &life.at(0), "d/b")));
}

#[test]
fn content_of_a_deleted_file_does_not_come_back_under_its_name() {
    let ops = [Op::Unlink(path("d/a")), create("d/a", FileType::Regular), fsync("d/b")];
    let life = Life::of(&ops);
    assert!(life.may_leave(&life.at(3)));
    assert!(!life.may_leave(&with(life.at(3), "d/a", &life.at(0), "d/a")));
}

#[test]
fn all_names_of_a_file_show_the_same() {
    let ops = [Op::Link { target: file("d/a"), to: path("x") }, write("x", 0, 9, 2), fsync("d/b")];
    let life = Life::of(&ops);
    let cut = life.steps.len() * EVENTS;
    let mut found = life.at(3).tree();
    assert!(life.judge(cut, &found).is_ok());
    let old = life.mixed(3, "d/a", 0).tree();
    assert!(life.judge(cut, &old).is_ok());
    found.files.extend(
        old.files.get_key_value(&b"x"[..]).map(|(path, file)| (path.clone(), file.clone())),
    );
    assert!(life.judge(cut, &found).is_err());
}

#[test]
fn fsync_of_a_file_without_a_name_promises_nothing() {
    let handle = || Target::Handle(0);
    let ops = [
        Op::Open { path: path("d/a"), handle: 0 },
        Op::Unlink(path("d/a")),
        Op::Write { target: handle(), offset: 0, length: 9, fill: 2 },
        Op::Fsync(handle()),
    ];
    let life = Life::of(&ops);
    assert!(life.may_leave(&life.at(0)));
    assert!(life.may_leave(&life.at(4)));
}

#[test]
fn a_file_that_gets_a_name_has_all_that_was_written_before() {
    let handle = || Target::Handle(0);
    let ops = [
        Op::CreateNameless { directory: path("d"), mode: 0o644, handle: 0 },
        Op::Write { target: handle(), offset: 0, length: 9, fill: 2 },
        Op::Fsync(handle()),
        Op::Link { target: handle(), to: path("d/x") },
        write("d/x", 9, 9, 3),
    ];
    let life = Life::of(&ops);
    assert!(life.may_leave(&life.at(0)), "nobody has synced the name");
    assert!(life.may_leave(&life.at(4)));
    assert!(life.may_leave(&life.mixed(5, "d/x", 4)));
    let id = life.at(5).find(&file("d/x")).unwrap_or(Model::ROOT);
    let made = &life.steps[life.steps.len() - ops.len()];
    let empty = made.state.node(id).cloned().expect("it is there without a name");
    let mut state = life.at(5);
    state.set_content(id, &empty, &empty.facts());
    assert!(!life.may_leave(&state), "it was fsynced when it had no name");
}

#[test]
fn a_directory_covers_names_and_the_root_covers_everything() {
    let ops = |sync| [create("d/x", FileType::Regular), write("d/x", 0, 9, 2), fsync(sync)];
    let directory = Life::of(&ops("d"));
    assert!(directory.may_leave(&directory.mixed(3, "d/x", 1)));
    assert!(!directory.may_leave(&directory.at(0)));
    let root = Life::of(&ops(""));
    assert!(!root.may_leave(&root.mixed(3, "d/x", 1)));
}

#[test]
fn fdatasync_may_leave_older_times() {
    let ops = |sync: fn(&str) -> Op| [write("d/a", 0, 9, 2), write("d/a", 9, 9, 3), sync("d/a")];
    for (sync, allowed) in [(fsync as fn(&str) -> Op, false), (fdatasync, true)] {
        let life = Life::of(&ops(sync));
        let id = life.at(3).find(&file("d/a")).unwrap_or(Model::ROOT);
        let times = |moment: usize| {
            let node = |moment| life.at(moment).node(id).cloned().expect("the file is there");
            let mut state = life.at(3);
            state.set_content(id, &node(3), &node(moment).facts());
            state
        };
        assert_eq!(life.may_leave(&times(0)), allowed);
        assert_eq!(life.may_leave(&times(1)), allowed);
        assert!(life.may_leave(&times(3)));
        assert!(!life.may_leave(&life.mixed(3, "d/a", 1)), "the content is there");
    }
}

#[test]
fn times_of_writing_come_with_the_content() {
    let life =
        Life::of(&[write("d/a", 0, 9, 2), chmod("d/a"), write("d/a", 0, 9, 3), fsync("d/b")]);
    let id = life.at(4).find(&file("d/a")).unwrap_or(Model::ROOT);
    let shown = |content: usize, mtime: usize, ctime: usize| {
        let node = |moment| life.at(moment).node(id).cloned().expect("the file is there");
        let facts = Facts { ctime: node(ctime).ctime, ..node(mtime).facts() };
        let mut state = life.at(4);
        state.set_content(id, &node(content), &facts);
        life.may_leave(&state)
    };
    assert!(shown(4, 4, 4));
    assert!(shown(1, 1, 2), "the ctime of the change of attributes");
    assert!(shown(1, 1, 1), "the ctime of the content");
    assert!(shown(0, 0, 2));
    assert!(!shown(0, 1, 2) && !shown(0, 4, 2), "an mtime that is newer than the content");
    assert!(!shown(0, 0, 4), "a ctime of content that is not there");
    assert!(!shown(4, 1, 4) && !shown(4, 4, 0), "times that are older than the content");
}
