// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Generates man pages and shell completions from the definition of the options.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;

/// Writes `man1/*.1` and `completions/*` into a directory.
///
/// # Errors
/// If it cannot be written.
pub fn write(mut command: Command, name: &str, directory: &Path) -> Result<()> {
    let man = directory.join("man1");
    let completions = directory.join("completions");
    for dir in [&man, &completions] {
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    // Man pages come first, because generating completions adds the command `help`.
    clap_mangen::generate_to(command.clone(), &man)
        .with_context(|| format!("cannot write to {}", man.display()))?;
    for page in fs::read_dir(&man)? {
        let page = page?.path();
        // In a page of `clap_mangen`, the section with the end of the help is `EXTRA`.
        let text = fs::read_to_string(&page)?.replace("\n.SH EXTRA\n", "\n.SH NOTES\n");
        fs::write(&page, text).with_context(|| format!("cannot write {}", page.display()))?;
    }
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, name, &completions)
            .with_context(|| format!("cannot write to {}", completions.display()))?;
    }
    Ok(())
}
