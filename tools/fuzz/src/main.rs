// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Writes the seeds of a target into a directory: `seeds TARGET DIRECTORY`.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (Some(target), Some(directory)) = (args.next(), args.next().map(PathBuf::from)) else {
        eprintln!("usage: seeds TARGET DIRECTORY");
        return ExitCode::from(2);
    };
    let written = fuzz::seeds(&target)
        .map_err(|e| e.to_string())
        .and_then(|seeds| {
            for (n, seed) in seeds.iter().enumerate() {
                std::fs::write(directory.join(format!("seed-{n}")), seed)
                    .map_err(|e| e.to_string())?;
            }
            Ok(())
        });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("seeds: {e}");
            ExitCode::FAILURE
        }
    }
}
