//! Fuzz target of the names of the clients' files.

use super::*;

#[test]
fn the_name_of_a_file_is_that_of_its_client() {
    dlock_fuzz::target!("fifo").check(|input| {
        let text = input.text();
        if let Some(client) = id(&text) {
            assert_eq!(name(client), text);
        }
        let client = ClaimId::from_bytes(u128::from(input.number(0)).to_be_bytes());
        assert_eq!(id(&name(client)), Some(client));
    });
}
