//! Values on the command line: durations and names.

use std::{ffi::OsStr, ops::Range, time::Duration};

pub(crate) use dlock::config::{duration, wait};
use dlock::{LockName, Ticket};

use crate::exit::{Failure, Outcome};

/// Reads a ttl, which must not be zero.
pub(crate) fn ttl(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => {
            Err("a lock with a ttl of zero is lost at once; omit --ttl for the default of 30s".to_owned())
        }
        ttl => Ok(ttl),
    }
}

/// Reads a range of durations, `1s..30s`.
pub(crate) fn range(text: &str) -> Result<Range<Duration>, String> {
    let (start, end) =
        text.split_once("..").ok_or("write the shortest and the longest pause, such as 1s..30s")?;
    let (start, end) = (duration(start)?, duration(end)?);
    if start.is_zero() || end < start {
        return Err("the shortest pause must be above zero, and not longer than the longest".to_owned());
    }
    Ok(start..end)
}

/// Reads a lock's name.
pub(crate) fn name(text: &OsStr) -> Outcome<LockName> {
    Ok(LockName::new(utf8(text, "a lock's name")?)?)
}

/// Reads a ticket that `acquire` has printed.
pub(crate) fn ticket(text: &OsStr) -> Outcome<Ticket> {
    Ok(utf8(text, "a ticket")?.parse()?)
}

/// Returns a text as UTF-8. `what` names it in the error, which shows at most 40 characters of it.
pub(crate) fn utf8<'a>(text: &'a OsStr, what: &str) -> Outcome<&'a str> {
    let excerpt = || text.to_string_lossy().chars().take(40).collect::<String>();
    text.to_str().ok_or_else(|| {
        Failure::usage(format!("`{}` is not UTF-8, as {what} must be", excerpt().escape_debug()))
    })
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_of_zero_is_refused() {
        ttl("0ms").expect_err("zero");
        assert_eq!(ttl("1ms"), Ok(Duration::from_millis(1)));
    }

    #[test]
    fn a_range_has_two_durations_in_order() {
        assert_eq!(range("1s..30s"), Ok(Duration::from_secs(1)..Duration::from_secs(30)));
        for wrong in ["1s", "0s..1s", "2s..1s", "..1s", "1s..", "1..x"] {
            range(wrong).expect_err(wrong);
        }
    }
}
