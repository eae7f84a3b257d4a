//! The signals that dlock does not die of.

use std::{fs, future::poll_fn, io, process, task::Poll};

use rustix::process::Signal;
use signal_hook::low_level;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use super::exit::{Failure, Outcome};

/// Those that end the waiting, and are passed on to the command.
const ENDING: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];

/// The signals that are listened to.
pub(super) struct Signals {
    streams: Vec<(Signal, Stream)>,
    ignored: u64,
    /// Not read: a parent that ignored CHLD would have us not learn how the command ended.
    _child: Stream,
}

impl Signals {
    /// Listens to those that end the waiting.
    pub(super) fn listen() -> Outcome<Self> {
        let child = signal(SignalKind::child()).map_err(failed)?;
        let mut signals = Self { streams: Vec::new(), ignored: ignored(), _child: child };
        signals.and_to(&ENDING)?;
        Ok(signals)
    }

    /// Listens to more. What the parent wants ignored, as `nohup` does, stays ignored, for the command too.
    pub(super) fn and_to(&mut self, more: &[Signal]) -> Outcome<()> {
        for &each in more {
            let number = each.as_raw();
            if self.ignored & (1 << (number - 1)) == 0 {
                self.streams.push((each, signal(SignalKind::from_raw(number)).map_err(failed)?));
            }
        }
        Ok(())
    }

    /// The next one. Dropping it loses none.
    pub(super) async fn next(&mut self) -> Signal {
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

    /// Does `work`, unless a signal comes first; then the work is dropped.
    pub(super) async fn unless<T>(&mut self, work: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        tokio::select! {
            biased;
            signal = self.next() => Err(Failure::stopped(signal)),
            done = work => done,
        }
    }
}

/// Ends this process as one that does not listen to INT: a shell goes on with its script after Ctrl-C if what it has started
/// ends by itself. Returns where that is not possible, as in the first process of a container.
pub(super) fn die_of_interrupt() {
    if process::id() != 1 {
        low_level::emulate_default_handler(Signal::INT.as_raw()).ok();
    }
}

fn failed(error: io::Error) -> Failure {
    Failure::internal("cannot listen to signals", &error)
}

/// The signals that are ignored since before we began, as bits; none where the system does not tell.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
