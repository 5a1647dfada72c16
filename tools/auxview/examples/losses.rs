// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prints how many bytes of each ring are in a recording, and what was lost: `losses FILE…`.

use std::path::Path;

use auxview::source;
use auxview::trace::Trace;

fn main() -> anyhow::Result<()> {
    for path in std::env::args_os().skip(1) {
        let file = source::open(Path::new(&path))?;
        let trace = Trace::read(&file)?;

        for ring in trace.rings.values() {
            let loss = ring.loss;
            println!("{}: {} bytes; {}", ring.name(), loss.read, loss.describe());
        }
    }
    Ok(())
}
