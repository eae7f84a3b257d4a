//! The replies of the scripts to attempts, hand-overs and releases.

use std::time::Duration;

use dlock_core::{Result, Token, driver::Request};
use redis::Value;

use super::MAX_RETRY_IN;
use crate::error::{self, STORE};

/// The server's reply to an attempt.
pub(super) enum AttemptReply {
    Granted(Option<Token>),
    Busy {
        retry_in: Duration,
        /// Arrival of a waiter of a read/write lock. For a fair lock, 1 if the claim is the first
        /// waiter.
        arrival: Option<u64>,
    },
}

/// The server's reply after a hold was detached or resumed.
pub(super) struct HandedOver {
    pub(super) token: Option<Token>,
    /// Time that the hold would have lasted under its former id. `None` if it already had the new
    /// id.
    pub(super) remaining: Option<Duration>,
}

pub(super) fn wrong_kind(request: &Request, found: &str) -> dlock_core::Error {
    error::wrong_kind(&request.name, request.kind, found)
}

/// Parses the reply to an attempt.
pub(super) fn parse_attempt(request: &Request, is_plain: bool, reply: Value) -> Result<AttemptReply> {
    let busy = |left: i64, arrival: i64| AttemptReply::Busy {
        retry_in: u64::try_from(left).map_or(MAX_RETRY_IN, Duration::from_millis),
        arrival: u64::try_from(arrival).ok().filter(|arrival| *arrival > 0),
    };
    match reply {
        Value::Int(-2) if is_plain => Ok(AttemptReply::Granted(None)),
        Value::Int(left) => Ok(busy(left, 0)),
        Value::BulkString(token) => parse_token(&token).map(AttemptReply::Granted),
        Value::SimpleString(found) => Err(wrong_kind(request, &found)),
        Value::Array(parts) => match parts[..] {
            [Value::Int(left), Value::Int(arrival)] => Ok(busy(left, arrival)),
            _ => Err(STORE.unexpected_reply("an attempt")),
        },
        _ => Err(STORE.unexpected_reply("an attempt")),
    }
}

/// Parses the reply to a hand-over. Returns `None` if no hold was handed over.
pub(super) fn parse_hand_over(reply: &Value) -> Result<Option<HandedOver>> {
    let Value::Array(parts) = reply else { return Err(STORE.unexpected_reply("a hand-over")) };
    let number = |part: &Value| match part {
        Value::BulkString(text) => std::str::from_utf8(text).ok()?.parse::<u64>().ok(),
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    };
    match &parts[..] {
        [Value::Int(0)] => Ok(None),
        [Value::Int(1 | 2), token, rest @ ..] => {
            let token = number(token).ok_or_else(|| STORE.unexpected_reply("a fencing token"))?;
            let remaining = rest.first().and_then(number).map(Duration::from_millis);
            Ok(Some(HandedOver { token: Token::new(token), remaining }))
        }
        _ => Err(STORE.unexpected_reply("a hand-over")),
    }
}

/// Parses the reply to a release. Returns whether the claim held the lock.
pub(super) fn parse_release(reply: &Value) -> Result<bool> {
    match reply {
        Value::Int(0) => Ok(false),
        Value::Int(1) => Ok(true),
        _ => Err(STORE.unexpected_reply("a release")),
    }
}

/// Parses the token of a grant. `0` means that the claim has no token.
pub(super) fn parse_token(text: &[u8]) -> Result<Option<Token>> {
    let token = std::str::from_utf8(text).ok().and_then(|token| token.parse().ok());
    token.map(Token::new).ok_or_else(|| STORE.unexpected_reply("a fencing token"))
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_reply_of_a_script_confirms_a_release() {
        assert!(parse_release(&Value::Int(1)).expect("a reply of the script"));
        assert!(!parse_release(&Value::Int(0)).expect("a reply of the script"));
        for reply in [Value::Nil, Value::Okay, Value::Int(2), Value::Array(vec![])] {
            parse_release(&reply).expect_err("taken for a release");
        }
    }
}
