//! Fuzz targets of labels.

use super::*;

#[test]
fn a_text_is_a_label_as_it_is_or_becomes_one() {
    dlock_fuzz::names!("label").check(|input| {
        let text = input.text();
        if let Ok(who) = Who::new(&*text) {
            assert_eq!((who.text(), who.to_string()), (&*text, text.to_string()));
            assert!((1..=Who::MAX_LEN).contains(&text.len()) && !text.contains(char::is_control));
        }
        let doing = Who::doing(&text);
        assert_eq!(Who::new(doing.text()).ok(), Some(doing));
    });
}

#[cfg(unix)]
#[test]
fn the_name_of_a_user_is_a_field_of_an_account() {
    dlock_fuzz::target!("accounts").check(|input| {
        let accounts = input.text();
        for uid in [0, 33, u32::MAX, input.number(0) as u32] {
            if let Some(name) = name_of(uid, &accounts) {
                assert!(!name.is_empty() && !name.contains([':', '\n']), "{name}");
                assert!(accounts.contains(&format!("{name}:")), "{name}");
            }
        }
    });
}
