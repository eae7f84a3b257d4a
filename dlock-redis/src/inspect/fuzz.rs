//! Fuzz target of the replies to inspections. The inputs are replies in the protocol of Redis.

use super::*;

#[test]
fn an_inspection_shows_what_the_reply_has() {
    dlock_fuzz::target!("inspection").check(|input| {
        let Ok(reply) = redis::parse_redis_value(input.bytes()) else { return };
        let Ok(raw) = parse::<RawState>(reply.clone()) else { return };
        let count = raw.1.len() + raw.2.len();
        let name = LockName::new("x").expect("legal");
        if let Some(state) = state(&name, raw) {
            assert!(!state.is_free() && state.name == name);
            assert!(state.holders.len() + state.queue.len() <= count, "{reply:?}");
            let claims = || state.holders.iter().chain(&state.queue);
            for claim in claims() {
                assert!(claim.ttl_left.is_none_or(|left| left.as_millis() <= i64::MAX as u128), "{reply:?}");
                assert!(
                    claim.token.is_none_or(|token| input.text().contains(&token.to_string())),
                    "{reply:?}"
                );
            }
            assert!(state.holders.is_sorted_by_key(|holder| (holder.token, holder.id.clone())));
        }
        for _ in [
            parse::<(String, Vec<Value>)>(reply.clone()).ok().map(drop),
            parse::<Vec<usize>>(reply).ok().map(drop),
        ] {}
    });
}
