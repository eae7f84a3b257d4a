//! Values on the command line: durations and names.

use std::{ffi::OsStr, time::Duration};

use super::exit::{Failure, Outcome};
use crate::LockName;

/// `30s`, `1m 30s`, `250ms`, or a number of seconds, as `flock -w` takes it.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let seconds = text.strip_suffix('s').unwrap_or(text).parse::<f64>();
    let parsed = match seconds {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => humantime::parse_duration(text).ok(),
    };
    parsed.ok_or_else(|| "write for example `30s`, `1m`, `250ms`, or a number of seconds".to_owned())
}

pub(super) fn ttl(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => {
            Err("a lock with a ttl of zero is lost at once; leave out --ttl for 30s".to_owned())
        }
        ttl => Ok(ttl),
    }
}

/// A lock's name as it stands on the command line.
pub(super) fn name(text: &OsStr) -> Outcome<LockName> {
    Ok(LockName::new(utf8(text, "a lock's name")?)?)
}

pub(super) fn utf8<'a>(text: &'a OsStr, what: &str) -> Outcome<&'a str> {
    let shown = || text.to_string_lossy().chars().take(40).collect::<String>();
    text.to_str().ok_or_else(|| {
        Failure::usage(format!("`{}` is not UTF-8, as {what} must be", shown().escape_debug()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_may_be_written_in_words_or_as_seconds() {
        let ms = Duration::from_millis;
        for (text, duration) in [
            ("30s", ms(30_000)),
            ("30", ms(30_000)),
            ("0.2", ms(200)),
            ("0.2s", ms(200)),
            ("250ms", ms(250)),
            ("1m 30s", ms(90_000)),
            ("2h", ms(7_200_000)),
            ("0", ms(0)),
        ] {
            assert_eq!(super::duration(text), Ok(duration), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in ["", "x", "-1", "1 fortnight", "NaN", "inf", "1e400", "s"] {
            duration(text).expect_err(text);
        }
    }

    #[test]
    fn a_ttl_of_zero_is_refused() {
        ttl("0ms").expect_err("zero");
        assert_eq!(ttl("1ms"), Ok(Duration::from_millis(1)));
    }
}
