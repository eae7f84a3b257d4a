//! Fuzz targets of the keys of advisory locks.

use super::*;

const ALL: [KeyRule; 6] =
    [KeyRule::Dotnet, KeyRule::Ruby, KeyRule::Sqlx, KeyRule::Pglock, KeyRule::Hashtext, KeyRule::Number];

#[test]
fn the_name_of_a_key_is_the_name_that_has_it() {
    dlock_fuzz::target!("number").check(|input| {
        let Ok(name) = LockName::new(input.text()) else { return };
        if let Ok(key) = Key::of(&name, KeyRule::Number) {
            assert_eq!(key.name().as_deref(), Some(name.as_str()));
        }
        let columns = Key::of_columns(input.number(0) as u32, input.number(1) as u32, input.pick(2, &[1, 2]));
        let text = columns.name().expect("a number");
        let again = Key::of(&LockName::new(&text).expect("legal"), KeyRule::Number);
        assert_eq!(again.ok(), Some(columns), "{text}");
    });
}

#[test]
fn every_name_has_a_key_that_no_text_can_leave() {
    dlock_fuzz::names!("advisory").check(|input| {
        let (Ok(first), Ok(second)) = (LockName::new(input.text()), LockName::new(input.other_text())) else {
            return;
        };
        let key_rule = input.pick(0, &ALL);
        let keys = [&first, &second].map(|name| Key::of(name, key_rule));
        for (name, key) in [&first, &second].into_iter().zip(&keys) {
            let Ok(key) = key else {
                assert_eq!(key_rule, KeyRule::Number, "{name} has no key");
                continue;
            };
            for sql in [key.arguments(), key.condition()] {
                assert!(
                    sql.is_ascii() && sql.matches('\'').count() % 2 == 0 && !sql.contains([';', '\\']),
                    "{sql}"
                );
            }
            let is_whole = matches!(key, Key::Hashtext(text) if text == name.as_str());
            assert_eq!(is_whole, key_rule == KeyRule::Hashtext);
        }
        // Hashes may collide, but not those of inputs that were found by chance. CRC-32 is shorter, and
        // dotnet reads hexadecimal digits of both cases.
        if let [Ok(first_key), Ok(second_key)] = &keys
            && !matches!(key_rule, KeyRule::Ruby)
            && first.as_str().to_lowercase() != second.as_str().to_lowercase()
        {
            assert_ne!(first_key, second_key, "{first} {second}");
        }
    });
}
