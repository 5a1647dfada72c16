// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Chooses the Debian kernel: the newest version of which the archive has image, headers and source.
//!
//! The three come from different source packages, as the image is signed separately. So for a day or so, one of them may be older.

use std::cmp::Ordering;
use std::fmt::Write;

/// The first series whose kernel crate has all that the framework needs: the implementing module in `#[vtable]` traits, the token for
/// disabled interrupts, barriers as types.
const OLDEST: (u32, u32) = (7, 3);

/// The suffix of the flavour that guests boot by default. It is small and needs no firmware; virtio is built in.
pub const FLAVOUR: &str = "-cloud-amd64";

/// The suffix of the flavour with `PREEMPT_RT`.
pub const RT_FLAVOUR: &str = "-rt-amd64";

/// One version of a kernel in the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// The version that all its packages have.
    pub version: String,
    /// The output of `uname -r`.
    pub abi: String,
    /// The packages to fetch, without version.
    pub packages: Vec<String>,
}

impl Release {
    /// Converts it to text, for the cache.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("version {}\nabi {}\n", self.version, self.abi);
        for package in &self.packages {
            let _ = writeln!(text, "package {package}");
        }
        text
    }

    /// Parses the text of [`Self::to_text`].
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let all = |key: &str| {
            text.lines()
                .filter_map(|l| l.strip_prefix(key)?.strip_prefix(' ').map(str::to_owned))
                .collect::<Vec<_>>()
        };
        let release = Self {
            version: all("version").into_iter().next()?,
            abi: all("abi").into_iter().next()?,
            packages: all("package"),
        };
        (release.packages.len() >= 3).then_some(release)
    }

    /// The same release with the packages of another flavour.
    #[must_use]
    pub fn of_flavour(&self, flavour: &str) -> Self {
        let other = |name: &String| match name.strip_suffix(FLAVOUR) {
            Some(stem) => format!("{stem}{flavour}"),
            None => name.clone(),
        };
        Self {
            version: self.version.clone(),
            abi: other(&self.abi),
            packages: self.packages.iter().map(other).collect(),
        }
    }

    /// The name of the source package, for instance linux-source-7.3.
    #[must_use]
    pub fn source(&self) -> Option<&str> {
        self.packages
            .iter()
            .map(String::as_str)
            .find(|p| p.starts_with("linux-source-"))
    }
}

/// Chooses a release from `package | version | …` lines, as `apt-cache madison` prints them. `wanted` is the beginning of a version: a
/// series (7.3), an upstream version (7.3.4), or the whole package version.
///
/// # Errors
///
/// When no release fits. The message states what the archive has and what to do.
pub fn choose(madison: &str, wanted: Option<&str>) -> Result<Release, String> {
    let mut offers: Vec<(&str, &str)> = madison
        .lines()
        .filter_map(|line| {
            let mut fields = line.split('|').map(str::trim);
            Some((fields.next()?, fields.next()?))
        })
        .collect();
    offers.sort_unstable();
    offers.dedup();
    let mut sources: Vec<&(&str, &str)> = offers
        .iter()
        .filter(|(package, _)| series(package).is_some_and(|s| s >= OLDEST))
        .collect();
    sources.sort_by(|a, b| {
        series(b.0)
            .cmp(&series(a.0))
            .then_with(|| compare(b.1, a.1))
    });

    let mut incomplete = Vec::new();
    for (source, version) in sources {
        if !wanted.is_none_or(|w| matches(version, w)) {
            continue;
        }
        let at_version = |package: &str| offers.contains(&(package, *version));
        let mut abis: Vec<&str> = offers
            .iter()
            .filter(|(_, v)| v == version)
            .filter_map(|(p, _)| p.strip_prefix("linux-headers-"))
            .filter(|abi| abi.ends_with(FLAVOUR) && abi.starts_with(|c: char| c.is_ascii_digit()))
            .collect();
        abis.sort_by(|a, b| compare(b, a));
        for abi in abis {
            if !at_version(&format!("linux-image-{abi}")) {
                continue;
            }
            // Since 7.3 the image package is empty and depends on these two. Before that, it holds all files itself.
            let parts = ["linux-binary-", "linux-modules-"].map(|p| format!("{p}{abi}"));
            let mut packages = vec![
                (*source).to_owned(),
                format!("linux-headers-{abi}"),
                format!("linux-image-{abi}"),
            ];
            packages.extend(parts.into_iter().filter(|p| at_version(p)));
            return Ok(Release {
                version: (*version).to_owned(),
                abi: abi.to_owned(),
                packages,
            });
        }
        incomplete.push(*version);
    }
    let asked = wanted.map_or_else(
        || format!("{}.{} or newer", OLDEST.0, OLDEST.1),
        |w| format!("KVER={w}"),
    );
    Err(if incomplete.is_empty() {
        format!("the archive has no kernel source for {asked}; choose another with KVER=, or set AUXPMU_MIRROR to a full mirror of trixie-backports")
    } else {
        format!(
            "the archive has the source of {} but no image and headers of that version yet; choose another with KVER=, or try again in a day",
            incomplete.join(", ")
        )
    })
}

/// The series in the name of a source package.
fn series(package: &str) -> Option<(u32, u32)> {
    let (major, minor) = package.strip_prefix("linux-source-")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn matches(version: &str, wanted: &str) -> bool {
    version
        .strip_prefix(wanted)
        .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphanumeric()))
}

/// Compares two versions by Debian's rules, without epochs, as kernels have none.
fn compare(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a, b);
    loop {
        let ((text_a, rest_a), (text_b, rest_b)) = (split(a, false), split(b, false));
        let order = compare_text(text_a, text_b);
        if order != Ordering::Equal {
            return order;
        }
        let ((digits_a, next_a), (digits_b, next_b)) = (split(rest_a, true), split(rest_b, true));
        let (na, nb) = (
            digits_a.trim_start_matches('0'),
            digits_b.trim_start_matches('0'),
        );
        let order = na.len().cmp(&nb.len()).then_with(|| na.cmp(nb));
        if order != Ordering::Equal || (next_a.is_empty() && next_b.is_empty()) {
            return order;
        }
        (a, b) = (next_a, next_b);
    }
}

fn split(text: &str, digits: bool) -> (&str, &str) {
    let end = text
        .find(|c: char| c.is_ascii_digit() != digits)
        .unwrap_or(text.len());
    text.split_at(end)
}

fn compare_text(a: &str, b: &str) -> Ordering {
    // A tilde sorts before the end, the end before letters, letters before the rest.
    let rank = |c: Option<char>| match c {
        Some('~') => (0, '\0'),
        None => (1, '\0'),
        Some(c) if c.is_ascii_alphabetic() => (2, c),
        Some(c) => (3, c),
    };
    let longest = a.len().max(b.len());
    let (mut a, mut b) = (a.chars(), b.chars());
    (0..longest)
        .map(|_| rank(a.next()).cmp(&rank(b.next())))
        .find(|o| o.is_ne())
        .unwrap_or(Ordering::Equal)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V3: &str = "7.4.4-1~bpo13+1";
    const V2: &str = "7.3.12-1~bpo13+1";

    fn offers(list: &[(&str, &str)]) -> String {
        let line =
            |(p, v): &(&str, &str)| format!(" {p} | {v} | http://mirror main amd64 Packages");
        list.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn new_shape() -> Vec<(&'static str, &'static str)> {
        vec![
            ("linux-source-7.4", V3),
            ("linux-headers-7.4.4+deb13-cloud-amd64", V3),
            ("linux-headers-7.4.4+deb13-amd64", V3),
            ("linux-image-7.4.4+deb13-cloud-amd64", V3),
            ("linux-binary-7.4.4+deb13-cloud-amd64", V3),
            ("linux-modules-7.4.4+deb13-cloud-amd64", V3),
            ("linux-headers-cloud-amd64", V3),
            ("linux-source-7.3", V2),
            ("linux-headers-7.3.12+deb13-cloud-amd64", V2),
            ("linux-image-7.3.12+deb13-cloud-amd64", V2),
            ("linux-source-6.12", "6.12.48-1"),
            ("linux-headers-6.12.48+deb13-cloud-amd64", "6.12.48-1"),
            ("linux-image-6.12.48+deb13-cloud-amd64", "6.12.48-1"),
        ]
    }

    #[test]
    fn newest_complete() {
        let mut list = new_shape();
        let release = choose(&offers(&list), None).unwrap();
        assert_eq!((release.version.as_str(), release.packages.len()), (V3, 5));
        assert_eq!(release.abi, "7.4.4+deb13-cloud-amd64");
        assert_eq!(
            Release::from_text(&release.to_text()).as_ref(),
            Some(&release)
        );
        assert_eq!(release.source(), Some("linux-source-7.4"));

        // Without the newest image, the series before it is chosen. Its image package holds all files.
        list.retain(|(p, _)| *p != "linux-image-7.4.4+deb13-cloud-amd64");
        let release = choose(&offers(&list), None).unwrap();
        assert_eq!((release.version.as_str(), release.packages.len()), (V2, 3));
    }

    #[test]
    fn same_version_everywhere() {
        let mut list = new_shape();
        for (package, version) in &mut list {
            if package.starts_with("linux-headers-7.4") {
                *version = "7.4.3-1~bpo13+1";
            }
        }
        assert_eq!(choose(&offers(&list), None).unwrap().version, V2);
        assert!(choose(&offers(&list), Some("7.4"))
            .unwrap_err()
            .contains("no image and headers"));
    }

    #[test]
    fn by_wish() {
        let text = offers(&new_shape());
        for (wish, version) in [("7.3", V2), ("7.3.12", V2), (V3, V3)] {
            assert_eq!(choose(&text, Some(wish)).unwrap().version, version);
        }
        for wish in ["7", "7.3.1", "6.12", "8.0"] {
            let chosen = choose(&text, Some(wish));
            assert!(wish == "7" || chosen.is_err(), "{wish}: {chosen:?}");
        }
        assert!(choose("", None).unwrap_err().contains("no kernel source"));
    }

    #[test]
    fn order_of_versions() {
        let rising = [
            "7.3.9-1",
            "7.3.12-1~bpo13+1",
            "7.3.12-1",
            "7.3.12-1+b1",
            "7.3.12-2",
            "7.10.1-1",
        ];
        for (i, a) in rising.iter().enumerate() {
            for (j, b) in rising.iter().enumerate() {
                assert_eq!(compare(a, b), i.cmp(&j), "{a} {b}");
            }
        }
    }
}
