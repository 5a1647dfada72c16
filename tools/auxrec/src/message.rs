// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Messages on standard error, and other text whose reader must not stop the recorder.
//!
//! The reader of a pipe or terminal may stop reading, or end. The recorder neither waits for it for long
//! nor fails. So a thread writes the text, and the recorder can abandon that thread.

use std::collections::VecDeque;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// How long the recorder waits for a reader before it abandons it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum number of messages that wait for the reader of standard error.
const MESSAGES: usize = 64;

/// Writes `auxrec: `, the text and a newline to standard error.
pub fn say(text: impl Display) {
    raw(format!("auxrec: {text}\n"));
}

/// Writes the text to standard error as it is.
pub fn raw(text: String) {
    static STDERR: OnceLock<Option<Outlet>> = OnceLock::new();
    // Not `io::stderr()`: a thread that waits for the reader would hold its lock.
    let start = || {
        let copy = io::stderr().as_fd().try_clone_to_owned().ok()?;
        Outlet::start(File::from(copy), MESSAGES).ok()
    };
    match STDERR.get_or_init(start) {
        Some(outlet) => outlet.say(text, PATIENCE),
        // A process that cannot start a thread or duplicate a descriptor must still report that.
        None => {
            let _ = io::stderr().write_all(text.as_bytes());
        }
    }
}

/// A thread that writes texts in their order.
pub(crate) struct Outlet {
    shared: Arc<Shared>,
    max: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<String>,
    /// Whether the thread is writing a text.
    writing: bool,
    /// Number of texts that were refused because too many were waiting, since this was last reported.
    refused: u64,
    /// Whether the reader has kept a caller waiting, and has read nothing since.
    stalled: bool,
    /// The error that ended the thread.
    failed: Option<io::Error>,
    /// Whether no further text will come.
    closed: bool,
}

impl State {
    fn is_done(&self) -> bool {
        self.failed.is_some() || (self.waiting.is_empty() && !self.writing)
    }
}

/// What an [`Outlet`] has not written.
#[derive(Debug)]
pub(crate) struct Unwritten {
    /// Number of texts. The reader may have got the beginning of the first of them.
    pub texts: u64,
    /// The error of writing, if there was one.
    pub error: Option<io::Error>,
}

impl Outlet {
    /// Starts the thread. `max` texts can wait.
    pub fn start(to: impl Write + Send + 'static, max: usize) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let theirs = shared.clone();
        thread::Builder::new().spawn(move || theirs.write(to))?;
        Ok(Self { shared, max })
    }

    /// Hands over a text without waiting. Returns whether it will be written; if not, it is counted.
    pub fn put(&self, text: String) -> bool {
        let mut state = self.shared.lock();
        if state.failed.is_some() || state.waiting.len() >= self.max {
            state.refused += 1;
            return false;
        }
        state.waiting.push_back(text);
        self.shared.changed.notify_all();
        true
    }

    /// Hands over a text, and waits until it is written. If the reader stops reading, only the first caller
    /// waits, and not longer than `patience`.
    fn say(&self, text: String, patience: Duration) {
        let refused = std::mem::take(&mut self.shared.lock().refused);
        let text = match refused {
            0 => text,
            n => format!(
                "auxrec: {n} messages could not be written: their reader was too slow\n{text}"
            ),
        };
        if !self.put(text) {
            self.shared.lock().refused += refused;
            return;
        }
        if !self.shared.lock().stalled && !self.wait(patience) {
            self.shared.lock().stalled = true;
        }
    }

    /// Number of texts that were refused.
    pub fn refused(&self) -> u64 {
        self.shared.lock().refused
    }

    /// Whether the reader has ended, or the text cannot be written for another reason.
    pub fn failed(&self) -> bool {
        self.shared.lock().failed.is_some()
    }

    /// Waits until all is written, but not longer than `patience`. Returns whether it is.
    fn wait(&self, patience: Duration) -> bool {
        let state = self.shared.lock();
        let wait = |state: &mut State| !state.is_done();
        let waited = self
            .shared
            .changed
            .wait_timeout_while(state, patience, wait);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_done()
    }

    /// Waits as [`wait`](Self::wait) does, then abandons the thread.
    pub fn close(self, patience: Duration) -> Unwritten {
        self.wait(patience);
        let mut state = self.shared.lock();
        let waiting = std::mem::take(&mut state.waiting).len() + usize::from(state.writing);
        Unwritten {
            texts: state.refused + u64::try_from(waiting).unwrap_or(u64::MAX),
            error: state.failed.take(),
        }
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread.
    fn write(&self, mut to: impl Write) {
        loop {
            let idle = |state: &mut State| state.waiting.is_empty() && !state.closed;
            let waited = self.changed.wait_while(self.lock(), idle);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            let Some(text) = state.waiting.pop_front() else {
                return;
            };
            state.writing = true;
            drop(state);
            let result = to.write_all(text.as_bytes()).and_then(|()| to.flush());
            let mut state = self.lock();
            if let Err(e) = result {
                state.failed = Some(e);
                // The text stays counted as one that is being written.
                self.changed.notify_all();
                return;
            }
            state.writing = false;
            state.stalled = false;
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::mpsc::{channel, Receiver, Sender};

    use super::*;

    /// An hour: no test waits for it.
    const LONG: Duration = Duration::from_secs(3600);

    /// A writer that reports each text when its write begins, and ends the write when [`Reader::go`] says so.
    pub(crate) struct Pipe {
        begun: Sender<String>,
        go: Receiver<io::Result<()>>,
    }

    /// The other ends of a [`Pipe`].
    pub(crate) struct Reader {
        pub begun: Receiver<String>,
        pub go: Sender<io::Result<()>>,
    }

    impl Pipe {
        pub(crate) fn new() -> (Self, Reader) {
            let ((begun, seen), (go, wait)) = (channel(), channel());
            (Self { begun, go: wait }, Reader { begun: seen, go })
        }
    }

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.begun.send(String::from_utf8_lossy(bytes).into_owned());
            self.go.recv().unwrap_or(Ok(()))?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn texts_arrive_in_their_order() {
        let (pipe, reader) = Pipe::new();
        let outlet = Outlet::start(pipe, 8).unwrap();
        for text in ["a", "b", "c"] {
            assert!(outlet.put(text.to_owned()));
            reader.go.send(Ok(())).unwrap();
        }
        assert_eq!(outlet.close(LONG).texts, 0);
        assert_eq!(reader.begun.iter().collect::<String>(), "abc");
    }

    /// A reader that reads nothing stops no caller, and each text is counted.
    #[test]
    fn a_reader_that_stops_is_abandoned() {
        let (pipe, reader) = Pipe::new();
        let outlet = Outlet::start(pipe, 2).unwrap();
        assert!(outlet.put("a".to_owned()));
        assert_eq!(reader.begun.recv().unwrap(), "a");
        let taken = ["b", "c", "d", "e"].map(|text| outlet.put(text.to_owned()));
        assert_eq!(taken, [true, true, false, false]);
        assert_eq!(outlet.refused(), 2);
        // One is being written, two wait, two were refused.
        let unwritten = outlet.close(Duration::ZERO);
        assert_eq!((unwritten.texts, unwritten.error.is_none()), (5, true));
        // The thread ends when it can.
        drop(reader.go);
        assert_eq!(reader.begun.iter().count(), 0);
    }

    #[test]
    fn a_reader_that_ends_is_no_panic() {
        let (pipe, reader) = Pipe::new();
        let outlet = Outlet::start(pipe, 8).unwrap();
        reader
            .go
            .send(Err(io::ErrorKind::BrokenPipe.into()))
            .unwrap();
        outlet.say("a".to_owned(), LONG);
        assert!(outlet.failed());
        outlet.say("b".to_owned(), LONG);
        let unwritten = outlet.close(LONG);
        assert_eq!(unwritten.texts, 2);
        let kind = unwritten.error.map(|e| e.kind());
        assert_eq!(kind, Some(io::ErrorKind::BrokenPipe));
    }

    /// Messages that were refused are reported when the queue has space again.
    #[test]
    fn messages_that_are_missing() {
        let (pipe, reader) = Pipe::new();
        let outlet = Outlet::start(pipe, 1).unwrap();
        outlet.say("a\n".to_owned(), Duration::ZERO);
        assert_eq!(reader.begun.recv().unwrap(), "a\n");
        // The first caller has waited; these do not.
        for text in ["b\n", "c\n", "d\n"] {
            outlet.say(text.to_owned(), LONG);
        }
        (0..3).for_each(|_| reader.go.send(Ok(())).unwrap());
        assert!(outlet.wait(LONG));
        outlet.say("e\n".to_owned(), LONG);
        drop(outlet);
        let rest: Vec<_> = reader.begun.iter().collect();
        let missing = "auxrec: 2 messages could not be written: their reader was too slow\n";
        assert_eq!(rest, ["b\n".to_owned(), format!("{missing}e\n")]);
    }
}
