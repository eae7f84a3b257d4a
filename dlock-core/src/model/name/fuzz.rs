//! Fuzz target of the check of names.

use super::*;

#[test]
fn a_text_is_a_name_as_it_is_or_is_refused_in_printable_words() {
    dlock_fuzz::names!("name").check(|input| {
        let text = input.text();
        match LockName::new(&text) {
            Ok(name) => {
                assert_eq!(
                    (name.as_str(), name.to_string().parse::<LockName>().ok()),
                    (&*text, Some(name.clone()))
                );
                assert!((1..=1024).contains(&text.len()) && !text.contains(char::is_control));
            }
            Err(error) => {
                let shown = error.to_string();
                assert!(matches!(error, Error::InvalidName { .. }), "{error:?}");
                assert!(!shown.contains(char::is_control), "{shown:?}");
                assert!(text.is_empty() || text.len() > 1024 || text.contains(char::is_control), "{shown}");
            }
        }
    });
}
