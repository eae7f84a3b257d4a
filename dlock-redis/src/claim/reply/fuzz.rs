//! Fuzz targets of the replies to attempts, hand-overs and releases. The inputs are replies in the
//! protocol of Redis.

use dlock_core::{Error, Kind, LockName};

use super::*;

#[test]
fn only_the_replies_of_scripts_grant_hand_over_or_release_a_lock() {
    dlock_fuzz::target!("reply").check(|input| {
        let Ok(reply) = redis::parse_redis_value(input.bytes()) else { return };
        let kind = input.pick(0, Kind::ALL);
        let is_plain = input.number(1) % 2 == 0;
        let request = Request::new(LockName::new("x").expect("legal"), kind, Duration::from_secs(1));
        match parse_attempt(&request, is_plain, reply.clone()) {
            Ok(AttemptReply::Granted(token)) => match &reply {
                Value::BulkString(text) => {
                    let number: u64 =
                        std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).expect("a number");
                    assert_eq!(token, Token::new(number), "{reply:?}");
                }
                reply => assert!(is_plain && *reply == Value::Int(-2) && token.is_none(), "{reply:?}"),
            },
            Ok(AttemptReply::Busy { retry_in, arrival }) => {
                assert!(matches!(reply, Value::Int(_) | Value::Array(_)), "{reply:?}");
                assert!(retry_in <= Duration::from_millis(i64::MAX.unsigned_abs()) && arrival != Some(0));
            }
            Err(error) => {
                let is_status = matches!(reply, Value::SimpleString(_));
                assert_eq!(is_status, matches!(error, Error::WrongKind { .. }), "{reply:?}: {error:?}");
            }
        }
        let is_script = |parts: &[Value]| match parts {
            [Value::Int(0)] => Some(false),
            [Value::Int(1 | 2), ..] => Some(true),
            _ => None,
        };
        let parts = match &reply {
            Value::Array(parts) => &parts[..],
            _ => &[],
        };
        if let Ok(handed_over) = parse_hand_over(&reply) {
            assert_eq!(is_script(parts), Some(handed_over.is_some()), "{reply:?}");
            if let Some(HandedOver { token, .. }) = handed_over {
                assert!(token.is_none_or(|token| input.text().contains(&token.to_string())), "{reply:?}");
            }
        }
        match parse_release(&reply) {
            Ok(held) => assert_eq!(reply, Value::Int(held.into())),
            Err(error) => assert!(!matches!(reply, Value::Int(0 | 1)), "{error:?}"),
        }
    });
}
