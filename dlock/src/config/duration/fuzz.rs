//! Fuzz target of the notation of wait limits.

use super::*;

#[test]
fn a_wait_limit_is_a_duration_or_one_of_its_words() {
    dlock_fuzz::target!("wait").check(|input| {
        let text = input.text();
        let expected = match (duration(&text), &*text) {
            (_, "forever") => Some(Wait::Forever),
            (Ok(Duration::ZERO), _) => Some(Wait::Never),
            (Ok(limit), _) => Some(Wait::For(limit)),
            (Err(_), _) => None,
        };
        assert_eq!(wait(&text).ok(), expected, "{text}");
    });
}
