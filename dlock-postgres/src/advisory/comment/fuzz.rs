//! Fuzz targets of the comments in statements.

use super::*;

#[test]
fn the_comment_of_a_statement_is_read_as_it_was_written() {
    dlock_fuzz::target!("comment").check(|input| {
        let written = ClaimComment {
            id: "6d5e8b1c-3f2a-4c5d-9e8f-0123456789ab".to_owned(),
            kind: input.pick(0, KINDS),
            ttl: Duration::from_millis(input.number(1)),
            who: input.text().into_owned(),
            name: Some(input.other_text().into_owned()),
        };
        let text = written.text();
        assert_eq!((text.matches(END).count(), text.contains(['\'', '\\', '\0'])), (1, false), "{text}");
        let found = ClaimComment::find(&input.text()).filter(|comment| comment.name.is_some());
        for comment in found.into_iter().chain([written]) {
            let text = comment.text();
            assert_eq!(ClaimComment::find(&format!("{text} SELECT 1")), Some(comment), "{text}");
        }
    });
}

#[test]
fn a_statement_that_the_server_has_cut_has_no_other_claim() {
    dlock_fuzz::target!("comment").check(|input| {
        let statement = input.text();
        let Some(whole) = ClaimComment::find(&statement) else { return };
        let end = usize::try_from(input.number(0)).unwrap_or_default() % (statement.len() + 1);
        let Some(cut) = statement.get(..end).and_then(ClaimComment::find) else { return };
        assert_eq!((&cut.id, cut.kind, cut.ttl, &cut.who), (&whole.id, whole.kind, whole.ttl, &whole.who));
        assert!(cut.name.is_none() || cut.name == whole.name);
    });
}
