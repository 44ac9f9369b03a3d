//! What a power cut may leave: the judge of every crash.
//!
//! With `order=relaxed` these are the rules. A *moment* is the end of an operation, and none counts
//! that began after the cut.
//!
//! 1. *Names.* There is one moment n, not before the last sync of any kind that had ended, at which
//!    the tree, the links of each file and their number, modes, owners, flags and the times that
//!    somebody has chosen were as they are found. So an operation is there whole or not at all.
//! 2. *Content.* Each regular file has the size and the blocks that it had at one moment, with the
//!    times that writing had given it by then: a moment of its own, not before its last fsync that
//!    had ended, nor before the last sync of everything. A truncation is a change of content. A file
//!    that was just made may be empty, as it was when it was made.
//! 3. *Replacement.* Nor is the content older than a rename within n that put the file in the place
//!    of another one, or exchanged it for another one; nor than a link within n that gave it a name
//!    when it had none.
//! 4. *Identity.* A file is what one operation has made, whatever its name or number: the content of
//!    any other file is none that it had.
//! 5. *No name.* A file without a name at n is gone, so an fsync of a file that has no name promises
//!    nothing until the file has a name again.
//! 6. *Syncs.* fsync of a file promises its content, and all names and attributes on the volume up to
//!    then, also if the file has not changed; fsync of a directory, names and attributes; fsync of
//!    the root of the mount, a sync of the file system, and a checkpoint that is flushed, everything.
//! 7. *fdatasync* is fsync, except that the times of writing may be older than the content.
//! 8. *Recovery* that is cut off and begun again shows the same n and the same content, and so does a
//!    read-only mount. That takes a device, so `cuts.rs` looks at it.
//!
//! With `order=strict` there is one moment for everything: the content is that of moment n, and
//! every fsync promises everything.
//!
//! Either way, each checkpoint that is still listed is the whole volume at one moment
//! ([`Crash::past`]).
//!
//! The oracle knows the model and pictures of trees. Of the engine it knows only the mount option.

mod times;

#[cfg(test)]
mod tests;

use nilfs_engine::{Order, RenameMode};
use nilfs_ondisk::inode::FileType;

use crate::history::{Promise, Step};
use crate::model::{Model, Node, NodeId};
use crate::name::Path;
use crate::op::{Op, Target};
use crate::past::Past;
use crate::tree::{File, Tree, shown};

/// A power cut, with what happened before.
#[derive(Debug, Clone, Copy)]
pub struct Crash<'a> {
    /// The operations; there may be some that began after the cut.
    pub steps: &'a [Step],
    /// How many device events had happened.
    pub at: usize,
    /// How the volume was mounted.
    pub order: Order,
}

/// Why a tree cannot be found with the names of some moment.
enum Misfit {
    /// These are not its names.
    Names(String),
    /// They are, but the content cannot be found beside them.
    Content(String),
}

impl Crash<'_> {
    /// Finds the state that `found` is an image of.
    ///
    /// # Errors
    /// The rules do not allow what was found. The text says how it differs from what they allow.
    pub fn state(&self, found: &Tree) -> Result<Model, String> {
        let (oldest, newest) = (self.oldest_names(), self.newest());
        let mut misfits = Vec::new();
        for n in (oldest..=newest).rev() {
            match self.state_with_names_of(n, found) {
                Ok(state) => return Ok(state),
                Err(misfit) => misfits.push((n, misfit)),
            }
        }
        Err(format!(
            "what was found is none of what steps {oldest} to {newest} can leave (step {} had \
             ended):{}",
            self.ended(),
            in_words(&misfits)
        ))
    }

    /// The past that is left on a volume with this content.
    ///
    /// # Errors
    /// See [`Past::after_cut`].
    pub fn past(&self, content: &[u8]) -> Result<Past, String> {
        let (ended, newest) = (&self.steps[self.ended()], &self.steps[self.newest()]);
        let states = [&ended.state, &newest.state];
        Past::after_cut(&ended.past, &newest.past, states, content)
    }

    /// The last step that had ended.
    fn ended(&self) -> usize {
        self.steps.iter().rposition(|step| step.ended <= self.at).unwrap_or(0)
    }

    /// The last step that had begun.
    fn newest(&self) -> usize {
        let had_begun = |step: &Step| step.began < self.at || step.ended <= self.at;
        self.steps.iter().rposition(had_begun).unwrap_or(0)
    }

    /// The first moment whose names may be found.
    fn oldest_names(&self) -> usize {
        let synced = |step: &Step| step.ended <= self.at && step.promise != Promise::Nothing;
        self.steps.iter().rposition(synced).unwrap_or(0)
    }

    /// The state that `found` is an image of, if it has the names of moment `n`.
    fn state_with_names_of(&self, n: usize, found: &Tree) -> Result<Model, Misfit> {
        let mut state = self.steps[n].state.clone();
        state.close_all();
        let names = state.tree();
        if let Some(what) = names.difference(&with_content_of(found, &names)) {
            return Err(Misfit::Names(what));
        }
        for (id, path) in state.regular_files() {
            let file = &found.files[&path];
            let node = self.content_found(n, id, file);
            let node = node.map_err(|what| Misfit::Content(format!("{}: {what}", shown(&path))))?;
            state.set_content(id, node, &file.facts);
        }
        // Each name of a file must show the same.
        match state.tree().difference(found) {
            None => Ok(state),
            Some(what) => Err(Misfit::Content(what)),
        }
    }

    /// The file `id` at a moment of which it may have the content that was found, beside the names
    /// of moment `n`.
    fn content_found(&self, n: usize, id: NodeId, found: &File) -> Result<&Node, String> {
        let newest = match self.order {
            Order::Strict => n,
            Order::Relaxed => self.newest(),
        };
        let oldest = self.oldest_moment(n, id, Promise::covers_content_of);
        let mut differences = Vec::new();
        for m in (oldest..=newest).rev() {
            let Some(node) = self.node(m, id) else { continue };
            let difference = size_difference(node.facts().size, found.facts.size)
                .or_else(|| node.content().difference(&found.content));
            match difference.or_else(|| self.times_difference(n, m, id, &found.facts)) {
                None => return Ok(node),
                Some(what) => differences.push(format!("\n    after step {m}: {what}")),
            }
        }
        let told: String = ends(&differences).map(String::as_str).collect();
        Err(format!("the content is none that it had after steps {oldest} to {newest}:{told}"))
    }

    /// The first moment of which the file `id` may show something beside the names of moment `n`:
    /// when that was last promised, when it took another file's place, or when it was made.
    fn oldest_moment(
        &self,
        n: usize,
        id: NodeId,
        covers: impl Fn(Promise, NodeId) -> bool,
    ) -> usize {
        if self.order == Order::Strict {
            return n;
        }
        let is_kept = |step: &usize| {
            let Step { promise, ended, .. } = self.steps[*step];
            ended <= self.at && covers(promise, id)
                || self.before(*step, id).is_none()
                || self.replaces(*step, id)
                || self.is_found(*step, id)
        };
        (0..=n).rev().find(is_kept).unwrap_or(0)
    }

    /// The file `id` after a step, if it existed then.
    fn node(&self, step: usize, id: NodeId) -> Option<&Node> {
        self.steps[step].state.node(id)
    }

    /// The file `id` before a step, if it existed then.
    fn before(&self, step: usize, id: NodeId) -> Option<&Node> {
        self.node(step.checked_sub(1)?, id)
    }

    /// Whether a step has given the file `id` a name when it had none.
    fn is_found(&self, step: usize, id: NodeId) -> bool {
        let has_name = |node: &Node| node.nlink > 0;
        self.before(step, id).is_some_and(|node| !has_name(node))
            && self.node(step, id).is_some_and(has_name)
    }

    /// Whether a step has put the file `id` in the place of another one.
    fn replaces(&self, step: usize, id: NodeId) -> bool {
        let (Some(Op::Rename { from, to, mode }), Some(before)) =
            (&self.steps[step].op, step.checked_sub(1))
        else {
            return false;
        };
        let file = |step: usize, path: &Path| {
            self.steps[step].state.find(&Target::Path(path.clone())).ok()
        };
        let (moved, there) = (file(before, from), file(before, to));
        let done = there.is_some() && there != moved && file(step, to) == moved;
        done && (moved == Some(id) || *mode == RenameMode::Exchange && there == Some(id))
    }
}

fn size_difference(expected: u64, found: u64) -> Option<String> {
    (expected != found).then(|| format!("{found} bytes, expected {expected}"))
}

/// `found`, but with the content and the times of regular files from `other` where both have them.
fn with_content_of(found: &Tree, other: &Tree) -> Tree {
    let mut tree = found.clone();
    for (path, file) in &mut tree.files {
        let Some(other) = other.files.get(path) else { continue };
        if [file.facts.kind, other.facts.kind] == [FileType::Regular; 2] {
            file.content = other.content.clone();
            (file.facts.size, file.facts.mtime) = (other.facts.size, other.facts.mtime);
            file.facts.ctime = other.facts.ctime;
        }
    }
    tree
}

/// What is nearest to what was found: moments whose names fit, if there are any.
fn in_words(misfits: &[(usize, Misfit)]) -> String {
    let content: Vec<String> = misfits
        .iter()
        .filter_map(|(n, misfit)| match misfit {
            Misfit::Content(what) => Some(format!("\n  with the names after step {n}, {what}")),
            Misfit::Names(_) => None,
        })
        .collect();
    if !content.is_empty() {
        return ends(&content).map(String::as_str).collect();
    }
    let names = |(n, misfit): &(usize, Misfit)| match misfit {
        Misfit::Names(what) | Misfit::Content(what) => {
            format!("\n  against the names after step {n}: {what}")
        }
    };
    ends(misfits).map(names).collect()
}

/// The first and the last.
fn ends<T>(all: &[T]) -> impl Iterator<Item = &T> {
    all.first().into_iter().chain(all.get(1..).and_then(<[T]>::last))
}
