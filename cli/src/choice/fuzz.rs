//! Fuzz target of the check of the option `--store`.

use super::*;

#[test]
fn the_check_of_a_store_refuses_only_what_is_no_url_of_a_shared_store() {
    dlock_fuzz::target!("store").check(|input| {
        let text = input.text();
        let parsed = text.parse::<StoreUrl>();
        if check(&text).is_ok() {
            assert!(parsed.as_ref().is_ok_and(|url| url.scheme() != MEMORY) || parsed.is_err(), "{text}");
        }
        if is_relative(&text) {
            assert!(text.to_ascii_lowercase().starts_with("sqlite:"), "{text}");
        }
    });
}
