// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `--control`: another program sends commands to the recorder, with the protocol of `perf record`.
//!
//! A command is a line, ended by a newline or a NUL: `enable [EVENT]`, `disable [EVENT]`, `snapshot`, `evlist`, `ping`, `stop`. When a
//! command is done, the answer is [`ACK`]. As in perf, there is no answer to an unknown line.

use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::message::say;

/// The answer to a command. perf sends the NUL, too.
pub const ACK: &[u8; 5] = b"ack\n\0";
/// Maximum length of a line. A longer line is no command. (perf reads this number of bytes, and takes the rest as another line.)
const LONGEST: usize = 4096;

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Enable the trace of all events, or of the event of this name.
    Enable(Option<String>),
    /// Disable the trace of all events, or of the event of this name.
    Disable(Option<String>),
    /// Take a snapshot of the AUX areas.
    Snapshot,
    /// List the events.
    Evlist,
    /// Do nothing but answer.
    Ping,
    /// End the recording.
    Stop,
    /// An unknown line.
    Unknown(String),
}

impl Command {
    /// Parses a line without its end.
    ///
    /// ```
    /// use auxrec::control::Command;
    ///
    /// assert_eq!(Command::parse(b"snapshot"), Command::Snapshot);
    /// assert_eq!(Command::parse(b"enable pattern//"), Command::Enable(Some("pattern//".into())));
    /// assert_eq!(Command::parse(b"enabled"), Command::Unknown("enabled".into()));
    /// ```
    #[must_use]
    pub fn parse(line: &[u8]) -> Self {
        let text = String::from_utf8_lossy(line);
        let (word, argument) = match text.split_once(' ') {
            Some((word, argument)) => (word, Some(argument.trim()).filter(|a| !a.is_empty())),
            None => (text.as_ref(), None),
        };
        match (word, argument) {
            ("enable", event) => Self::Enable(event.map(str::to_owned)),
            ("disable", event) => Self::Disable(event.map(str::to_owned)),
            ("snapshot", None) => Self::Snapshot,
            // perf's options select how much is printed; here it is always the same.
            ("evlist", None | Some("-v" | "-g" | "-F")) => Self::Evlist,
            ("ping", None) => Self::Ping,
            ("stop", None) => Self::Stop,
            _ => Self::Unknown(text.into_owned()),
        }
    }
}

/// Assembles lines from bytes that arrive in any pieces.
#[derive(Debug, Default)]
pub struct Lines {
    line: Vec<u8>,
    /// Whether the line is too long, and the rest of it is skipped.
    over: bool,
}

impl Lines {
    /// Adds bytes. Returns the commands that they complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Command> {
        let mut out = Vec::new();
        for &byte in bytes {
            match byte {
                b'\n' | 0 => {
                    // An empty line is no command. One example is the NUL after a newline.
                    if self.over || !self.line.is_empty() {
                        out.push(Command::parse(&self.line));
                    }
                    self.line.clear();
                    self.over = false;
                }
                _ if self.line.len() == LONGEST => {
                    self.line.clear();
                    self.line.extend(b"a line that is too long");
                    self.over = true;
                }
                _ if self.over => {}
                _ => self.line.push(byte),
            }
        }
        out
    }
}

/// Where commands come from and answers go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Channel {
    /// Two FIFOs, the second for the answers.
    Fifo(PathBuf, Option<PathBuf>),
    /// Two open descriptors.
    Fd(i32, Option<i32>),
}

impl Channel {
    /// Parses `fifo:CTL[,ACK]` or `fd:CTL[,ACK]`.
    ///
    /// # Errors
    /// If the text is neither.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = || {
            Error::usage(format!(
                "`{text}` is not a place for commands: give fifo:CTL[,ACK], the names of FIFOs, or fd:CTL[,ACK], numbers of open files"
            ))
        };
        let pair = |rest: &str| -> Option<(String, Option<String>)> {
            let (ctl, ack) = match rest.split_once(',') {
                Some((ctl, ack)) => (ctl, Some(ack.to_owned()).filter(|a| !a.is_empty())),
                None => (rest, None),
            };
            (!ctl.is_empty()).then(|| (ctl.to_owned(), ack))
        };
        if let Some((ctl, ack)) = text.strip_prefix("fifo:").and_then(pair) {
            return Ok(Self::Fifo(ctl.into(), ack.map(Into::into)));
        }
        let (ctl, ack) = text.strip_prefix("fd:").and_then(pair).ok_or_else(bad)?;
        let number = |text: &str| text.parse().ok().filter(|n| *n >= 0).ok_or_else(bad);
        Ok(Self::Fd(
            number(&ctl)?,
            ack.as_deref().map(number).transpose()?,
        ))
    }

    /// Opens the channel.
    ///
    /// # Errors
    /// If the FIFO or the descriptor does not exist.
    pub fn open(&self) -> Result<Control> {
        let fifo = |path: &Path| -> Result<OwnedFd> {
            let name = path.display();
            // For reading and writing, as in perf: then the other side may open and close it again.
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(path)
                .map_err(|e| {
                    Error::failed(format!(
                        "cannot open {name} for commands: make it with `mkfifo {name}` first ({e})"
                    ))
                })?;
            Ok(file.into())
        };
        let number = |fd: i32| -> Result<OwnedFd> {
            crate::sys::duplicate(fd)
                .map_err(|e| Error::failed(format!("file {fd} for commands is not open ({e})")))
        };
        let (ctl, ack) = match self {
            Self::Fifo(ctl, ack) => (fifo(ctl)?, ack.as_deref().map(fifo).transpose()?),
            Self::Fd(ctl, ack) => (number(*ctl)?, ack.map(number).transpose()?),
        };
        Ok(Control {
            ctl: ctl.into(),
            ack: ack.map(Into::into),
            lines: Lines::default(),
        })
    }
}

/// An open [`Channel`].
#[derive(Debug)]
pub struct Control {
    ctl: std::fs::File,
    ack: Option<std::fs::File>,
    lines: Lines,
}

impl Control {
    /// Reads the commands that have arrived; [`None`] when the other end is closed.
    ///
    /// # Errors
    /// If the channel cannot be read.
    pub fn receive(&mut self) -> io::Result<Option<Vec<Command>>> {
        let mut bytes = [0; 512];
        match self.ctl.read(&mut bytes) {
            Ok(0) => Ok(None),
            Ok(n) => Ok(Some(self.lines.feed(&bytes[..n]))),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(Some(Vec::new()))
            }
            Err(e) => Err(e),
        }
    }

    /// Acknowledges a command. A reader that has gone is no error.
    pub fn answer(&mut self) {
        if let Some(ack) = &mut self.ack {
            if let Err(e) = ack.write_all(ACK) {
                say(format_args!("cannot answer a command: {e}"));
            }
        }
    }

    /// Whether the controller reads acknowledgements.
    #[must_use]
    pub fn answers(&self) -> bool {
        self.ack.is_some()
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ctl.as_fd()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn commands() {
        for (line, command) in [
            ("enable", Command::Enable(None)),
            ("enable ", Command::Enable(None)),
            ("disable a b", Command::Disable(Some("a b".into()))),
            ("snapshot", Command::Snapshot),
            ("evlist -v", Command::Evlist),
            ("ping", Command::Ping),
            ("stop", Command::Stop),
            ("stop now", Command::Unknown("stop now".into())),
            ("PING", Command::Unknown("PING".into())),
        ] {
            assert_eq!(Command::parse(line.as_bytes()), command, "{line}");
        }
    }

    #[test]
    fn a_line_that_never_ends_takes_no_memory() {
        let mut lines = Lines::default();
        assert_eq!(lines.feed(&vec![b'x'; 1 << 20]), []);
        assert!(lines.line.len() <= LONGEST);
        let after = lines.feed(b"\nping\n");
        assert_eq!(
            after,
            [
                Command::Unknown("a line that is too long".into()),
                Command::Ping
            ]
        );
    }

    #[test]
    fn channels() {
        assert_eq!(
            Channel::parse("fifo:a,b").unwrap(),
            Channel::Fifo("a".into(), Some("b".into()))
        );
        assert_eq!(
            Channel::parse("fifo:a,").unwrap(),
            Channel::Fifo("a".into(), None)
        );
        assert_eq!(
            Channel::parse("fd:10,11").unwrap(),
            Channel::Fd(10, Some(11))
        );
        for bad in [
            "", "fifo:", "fifo:,a", "fd:", "fd:x", "fd:1,y", "fd:-1", "pipe:a",
        ] {
            let error = Channel::parse(bad).unwrap_err().to_string();
            assert!(error.contains("fifo:CTL"), "{bad}: {error}");
        }
        let error = Channel::parse("fifo:/no/such").unwrap().open().unwrap_err();
        assert!(error.to_string().contains("mkfifo /no/such"), "{error}");
    }

    #[test]
    fn a_command_comes_and_is_answered() {
        let (mut theirs, ctl) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut control = Control {
            ctl: OwnedFd::from(ctl.try_clone().unwrap()).into(),
            ack: Some(OwnedFd::from(ctl).into()),
            lines: Lines::default(),
        };
        theirs.write_all(b"ping\0snap").unwrap();
        assert_eq!(control.receive().unwrap().unwrap(), [Command::Ping]);
        theirs.write_all(b"shot\n").unwrap();
        assert_eq!(control.receive().unwrap().unwrap(), [Command::Snapshot]);
        control.answer();
        let mut answer = [0; 8];
        assert_eq!(theirs.read(&mut answer).unwrap(), 5);
        assert_eq!(&answer[..5], b"ack\n\0");
        drop(theirs);
        assert_eq!(control.receive().unwrap(), None);
    }

    proptest! {
        /// The commands do not depend on how the bytes are cut.
        #[test]
        fn pieces_do_not_matter(bytes in prop::collection::vec(prop_oneof![Just(b'\n'), Just(b' '), any::<u8>()], 0..200), cut in 0_usize..200) {
            let whole = Lines::default().feed(&bytes);
            let (front, back) = bytes.split_at(cut.min(bytes.len()));
            let mut lines = Lines::default();
            let mut parts = lines.feed(front);
            parts.extend(lines.feed(back));
            prop_assert_eq!(whole, parts);
        }
    }
}
