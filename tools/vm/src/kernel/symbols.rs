// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Checks that the rebuilt Rust metadata matches Debian's kernel.
//!
//! A mangled name contains a hash of the compiler, its options and the crates. So modules that are built against the rebuild fit the
//! kernel if the rebuild exports exactly the Rust symbols of the shipped `Module.symvers`.

use std::collections::BTreeSet;

/// How two sets of symbols differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// How many symbols are in both sets.
    pub equal: usize,
    /// The symbols that only the rebuild has.
    pub only_rebuilt: Vec<String>,
    /// The symbols that only the shipped kernel has.
    pub only_shipped: Vec<String>,
}

impl Difference {
    /// A message about the difference, or `None` if the sets are equal. Two empty sets count as a difference.
    #[must_use]
    pub fn complaint(&self) -> Option<String> {
        if self.equal == 0 && self.only_rebuilt.is_empty() && self.only_shipped.is_empty() {
            return Some("neither the kernel nor the rebuild exports a Rust symbol: this kernel was built without CONFIG_RUST".to_owned());
        }
        if self.only_rebuilt.is_empty() && self.only_shipped.is_empty() {
            return None;
        }
        let list = |symbols: &[String]| {
            let mut text = symbols
                .iter()
                .take(5)
                .cloned()
                .collect::<Vec<_>>()
                .join(", ");
            if symbols.len() > 5 {
                text += &format!(" and {} more", symbols.len() - 5);
            }
            if text.is_empty() {
                "none".to_owned()
            } else {
                text
            }
        };
        Some(format!(
            "the rebuilt Rust metadata does not fit the shipped kernel ({} symbols equal; only in the rebuild: {}; only in Module.symvers: {}): \
             the compiler or the configuration is another than Debian's; choose another kernel with KVER=",
            self.equal,
            list(&self.only_rebuilt),
            list(&self.only_shipped)
        ))
    }
}

/// Compares the `EXPORT_SYMBOL_RUST_GPL(…);` lines of a rebuild with the shipped `Module.symvers`.
#[must_use]
pub fn compare(exports: &str, symvers: &str) -> Difference {
    let rebuilt: BTreeSet<&str> = exports
        .lines()
        .filter_map(|l| {
            l.trim()
                .strip_prefix("EXPORT_SYMBOL_RUST_GPL(")?
                .strip_suffix(");")
        })
        .filter(|s| is_rust(s))
        .collect();
    let shipped: BTreeSet<&str> = symvers
        .lines()
        .filter_map(|l| {
            let mut fields = l.split('\t').skip(1);
            let symbol = fields.next()?;
            // Skips the Rust symbols that modules export: the rebuild does not have them.
            (fields.next()? == "vmlinux").then_some(symbol)
        })
        .filter(|s| is_rust(s))
        .collect();
    Difference {
        equal: rebuilt.intersection(&shipped).count(),
        only_rebuilt: rebuilt
            .difference(&shipped)
            .map(|s| (*s).to_owned())
            .collect(),
        only_shipped: shipped
            .difference(&rebuilt)
            .map(|s| (*s).to_owned())
            .collect(),
    }
}

fn is_rust(symbol: &str) -> bool {
    symbol.starts_with("_R")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exports(names: &[&str]) -> String {
        let line = |n: &&str| format!("EXPORT_SYMBOL_RUST_GPL({n});");
        names.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn symvers(names: &[&str]) -> String {
        let line = |n: &&str| format!("0x00000000\t{n}\tvmlinux\tEXPORT_SYMBOL_GPL\t");
        names.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn table() {
        let cases: &[(&[&str], &[&str], &[&str])] = &[
            (&["_Ra", "_Rb"], &["_Rb", "_Ra", "printk"], &[]),
            (
                &["_Ra", "_Rb"],
                &["_Ra", "_Rc"],
                &["_Rb", "_Rc", "1 symbols equal"],
            ),
            (&["_Ra"], &["_Ra", "_Rmissing"], &["_Rmissing"]),
            (&["_Ra", "_Rextra"], &["_Ra"], &["_Rextra"]),
            (&[], &["printk"], &["without CONFIG_RUST"]),
            (&["rust_helper_x", "_Ra"], &["_Ra"], &[]),
        ];
        for (ours, theirs, want) in cases {
            let complaint = compare(&exports(ours), &symvers(theirs)).complaint();
            match (want.is_empty(), &complaint) {
                (true, None) => {}
                (false, Some(text)) => assert!(want.iter().all(|w| text.contains(w)), "{text}"),
                _ => panic!("{ours:?} {theirs:?}: {complaint:?}"),
            }
        }
    }

    #[test]
    fn symbols_of_other_modules_are_not_ours() {
        let text = format!(
            "{}0x0\t_Rnova\tdrivers/gpu/nova-core\tEXPORT_SYMBOL_GPL\t\n",
            symvers(&["_Ra"])
        );
        assert_eq!(compare(&exports(&["_Ra"]), &text).complaint(), None);
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<String> = (0..9).map(|i| format!("_R{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let text = compare(&exports(&names), &symvers(&["_Rx"]))
            .complaint()
            .unwrap();
        assert!(text.contains("and 4 more"), "{text}");
    }
}
