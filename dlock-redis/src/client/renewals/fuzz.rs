//! Fuzz target of the replies to renewals. The inputs are replies in the protocol of Redis.

use super::*;

#[test]
fn only_the_reply_of_a_script_ends_or_confirms_a_hold() {
    dlock_fuzz::target!("reply").check(|input| {
        let Ok(reply) = redis::parse_redis_value(input.bytes()) else { return };
        let count = input.pick(0, &[0, 1, 2, 3]);
        if let Ok(held) = parse(&reply, count) {
            let sent = held.iter().map(|held| Value::Int((*held).into())).collect();
            assert_eq!((reply, count), (Value::Array(sent), held.len()));
        }
    });
}
