// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Compares kernel configurations.

/// The options of a configuration and their values. An option that "is not set" has the value "n".
fn options(config: &str) -> impl Iterator<Item = (&str, &str)> {
    config
        .lines()
        .filter_map(|line| match line.strip_prefix("# ") {
            Some(rest) => rest.strip_suffix(" is not set").map(|name| (name, "n")),
            None => line.split_once('='),
        })
}

/// The options that differ between two configurations, a text for each.
pub(super) fn config_changes(before: &str, after: &str) -> Vec<String> {
    let (old, new): (
        std::collections::BTreeMap<_, _>,
        std::collections::BTreeMap<_, _>,
    ) = (options(before).collect(), options(after).collect());
    let names: std::collections::BTreeSet<_> = old.keys().chain(new.keys()).collect();
    let value = |map: &std::collections::BTreeMap<&str, &str>, name: &str| {
        map.get(name)
            .map_or_else(|| "absent".to_owned(), |v| (*v).to_owned())
    };
    names
        .into_iter()
        .filter(|name| old.get(**name) != new.get(**name))
        .map(|name| format!("{name}: {} became {}", value(&old, name), value(&new, name)))
        .collect()
}

/// The options that have another value in the configuration than in the fragment, a text for each.
pub(super) fn config_lost(fragment: &str, config: &str) -> Vec<String> {
    let have: std::collections::BTreeMap<_, _> = options(config).collect();
    options(fragment)
        .filter(|(name, value)| have.get(name).copied().unwrap_or("n") != *value)
        .map(|(name, value)| {
            format!(
                "{name}={value} (it is {})",
                have.get(name).copied().unwrap_or("absent")
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_listed() {
        let before = "#\n# Linux\n#\nCONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=\"x\"\n";
        assert!(config_changes(before, &before.replace("# Linux", "# Linux 2")).is_empty());
        let after = "CONFIG_A=m\n# CONFIG_B is not set\nCONFIG_D=y\n";
        assert_eq!(
            config_changes(before, after),
            [
                "CONFIG_A: y became m",
                "CONFIG_C: \"x\" became absent",
                "CONFIG_D: absent became y"
            ]
        );
    }

    #[test]
    fn lost_wishes_are_listed() {
        let config = "CONFIG_A=y\n# CONFIG_B is not set\n";
        assert!(
            config_lost("# text\nCONFIG_A=y\nCONFIG_B=n\nCONFIG_ABSENT=n\n", config).is_empty()
        );
        assert_eq!(
            config_lost("CONFIG_B=y\nCONFIG_Q=m\nCONFIG_A=n\n", config).len(),
            3
        );
    }
}
