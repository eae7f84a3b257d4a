//! The check of a lock's options, each alone, all together, and against the limits of the store.

use std::time::Duration;

use super::LockOptions;
use crate::{
    contract::Info,
    model::{Error, Result, duration::text},
};

/// Maximum length of a class, in bytes. A class is a word or two.
const MAX_CLASS_LEN: usize = 64;

impl LockOptions {
    /// Checks the options against each other and against the limits of the store.
    ///
    /// # Errors
    /// - [`Error::InvalidOptions`], which names the values that conflict.
    /// - [`Error::Unsupported`] for `at_least`, if the store cannot keep a lock without its holder.
    pub fn validate(&self, info: &Info) -> Result<()> {
        let invalid = |reason| Err(Error::InvalidOptions { reason });
        for (option, value, range) in [("ttl", self.ttl, &info.ttl), ("lease", self.lease, &info.leases)] {
            let Some(value) = value else { continue };
            if value.is_zero() {
                return invalid(format!(
                    "the {option} is zero; it must be at least {}",
                    text(*range.start())
                ));
            }
            if !range.contains(&value) {
                let [min, max, value] = [*range.start(), *range.end(), value].map(text);
                return invalid(format!(
                    "{} keeps a {option} between {min} and {max}, not {value}",
                    info.store
                ));
            }
        }
        if let Some(class) = &self.class {
            let length = class.len();
            if length > MAX_CLASS_LEN {
                return invalid(format!("a class has {length} bytes; the limit is {MAX_CLASS_LEN}"));
            }
            if let Some(at) = class.find(char::is_control) {
                return invalid(format!("a class has a control character at byte {at}"));
            }
        }
        if let Some(min) = self.get_at_least() {
            info.check_detach(min)?;
            for (option, max) in [("lease", self.lease), ("max_hold", self.max_hold)] {
                if let Some(max) = max.filter(|max| *max < min) {
                    let [max, min] = [max, min].map(text);
                    return invalid(format!(
                        "a lock that ends after a {option} of {max} is not held for at least {min}; make `at_least` shorter"
                    ));
                }
            }
        }
        let (option, span) = self.shortest_span(info);
        if let Some(margin) = self.margin.filter(|margin| *margin > span / 2) {
            return invalid(format!(
                "a margin of {} does not suit a {option} of {}; it must be at most half of it",
                text(margin),
                text(span)
            ));
        }
        let ttl = self.ttl_on(info);
        match (self.lease, self.renew_every, self.max_hold) {
            (_, _, Some(Duration::ZERO)) => {
                invalid("`max_hold` is zero; it must be more than zero".to_owned())
            }
            (Some(lease), Some(interval), _) => invalid(format!(
                "a lease of {} is never renewed; drop `renew_every` ({}) or the lease",
                text(lease),
                text(interval)
            )),
            (Some(lease), _, Some(max)) => invalid(format!(
                "a lease of {} ends by itself; drop `max_hold` ({}) or the lease",
                text(lease),
                text(max)
            )),
            (None, Some(interval), _) if interval.is_zero() || interval > ttl / 2 => invalid(format!(
                "renewing every {} does not keep a ttl of {}; `renew_every` must be above zero and at most half the ttl",
                text(interval),
                text(ttl)
            )),
            _ => Ok(()),
        }
    }

    /// Returns the longest margin that these options permit on a store. This is half of the ttl, of
    /// the lease, or of `max_hold`, whichever is shortest.
    pub fn max_margin(&self, info: &Info) -> Duration {
        self.shortest_span(info).1 / 2
    }

    /// Returns the shortest of the ttl, the lease and `max_hold`, with its name. In a store without
    /// sessions the lease is also the ttl.
    fn shortest_span(&self, info: &Info) -> (&'static str, Duration) {
        let ttl = match self.lease {
            Some(lease) if info.session.is_none() => ("lease", lease),
            _ => ("ttl", self.ttl_on(info)),
        };
        let others = [("lease", self.lease), ("max_hold", self.max_hold)];
        let others = others.into_iter().filter_map(|(option, span)| Some((option, span?)));
        others.fold(ttl, |shortest, span| if span.1 < shortest.1 { span } else { shortest })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::info, *};
    use crate::model::Wait;

    #[test]
    fn a_store_that_cannot_keep_a_lock_without_its_holder_refuses_at_least() {
        let options = LockOptions::new().at_least(Duration::from_secs(1));
        let error = options.validate(&info().detaches(false)).expect_err("the store cannot detach");
        assert!(matches!(error, Error::Unsupported { store: "memory", .. }), "{error:?}");
        options
            .at_least(Duration::ZERO)
            .validate(&info().detaches(false))
            .expect("zero means that the option is not set");
    }

    #[test]
    fn options_that_conflict_are_refused_with_both_values() {
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
            (LockOptions::new().ttl(s(9)).margin(s(5)), ["margin of 5s", "ttl of 9s"]),
            (LockOptions::new().margin(s(16)), ["margin of 16s", "ttl of 30s"]),
            (LockOptions::new().margin(Duration::MAX), ["margin of", "ttl of 30s"]),
            (LockOptions::new().lease(s(9)).margin(s(5)), ["margin of 5s", "lease of 9s"]),
            (LockOptions::new().max_hold(s(9)).margin(s(5)), ["margin of 5s", "max_hold of 9s"]),
            (LockOptions::new().at_least(s(9)).lease(s(8)), ["lease of 8s", "at least 9s"]),
            (LockOptions::new().at_least(s(9)).max_hold(s(8)), ["max_hold of 8s", "at least 9s"]),
            (LockOptions::new().at_least(s(7200)), ["without its holder", "2h"]),
        ] {
            let error = options.validate(&info()).expect_err("the options conflict").to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }

    #[test]
    fn a_class_that_is_no_short_text_is_refused() {
        for (class, words) in [
            ("x".repeat(65), "a class has 65 bytes; the limit is 64"),
            ("or\nders".to_owned(), "control character at byte 2"),
        ] {
            let error = LockOptions::new().class(class).validate(&info()).expect_err("refused").to_string();
            assert!(error.contains(words), "{error}");
        }
        for class in ["x".repeat(64), String::new()] {
            LockOptions::new().class(class).validate(&info()).expect("a short text, or none");
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
            LockOptions::new().ttl(s(9)).margin(Duration::from_millis(4500)),
            LockOptions::new().margin(Duration::ZERO),
        ] {
            options.validate(&info()).expect("sensible");
        }
    }
}
