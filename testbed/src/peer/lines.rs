//! Sends lines to a peer, and gives each answer to the caller that asked. Bound to no runtime: one peer serves the cases of
//! a whole test binary.

use std::{
    collections::HashMap,
    io::{self, BufRead, Write},
    process::ChildStdin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread,
};

use tokio::sync::oneshot;

#[derive(Debug)]
pub(super) struct Lines {
    input: Mutex<ChildStdin>,
    /// The callers that wait for an answer. `None` once there can be no more answers.
    asked: Mutex<Option<HashMap<usize, oneshot::Sender<String>>>>,
}

impl Lines {
    pub(super) fn new(input: ChildStdin, output: impl BufRead + Send + 'static) -> Arc<Self> {
        let lines = Arc::new(Self { input: Mutex::new(input), asked: Mutex::new(Some(HashMap::new())) });
        let weak = Arc::downgrade(&lines);
        thread::spawn(move || hand_out(&weak, output));
        lines
    }

    /// What is answered to `number`.
    pub(super) async fn ask(&self, number: usize, words: &str) -> io::Result<String> {
        let (sender, answer) = oneshot::channel();
        let ended = || io::Error::from(io::ErrorKind::UnexpectedEof);
        lock(&self.asked).as_mut().ok_or_else(ended)?.insert(number, sender);
        // One write, or a peer that reads slowly would see half a line of one contender in another's.
        let line = format!("{number} {words}\n");
        lock(&self.input).write_all(line.as_bytes())?;
        answer.await.map_err(|_| ended())
    }
}

fn hand_out(lines: &Weak<Lines>, output: impl BufRead) {
    for line in output.lines().map_while(Result::ok) {
        let Some(lines) = lines.upgrade() else { return };
        let Some((number, answer)) = line.split_once(' ') else { continue };
        let mut asked = lock(&lines.asked);
        let sender = number.parse().ok().and_then(|number: usize| asked.as_mut()?.remove(&number));
        if let Some(sender) = sender {
            // Nobody may wait for it any more.
            let _ = sender.send(answer.to_owned());
        }
    }
    if let Some(lines) = lines.upgrade() {
        // This tells all callers that the peer has ended.
        *lock(&lines.asked) = None;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
