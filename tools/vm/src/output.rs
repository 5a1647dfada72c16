// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Standard output and standard error.
//!
//! The reader may close either of them, as `auxvm … | head` does. A run then goes on without it: its results are in files.

use std::fmt::Arguments;
use std::io::Write;

/// Writes a line to standard output, as `println!` does.
#[macro_export]
macro_rules! out {
    ($($text:tt)*) => {
        $crate::output::line(std::io::stdout(), format_args!($($text)*))
    };
}

/// Writes a line to standard error, as `eprintln!` does.
#[macro_export]
macro_rules! err {
    ($($text:tt)*) => {
        $crate::output::line(std::io::stderr(), format_args!($($text)*))
    };
}

/// Writes a line. Ignores an error, as there is no other place for the line.
pub fn line(mut to: impl Write, text: Arguments<'_>) {
    let _ = writeln!(to, "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_output_is_no_error() {
        let (reader, writer) = std::os::unix::net::UnixStream::pair().unwrap();
        drop(reader);
        line(&writer, format_args!("to {}", "nobody"));
        let mut text = Vec::new();
        line(&mut text, format_args!("to {}", "memory"));
        assert_eq!(text, b"to memory\n");
    }
}
