//! The signals that dlock handles itself.

use std::{
    fs,
    future::{poll_fn, ready},
    io, process,
    task::Poll,
};

use rustix::process::{Signal, getpid, kill_process};
use signal_hook::low_level;
use tokio::{
    signal::unix::{Signal as Stream, SignalKind, signal},
    task::yield_now,
};

use crate::exit::{Failure, Outcome};

/// Signals that end the wait for a lock. Once the command runs, dlock forwards them to it.
const ENDING: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];

/// Signals that are only forwarded. While no command runs, dlock ignores them, because a manager may
/// send them to a standby too.
const FORWARDED: [Signal; 2] = [Signal::USR1, Signal::USR2];

/// Signals after which a command that ends is not started again.
const STOPPING: [Signal; 3] = [Signal::INT, Signal::QUIT, Signal::TERM];

/// Receives signals of this process.
pub(crate) struct Signals {
    /// Last signal of [`STOPPING`] that was received while the command ran.
    pub(crate) stopped_by: Option<Signal>,
    streams: Vec<(Signal, Stream)>,
    /// Signals that were ignored when dlock started, as bits.
    ignored: u64,
    /// CHLD. A handler is also necessary because a parent may have ignored CHLD, and the system
    /// would then not report the command's exit status.
    child: Stream,
}

impl Signals {
    /// Starts to receive the signals that end the wait, and those that are only forwarded.
    pub(crate) fn listen() -> Outcome<Self> {
        let child = signal(SignalKind::child()).map_err(failed)?;
        let mut signals = Self { stopped_by: None, streams: Vec::new(), ignored: ignored(), child };
        signals.listen_to(&ENDING)?;
        signals.listen_to(&FORWARDED)?;
        Ok(signals)
    }

    /// Starts to receive more signals. Signals that the parent ignores, as `nohup` does, stay
    /// ignored, for the command too.
    pub(crate) fn listen_to(&mut self, more: &[Signal]) -> Outcome<()> {
        for &each in more {
            let number = each.as_raw();
            let is_known = self.streams.iter().any(|(known, _)| *known == each);
            if !is_known && self.ignored & (1 << (number - 1)) == 0 {
                self.streams.push((each, signal(SignalKind::from_raw(number)).map_err(failed)?));
            }
        }
        Ok(())
    }

    /// Returns the next signal, or `None` when a child has ended. Cancel safe: no signal is lost.
    pub(crate) async fn next_or_child(&mut self) -> Option<Signal> {
        poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    if STOPPING.contains(signal) {
                        self.stopped_by = Some(*signal);
                    }
                    return Poll::Ready(Some(*signal));
                }
            }
            self.child.poll_recv(context).map(|_| None)
        })
        .await
    }

    /// Returns the next signal that ends dlock while no command runs. Ignores signals that are only
    /// forwarded. Cancel safe: no signal is lost.
    pub(crate) async fn next_ending(&mut self) -> Signal {
        loop {
            match self.next().await {
                ending if ENDING.contains(&ending) => return ending,
                // An earlier command has made dlock handle this signal.
                Signal::TSTP => {
                    kill_process(getpid(), Signal::STOP).ok();
                }
                _ => {}
            }
        }
    }

    async fn next(&mut self) -> Signal {
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

    /// Forgets the signals that have arrived.
    pub(crate) async fn forget(&mut self) {
        // The runtime reads the signals that have arrived.
        yield_now().await;
        while tokio::select! {
            biased;
            _ = self.next() => true,
            () = ready(()) => false,
        } {}
    }

    /// Returns the result of `work`. If a signal arrives first, drops `work` and returns a failure.
    pub(crate) async fn unless<T>(&mut self, work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        tokio::select! {
            biased;
            signal = self.next_ending() => Err(Failure::stopped(signal)),
            result = work => result,
        }
    }
}

/// Ends this process by the signal INT. A shell then stops its script after Ctrl-C. If dlock only
/// exited, the script would continue. Returns if the signal cannot end the process, as in the first
/// process of a container.
pub(crate) fn die_of_interrupt() {
    if process::id() != 1 {
        low_level::emulate_default_handler(Signal::INT.as_raw()).ok();
    }
}

fn failed(error: io::Error) -> Failure {
    Failure::internal("cannot listen to signals", &error)
}

/// Returns the signals that are ignored, as bits. Zero if the system does not report them.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
