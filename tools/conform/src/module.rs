// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The module of a driver, and who uses it.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};

use crate::cases::skip;
use crate::pmu::Pmu;
use crate::rig::patience;

/// The module of a driver, found by its references: sysfs does not tell which it is.
#[derive(Debug)]
pub struct Module(PathBuf);

impl Module {
    fn all() -> Result<Vec<(PathBuf, i64)>> {
        let mut all = Vec::new();
        for entry in std::fs::read_dir("/sys/module")? {
            let path = entry?.path().join("refcnt");
            if let Ok(text) = std::fs::read_to_string(&path) {
                all.push((path, text.trim().parse()?));
            }
        }
        Ok(all)
    }

    /// That of the PMU's driver, if it is one.
    pub fn of(pmu: &Pmu) -> Result<Self> {
        let before = Self::all()?;
        let event = pmu.open(pmu.place())?;
        let found = before.into_iter().find(|(path, count)| {
            let now = std::fs::read_to_string(path).ok();
            now.and_then(|text| text.trim().parse().ok())
                .is_some_and(|now: i64| now > *count)
        });
        drop(event);
        match found {
            Some((path, _)) => Ok(Self(path)),
            None => Err(skip("its driver is built in, or an event holds no module")),
        }
    }

    /// How many references it has.
    pub fn references(&self) -> Result<i64> {
        let text = std::fs::read_to_string(&self.0);
        Ok(text
            .with_context(|| self.0.display().to_string())?
            .trim()
            .parse()?)
    }

    /// Unloads it, which is refused while it is used.
    pub fn unload(&self) -> std::io::Result<()> {
        let name = self.0.parent().and_then(Path::file_name);
        let name = CString::new(name.unwrap_or_default().as_encoded_bytes())?;
        let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits());
        rustix::system::delete_module(&name, flags.map_err(std::io::Error::other)?)?;
        Ok(())
    }

    /// Waits until it has no more than before: perf gives some back a moment later.
    pub fn returns_to(&self, before: i64) -> Result<()> {
        let end = Instant::now() + patience();
        while self.references()? > before {
            ensure!(
                Instant::now() < end,
                "{} references of {}, and {before} before",
                self.references()?,
                self.0.display()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}
