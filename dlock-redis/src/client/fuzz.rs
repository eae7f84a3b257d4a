//! Fuzz target of the refusal of late requests. The inputs are replies in the protocol of Redis.

use super::*;

#[test]
fn only_a_refusal_of_a_late_request_has_a_time() {
    dlock_fuzz::target!("reply").check(|input| {
        let Ok(reply) = redis::parse_redis_value(input.bytes()) else { return };
        if let Some(now) = time_of_refusal(&reply) {
            assert!(
                matches!(&reply, Value::SimpleString(text) if text.starts_with("late ")),
                "{reply:?} {now}"
            );
        }
        let written = Value::SimpleString(format!("late {}", input.number(0)));
        assert_eq!(time_of_refusal(&written), Some(input.number(0)));
    });
}
