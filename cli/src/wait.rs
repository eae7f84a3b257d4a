//! Waits for a lock, and shows its holder during the wait.

use std::{
    convert::Infallible,
    future::pending,
    io::{self, IsTerminal},
    pin::pin,
    time::Duration,
};

use dlock::{Contender, DistributedLock, Error, Guard, LockName, LockOptions, LockState, Locks, Wait, Who};
use rustix::termios::tcgetwinsize;
use tokio::time::{Instant, sleep};

use crate::{
    args::Verbosity,
    exit::{Failure, Outcome},
    output, show,
};

/// Time before the first status line. A shorter wait prints none.
const STATUS_DELAY: Duration = Duration::from_millis(300);

/// Refresh interval of the status line on a terminal.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of status lines without a terminal, where each line stays in the log.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Width of a terminal that does not report its width.
const DEFAULT_WIDTH: u16 = 80;

/// Time for which dlock tries to connect if the user sets no wait limit. Long enough for a store
/// that restarts or that has no free connection, and short enough to notice a wrong address.
const DEFAULT_STORE_LIMIT: Duration = Duration::from_secs(30);

/// Wait limit for the store and the lock together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitLimit {
    /// The limit for the lock.
    pub(crate) wait: Wait,
    /// The limit for the store.
    store: Wait,
    began: Instant,
}

impl WaitLimit {
    /// Creates a limit that counts from now. Without a limit of the user, dlock waits for the lock
    /// without an end, and for the store for [`DEFAULT_STORE_LIMIT`].
    pub(crate) fn new(chosen: Option<Wait>) -> Self {
        Self {
            wait: chosen.unwrap_or(Wait::Forever),
            store: chosen.unwrap_or(Wait::For(DEFAULT_STORE_LIMIT)),
            began: Instant::now(),
        }
    }

    /// Returns the maximum time for which dlock tries to connect. `None` if it tries only once.
    pub(crate) fn for_store(self) -> Option<Duration> {
        match self.store {
            Wait::Never => None,
            Wait::For(limit) => Some(limit),
            _ => Some(Duration::MAX),
        }
    }

    /// Returns the rest of the limit for the lock.
    pub(crate) fn remaining(self) -> Wait {
        match self.wait {
            Wait::For(limit) => match limit.saturating_sub(self.began.elapsed()) {
                Duration::ZERO => Wait::Never,
                left => Wait::For(left),
            },
            wait => wait,
        }
    }
}

/// Acquires the lock as `who`. A status line on the terminal shows the holder during the wait.
///
/// # Cancel safety
/// Safe: dropping the future leaves the queue.
pub(crate) async fn acquire(
    locks: &Locks,
    who: &Who,
    lock: &dyn DistributedLock,
    options: LockOptions,
    wait_limit: WaitLimit,
    verbosity: Verbosity,
) -> Outcome<Guard> {
    let (name, wait) = (lock.name(), wait_limit.remaining());
    let options = &options.wait(wait);
    let mut acquiring = pin!(async {
        match wait {
            Wait::Never => lock.try_lock(options).await,
            _ => lock.lock(options).await.map(Some),
        }
    });
    let result = tokio::select! {
        biased;
        result = &mut acquiring => result,
        never = show_status(locks, who, name, verbosity) => match never {},
    };
    match result {
        Ok(Some(guard)) => Ok(guard),
        Ok(None) => {
            let holders = holders(locks, name).await;
            Err(Failure::busy(format!("lock `{name}` is {}", holders.as_deref().unwrap_or("not free"))))
        }
        Err(Error::Timeout { name, limit, source }) => {
            // The limit includes the time until the store was connected.
            let limit = if let Wait::For(whole_limit) = wait_limit.wait { whole_limit } else { limit };
            let holders = holders(locks, &name).await.map(|holders| format!("; it is {holders}"));
            let error = Error::Timeout { name, limit, source };
            Err(Failure::from(error).and(holders.as_deref().unwrap_or_default()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Describes the holders of the busy lock. `None` if the store cannot list them, or if the lock is
/// free by now.
async fn holders(locks: &Locks, name: &LockName) -> Option<String> {
    let state = locks.inspect(name).await.ok()??;
    show::holders(&state)
}

/// Shows the holder and the number of waiters ahead until the future is dropped.
async fn show_status(locks: &Locks, me: &Who, name: &LockName, verbosity: Verbosity) -> Infallible {
    let began = Instant::now();
    show_progress(verbosity, async || {
        let state = locks.inspect(name).await.ok().flatten();
        let details =
            state.as_ref().map(|state| queue_details(state, me, began.elapsed())).unwrap_or_default();
        format!("waiting for lock `{name}`{details}")
    })
    .await
}

/// Keeps the status line up to date until the future is dropped. With [`Verbosity::Verbose`] and
/// without a terminal, prints a line per [`LOG_INTERVAL`].
pub(crate) async fn show_progress(verbosity: Verbosity, text: impl AsyncFn() -> String) -> Infallible {
    let is_terminal = io::stderr().is_terminal();
    let interval = match verbosity {
        Verbosity::Normal | Verbosity::Verbose if is_terminal => REFRESH_INTERVAL,
        Verbosity::Verbose => LOG_INTERVAL,
        Verbosity::Normal | Verbosity::Quiet => return pending().await,
    };
    let mut line = StatusLine { is_shown: false };
    let mut pause = STATUS_DELAY;
    loop {
        sleep(pause).await;
        pause = interval;
        let text = text().await;
        if is_terminal {
            line.write(&text);
        } else {
            output::say(&text);
        }
    }
}

/// Describes the number of waiters ahead and the holders, in this order, because a narrow terminal
/// cuts off the end.
fn queue_details(state: &LockState, me: &Who, waited: Duration) -> String {
    let ahead = waiters_ahead(&state.queue, me, waited).filter(|ahead| *ahead > 0);
    let ahead = ahead.map(|ahead| format!(" ({ahead} ahead)")).unwrap_or_default();
    let holders = show::holders(state).map(|holders| format!(", {holders}")).unwrap_or_default();
    format!("{ahead}{holders}")
}

/// Returns the number of waiters ahead of this process, which has waited for `waited`.
///
/// Several waiters may have the label of this process. The one whose age is nearest to `waited` is
/// then taken for this process. `None` if there is no such waiter, or if there are several and the
/// store does not report ages.
fn waiters_ahead(queue: &[Contender], me: &Who, waited: Duration) -> Option<usize> {
    let is_me = |waiter: &Contender| waiter.who.as_deref() == Some(me.text());
    let candidates: Vec<_> = queue.iter().enumerate().filter(|(_, waiter)| is_me(waiter)).collect();
    if let [(place, _)] = candidates[..] {
        return Some(place);
    }
    let age_difference = |(place, waiter): (usize, &Contender)| Some((waiter.since?.abs_diff(waited), place));
    candidates.into_iter().filter_map(age_difference).min().map(|(_, place)| place)
}

/// A line that is overwritten in place, and erased on drop.
struct StatusLine {
    is_shown: bool,
}

impl StatusLine {
    fn write(&mut self, text: &str) {
        // A line that wraps could not be erased, so it is cut.
        let width = tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col);
        let width = if width == 0 { DEFAULT_WIDTH } else { width };
        let text: String = format!("dlock: {text}").chars().take(usize::from(width) - 1).collect();
        output::status(format!("\r\x1b[2K{text}"));
        self.is_shown = true;
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        if self.is_shown {
            output::status("\r\x1b[2K".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock::Kind;

    #[test]
    fn a_waiter_finds_its_place_among_others_of_its_name() {
        let s = Duration::from_secs;
        let me = Who::new("worker pid 47").unwrap();
        let waiter =
            |who: &str, since: Option<Duration>| Contender::new("1", Kind::Mutex).who(who).since(since);
        let others = [waiter("worker pid 4711", Some(s(90))), Contender::new("2", Kind::Mutex)];
        assert_eq!(
            waiters_ahead(&others, &me, s(9)),
            None,
            "a label that only begins with `me` was taken for it"
        );
        let one = [others.as_slice(), &[waiter(me.text(), None)]].concat();
        assert_eq!(waiters_ahead(&one, &me, s(9)), Some(2));
        let three = [s(60), s(9), s(1)].map(|since| waiter(me.text(), Some(since)));
        let three = [others.as_slice(), &three].concat();
        for (waited, ahead) in [(s(61), 2), (s(10), 3), (s(0), 4)] {
            assert_eq!(waiters_ahead(&three, &me, waited), Some(ahead));
        }
        let without_age = [waiter(me.text(), None), waiter(me.text(), None)];
        assert_eq!(waiters_ahead(&without_age, &me, s(9)), None);
    }
}
