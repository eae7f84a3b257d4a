//! Fuzz targets of the names of keys.

use redis::cluster_routing::Slot;

use super::*;

/// Returns whether Redisson, and so dlock, gives two names the same keys beside the lock's own.
/// Redisson writes the name `x` as `{x}` in other keys, and `{x}` as it is.
fn share_keys(first: &str, second: &str) -> bool {
    first == second || first == format!("{{{second}}}") || second == format!("{{{first}}}")
}

#[test]
fn two_names_never_have_the_same_keys() {
    dlock_fuzz::names!("key").check(|input| {
        let prefix = input.pick(0, &["", "app:", "{app}:"]);
        let new = input.pick(1, &[Keys::new, Keys::on_cluster]);
        let Ok(first) = LockName::new(input.text()) else { return };
        // A name is most likely to collide with the name that is its key.
        let key = new("", &first).lock().to_owned();
        let Ok(second) = LockName::new(input.pick(2, &[input.other_text().into_owned(), key])) else {
            return;
        };
        let (first_keys, second_keys) = (new(prefix, &first), new(prefix, &second));
        assert_eq!(first == second, first_keys.lock() == second_keys.lock(), "{first} {second}");
        let others =
            |keys: &Keys| [keys.token(), keys.queue(), keys.channel(), keys.tag()].map(|key| key.to_string());
        let is_same =
            others(&first_keys).iter().zip(others(&second_keys)).any(|(first, second)| *first == second);
        assert!(!is_same || share_keys(first_keys.lock(), second_keys.lock()), "{first} {second}");
        let waiters = first_keys.queue().to_string();
        let of_waiters = lock_of_waiter_key(&waiters).expect("a key of waiters");
        assert!(share_keys(of_waiters, first_keys.lock()), "{waiters} belongs to {of_waiters}");
    });
}

#[test]
fn the_keys_of_a_lock_on_a_cluster_are_in_one_slot() {
    dlock_fuzz::names!("slot").check(|input| {
        let Ok(name) = LockName::new(input.text()) else { return };
        let keys = Keys::on_cluster("", &name);
        assert_eq!(name_on_cluster(keys.lock()), name.as_str());
        assert!(is_regular(keys.lock()), "{}", keys.lock());
        let slot = Slot::for_key(keys.lock());
        let owner = owner(ClaimId::from_bytes([7; 16]));
        let all =
            [keys.for_fair().to_vec(), keys.for_rw(&owner).to_vec(), keys.for_permit().to_vec()].concat();
        for key in all.iter().chain(&[keys.token()]) {
            assert_eq!(Slot::for_key(key.to_string()), slot, "{key} of {name}");
        }
    });
}

#[test]
fn a_key_of_another_program_is_read_without_an_error() {
    dlock_fuzz::target!("key").check(|input| {
        let (key, other) = (input.text(), input.other_text());
        if let Some(name) = lock_of_waiter_key(&key) {
            assert!(!name.is_empty() || key.ends_with(':') || key.ends_with("{}"), "{key}");
            assert!(key.contains(name));
        }
        if let Some(rest) = key.strip_prefix(ESCAPED) {
            assert!(name_on_cluster(&key).len() <= rest.len());
        } else {
            assert_eq!(name_on_cluster(&key), key);
        }
        if let Some(label) = who_key(&key) {
            assert!(key.ends_with(":0") && key.len() == 38, "{key}");
            let digits: String = key.chars().filter(|c| *c != '-').take(10).collect();
            assert_eq!(label_key("", label), format!("dlock_who:{}", digits.to_lowercase()));
        }
        // A pattern matches the text that it was made of, and every text behind it.
        let pattern = pattern("", &other);
        assert!(matches(pattern.as_bytes(), format!("{other}{key}").as_bytes()), "{pattern} {other}{key}");
        let is_found = matches(pattern.as_bytes(), key.as_bytes());
        assert_eq!(is_found, key.starts_with(&*other), "{pattern} {key}");
    });
}

/// Returns whether a pattern without sets matches a text, by the rules of `SCAN`.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern, text) {
        ([b'*'], _) => true,
        ([b'\\', literal, pattern @ ..], [byte, text @ ..]) => literal == byte && matches(pattern, text),
        ([b'?', pattern @ ..], [_, text @ ..]) => matches(pattern, text),
        ([b'*' | b'[', ..], _) => panic!("a wildcard that is not escaped"),
        ([literal, pattern @ ..], [byte, text @ ..]) => literal == byte && matches(pattern, text),
        (pattern, text) => pattern.is_empty() && text.is_empty(),
    }
}
