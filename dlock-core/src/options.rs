//! How to hold and how long to wait, checked as a whole.

use std::time::Duration;

use crate::{Error, Info, Result};

/// How long a caller will wait for a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// One try.
    Never,
    /// Until this long after the call; one deadline for everything the call does.
    For(Duration),
    /// Until it is granted.
    #[default]
    Forever,
}

/// How to hold a lock and how long to wait for it.
///
/// | option | default | what it bounds |
/// |---|---|---|
/// | `ttl` | 30 s | how long the store remembers a silent holder or waiter; renewed by the keeper |
/// | `renew_every` | a third of what is left | how often a held lock is renewed |
/// | `lease` | none | a fixed hold, from the grant, never renewed, lost at its end |
/// | `wait` | [`Wait::Forever`] | the waiting, from the call |
///
/// Thirty seconds is what Redisson uses: long enough for a failover of the store, short enough for a person to
/// wait out a crashed holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockOptions {
    ttl: Duration,
    lease: Option<Duration>,
    renew_every: Option<Duration>,
    wait: Wait,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(30), lease: None, renew_every: None, wait: Wait::Forever }
    }
}

impl LockOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long the store remembers the claim after it last heard of it, in whole milliseconds. Default 30 s.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Holds for exactly this long, in whole milliseconds, instead of renewing; counted from before the request was sent.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Renews this often instead of at a third of what is left; at most half the ttl.
    #[must_use]
    pub fn renew_every(mut self, cadence: Duration) -> Self {
        self.renew_every = Some(cadence);
        self
    }

    /// How long to wait for the lock. Default: for ever.
    #[must_use]
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        self.wait = wait.into();
        self
    }

    pub(crate) fn waiting(&self) -> Wait {
        self.wait
    }

    /// Checks the options against each other and against the store.
    ///
    /// # Errors
    /// [`Error::InvalidOptions`], with the values that clash.
    pub fn validate(&self, info: &Info) -> Result<()> {
        let invalid = |reason| Err(Error::InvalidOptions { reason });
        let (word, hold) = match self.lease {
            Some(lease) => ("lease", lease),
            None => ("ttl", self.ttl),
        };
        if hold.is_zero() {
            return invalid(format!("the {word} is zero; it must be at least {:?}", info.ttl.start()));
        }
        if !info.ttl.contains(&hold) {
            let (least, most) = (info.ttl.start(), info.ttl.end());
            return invalid(format!(
                "{} keeps a {word} between {least:?} and {most:?}, not {hold:?}",
                info.store
            ));
        }
        match (self.lease, self.renew_every) {
            (Some(lease), Some(cadence)) => invalid(format!(
                "a lease of {lease:?} is never renewed; drop `renew_every` ({cadence:?}) or the lease"
            )),
            (None, Some(cadence)) if cadence.is_zero() || cadence > self.ttl / 2 => invalid(format!(
                "renewing every {cadence:?} does not keep a ttl of {:?}; `renew_every` must be above zero and at most half the ttl",
                self.ttl
            )),
            _ => Ok(()),
        }
    }

    pub(crate) fn terms(&self) -> Terms {
        let (ttl, renewal) = match (self.lease, self.renew_every) {
            (Some(lease), _) => (lease, Cadence::Never),
            (None, Some(cadence)) => (self.ttl, Cadence::Every(cadence)),
            (None, None) => (self.ttl, Cadence::Third),
        };
        // Stores count milliseconds, and a guard must not claim the rest of one.
        Terms { ttl: ttl - Duration::from_nanos(u64::from(ttl.subsec_nanos() % 1_000_000)), renewal }
    }
}

impl From<Duration> for Wait {
    fn from(limit: Duration) -> Self {
        Self::For(limit)
    }
}

/// What the keeper needs to know of the options.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) renewal: Cadence,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cadence {
    /// When a third of what is left has passed.
    Third,
    Every(Duration),
    Never,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    fn info() -> Info {
        Info {
            store: "memory",
            identity: "memory:".into(),
            kinds: Kind::ALL,
            tokens: true,
            downgrades: true,
            ttl: Duration::from_millis(10)..=Duration::from_secs(3600),
        }
    }

    #[test]
    fn options_that_clash_are_refused_with_both_values() {
        let s = Duration::from_secs;
        for (options, words) in [
            (LockOptions::new().ttl(Duration::ZERO), ["ttl is zero", "10ms"]),
            (LockOptions::new().ttl(Duration::from_millis(1)), ["between 10ms and 3600s", "1ms"]),
            (LockOptions::new().ttl(Duration::MAX), ["between 10ms and 3600s", "ttl"]),
            (LockOptions::new().lease(Duration::ZERO), ["lease is zero", "10ms"]),
            (LockOptions::new().ttl(s(3)).renew_every(s(2)), ["every 2s", "ttl of 3s"]),
            (LockOptions::new().renew_every(Duration::ZERO), ["every 0ns", "ttl of 30s"]),
            (LockOptions::new().lease(s(9)).renew_every(s(1)), ["lease of 9s", "1s"]),
        ] {
            let error = options.validate(&info()).expect_err("must clash").to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }

    #[test]
    fn no_more_than_whole_milliseconds_are_claimed() {
        let options = LockOptions::new().lease(Duration::from_micros(1_000_999));
        assert_eq!(options.terms().ttl, Duration::from_secs(1));
    }

    #[test]
    fn sensible_options_are_accepted() {
        let s = Duration::from_secs;
        for options in [
            LockOptions::new(),
            LockOptions::new().ttl(s(3)).renew_every(Duration::from_millis(1500)),
            LockOptions::new().lease(s(1)).wait(Wait::Never),
            LockOptions::new().wait(Duration::MAX),
        ] {
            options.validate(&info()).expect("sensible");
        }
    }
}
