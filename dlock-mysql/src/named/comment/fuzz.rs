//! Fuzz targets of the comments in statements.

use super::*;

#[test]
fn the_comment_of_a_statement_is_read_as_it_was_written() {
    dlock_fuzz::target!("comment").check(|input| {
        let statement = input.text();
        let written = ClaimComment {
            id: "6d5e8b1c-3f2a-4c5d-9e8f-0123456789ab".to_owned(),
            ttl: Duration::from_millis(input.number(0)),
            who: input.text().into_owned(),
            name: input.other_text().into_owned(),
        };
        let text = written.text();
        assert!(
            !text.contains("*/") && !text.contains(['\'', '\\', '\0']),
            "{text} ends a comment or a literal"
        );
        for comment in ClaimComment::find(&statement).into_iter().chain([written]) {
            let text = comment.text();
            assert_eq!(ClaimComment::find(&format!("SELECT 1 {BEGIN}{text}*/")), Some(comment), "{text}");
        }
    });
}
