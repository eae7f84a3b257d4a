//! How to hold and how long to wait, checked as a whole.

use std::{sync::Arc, time::Duration};

use crate::{
    contract::Info,
    engine::{Cadence, Terms},
    model::{Error, Result, Wait, Who, duration::text},
};

/// How to hold a lock and how long to wait for it. What is not set here is taken from the client's
/// [defaults](crate::Locks::with_defaults), and what is not set there either is as follows:
///
/// | option | default | what it bounds |
/// |---|---|---|
/// | `ttl` | 30 s, or the store's longest if that is less | how long the store remembers a silent holder or waiter; renewed by the keeper |
/// | `renew_every` | a third of what is left | how often a held lock is renewed |
/// | `lease` | none | a fixed hold, from before the request, never prolonged, lost at its end |
/// | `max_hold` | none | the whole hold, from before the request, however often it is renewed |
/// | `at_least` | none | how long after its grant the lock stays taken, also if it is released before |
/// | `wait` | [`Wait::Forever`] | the waiting, from the call |
/// | `label` | user, host, process and program | who holds or waits, for people who look |
///
/// Thirty seconds is what Redisson uses: long enough for a failover of the store, short enough for a person to
/// wait out a crashed holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockOptions {
    ttl: Option<Duration>,
    lease: Option<Duration>,
    renew_every: Option<Duration>,
    max_hold: Option<Duration>,
    at_least: Option<Duration>,
    wait: Option<Wait>,
    label: Option<Arc<str>>,
}

/// The ttl that is used where none is set and the store can keep it.
const TTL: Duration = Duration::from_secs(30);

impl LockOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long the store remembers the claim after it last heard of it, in whole milliseconds. Default 30 s, or the store's
    /// longest if that is less.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Holds for exactly this long, in whole milliseconds, and is lost at its end; counted from before the request was sent.
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

    /// Holds no longer than this, counted from before the request was sent, although it is renewed: for work that must not
    /// keep others out for ever if it hangs. The guard is lost at the end of this time, and the lock is then released.
    /// Default: none. Unlike with a [`lease`](Self::lease), a holder that dies earlier frees the lock after its ttl.
    #[must_use]
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.max_hold = Some(longest);
        self
    }

    /// Leaves the lock taken until so long after its grant, also if the guard is released or dropped before: for a job that
    /// must not run again too soon on another host whose clock is late. Nobody renews the lock meanwhile. Default: none.
    ///
    /// A holder that crashes or loses the lock does not keep it for that long: it is free after its ttl, so that another
    /// host can do what was not done. Not every store can keep a lock without its holder
    /// ([`Info::detaches`](crate::driver::Info::detaches)); one that cannot refuses before any I/O.
    #[must_use]
    pub fn at_least(mut self, least: Duration) -> Self {
        self.at_least = Some(least);
        self
    }

    /// Says who holds the lock or waits for it, in place of the client's [`Who`]: 1 to 200 bytes without control
    /// characters, which `inspect` shows. Whoever can read the store can read it.
    #[must_use]
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// How long to wait for the lock; zero is one try. Default: for ever.
    #[must_use]
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        // A wait of zero is one try. Only this line decides that.
        self.wait = Some(match wait.into() {
            Wait::For(Duration::ZERO) => Wait::Never,
            wait => wait,
        });
        self
    }

    /// Takes what is not set here from `defaults`. A call that sets a ttl or a lease takes neither of these, nor
    /// `renew_every`, from the defaults: an interval that suits one ttl may be too long for another. A lease excludes
    /// `max_hold`, so a call that sets one of them does not take the other. Neither does it take `at_least`, which may be
    /// longer.
    pub(crate) fn or(self, defaults: &Self) -> Self {
        let rest = if self.ttl.is_some() || self.lease.is_some() { &Self::new() } else { defaults };
        Self {
            ttl: self.ttl.or(rest.ttl),
            // A call that sets `renew_every` or `max_hold` wants a hold that is renewed, not a lease.
            lease: self
                .lease
                .or(rest.lease.filter(|_| self.renew_every.is_none() && self.max_hold.is_none())),
            renew_every: self.renew_every.or(rest.renew_every),
            max_hold: self.max_hold.or(defaults.max_hold.filter(|_| self.lease.is_none())),
            at_least: self
                .at_least
                .or(defaults.at_least.filter(|_| self.lease.is_none() && self.max_hold.is_none())),
            wait: self.wait.or(defaults.wait),
            label: self.label.or_else(|| defaults.label.clone()),
        }
    }

    /// Who asks with these options: the label, or else the client.
    pub(crate) fn who(&self, client: &Who) -> Result<Who> {
        self.label.as_ref().map_or_else(|| Ok(client.clone()), |label| Who::new(Arc::clone(label)))
    }

    pub(crate) fn waiting(&self) -> Wait {
        self.wait.unwrap_or_default()
    }

    /// How long the lock stays taken at least; `None` for no time.
    pub(crate) fn staying(&self) -> Option<Duration> {
        self.at_least.filter(|least| !least.is_zero())
    }

    /// Checks the options against each other and against the store.
    ///
    /// # Errors
    /// [`Error::InvalidOptions`], with the values that clash; [`Error::Unsupported`] for `at_least` where the store cannot keep
    /// a lock without its holder.
    pub fn validate(&self, info: &Info) -> Result<()> {
        let invalid = |reason| Err(Error::InvalidOptions { reason });
        for (word, hold, range) in [("ttl", self.ttl, &info.ttl), ("lease", self.lease, &info.leases)] {
            let Some(hold) = hold else { continue };
            if hold.is_zero() {
                return invalid(format!("the {word} is zero; it must be at least {}", text(*range.start())));
            }
            if !range.contains(&hold) {
                let [least, most, hold] = [*range.start(), *range.end(), hold].map(text);
                return invalid(format!(
                    "{} keeps a {word} between {least} and {most}, not {hold}",
                    info.store
                ));
            }
        }
        if let Some(least) = self.staying() {
            info.check_detach(least)?;
            for (word, end) in [("lease", self.lease), ("max_hold", self.max_hold)] {
                if let Some(end) = end.filter(|end| *end < least) {
                    let [end, least] = [end, least].map(text);
                    return invalid(format!(
                        "a lock that ends after a {word} of {end} is not held for at least {least}; make `at_least` shorter"
                    ));
                }
            }
        }
        let ttl = self.ttl_on(info);
        match (self.lease, self.renew_every, self.max_hold) {
            (_, _, Some(Duration::ZERO)) => {
                invalid("`max_hold` is zero; nothing can be held for no time".to_owned())
            }
            (Some(lease), Some(cadence), _) => invalid(format!(
                "a lease of {} is never renewed; drop `renew_every` ({}) or the lease",
                text(lease),
                text(cadence)
            )),
            (Some(lease), _, Some(longest)) => invalid(format!(
                "a lease of {} ends by itself; drop `max_hold` ({}) or the lease",
                text(lease),
                text(longest)
            )),
            (None, Some(cadence), _) if cadence.is_zero() || cadence > ttl / 2 => invalid(format!(
                "renewing every {} does not keep a ttl of {}; `renew_every` must be above zero and at most half the ttl",
                text(cadence),
                text(ttl)
            )),
            _ => Ok(()),
        }
    }

    fn ttl_on(&self, info: &Info) -> Duration {
        self.ttl.unwrap_or(TTL.clamp(*info.ttl.start(), *info.ttl.end()))
    }

    pub(crate) fn terms(&self, info: &Info) -> Terms {
        let third = |longest| Terms { ttl: whole(self.ttl_on(info)), renewal: Cadence::Third, longest };
        match (self.lease, self.renew_every) {
            // A session keeps a claim for as long as it lives. So the engine ends the lease itself, and renews until then to
            // learn whether the session still lives.
            (Some(lease), _) if info.session.is_some() => third(Some(whole(lease))),
            (Some(lease), _) => {
                let lease = whole(lease);
                Terms { ttl: lease, renewal: Cadence::Never, longest: Some(lease) }
            }
            (None, Some(cadence)) => Terms { renewal: Cadence::Every(cadence), ..third(self.max_hold) },
            (None, None) => third(self.max_hold),
        }
    }
}

/// Stores count whole milliseconds, so a guard must not claim a fraction more.
fn whole(span: Duration) -> Duration {
    span - Duration::from_nanos(u64::from(span.subsec_nanos() % 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info() -> Info {
        Info::new("memory", "memory:")
            .ttl(Duration::from_millis(10)..=Duration::from_secs(3600))
            .detaches(true)
    }

    #[test]
    fn a_store_that_cannot_keep_a_lock_without_its_holder_refuses_to() {
        let options = LockOptions::new().at_least(Duration::from_secs(1));
        let error = options.validate(&info().detaches(false)).expect_err("it cannot");
        assert!(matches!(error, Error::Unsupported { store: "memory", .. }), "{error:?}");
        options.at_least(Duration::ZERO).validate(&info().detaches(false)).expect("no time is no wish");
    }

    #[test]
    fn options_that_clash_are_refused_with_both_values() {
        let s = Duration::from_secs;
        for (options, words) in [
            (LockOptions::new().ttl(Duration::ZERO), ["ttl is zero", "10ms"]),
            (LockOptions::new().ttl(Duration::from_millis(1)), ["between 10ms and 1h", "1ms"]),
            (LockOptions::new().ttl(Duration::MAX), ["between 10ms and 1h", "ttl"]),
            (LockOptions::new().lease(Duration::ZERO), ["lease is zero", "10ms"]),
            (LockOptions::new().ttl(s(3)).renew_every(s(2)), ["every 2s", "ttl of 3s"]),
            (LockOptions::new().renew_every(Duration::ZERO), ["every 0s", "ttl of 30s"]),
            (LockOptions::new().lease(s(9)).renew_every(s(1)), ["lease of 9s", "1s"]),
            (LockOptions::new().lease(s(9)).max_hold(s(8)), ["lease of 9s", "8s"]),
            (LockOptions::new().max_hold(Duration::ZERO), ["max_hold", "zero"]),
            (LockOptions::new().at_least(s(9)).lease(s(8)), ["lease of 8s", "at least 9s"]),
            (LockOptions::new().at_least(s(9)).max_hold(s(8)), ["max_hold of 8s", "at least 9s"]),
            (LockOptions::new().at_least(s(7200)), ["without its holder", "2h"]),
        ] {
            let error = options.validate(&info()).expect_err("must clash").to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }

    #[test]
    fn a_lease_is_rounded_down_to_whole_milliseconds() {
        let options = LockOptions::new().lease(Duration::from_micros(1_000_999));
        assert_eq!(options.terms(&info()).ttl, Duration::from_secs(1));
    }

    #[test]
    fn the_default_ttl_is_one_that_the_store_can_keep() {
        let (s, ms) = (Duration::from_secs, Duration::from_millis);
        for (range, ttl) in [(ms(10)..=s(3600), s(30)), (ms(10)..=s(20), s(20)), (s(60)..=s(3600), s(60))] {
            let info = info().ttl(range);
            LockOptions::new().validate(&info).expect("the defaults suit every store");
            assert_eq!(LockOptions::new().terms(&info).ttl, ttl);
        }
    }

    #[test]
    fn a_lease_on_a_session_is_renewed_until_its_end() {
        let s = Duration::from_secs;
        let info = info().ttl(s(1)..=s(4)).session(s(6), s(1)..=s(3600));
        let options = LockOptions::new().lease(s(600));
        options.validate(&info).expect("a lease may be longer than the session");
        let terms = options.terms(&info);
        assert_eq!((terms.ttl, terms.renewal, terms.longest), (s(4), Cadence::Third, Some(s(600))));
    }

    #[test]
    fn an_option_that_a_call_leaves_unset_is_the_clients_default() {
        let s = Duration::from_secs;
        let defaults = LockOptions::new().ttl(s(60)).renew_every(s(10)).max_hold(s(900)).wait(s(5));
        assert_eq!(LockOptions::new().or(&defaults), defaults);
        assert_eq!(LockOptions::new().wait(s(1)).or(&defaults), defaults.clone().wait(s(1)));
        let shorter = LockOptions::new().ttl(s(4)).or(&defaults);
        assert_eq!(
            shorter,
            LockOptions::new().ttl(s(4)).max_hold(s(900)).wait(s(5)),
            "renewing every 10 s does not keep a ttl of 4 s"
        );
        let leases = LockOptions::new().lease(s(7));
        assert_eq!(
            LockOptions::new().ttl(s(4)).or(&leases),
            LockOptions::new().ttl(s(4)),
            "a call that sets a ttl took the client's lease"
        );
        assert_eq!(LockOptions::new().renew_every(s(4)).or(&leases), LockOptions::new().renew_every(s(4)));
    }

    #[test]
    fn a_lease_and_a_longest_hold_of_call_and_client_do_not_clash() {
        let s = Duration::from_secs;
        for (call, defaults) in [
            (LockOptions::new().lease(s(7)), LockOptions::new().max_hold(s(900))),
            (LockOptions::new().max_hold(s(900)), LockOptions::new().lease(s(7))),
        ] {
            let merged = call.clone().or(&defaults);
            merged.validate(&info()).expect("the option of the call replaces that of the client");
            assert_eq!(merged, call);
        }
    }

    #[test]
    fn sensible_options_are_accepted() {
        let s = Duration::from_secs;
        for options in [
            LockOptions::new(),
            LockOptions::new().ttl(s(3)).renew_every(Duration::from_millis(1500)),
            LockOptions::new().lease(s(1)).wait(Wait::Never),
            LockOptions::new().wait(Duration::MAX),
            LockOptions::new().max_hold(Duration::MAX),
        ] {
            options.validate(&info()).expect("sensible");
        }
    }
}
