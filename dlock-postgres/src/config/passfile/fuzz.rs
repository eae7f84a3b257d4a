//! Fuzz target of the password file.

use super::*;

#[test]
fn a_line_that_was_escaped_is_found_and_no_other() {
    dlock_fuzz::target!("pgpass").check(|input| {
        let content = format!("{}\n", input.text());
        let one_line = |text: &str| text.replace(['\n', '\r'], "");
        let [user, password] = [one_line(&input.text()), one_line(&input.other_text())];
        let escaped = |text: &str| text.replace('\\', "\\\\").replace(':', "\\:").replace('*', "\\*");
        let wanted = Wanted { hosts: &["h"], port: 1, database: "d", user: &user };
        let line = format!("h:1:d:{}:{}", escaped(&user), escaped(&password));
        assert_eq!(find(&line, &wanted).as_ref(), Some(&password), "{line}");
        let found = find(&content, &wanted);
        let last = find(&format!("{content}{line}"), &wanted);
        assert_eq!(last, found.or(Some(password)), "{content}");
    });
}
