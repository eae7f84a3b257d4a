//! Waits for a lock, and shows who holds it meanwhile.

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
    args::Tell,
    exit::{Failure, Outcome},
    output, show,
};

/// A shorter wait shows no line.
const PATIENCE: Duration = Duration::from_millis(300);

/// How often the line is written anew.
const REFRESH: Duration = Duration::from_secs(1);

/// How often a line is written where lines stay.
const MINUTE: Duration = Duration::from_secs(60);

/// The width of a terminal that does not tell its width.
const UNTOLD_WIDTH: u16 = 80;

/// How long to wait for the store and the lock, from a moment on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    wait: Wait,
    began: Instant,
}

impl Patience {
    /// From now on.
    pub(crate) fn new(wait: Wait) -> Self {
        Self { wait, began: Instant::now() }
    }

    /// When it is over, if it ever is.
    pub(crate) fn end(self) -> Option<Instant> {
        match self.wait {
            Wait::For(limit) => self.began.checked_add(limit),
            _ => None,
        }
    }

    /// How long may still be waited.
    pub(crate) fn left(self) -> Wait {
        match self.wait {
            Wait::For(limit) => match limit.saturating_sub(self.began.elapsed()) {
                Duration::ZERO => Wait::Never,
                left => Wait::For(left),
            },
            wait => wait,
        }
    }
}

/// Takes the lock as `who`. On a terminal, a line shows meanwhile who holds it.
///
/// # Cancel safety
/// Dropping the future leaves the queue.
pub(crate) async fn acquire(
    locks: &Locks,
    who: &Who,
    lock: &dyn DistributedLock,
    options: LockOptions,
    patience: Patience,
    how_much: Tell,
) -> Outcome<Guard> {
    let (name, wait) = (lock.name(), patience.left());
    let options = &options.wait(wait);
    let mut taken = pin!(async {
        match wait {
            Wait::Never => lock.try_lock(options).await,
            _ => lock.lock(options).await.map(Some),
        }
    });
    let taken = tokio::select! {
        biased;
        taken = &mut taken => taken,
        never = tell(locks, who, name, how_much) => match never {},
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

/// Keeps a line on the terminal up to date until this future is dropped. Away from a terminal it may write a line a minute.
async fn tell(locks: &Locks, me: &Who, name: &LockName, how_much: Tell) -> Infallible {
    let is_terminal = io::stderr().is_terminal();
    let refresh = match how_much {
        Tell::Usual | Tell::More if is_terminal => REFRESH,
        Tell::More => MINUTE,
        Tell::Usual | Tell::Errors => return pending().await,
    };
    let came = Instant::now();
    let mut line = StatusLine(false);
    let mut pause = PATIENCE;
    loop {
        sleep(pause).await;
        pause = refresh;
        let state = locks.inspect(name).await.ok().flatten();
        let situation = state.as_ref().map(|state| situation(state, me, came.elapsed())).unwrap_or_default();
        let text = format!("waiting for lock `{name}`{situation}");
        if is_terminal {
            line.write(&text);
        } else {
            output::say(&text);
        }
    }
}

/// How many are ahead, and who holds. In this order, because a narrow terminal cuts the end off.
fn situation(state: &LockState, me: &Who, waited: Duration) -> String {
    let ahead = place(&state.queue, me, waited).filter(|ahead| *ahead > 0);
    let ahead = ahead.map(|ahead| format!(" ({ahead} ahead)")).unwrap_or_default();
    let holders = show::holders(state).map(|holders| format!(", {holders}")).unwrap_or_default();
    format!("{ahead}{holders}")
}

/// How many wait before us, who have waited for so long. Several may wait under one `--who`: we are the one that came when we did,
/// as near as the store tells. `None` if the store does not tell it.
fn place(queue: &[Contender], me: &Who, waited: Duration) -> Option<usize> {
    let is_me = |waiter: &Contender| waiter.who.as_deref() == Some(me.text());
    let namesakes: Vec<_> = queue.iter().enumerate().filter(|(_, waiter)| is_me(waiter)).collect();
    if let [(place, _)] = namesakes[..] {
        return Some(place);
    }
    let apart = |(place, waiter): (usize, &Contender)| Some((waiter.since?.abs_diff(waited), place));
    namesakes.into_iter().filter_map(apart).min().map(|(_, place)| place)
}

/// A line that is written in place, and wiped when it is dropped.
struct StatusLine(bool);

impl StatusLine {
    fn write(&mut self, text: &str) {
        // A line that wraps could not be wiped, so cut it.
        let width = tcgetwinsize(io::stderr()).map_or(0, |size| size.ws_col);
        let width = if width == 0 { UNTOLD_WIDTH } else { width };
        let text: String = format!("dlock: {text}").chars().take(usize::from(width) - 1).collect();
        output::status(format!("\r\x1b[2K{text}"));
        self.0 = true;
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        if self.0 {
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
        assert_eq!(place(&others, &me, s(9)), None, "a name that begins alike is another's");
        let one = [others.as_slice(), &[waiter(me.text(), None)]].concat();
        assert_eq!(place(&one, &me, s(9)), Some(2));
        let three = [s(60), s(9), s(1)].map(|since| waiter(me.text(), Some(since)));
        let three = [others.as_slice(), &three].concat();
        for (waited, ahead) in [(s(61), 2), (s(10), 3), (s(0), 4)] {
            assert_eq!(place(&three, &me, waited), Some(ahead));
        }
        let untold = [waiter(me.text(), None), waiter(me.text(), None)];
        assert_eq!(place(&untold, &me, s(9)), None);
    }
}
