//! Keys of regular occurrences, from the store's clock.

use std::{
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

use super::Locks;
use crate::{
    contract::Info,
    model::{Error, LockName, Result, duration::text},
};

/// Shortest period. Ordinary delays of a client can exceed a fraction of a second.
const MIN_PERIOD: Duration = Duration::from_secs(1);

/// The longest period, which is the longest time for which stores keep a mark.
const MAX_PERIOD: Duration = Info::MAX_TTL;

const MINUTE: u64 = 60_000;

impl Locks {
    /// Returns the key of the present period of this length, by the store's clock:
    /// `2026-11-23T09:00:00Z/1h`. Clients on hosts with different clocks get the same key.
    ///
    /// Periods are centred on the multiples of `length` since 1970-01-01 UTC, and the key names
    /// this time. With a length of one hour, each client that calls from 8:29:30 to 9:29:30 gets
    /// the key of 9:00. A job that every host starts at 9:00 by its own clock therefore gets one
    /// key, if the clock of each host is less than 30.5 minutes ahead of the store's clock, and
    /// less than 29.5 minutes behind it. A period of one day begins at 11:59:30 UTC. The borders of
    /// a period of whole minutes are half a minute before a whole minute, because crontabs start
    /// jobs at whole minutes.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> dlock_core::Result<()> {
    /// use std::time::Duration;
    /// let locks = dlock_core::Locks::memory();
    /// let key = locks.period_key(Duration::from_secs(3600)).await?;
    /// assert!(key.ends_with(":00:00Z/1h"), "{key}");
    /// let _occurrence = locks.mutex("report").once(key);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// - [`Error::Unsupported`], before any I/O, if clients cannot read the store's clock
    ///   ([`Info::clock`](crate::driver::Info::clock)).
    /// - [`Error::InvalidOptions`], before any I/O, for a length below one second or above ten years.
    /// - The store's errors.
    ///
    /// # Cancel safety
    /// Safe. The call only reads.
    pub async fn period_key(&self, length: Duration) -> Result<String> {
        check(self.info(), length)?;
        self.check_runtime(&LockName::unchecked("*"))?;
        let client = Arc::clone(self.client());
        let now = self.on_thread(async move { client.store.backend.clock().await }).await?;
        Ok(key(now, length))
    }
}

fn check(info: &Info, length: Duration) -> Result<()> {
    if !info.clock {
        let what = "tell its clients the time, from which the key of a period is made; set the key yourself, or use a \
                    store with a clock: memory, sqlite, redis, mysql or mariadb (mode=queue), postgres";
        return Err(Error::Unsupported { store: info.store, what: what.to_owned() });
    }
    if !(MIN_PERIOD..=MAX_PERIOD).contains(&length) {
        let [least, most, length] = [MIN_PERIOD, MAX_PERIOD, length].map(text);
        let reason = format!("a period of {length} is not possible; it must be between {least} and {most}");
        return Err(Error::InvalidOptions { reason });
    }
    Ok(())
}

/// Returns the key of the period of this length that contains a time since 1970.
fn key(since_1970: Duration, length: Duration) -> String {
    let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let length_ms = millis(length).max(1);
    let middle = millis(since_1970).saturating_add(until_middle(length_ms)) / length_ms * length_ms;
    let time = UNIX_EPOCH.checked_add(Duration::from_millis(middle)).unwrap_or(UNIX_EPOCH);
    // Shows milliseconds only if there are any.
    format!("{}/{}", humantime::format_rfc3339(time), text(length))
}

/// Returns the length of the part of a period before its middle. This is half of the period. For
/// periods from a minute on, it is rounded so that the borders are half a minute away from whole
/// minutes.
fn until_middle(length_ms: u64) -> u64 {
    if length_ms < MINUTE { length_ms / 2 } else { length_ms / 2 / MINUTE * MINUTE + MINUTE / 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// 2026-11-23T09:00:00Z.
    const NINE: Duration = Duration::from_secs(1_795_424_400);

    #[test]
    fn clocks_that_differ_by_less_than_half_a_period_give_one_key() {
        let s = Duration::from_secs;
        for now in [NINE - s(1790), NINE - s(1), NINE, NINE + s(1), NINE + s(1760)] {
            assert_eq!(key(now, HOUR), "2026-11-23T09:00:00Z/1h");
        }
        for (now, middle) in [(NINE - s(1831), "08"), (NINE + s(1801), "10")] {
            assert_eq!(key(now, HOUR), format!("2026-11-23T{middle}:00:00Z/1h"));
        }
    }

    #[test]
    fn no_border_of_a_period_is_within_half_a_minute_of_a_whole_minute() {
        let s = Duration::from_secs;
        for length in [60, 90, 120, 300, 900, 1800, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600].map(s) {
            for minute in 0..24 * 60 {
                let at = NINE + s(60) * minute;
                if length.as_secs() % 60 == 0 {
                    let keys = [at - s(29), at, at + s(29)].map(|now| key(now, length));
                    assert!(keys.iter().all(|other| *other == keys[0]), "{keys:?}");
                }
            }
        }
    }

    #[test]
    fn each_length_has_keys_of_its_own_and_periods_follow_each_other() {
        assert_ne!(key(NINE, HOUR), key(NINE, HOUR / 2));
        assert_eq!(key(NINE, Duration::from_millis(1500)), "2026-11-23T09:00:00Z/1500ms");
        let keys: std::collections::HashSet<_> = (0..24).map(|hour| key(NINE + HOUR * hour, HOUR)).collect();
        assert_eq!(keys.len(), 24);
    }

    #[test]
    fn a_store_without_a_clock_refuses_before_any_io() {
        let error = check(&Info::new("etcd", "etcd:x"), HOUR).expect_err("it has no clock").to_string();
        assert!(error.contains("etcd cannot tell") && error.contains("postgres"), "{error}");
        let info = Info::new("redis", "redis:x").clock(true);
        for length in [Duration::ZERO, Duration::from_millis(999), MAX_PERIOD + MIN_PERIOD] {
            assert!(matches!(check(&info, length), Err(Error::InvalidOptions { .. })), "{length:?}");
        }
    }
}
