//! Fuzz target of the columns of the queue.

use super::*;

#[test]
fn the_columns_of_a_claim_are_read_as_they_were_written() {
    dlock_fuzz::names!("columns").check(|input| {
        let (prefix, name) = (input.text(), input.other_text());
        let bound = upper_bound(&prefix);
        let is_between = *name.as_bytes() >= *prefix.as_bytes() && *name.as_bytes() < *bound;
        assert_eq!(is_between, name.starts_with(&*prefix), "{prefix} {name}");
        if let Ok(name) = LockName::new(&*name) {
            assert!((0..1024).contains(&bucket(&name)), "{name}");
        }
        let code = input.number(0) as i16;
        assert_eq!(parse_kind(code).and_then(|kind| kind_code(kind).ok()).is_some(), (1..=5).contains(&code));
        let id = ClaimId::from_bytes(u128::from(input.number(1)).to_be_bytes());
        assert_eq!(claim_id(uuid(id)), id);
        let (read, given) = (duration(micros(input.duration(2))), input.duration(2));
        assert!(read <= given && (given - read < Duration::from_micros(1) || read == duration(i64::MAX)));
        assert_eq!(duration(input.signed(4)).as_micros(), u128::from(input.signed(4).max(0).unsigned_abs()));
    });
}
