// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The cache: folders with downloads and builds that all checkouts share. The name of a folder contains a hash of its inputs.
//!
//! A folder is filled under a temporary name and then renamed, so a folder with the final name is complete. A lock keeps two runs from
//! making the same folder. After an interrupted run, the next run that takes the lock removes the incomplete folder.

use crate::error::{Error, OnFile, Result};
use rustix::fs::{flock, FlockOperation};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::fs::File;
use std::path::{Path, PathBuf};

/// The cache folder and the checkout, as `root.sh` gives them.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
    checkout: PathBuf,
    root_hash: String,
}

impl Cache {
    /// Takes the folders and the hash from the environment.
    ///
    /// # Errors
    ///
    /// When this does not run inside the build root.
    pub fn from_env() -> Result<Self> {
        let var = |name: &str| {
            std::env::var(name).map_err(|_| {
                Error::Other(format!("{name} is not set: run this with `make`, or with tools/vm/root.sh run …, inside the build root."))
            })
        };
        Ok(Self {
            dir: var("AUXPMU_CACHE")?.into(),
            checkout: var("AUXPMU_CHECKOUT")?.into(),
            root_hash: var("AUXPMU_ROOT_HASH")?,
        })
    }

    /// The cache in the folder `dir`, for this checkout and this build root.
    #[must_use]
    pub fn new(dir: &Path, checkout: &Path, root_hash: &str) -> Self {
        Self {
            dir: dir.to_owned(),
            checkout: checkout.to_owned(),
            root_hash: root_hash.to_owned(),
        }
    }

    /// The same cache, for another checkout.
    #[must_use]
    pub fn elsewhere(&self, checkout: &Path) -> Self {
        Self {
            checkout: checkout.to_owned(),
            ..self.clone()
        }
    }

    /// The cache folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The checkout.
    #[must_use]
    pub fn checkout(&self) -> &Path {
        &self.checkout
    }

    /// The checkout's folder for everything that is built.
    #[must_use]
    pub fn build(&self) -> PathBuf {
        self.checkout.join("build")
    }

    /// The hash that identifies the build root, and with it the compiler and all other tools.
    #[must_use]
    pub fn root_hash(&self) -> &str {
        &self.root_hash
    }

    /// The log of a step that fills the cache.
    #[must_use]
    pub fn log(&self, name: &str) -> PathBuf {
        self.dir.join("logs").join(name)
    }

    /// Returns the folder `name`. If the folder does not exist yet, `make` fills it. `make` gets the path of the temporary folder and the
    /// final path.
    ///
    /// # Errors
    ///
    /// Those of `make`, or when the cache cannot be written; then nothing is left under the name.
    pub fn entry(
        &self,
        name: &str,
        make: impl FnOnce(&Path, &Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let path = self.dir.join(name);
        if path.is_dir() {
            return Ok(path);
        }
        std::fs::create_dir_all(&self.dir).on("make", &self.dir)?;
        let lock = self.lock(name)?;
        if path.is_dir() {
            return Ok(path);
        }
        let temporary = self.dir.join(format!("{name}.tmp"));
        remove(&temporary)?;
        std::fs::create_dir(&temporary).on("make", &temporary)?;
        let made = make(&temporary, &path);
        if made.is_err() {
            // An error here is ignored: the error of `make` matters more, and the next run removes the folder again.
            let _ = remove(&temporary);
        }
        made?;
        std::fs::rename(&temporary, &path).on("rename", &temporary)?;
        drop(lock);
        Ok(path)
    }

    /// Takes the lock `name`. Waits while another process holds it.
    ///
    /// # Errors
    ///
    /// When the lock file cannot be made.
    pub fn lock(&self, name: &str) -> Result<File> {
        let path = self.dir.join(format!("{name}.lock"));
        let file = File::create(&path).on("write", &path)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            crate::err!("waiting for another run that is making {name}");
            flock(&file, FlockOperation::LockExclusive)
                .map_err(std::io::Error::from)
                .on("lock", &path)?;
        }
        Ok(file)
    }
}

/// Removes a folder if it is there.
///
/// # Errors
///
/// When something in it cannot be removed.
pub fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e).on("remove", path),
        _ => Ok(()),
    }
}

/// A hash of the parts: twelve hexadecimal digits.
#[must_use]
pub fn hash<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut sha = Sha256::new();
    for part in parts {
        // The length keeps ("ab", "c") and ("a", "bc") apart.
        sha.update(part.len().to_string());
        sha.update(":");
        sha.update(part);
    }
    let mut text = String::new();
    for byte in sha.finalize().iter().take(6) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn cache(dir: &Path) -> Cache {
        Cache::new(&dir.join("cache"), dir, "r")
    }

    #[test]
    fn made_once_by_many() {
        let dir = tempfile::tempdir().unwrap();
        let made = AtomicUsize::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    let path = cache(dir.path()).entry("x", |tmp, path| {
                        made.fetch_add(1, Ordering::Relaxed);
                        assert!(!path.exists());
                        std::thread::sleep(std::time::Duration::from_millis(50));
                        std::fs::write(tmp.join("f"), "whole").on("write", tmp)
                    });
                    assert_eq!(
                        std::fs::read_to_string(path.unwrap().join("f")).unwrap(),
                        "whole"
                    );
                });
            }
        });
        assert_eq!(made.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn failure_and_interruption_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path());
        assert!(cache
            .entry("x", |_, _| Err(Error::Other("no".into())))
            .is_err());
        assert!(!cache.dir().join("x").exists() && !cache.dir().join("x.tmp").exists());
        std::fs::create_dir(cache.dir().join("x.tmp")).unwrap();
        std::fs::write(cache.dir().join("x.tmp/stale"), "").unwrap();
        let path = cache.entry("x", |_, _| Ok(())).unwrap();
        assert_eq!(std::fs::read_dir(path).unwrap().count(), 0);
    }

    #[test]
    fn hashes_differ() {
        assert_eq!(hash(["a", "b"]).len(), 12);
        assert_ne!(hash(["ab", "c"]), hash(["a", "bc"]));
    }
}
