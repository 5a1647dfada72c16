// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The module of a driver, and its reference count.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use crate::pmu::Pmu;
use crate::rig::patience;
use crate::skip::skip;

/// The module of a driver. It is found by its reference count, because sysfs does not show which module it is.
#[derive(Debug)]
pub struct Module {
    /// The file with its reference count.
    count: PathBuf,
    /// The file from which it can be loaded.
    file: Option<PathBuf>,
}

impl Module {
    fn all() -> Result<Vec<(PathBuf, i64)>> {
        let mut all = Vec::new();
        for entry in fs::read_dir("/sys/module")? {
            let path = entry?.path().join("refcnt");
            if let Ok(text) = fs::read_to_string(&path) {
                all.push((path, text.trim().parse()?));
            }
        }
        Ok(all)
    }

    /// Finds the module of the PMU's driver, if it is one.
    pub fn of(pmu: &Pmu) -> Result<Self> {
        let before = Self::all()?;
        let event = pmu.open(pmu.place())?;
        let found = before.into_iter().find(|(path, count)| {
            let now = fs::read_to_string(path).ok();
            now.and_then(|text| text.trim().parse().ok())
                .is_some_and(|now: i64| now > *count)
        });
        drop(event);
        match found {
            Some((count, _)) => Ok(Self { count, file: None }),
            None => Err(skip("its driver is built in, or an event holds no module")),
        }
    }

    /// Its reference count.
    pub fn references(&self) -> Result<i64> {
        let text = fs::read_to_string(&self.count);
        Ok(text
            .with_context(|| self.count.display().to_string())?
            .trim()
            .parse()?)
    }

    /// The directory of the module in sysfs, whose name is the module's.
    pub fn directory(&self) -> &Path {
        self.count.parent().unwrap_or(Path::new("/"))
    }

    /// Sets the file to load it from, if this directory of modules has one.
    pub fn with_file_in(mut self, modules: &Path) -> Self {
        let name = self.directory().file_name().unwrap_or_default();
        let file = modules.join(name).with_extension("ko");
        self.file = Some(file).filter(|file| file.exists());
        self
    }

    /// Whether the module can be loaded again.
    pub fn reloads(&self) -> bool {
        self.file.is_some()
    }

    /// Unloads the module, and loads it again with the same parameters. Waits for references that perf drops a moment after the event.
    pub fn reload(&self) -> io::Result<()> {
        let file = self.file.as_ref().ok_or(ErrorKind::NotFound)?;
        let file = File::open(file)?;
        let mut parameters = Vec::new();
        for entry in fs::read_dir(self.directory().join("parameters"))
            .into_iter()
            .flatten()
        {
            let path = entry?.path();
            let value = fs::read_to_string(&path).unwrap_or_default();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if !value.trim().is_empty() && value.trim() != "(null)" {
                parameters.push(format!("{name}={}", value.trim()));
            }
        }
        let parameters = CString::new(parameters.join(" "))?;
        let end = Instant::now() + patience();
        loop {
            match self.unload() {
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                unloaded => break unloaded?,
            }
        }
        Ok(rustix::system::finit_module(&file, &parameters, 0)?)
    }

    /// Unloads the module. The kernel refuses that while the module is used.
    pub fn unload(&self) -> io::Result<()> {
        let name = self.directory().file_name();
        let name = CString::new(name.unwrap_or_default().as_encoded_bytes())?;
        let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits());
        rustix::system::delete_module(&name, flags.map_err(io::Error::other)?)?;
        Ok(())
    }

    /// Waits until the reference count is not higher than before: perf drops some references a moment later.
    pub fn returns_to(&self, before: i64) -> Result<()> {
        let end = Instant::now() + patience();
        while self.references()? > before {
            ensure!(
                Instant::now() < end,
                "{} references of {}, and {before} before",
                self.references()?,
                self.count.display()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}
