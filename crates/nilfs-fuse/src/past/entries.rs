//! The entries of doors of which the kernel knows something, and the trees that are kept for them.
//!
//! Of the files below an entry nothing is remembered but how often the kernel was given one, so
//! memory is bounded by the number of entries. While an entry has its tree, the cleaner keeps the
//! checkpoint. It loses the tree when nobody has asked for anything below it for a while, or when
//! many others were used since, and gets it back with the next request if the checkpoint is still
//! there. The kernel is told to forget an entry without a tree, and does, as far as no process is in
//! there.

use std::collections::{BTreeSet, HashMap};
use std::mem;
use std::time::{Duration, Instant};

use nilfs_engine::{Cno, Error, Ino, Result, Tree};

use crate::nodes::PastNr;

/// Entries that have a tree, at most.
pub(super) const MOST: usize = 4096;

/// The first number that an entry gets; those before are of places in no checkpoint.
const FIRST: PastNr = PastNr(2);

/// A checkpoint as the door of a directory shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub dir: Ino,
    pub list: List,
    pub cno: Cno,
}

/// Where an entry is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum List {
    /// In the door itself.
    Door,
    /// In `gmt`, for Samba.
    Gmt,
}

/// What has lost its tree. The checkpoint is kept until this is dropped.
pub(super) struct LetGo {
    pub entry: Entry,
    /// When the checkpoint was made (s since 1970).
    pub created: u64,
    _tree: Option<Tree>,
}

impl LetGo {
    /// The same, when the cleaner may have the checkpoint already.
    pub fn without_tree(self) -> Self {
        Self { _tree: None, ..self }
    }
}

/// All entries.
#[derive(Default)]
pub(super) struct Entries {
    known: HashMap<PastNr, Known>,
    numbers: HashMap<Entry, PastNr>,
    last: u32,
    held: usize,
}

struct Known {
    entry: Entry,
    /// How often the kernel was given a file below it, or the entry itself.
    lookups: u64,
    used: Instant,
    state: State,
}

enum State {
    /// Its checkpoint is kept.
    Held(Tree),
    /// The cleaner may take the checkpoint.
    LetGo,
    /// The checkpoint is gone, or was let go of although somebody was looking at it.
    GivenUp,
}

impl Entries {
    /// Notes that the kernel is given a file below an entry, or the entry itself. Returns the
    /// number of the entry, and what has to go for that.
    pub fn give(&mut self, entry: Entry, tree: Tree) -> (PastNr, Vec<LetGo>) {
        let nr = match self.numbers.get(&entry) {
            Some(nr) => *nr,
            None => self.add(entry),
        };
        if let Some(known) = self.known.get_mut(&nr) {
            known.lookups += 1;
        }
        (nr, self.keep(nr, tree))
    }

    fn add(&mut self, entry: Entry) -> PastNr {
        let nr = loop {
            self.last = if self.last < PastNr::MAX { self.last + 1 } else { 0 };
            self.last = self.last.max(FIRST.0);
            let nr = PastNr(self.last);
            if !self.known.contains_key(&nr) {
                break nr;
            }
        };
        let known = Known { entry, lookups: 0, used: Instant::now(), state: State::LetGo };
        self.known.insert(nr, known);
        self.numbers.insert(entry, nr);
        nr
    }

    /// Lets an entry have a tree, unless it has one. Returns what has to go for that.
    pub fn keep(&mut self, nr: PastNr, tree: Tree) -> Vec<LetGo> {
        let Some(known) = self.known.get_mut(&nr) else { return Vec::new() };
        known.used = Instant::now();
        if !matches!(known.state, State::LetGo) {
            return Vec::new();
        }
        known.state = State::Held(tree);
        self.held += 1;
        if self.held > MOST { self.let_go_oldest() } else { Vec::new() }
    }

    /// An entry, and its tree if it has it, for somebody who asks for something below it.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is no such entry, or it was given up.
    pub fn find(&mut self, nr: PastNr) -> Result<(Entry, Option<Tree>)> {
        let known = self.known.get_mut(&nr).ok_or(Error::Stale)?;
        known.used = Instant::now();
        match &known.state {
            State::Held(tree) => Ok((known.entry, Some(tree.clone()))),
            State::LetGo => Ok((known.entry, None)),
            State::GivenUp => Err(Error::Stale),
        }
    }

    /// Whether anything is kept.
    pub fn is_any_held(&self) -> bool {
        self.held > 0
    }

    /// Notes that the kernel has forgotten what it was given below an entry, this many times.
    pub fn forget(&mut self, nr: PastNr, lookups: u64) {
        let Some(known) = self.known.get_mut(&nr) else { return };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups > 0 {
            return;
        }
        if let Some(Known { entry, state, .. }) = self.known.remove(&nr) {
            self.held -= usize::from(matches!(state, State::Held(_)));
            if self.numbers.get(&entry) == Some(&nr) {
                self.numbers.remove(&entry);
            }
        }
    }

    /// What nobody has used for `hold`, and how long it takes until the next is due.
    pub fn let_go_unused(&mut self, hold: Duration) -> (Vec<LetGo>, Option<Duration>) {
        let now = Instant::now();
        let (mut due, mut next) = (Vec::new(), None::<Duration>);
        for (nr, known) in &self.known {
            if !matches!(known.state, State::Held(_)) {
                continue;
            }
            match hold.checked_sub(now.saturating_duration_since(known.used)) {
                None | Some(Duration::ZERO) => due.push(*nr),
                Some(wait) => next = Some(next.map_or(wait, |next| next.min(wait))),
            }
        }
        (due.into_iter().filter_map(|nr| self.end(nr, State::LetGo)).collect(), next)
    }

    /// The quarter that nobody has used for longest, so that it is not looked for at each entry.
    fn let_go_oldest(&mut self) -> Vec<LetGo> {
        let held = self.known.iter().filter(|(_, known)| matches!(known.state, State::Held(_)));
        let mut by_use: Vec<_> = held.map(|(nr, known)| (known.used, *nr)).collect();
        by_use.sort_unstable_by_key(|(used, _)| *used);
        let oldest = by_use.into_iter().take(MOST / 4);
        oldest.filter_map(|(_, nr)| self.end(nr, State::LetGo)).collect()
    }

    /// The checkpoints that are held, ascending.
    pub fn held(&self) -> Vec<Cno> {
        let held = self.known.values().filter(|known| matches!(known.state, State::Held(_)));
        let cnos: BTreeSet<Cno> = held.map(|known| known.entry.cno).collect();
        cnos.into_iter().collect()
    }

    /// All that is held of these checkpoints, which are in ascending order. Requests for what the kernel
    /// has of it fail from now on.
    pub fn give_up_all(&mut self, cnos: &[Cno]) -> Vec<LetGo> {
        let goes = |known: &Known| cnos.binary_search(&known.entry.cno).is_ok();
        let going = self.known.iter().filter(|(_, known)| goes(known)).map(|(nr, _)| *nr);
        let going: Vec<PastNr> = going.collect();
        going.into_iter().filter_map(|nr| self.end(nr, State::GivenUp)).collect()
    }

    /// Notes that the checkpoint of an entry is gone. Returns whether that is news.
    pub fn give_up(&mut self, nr: PastNr) -> bool {
        let Some(known) = self.known.get_mut(&nr) else { return false };
        if !matches!(known.state, State::LetGo) {
            return false;
        }
        known.state = State::GivenUp;
        self.numbers.remove(&known.entry);
        true
    }

    fn end(&mut self, nr: PastNr, state: State) -> Option<LetGo> {
        let known = self.known.get_mut(&nr)?;
        let State::Held(tree) = &known.state else { return None };
        let (entry, created) = (known.entry, tree.created());
        if matches!(state, State::GivenUp) {
            // Somebody who comes by its name later gets another number.
            self.numbers.remove(&entry);
        }
        self.held -= 1;
        let tree = match mem::replace(&mut known.state, state) {
            State::Held(tree) => Some(tree),
            _ => None,
        };
        Some(LetGo { entry, created, _tree: tree })
    }
}
