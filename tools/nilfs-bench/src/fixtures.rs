//! Material that is made once per execution and used by many runs: trees, archives, aged images.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The directory of the fixtures.
pub struct Fixtures {
    dir: PathBuf,
}

impl Fixtures {
    /// Creates the directory.
    pub fn new(dir: PathBuf) -> Result<Self> {
        std::fs::create_dir(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Self { dir })
    }

    /// The path of a fixture. The first call builds it with `build`, at the path that it is given;
    /// a build that fails leaves nothing that a later call would take for the fixture.
    pub fn get(&self, name: &str, build: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let path = self.dir.join(name);
        if !path.exists() {
            let partial = self.dir.join(format!("{name}.partial"));
            remove(&partial)?;
            build(&partial).with_context(|| format!("cannot prepare {name}"))?;
            std::fs::rename(&partial, &path)
                .with_context(|| format!("cannot name {}", path.display()))?;
        }
        Ok(path)
    }
}

fn remove(path: &Path) -> Result<()> {
    let removed = match path.symlink_metadata() {
        Err(_) => Ok(()),
        Ok(metadata) if metadata.is_dir() => std::fs::remove_dir_all(path),
        Ok(_) => std::fs::remove_file(path),
    };
    removed.with_context(|| format!("cannot remove {}", path.display()))
}

/// Reads everything below a path, so that timing starts with the page cache warm.
pub fn warm(path: &Path) -> Result<()> {
    let reading = || format!("cannot read {}", path.display());
    if path.is_dir() {
        for entry in path.read_dir().with_context(reading)? {
            warm(&entry.with_context(reading)?.path())?;
        }
        return Ok(());
    }
    let mut file = std::fs::File::open(path).with_context(reading)?;
    std::io::copy(&mut file, &mut std::io::sink()).with_context(reading)?;
    Ok(())
}
