//! The notation of durations in URLs, configurations, options of the command, and messages.

use std::time::Duration;

/// Parses a duration: `30s`, `1m 30s`, `250ms`, `0.5s`, or a number of seconds such as `30` or `0.5`.
/// Returns `None` for any other text.
pub fn parse(text: &str) -> Option<Duration> {
    let number = text.strip_suffix('s').unwrap_or(text);
    // A whole number is not read as a fraction, which has only 53 bits.
    if let Ok(seconds) = number.parse() {
        return Some(Duration::from_secs(seconds));
    }
    match number.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => humantime::parse_duration(text).ok(),
    }
}

/// Formats a duration in the largest unit that divides it: `250ms`, `90s`, `3650d`. [`parse`] accepts
/// the result.
///
/// Rounds a duration of at least 1 ms down to whole milliseconds, the unit of the stores. Fractions of
/// a timeout would otherwise be shown in nanoseconds. Rounds a duration of more than `u64::MAX`
/// nanoseconds, some 584 years, down to whole seconds, because `parse` reads no more milliseconds.
pub fn text(duration: Duration) -> String {
    const MILLISECOND: u128 = 1_000_000;
    const UNITS: [(&str, u128); 6] = [
        ("d", 24 * 3600 * 1000 * MILLISECOND),
        ("h", 3600 * 1000 * MILLISECOND),
        ("m", 60 * 1000 * MILLISECOND),
        ("s", 1000 * MILLISECOND),
        ("ms", MILLISECOND),
        ("us", MILLISECOND / 1000),
    ];
    let nanos = match duration.as_nanos() {
        0 => return "0s".to_owned(),
        nanos if nanos < MILLISECOND => nanos,
        nanos if nanos > u64::MAX.into() => nanos - nanos % (1000 * MILLISECOND),
        nanos => nanos - nanos % MILLISECOND,
    };
    let (unit, size) = UNITS.into_iter().find(|(_, size)| nanos.is_multiple_of(*size)).unwrap_or(("ns", 1));
    format!("{}{unit}", nanos / size)
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

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
            (Duration::from_secs((1 << 53) + 1), "9007199254740993s"),
            (Duration::from_secs(u64::MAX), "18446744073709551615s"),
        ] {
            assert_eq!(text(duration), shown);
            assert_eq!(parse(shown), Some(duration), "{shown}");
        }
    }

    #[test]
    fn fractions_of_a_millisecond_are_shown_only_alone() {
        for (duration, shown) in [
            (Duration::from_secs(1) / 3, "333ms"),
            (Duration::from_nanos(2_000_000_001), "2s"),
            (Duration::from_nanos(999_999), "999999ns"),
            (Duration::MAX, "18446744073709551615s"),
            (Duration::from_millis(18_446_744_073_710_001), "18446744073710s"),
        ] {
            assert_eq!(text(duration), shown);
        }
    }

    #[test]
    fn a_duration_has_units_or_is_a_number_of_seconds() {
        for (text, duration) in [
            ("30s", 30_000 * MS),
            ("30", 30_000 * MS),
            ("0.2", 200 * MS),
            ("0.2s", 200 * MS),
            ("250ms", 250 * MS),
            ("1m 30s", 90_000 * MS),
            ("1m30s", 90_000 * MS),
            ("2h", 7_200_000 * MS),
            ("0", Duration::ZERO),
        ] {
            assert_eq!(parse(text), Some(duration), "{text}");
        }
        for text in ["", "x", "-1", "1 fortnight", "NaN", "inf", "1e400", "s"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
