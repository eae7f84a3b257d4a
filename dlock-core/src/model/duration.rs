//! Durations in messages, in the notation that configurations accept.

use std::time::Duration;

/// Formats a duration in the largest unit that divides it: `250ms`, `90s`, `3650d`. URLs,
/// configurations and the command accept this notation.
pub(crate) fn text(duration: Duration) -> String {
    const SECOND: u128 = 1_000_000_000;
    let units = [
        ("d", 24 * 3600 * SECOND),
        ("h", 3600 * SECOND),
        ("m", 60 * SECOND),
        ("s", SECOND),
        ("ms", SECOND / 1000),
        ("us", SECOND / 1_000_000),
    ];
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".to_owned();
    }
    let (unit, size) = units.into_iter().find(|(_, size)| nanos.is_multiple_of(*size)).unwrap_or(("ns", 1));
    format!("{}{unit}", nanos / size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_written_in_its_largest_unit_and_read_back() {
        for (duration, shown) in [
            (Duration::ZERO, "0s"),
            (Duration::from_nanos(1_001), "1001ns"),
            (Duration::from_micros(15), "15us"),
            (Duration::from_millis(1500), "1500ms"),
            (Duration::from_secs(90), "90s"),
            (Duration::from_secs(120), "2m"),
            (Duration::from_secs(7 * 3600), "7h"),
            (Duration::from_secs(10 * 365 * 24 * 3600), "3650d"),
        ] {
            assert_eq!(text(duration), shown);
            assert_eq!(humantime::parse_duration(shown).expect(shown), duration);
        }
    }
}
