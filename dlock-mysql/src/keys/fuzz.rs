//! Fuzz targets of named locks and of literals.

use super::*;

/// Returns the bytes of a literal of [`literal`].
fn value(literal: &str) -> Vec<u8> {
    let digits =
        literal.strip_prefix("x'").and_then(|rest| rest.strip_suffix('\'')).expect("a hexadecimal literal");
    let pairs = digits.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("digits"))
        .collect()
}

#[test]
fn two_names_never_have_the_same_named_lock() {
    dlock_fuzz::names!("named-lock").check(|input| {
        let (Ok(first), Ok(second)) = (LockName::new(input.text()), LockName::new(input.other_text())) else {
            return;
        };
        let names = input.pick(0, &[Names::Hashed, Names::Exact]);
        let locks = [&first, &second].map(|name| named_lock(name, names).ok());
        for (name, lock) in [&first, &second].into_iter().zip(&locks) {
            let Some(lock) = lock else {
                assert_eq!(names, Names::Exact, "{name} has no named lock");
                continue;
            };
            assert!((1..=LONGEST_NAMED_LOCK).contains(&lock.len()), "{lock}");
            assert!(lock.bytes().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase()), "{lock}");
            assert!(lock == name.as_str() || names == Names::Hashed && lock.len() >= 32, "{lock} of {name}");
            let quoted = named_literal(lock);
            let inner = quoted.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
            match inner {
                Some(inner) => assert!(inner == lock && !inner.contains(['\'', '\\']), "{quoted}"),
                None => {
                    let hex =
                        quoted.strip_prefix("CONVERT(").and_then(|rest| rest.strip_suffix(" USING utf8mb3)"));
                    assert_eq!(value(hex.expect("a conversion")), lock.as_bytes());
                }
            }
            assert!(!lock.starts_with(RESERVED) || inner.is_none(), "{quoted} could be a doorbell");
        }
        assert!(first == second || locks[0].is_none() || locks[0] != locks[1], "{locks:?}");
    });
}

#[test]
fn every_name_with_a_prefix_is_below_its_upper_bound_and_no_other() {
    dlock_fuzz::names!("upper-bound").check(|input| {
        let (prefix, name) = (input.text(), input.other_text());
        assert_eq!(value(&literal(name.as_bytes())), name.as_bytes());
        let bound = value(&upper_bound(&prefix));
        let is_between = *name.as_bytes() >= *prefix.as_bytes() && *name.as_bytes() < *bound;
        assert_eq!(is_between, name.starts_with(&*prefix), "{prefix} {name}");
        if let Some(kind) = parse_kind(&name) {
            assert_eq!(kind.name(), name);
        }
    });
}
