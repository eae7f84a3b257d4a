//! Waits for a lock, and shows who holds it meanwhile.

use std::{
    convert::Infallible,
    future::pending,
    io::{self, IsTerminal, Write},
    pin::pin,
    time::Duration,
};

use rustix::termios::tcgetwinsize;
use tokio::time::sleep;

use super::{
    exit::{Failure, Outcome},
    show,
};
use crate::{DistributedLock, Error, Guard, LockName, LockOptions, LockState, Locks, Wait};

/// A shorter wait shows no line.
const PATIENCE: Duration = Duration::from_millis(300);

/// How often the line is written anew.
const REFRESH: Duration = Duration::from_secs(1);

/// The width of a terminal that does not tell its width.
const UNTOLD_WIDTH: u16 = 80;

/// Takes the lock. On a terminal, a line shows meanwhile who holds it.
///
/// # Cancel safety
/// Dropping the future leaves the queue.
pub(super) async fn acquire(
    locks: &Locks,
    lock: &dyn DistributedLock,
    options: &LockOptions,
    wait: Wait,
) -> Outcome<Guard> {
    let name = lock.name();
    let mut taken = pin!(async {
        match wait {
            Wait::Never => lock.try_lock(options).await,
            _ => lock.lock(options).await.map(Some),
        }
    });
    let taken = tokio::select! {
        biased;
        taken = &mut taken => taken,
        never = tell(locks, name) => match never {},
    };
    match taken {
        Ok(Some(guard)) => Ok(guard),
        Ok(None) => {
            let holders = holders(locks, name).await;
            Err(Failure::busy(format!("lock `{name}` is {}", holders.as_deref().unwrap_or("not free"))))
        }
        Err(error @ Error::Timeout { .. }) => {
            let holders = holders(locks, name).await.map(|holders| format!("; it is {holders}"));
            Err(Failure::from(error).and(holders.as_deref().unwrap_or_default()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Who holds the lock that we did not get. `None` if the store cannot tell, or nobody holds it any more.
async fn holders(locks: &Locks, name: &LockName) -> Option<String> {
    let state = locks.inspect(name).await.ok()??;
    show::holders(&state)
}

/// Keeps a line on the terminal up to date until this future is dropped.
async fn tell(locks: &Locks, name: &LockName) -> Infallible {
    if !io::stderr().is_terminal() {
        return pending().await;
    }
    let mut line = StatusLine(false);
    let mut pause = PATIENCE;
    loop {
        sleep(pause).await;
        pause = REFRESH;
        let state = locks.inspect(name).await.ok().flatten();
        line.write(&format!(
            "waiting for lock `{name}`{}",
            state.as_ref().map(situation).unwrap_or_default()
        ));
    }
}

fn situation(state: &LockState) -> String {
    let holders = show::holders(state).map(|holders| format!(", {holders}")).unwrap_or_default();
    let me = format!("pid {}", std::process::id());
    let mine =
        |who: &str| who.strip_prefix(&me).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()));
    let ahead = state.queue.iter().position(|waiter| waiter.who.as_deref().is_some_and(mine));
    let ahead = ahead.filter(|ahead| *ahead > 0).map(|ahead| format!(" ({ahead} ahead)")).unwrap_or_default();
    format!("{holders}{ahead}")
}

/// A line that is written in place, and wiped when it is dropped.
struct StatusLine(bool);

impl StatusLine {
    fn write(&mut self, text: &str) {
        // A line that wraps could not be wiped, so cut it.
        let width = tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col);
        let width = if width == 0 { UNTOLD_WIDTH } else { width };
        let text: String = format!("dlock: {text}").chars().take(usize::from(width) - 1).collect();
        write!(io::stderr(), "\r\x1b[2K{text}").ok();
        self.0 = true;
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        if self.0 {
            write!(io::stderr(), "\r\x1b[2K").ok();
        }
    }
}
