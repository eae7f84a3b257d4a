//! Values on the command line: durations and names.

use std::{ffi::OsStr, time::Duration};

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
mod tests {
    use super::*;

    #[test]
    fn a_ttl_of_zero_is_refused() {
        ttl("0ms").expect_err("zero");
        assert_eq!(ttl("1ms"), Ok(Duration::from_millis(1)));
    }
}
