//! Options of a lock: the duration of its hold and of the wait for it, and its texts for people.
//! `options/validate.rs` checks them.

mod validate;

use std::{sync::Arc, time::Duration};

use crate::{
    contract::Info,
    engine::{Cadence, Class, Terms},
    model::{Result, Wait, Who},
};

/// Options of an acquisition and of the hold that it makes.
///
/// An option that is not set has the value from the client's
/// [defaults](crate::Locks::with_defaults), or else the default of this table:
///
/// | option | default | meaning |
/// |---|---|---|
/// | `ttl` | 30 s, within the store's limits | time after which the store deletes a claim that is not renewed |
/// | `renew_every` | a third of the time left | interval between the renewals of a held lock |
/// | `lease` | none | fixed duration of a hold that is not extended, from before the request is sent |
/// | `max_hold` | none | maximum duration of a hold that is renewed, from before the request is sent |
/// | `margin` | none | time between the guard's deadline and the earliest grant to another client |
/// | `at_least` | none | minimum time for which the lock stays taken, even if the guard is released earlier, from the return of the guard |
/// | `wait` | [`Wait::Forever`] | maximum time that the future waits for the lock, from its first poll |
/// | `label` | user, host, process id and program | text for people that says who has the claim |
/// | `class` | none | text for metrics and events that says what the lock is for |
///
/// The default ttl of 30 seconds is that of Redisson. It is long enough for a failover of the
/// store, and short enough to wait for the lock of a crashed holder.
///
/// A call checks its options before any I/O, each alone, all together, and against the limits of
/// the store, as [`validate`](Self::validate) does.
///
/// ```
/// use dlock_core::{LockOptions, Locks};
/// use std::time::Duration;
/// let options = LockOptions::new().ttl(Duration::from_secs(10)).wait(Duration::from_secs(5));
/// assert!(options.validate(Locks::memory().info()).is_ok());
/// let options = options.renew_every(Duration::from_secs(8)); // more than half the ttl
/// assert!(options.validate(Locks::memory().info()).is_err());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockOptions {
    ttl: Option<Duration>,
    lease: Option<Duration>,
    renew_every: Option<Duration>,
    max_hold: Option<Duration>,
    margin: Option<Duration>,
    at_least: Option<Duration>,
    wait: Option<Wait>,
    label: Option<Arc<str>>,
    class: Option<Arc<str>>,
}

/// Default ttl, unless it is outside the store's limits.
const DEFAULT_TTL: Duration = Duration::from_secs(30);

impl LockOptions {
    /// Creates options of which none is set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time after which the store deletes the claim, waiting or held, if it is not
    /// renewed. The store counts it from the last request that it has executed for the claim. The
    /// keeper renews the claim, so this does not limit the hold. In whole milliseconds. Default:
    /// 30 s, or the nearest ttl that the store supports.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Sets a fixed duration of the hold, counted from before the request is sent. The hold is not
    /// extended, and the guard is lost at its end. In whole milliseconds. Default: none, the hold
    /// is renewed until its release. Excludes [`renew_every`](Self::renew_every) and
    /// [`max_hold`](Self::max_hold).
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets the interval between the renewals of a held lock, counted from the last renewal. At
    /// most half the ttl. Default: a third of the time left until the deadline.
    #[must_use]
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.renew_every = Some(interval);
        self
    }

    /// Sets the maximum duration of a hold that is renewed, counted from before the request is
    /// sent. At its end the guard is lost and the lock is released. Default: none.
    ///
    /// This is for work that must not block other contenders for ever if it hangs. Unlike with a
    /// [`lease`](Self::lease), the lock of a holder that crashes earlier is free after its ttl.
    #[must_use]
    pub fn max_hold(mut self, max: Duration) -> Self {
        self.max_hold = Some(max);
        self
    }

    /// Sets the time between the guard's deadline and the earliest grant to another client. The
    /// guard's deadline is earlier by this time, and the ttl in the store stays the same. Default:
    /// none; zero means none.
    ///
    /// This is for work that needs some time to stop, such as a request in flight or a child
    /// process. A holder that cannot reach the store is lost at its deadline. It then has the
    /// margin to stop before the store grants the lock to another client. The guard must be dropped
    /// after the work has stopped, because its drop releases the lock. If it is not dropped, the
    /// keeper releases the lock at the end of the margin.
    ///
    /// [`remaining`](crate::Guard::remaining) and [`is_lost`](crate::Guard::is_lost) refer to the
    /// deadline, so for them a lease and [`max_hold`](Self::max_hold) end earlier by the margin,
    /// too. A loss that the store reports has no margin, because another client may hold the lock
    /// already. At most half of the ttl, of the lease, and of `max_hold`.
    #[must_use]
    pub fn margin(mut self, margin: Duration) -> Self {
        self.margin = Some(margin);
        self
    }

    /// Sets the minimum time for which the lock stays taken, counted from the moment at which the
    /// caller receives the guard. If the guard is released or dropped earlier, the store keeps the
    /// lock for the rest of the time, without renewals. Default: none; zero means none.
    ///
    /// This is for a job that must not run again too soon on another host whose clock is late. A
    /// holder that crashes, or loses the lock, does not keep it for this time. The lock is then
    /// free after its ttl, so that another host can do the remaining work.
    ///
    /// Not every store can keep a lock without its holder
    /// ([`Info::detaches`](crate::driver::Info::detaches)). Any other store refuses the option
    /// before any I/O.
    #[must_use]
    pub fn at_least(mut self, min: Duration) -> Self {
        self.at_least = Some(min);
        self
    }

    /// Sets the text that says who holds the lock or waits for it, in place of the client's
    /// [`Who`]. 1 to 200 bytes without control characters. [`inspect`](crate::Locks::inspect) shows
    /// it, and every client that can read the store can read it. Default: user, host, process id
    /// and program.
    #[must_use]
    pub fn label(mut self, label: impl Into<Arc<str>>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Sets the class of the lock, which is the label `class` of its metrics and a field of its
    /// events, such as `"orders"` or `"cron"`. At most 64 bytes without control characters. An
    /// empty text means none, also if the client has a default. Default: none. Without the features
    /// `metrics` and `tracing` the class has no effect.
    ///
    /// Each class creates new time series of every metric. A program should have a few classes,
    /// known in advance. Do not use the name of a lock, a number of a customer, or any other text
    /// of which there may be many. The store never receives the class, and all clients of a lock
    /// may have different ones.
    #[must_use]
    pub fn class(mut self, class: impl Into<Arc<str>>) -> Self {
        self.class = Some(class.into());
        self
    }

    /// Sets the maximum time that the future waits for the lock, counted from its first poll. Zero
    /// is a single try, as is [`Wait::Never`]. Default: [`Wait::Forever`].
    #[must_use]
    pub fn wait(mut self, wait: impl Into<Wait>) -> Self {
        // No other code handles a wait of zero.
        self.wait = Some(match wait.into() {
            Wait::For(Duration::ZERO) => Wait::Never,
            wait => wait,
        });
        self
    }

    /// Fills options that are not set from `defaults`, with these exceptions:
    ///
    /// - A call that sets a ttl or a lease takes neither of the two, nor `renew_every`, from the
    ///   defaults. An interval that suits one ttl may be too long for another.
    /// - A call that sets `renew_every` or `max_hold` requests a hold that is renewed, so it takes
    ///   no lease.
    /// - A call that sets a lease takes no `max_hold`, which a lease excludes.
    /// - A call that sets a lease or `max_hold` takes no `at_least`, which may be longer.
    ///
    /// A margin is always taken. If it is too long for the ttl of the call, the call is refused.
    #[must_use]
    pub fn or(self, defaults: &Self) -> Self {
        let no_options = Self::new();
        let renewal_defaults =
            if self.ttl.is_some() || self.lease.is_some() { &no_options } else { defaults };
        let is_renewed = self.renew_every.is_some() || self.max_hold.is_some();
        let is_limited = self.lease.is_some() || self.max_hold.is_some();
        Self {
            ttl: self.ttl.or(renewal_defaults.ttl),
            lease: self.lease.or(renewal_defaults.lease.filter(|_| !is_renewed)),
            renew_every: self.renew_every.or(renewal_defaults.renew_every),
            max_hold: self.max_hold.or(defaults.max_hold.filter(|_| self.lease.is_none())),
            margin: self.margin.or(defaults.margin),
            at_least: self.at_least.or(defaults.at_least.filter(|_| !is_limited)),
            wait: self.wait.or(defaults.wait),
            label: self.label.or_else(|| defaults.label.clone()),
            class: self.class.or_else(|| defaults.class.clone()),
        }
    }

    /// Returns the label of the claim, which is that of the client if these options have none.
    pub(crate) fn who(&self, client: &Who) -> Result<Who> {
        self.label.as_ref().map_or_else(|| Ok(client.clone()), |label| Who::new(Arc::clone(label)))
    }

    /// Returns the class of the claim.
    pub(crate) fn lock_class(&self) -> Class {
        Class::new(self.class.as_ref())
    }

    pub(crate) fn wait_limit(&self) -> Wait {
        self.wait.unwrap_or_default()
    }

    /// Returns the [margin](Self::margin), or `None` if none is set.
    pub fn get_margin(&self) -> Option<Duration> {
        self.margin
    }

    /// Returns the minimum time for which the lock [stays taken](Self::at_least), or `None` if it
    /// is not set or zero.
    pub fn get_at_least(&self) -> Option<Duration> {
        self.at_least.filter(|min| !min.is_zero())
    }

    fn ttl_on(&self, info: &Info) -> Duration {
        self.ttl.unwrap_or(DEFAULT_TTL.clamp(*info.ttl.start(), *info.ttl.end()))
    }

    /// Returns the part of the options that the keeper needs.
    pub(crate) fn terms(&self, info: &Info) -> Terms {
        let margin = self.margin.unwrap_or_default();
        let ttl = whole_milliseconds(self.ttl_on(info));
        let class = || self.lock_class();
        let renewed = |longest| Terms { ttl, renewal: Cadence::Third, longest, margin, class: class() };
        match (self.lease, self.renew_every) {
            // A session keeps a claim until the session ends. The engine therefore ends the lease
            // itself. It renews until then, to notice the end of the session.
            (Some(lease), _) if info.session.is_some() => renewed(Some(whole_milliseconds(lease))),
            (Some(lease), _) if info.ends_with_connection => {
                let lease = whole_milliseconds(lease);
                Terms { ttl: ttl.min(lease), ..renewed(Some(lease)) }
            }
            (Some(lease), _) => {
                let lease = whole_milliseconds(lease);
                Terms { ttl: lease, renewal: Cadence::Never, longest: Some(lease), margin, class: class() }
            }
            (None, Some(interval)) => Terms { renewal: Cadence::Every(interval), ..renewed(self.max_hold) },
            (None, None) => renewed(self.max_hold),
        }
    }
}

/// Rounds down to whole milliseconds, the unit of the stores. A guard must not outlast its claim by
/// a fraction of a millisecond.
fn whole_milliseconds(span: Duration) -> Duration {
    span - Duration::from_nanos(u64::from(span.subsec_nanos() % 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Error;

    pub(super) fn info() -> Info {
        Info::new("memory", "memory:")
            .ttl(Duration::from_millis(10)..=Duration::from_secs(3600))
            .detaches(true)
    }

    #[test]
    fn a_lease_is_rounded_down_to_whole_milliseconds() {
        let options = LockOptions::new().lease(Duration::from_micros(1_000_999));
        assert_eq!(options.terms(&info()).ttl, Duration::from_secs(1));
    }

    #[test]
    fn the_default_ttl_is_within_the_limits_of_the_store() {
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
        let lease_defaults = LockOptions::new().lease(s(7));
        assert_eq!(
            LockOptions::new().ttl(s(4)).or(&lease_defaults),
            LockOptions::new().ttl(s(4)),
            "a call that sets a ttl took the client's lease"
        );
        assert_eq!(
            LockOptions::new().renew_every(s(4)).or(&lease_defaults),
            LockOptions::new().renew_every(s(4))
        );
    }

    #[test]
    fn a_call_with_a_shorter_ttl_does_not_drop_the_margin_of_the_client() {
        let s = Duration::from_secs;
        let defaults = LockOptions::new().ttl(s(60)).margin(s(10));
        assert_eq!(LockOptions::new().ttl(s(30)).or(&defaults).get_margin(), Some(s(10)));
        let error = LockOptions::new().ttl(s(9)).or(&defaults).validate(&info());
        assert!(matches!(error, Err(Error::InvalidOptions { .. })), "{error:?}");
    }

    #[test]
    fn a_lease_and_a_max_hold_of_call_and_client_do_not_conflict() {
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
}
