//! The lines between a test and a peer. Each reply goes to the caller of its request.
//!
//! This code does not depend on a runtime, because one peer serves all cases of a test binary.

use std::{
    collections::HashMap,
    io::{self, BufRead, Write},
    process::ChildStdin,
    sync::{Arc, Weak},
    thread,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

#[derive(Debug)]
pub(super) struct Lines {
    input: Mutex<ChildStdin>,
    /// Callers that wait for a reply, by contender. `None` after the output has ended.
    waiting: Mutex<Option<HashMap<usize, oneshot::Sender<String>>>>,
}

impl Lines {
    pub(super) fn new(input: ChildStdin, output: impl BufRead + Send + 'static) -> Arc<Self> {
        let lines = Arc::new(Self { input: Mutex::new(input), waiting: Mutex::new(Some(HashMap::new())) });
        let weak = Arc::downgrade(&lines);
        thread::spawn(move || deliver(&weak, output));
        lines
    }

    /// Sends a request of the contender `number`, and returns the reply.
    ///
    /// # Errors
    /// If the peer has ended.
    pub(super) async fn request(&self, number: usize, request: &str) -> io::Result<String> {
        let (sender, reply) = oneshot::channel();
        let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
        lock(&self.waiting).as_mut().ok_or_else(ended)?.insert(number, sender);
        // A single write, so that the lines of several contenders never mix.
        let line = format!("{number} {request}\n");
        lock(&self.input).write_all(line.as_bytes())?;
        reply.await.map_err(|_| ended())
    }
}

/// Delivers each line of the peer's output to the caller that waits for it.
fn deliver(lines: &Weak<Lines>, output: impl BufRead) {
    for line in output.lines().map_while(Result::ok) {
        let Some(lines) = lines.upgrade() else { return };
        let Some((number, reply)) = line.split_once(' ') else { continue };
        let mut waiting = lock(&lines.waiting);
        let sender = number.parse().ok().and_then(|number: usize| waiting.as_mut()?.remove(&number));
        if let Some(sender) = sender {
            // Fails if the caller has dropped its request.
            let _ = sender.send(reply.to_owned());
        }
    }
    if let Some(lines) = lines.upgrade() {
        // Drops the senders, so that every waiting caller receives an error.
        *lock(&lines.waiting) = None;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
