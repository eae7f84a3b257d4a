//! The signals that dlock handles itself.

use std::{fs, future::poll_fn, io, process, task::Poll};

use rustix::process::Signal;
use signal_hook::low_level;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use crate::exit::{Failure, Outcome};

/// The signals that end the waiting for a lock. Later dlock passes them on to the command.
const ENDING: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];

/// The signals that are listened to.
pub(crate) struct Signals {
    streams: Vec<(Signal, Stream)>,
    ignored: u64,
    /// Also because a parent may have ignored CHLD, and dlock would then not learn how the command ended.
    child: Stream,
}

impl Signals {
    /// Listens to those that end the waiting.
    pub(crate) fn listen() -> Outcome<Self> {
        let child = signal(SignalKind::child()).map_err(failed)?;
        let mut signals = Self { streams: Vec::new(), ignored: ignored(), child };
        signals.and_to(&ENDING)?;
        Ok(signals)
    }

    /// Listens to more signals. Signals that the parent ignores, as `nohup` does, stay ignored, for the command too.
    pub(crate) fn and_to(&mut self, more: &[Signal]) -> Outcome<()> {
        for &each in more {
            let number = each.as_raw();
            if self.ignored & (1 << (number - 1)) == 0 {
                self.streams.push((each, signal(SignalKind::from_raw(number)).map_err(failed)?));
            }
        }
        Ok(())
    }

    /// The next one, or `None` when some child has ended. Dropping it loses none.
    pub(crate) async fn next_or_child(&mut self) -> Option<Signal> {
        poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(Some(*signal));
                }
            }
            self.child.poll_recv(context).map(|_| None)
        })
        .await
    }

    /// The next one. Dropping it loses none.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Does `work`. If a signal comes first, drops the work.
    pub(crate) async fn unless<T>(&mut self, work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        tokio::select! {
            biased;
            signal = self.next() => Err(Failure::stopped(signal)),
            done = work => done,
        }
    }
}

/// Ends this process by the signal INT. A shell then stops its script after Ctrl-C; if dlock merely exited, the script
/// would go on. Returns if the signal cannot end the process, as in the first process of a container.
pub(crate) fn die_of_interrupt() {
    if process::id() != 1 {
        low_level::emulate_default_handler(Signal::INT.as_raw()).ok();
    }
}

fn failed(error: io::Error) -> Failure {
    Failure::internal("cannot listen to signals", &error)
}

/// The signals that were ignored when dlock started, as bits. None if the system does not tell.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
