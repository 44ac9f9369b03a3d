//! The superuser restores what a user had, in a directory that the user owns. Once, the paths of the past
//! were given to the kernel as they are, and a symbolic link that the user had put in the place of a
//! directory led to any file of the machine.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};

use rustix::fs::Timespec;
use tempfile::TempDir;

use super::*;

/// A directory that files are written below, and one beside it that nothing may reach.
struct Scene {
    directory: TempDir,
}

impl Scene {
    /// `top/a/b/c` are directories, and `outside` has the same ones, with a file at each level.
    fn new() -> Self {
        let scene = Self { directory: tempfile::tempdir().unwrap() };
        for root in ["top", "outside"] {
            fs::create_dir_all(scene.path(root).join("a/b/c")).unwrap();
        }
        for level in ["", "a", "a/b", "a/b/c"] {
            fs::write(scene.path("outside").join(level).join("file"), "secret").unwrap();
        }
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn top(&self) -> Destination {
        Destination::typed(&self.path("top")).unwrap()
    }

    /// Moves a directory below `top` out of the way, and puts a link to one outside in its place.
    fn swap(&self, name: &str) {
        let place = self.path("top").join(name);
        fs::rename(&place, self.path("moved")).unwrap();
        symlink(self.path("outside").join(name), &place).unwrap();
    }

    /// All names outside, with what tells whether anything has happened to their files.
    fn outside(&self) -> Vec<(PathBuf, u32, i64, i64, Vec<u8>)> {
        let mut found = Vec::new();
        let mut left = vec![self.path("outside")];
        while let Some(path) = left.pop() {
            let it = fs::symlink_metadata(&path).unwrap();
            if it.is_dir() {
                left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            let content = if it.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            found.push((path, it.mode(), it.mtime_nsec(), it.ctime_nsec(), content));
        }
        found.sort();
        found
    }

    fn names(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(directory)).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// Opens a path in both ways, which have to agree; returns whether it is there.
#[track_caller]
fn opened(top: &File, path: &str, flags: OFlags, mounts: Mounts) -> Result<(), Obstacle> {
    let whole = open(top, Path::new(path), flags, mounts).map(drop);
    let names = names(Path::new(path));
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let by_step = names.and_then(|names| walk(top.as_fd(), &names, flags, mounts).map(drop));
    assert_eq!(whole, by_step, "{path}");
    whole
}

#[test]
fn a_link_at_any_component_is_an_obstacle_that_is_named() {
    for link in ["a", "a/b", "a/b/c", "a/b/c/file"] {
        let scene = Scene::new();
        fs::write(scene.path("top/a/b/c/file"), "own").unwrap();
        let top = File::open(scene.path("top")).unwrap();
        let open = |flags| opened(&top, "a/b/c/file", flags, Mounts::Enter);
        assert_eq!(open(OFlags::RDONLY), Ok(()));
        scene.swap(link);
        let obstacle = open(OFlags::RDONLY).unwrap_err();
        let expected = format!("{link} is a symbolic link, which is not followed here");
        assert_eq!(obstacle.to_string(), expected);
        // The link itself can be held, where it is the file that is asked for.
        assert_eq!(open(OFlags::PATH).is_ok(), link.ends_with("file"), "{link}");
    }
}

#[test]
fn no_name_leads_out_of_the_directory() {
    let scene = Scene::new();
    let top = File::open(scene.path("top/a")).unwrap();
    let absolute = scene.path("outside/file");
    for path in ["..", "../../outside/file", "b/../../../outside/file", "/etc/passwd", "b\0"]
        .into_iter()
        .chain(absolute.to_str())
    {
        let errno = opened(&top, path, OFlags::PATH, Mounts::Enter).unwrap_err().errno;
        assert_eq!(errno, Errno::INVAL, "{path}");
        let place = Destination::typed(&scene.path("top/a")).unwrap().join(path);
        assert!(place.file(0o600).is_err(), "{path}");
        assert!(place.make_directory(0o700, true).is_err(), "{path}");
        assert!(place.symlink(b"x").is_err(), "{path}");
    }
    let long = ["b"; 3000].join("/../") + "/file";
    assert_eq!(opened(&top, &long, OFlags::PATH, Mounts::Enter).unwrap_err().errno, Errno::INVAL);
    assert_eq!(scene.names("top"), ["a"]);
}

#[test]
fn paths_may_be_longer_than_the_kernel_takes_at_once() {
    let scene = Scene::new();
    let mut place = scene.top();
    let name = "n".repeat(200);
    for _ in 0..30 {
        place = place.join(&name);
        place.make_directory(0o700, false).unwrap();
    }
    assert!(place.shown().as_os_str().len() > 4096);
    place.join("file").file(0o600).unwrap().take_name(false).unwrap();
    assert!(place.join("file").look().unwrap().is_some());
}

/// A path that the user types may lead through links; what comes after it may not.
#[test]
fn a_typed_path_may_lead_through_links() {
    let scene = Scene::new();
    symlink("top", scene.path("link")).unwrap();
    let place = Destination::typed(&scene.path("link")).unwrap();
    assert!(place.is_top());
    place.join("file").file(0o600).unwrap().take_name(false).unwrap();
    assert!(scene.path("top/file").exists());
    let new = Destination::typed(&scene.path("link/new")).unwrap();
    assert!(!new.is_top() && new.look().unwrap().is_none());
    assert_eq!(new.shown(), scene.path("link/new"));
    let to_file = scene.path("top/to file");
    symlink(scene.path("outside/file"), &to_file).unwrap();
    let place = Destination::typed(&to_file).unwrap();
    assert_eq!(file_type(&place.look().unwrap().unwrap()), FileType::Symlink);
}

/// Each thing that can be made, begun when all was well, and finished after a component has become a link.
#[test]
fn what_is_swapped_meanwhile_leads_nowhere() {
    for link in ["a", "a/b", "a/b/c"] {
        let scene = Scene::new();
        let before = scene.outside();
        let directory = scene.top().join("a/b/c");
        let first = directory.join("first");
        let file = first.file(0o600).unwrap();
        let identity = Identity::of(&file.handle().stat().unwrap());
        file.take_name(false).unwrap();
        let drafts = [
            directory.join("file").file(0o600).unwrap(),
            directory.join("link").symlink(b"target").unwrap(),
            directory.join("pipe").node(FileType::Fifo, 0o600, 0).unwrap(),
            directory.join("name").link(&first, identity).unwrap(),
        ];
        let dropped = directory.join("dropped").file(0o600).unwrap();
        let held = first.hold(identity).unwrap();
        let made = directory.join("made").make_directory(0o700, false).unwrap();

        scene.swap(link);
        for draft in drafts {
            draft.handle().set_time(Timespec { tv_sec: 1, tv_nsec: 0 }).unwrap();
            draft.take_name(true).unwrap();
        }
        drop(dropped);
        held.set_mode(0o640).unwrap();
        let moved = format!("moved{}", "a/b/c".strip_prefix(link).unwrap());
        assert_eq!(scene.names(&moved), ["file", "first", "link", "made", "name", "pipe"]);
        assert_eq!(fs::metadata(scene.path(&moved).join("first")).unwrap().mode() & 0o777, 0o640);

        // From now on, the path is resolved anew.
        let directory = scene.top().join("a/b/c");
        let says_link = |error: anyhow::Error| {
            let link = scene.path("top").join(link);
            let expected = format!("{} is a symbolic link", link.display());
            assert!(error.to_string().contains(&expected), "{error}");
        };
        says_link(directory.join("file").look().unwrap_err());
        says_link(directory.join("file").file(0o600).unwrap_err());
        says_link(directory.join("file").symlink(b"target").unwrap_err());
        says_link(directory.join("file").node(FileType::Fifo, 0o600, 0).unwrap_err());
        says_link(directory.join("new").make_directory(0o700, true).unwrap_err());
        says_link(directory.join("made").hold(made).unwrap_err());
        says_link(directory.join("name").link(&directory.join("first"), identity).unwrap_err());
        says_link(scene.top().join("name").link(&directory.join("first"), identity).unwrap_err());
        assert_eq!(scene.outside(), before);
    }
}

/// A directory gets its attributes when everything is in it, and by then it may be another one.
#[test]
fn what_has_taken_the_place_of_a_directory_keeps_its_attributes() {
    let scene = Scene::new();
    let place = scene.top().join("new");
    let made = place.make_directory(0o700, false).unwrap();
    place.hold(made).unwrap().set_mode(0o750).unwrap();
    fs::rename(scene.path("top/new"), scene.path("top/old")).unwrap();
    let refused = |place: &Destination| place.hold(made).unwrap_err().to_string();
    let taken = "something else has taken its place meanwhile";
    symlink(scene.path("outside"), scene.path("top/new")).unwrap();
    assert_eq!(refused(&place), taken);
    fs::remove_file(scene.path("top/new")).unwrap();
    fs::rename(scene.path("outside/a"), scene.path("top/new")).unwrap();
    assert_eq!(refused(&place), taken);
    fs::remove_dir_all(scene.path("top/new")).unwrap();
    fs::write(scene.path("top/new"), "").unwrap();
    assert_eq!(refused(&place), taken);
}

/// Another name is given to the copy alone, and not to what has been put in its place since.
#[test]
fn what_has_taken_the_place_of_a_file_gets_no_other_name() {
    let scene = Scene::new();
    let first = scene.top().join("first");
    let file = first.file(0o600).unwrap();
    let copy = Identity::of(&file.handle().stat().unwrap());
    file.take_name(false).unwrap();
    // The file stays, so that its number is not used again.
    fs::rename(scene.path("top/first"), scene.path("top/still")).unwrap();
    for other in ["link", "hard link"] {
        match other {
            "link" => symlink(scene.path("outside/file"), scene.path("top/first")).unwrap(),
            _ => fs::hard_link(scene.path("outside/file"), scene.path("top/first")).unwrap(),
        }
        let error = scene.top().join("second").link(&first, copy).unwrap_err().to_string();
        assert_eq!(error, "something else has taken its place meanwhile", "{other}");
        fs::remove_file(scene.path("top/first")).unwrap();
        assert_eq!(scene.names("top"), ["a", "still"], "{other}");
    }
    assert_eq!(fs::metadata(scene.path("outside/file")).unwrap().nlink(), 1);
}

/// A directory that was just made is empty; one that another user has put in its place, with files that
/// belong to others in it, is not to be given away.
#[test]
fn a_directory_is_ours_if_it_was_made_or_may_be_shared() {
    let scene = Scene::new();
    let place = scene.top().join("a");
    let refused = place.make_directory(0o700, false).unwrap_err().to_string();
    assert_eq!(refused, "exists already and is a directory; move it away first");
    place.make_directory(0o700, true).unwrap();
    let new = scene.top().join("new");
    new.make_directory(0o700, false).unwrap();
    let mode = fs::metadata(scene.path("top/new")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o700);
    symlink(scene.path("outside"), scene.path("top/link")).unwrap();
    let refused = scene.top().join("link").make_directory(0o700, true).unwrap_err().to_string();
    assert_eq!(refused, "exists already and is a symbolic link; move it away first");
}

#[test]
fn a_file_is_seen_by_its_name_only_when_it_is_complete() {
    let scene = Scene::new();
    let place = scene.top().join("a/file");
    let draft = place.file(0o600).unwrap();
    assert!(place.look().unwrap().is_none());
    let [own] = &scene.names("top/a").into_iter().filter(|it| it != "b").collect::<Vec<_>>()[..]
    else {
        panic!("a draft has one name");
    };
    assert!(own.starts_with(".nilfs-cp-"));
    let another = place.file(0o600).unwrap();
    assert_eq!(scene.names("top/a").len(), 3, "no program can know the name before");
    // The file that gets the name first stays.
    fs::write(scene.path("top/a/file"), "theirs").unwrap();
    assert_eq!(draft.take_name(false), Err(Errno::EXIST));
    assert_eq!(fs::read(scene.path("top/a/file")).unwrap(), b"theirs");
    another.take_name(true).unwrap();
    assert_eq!(scene.names("top/a"), ["b", "file"]);
    // A link that has the name is replaced, and not what it leads to.
    symlink(scene.path("outside/file"), scene.path("top/link")).unwrap();
    scene.top().join("link").file(0o600).unwrap().take_name(true).unwrap();
    assert!(fs::symlink_metadata(scene.path("top/link")).unwrap().is_file());
    assert_eq!(fs::read(scene.path("outside/file")).unwrap(), b"secret");
}

#[test]
fn attributes_are_those_of_the_thing_that_was_made() {
    let scene = Scene::new();
    let time = Timespec { tv_sec: 1_000_000_000, tv_nsec: 7 };
    let top = scene.top();
    let made = [
        ("file", top.join("file").file(0o600).unwrap()),
        ("pipe", top.join("pipe").node(FileType::Fifo, 0o600, 0).unwrap()),
        ("link", top.join("link").symlink(b"../outside/file").unwrap()),
    ];
    for (name, draft) in made {
        if name != "link" {
            draft.handle().set_mode(0o640).unwrap();
        }
        draft.handle().set_time(time).unwrap();
        draft.take_name(false).unwrap();
        let found = fs::symlink_metadata(scene.path("top").join(name)).unwrap();
        assert_eq!((found.mtime(), found.mtime_nsec()), (time.tv_sec, 7), "{name}");
        assert!(name == "link" || found.mode() & 0o777 == 0o640, "{name}");
    }
    assert!(fs::symlink_metadata(scene.path("top/pipe")).unwrap().file_type().is_fifo());
    assert_ne!(fs::metadata(scene.path("outside/file")).unwrap().mtime(), time.tv_sec);
}
