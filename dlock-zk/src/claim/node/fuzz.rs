//! Fuzz target of the tokens in the data of nodes.

use super::*;

#[test]
fn the_token_of_a_node_is_the_one_in_its_data_or_that_of_its_transaction() {
    dlock_fuzz::target!("data").check(|input| {
        let (data, created) = (input.bytes(), input.signed(0));
        let token = token_of(data, created);
        assert!(token == created.unsigned_abs() || data.contains(&b'\n'), "{token}");
        let label = input.other_text().replace(char::is_control, "?");
        assert_eq!(token_of(&downgraded_data(input.number(1), &label), created), input.number(1));
        assert_eq!(token_of(label.as_bytes(), created), created.unsigned_abs());
    });
}
