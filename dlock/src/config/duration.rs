//! Parsers for durations in the configuration and on the command line.

use std::time::Duration;

use dlock_core::{Wait, driver::duration as notation};

/// Hint in error messages: the formats that [`duration`] accepts.
const EXAMPLES: &str = "write for example `30s`, `1m`, `250ms`, or a number of seconds";

/// Reads a duration: `30s`, `1m 30s`, `250ms`, or a number of seconds. URLs have the same notation.
///
/// # Errors
/// A hint with the accepted formats.
pub fn duration(text: &str) -> Result<Duration, String> {
    notation::parse(text).ok_or_else(|| EXAMPLES.to_owned())
}

/// Reads a wait limit: `forever`, or a [`duration`]. Zero means [`Wait::Never`].
///
/// # Errors
/// A hint with the accepted formats.
pub fn wait(text: &str) -> Result<Wait, String> {
    if text == "forever" {
        return Ok(Wait::Forever);
    }
    match duration(text) {
        Ok(Duration::ZERO) => Ok(Wait::Never),
        Ok(limit) => Ok(Wait::For(limit)),
        Err(examples) => Err(format!("{examples}, or `forever`")),
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_a_duration_has_examples() {
        assert_eq!(duration("1m 30s"), Ok(Duration::from_secs(90)));
        assert!(duration("1 fortnight").expect_err("not a duration").contains("`30s`"));
    }

    #[test]
    fn a_wait_may_be_for_ever_or_one_try() {
        assert_eq!(wait("forever"), Ok(Wait::Forever));
        assert_eq!(wait("0"), Ok(Wait::Never));
        assert_eq!(wait("1.5"), Ok(Wait::For(Duration::from_millis(1500))));
        assert!(wait("ever").expect_err("no duration").contains("forever"));
    }
}
