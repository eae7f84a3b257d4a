//! Fuzz target of the text of ids.

use super::*;

#[test]
fn an_id_is_read_back_from_its_text() {
    dlock_fuzz::target!("id").check(|input| {
        let text = input.text();
        let bytes = (u128::from(input.number(0)) << 64 | u128::from(input.number(1))).to_be_bytes();
        let generated = ClaimId::from_bytes(bytes);
        for id in text.parse::<ClaimId>().into_iter().chain([generated]) {
            let shown = id.to_string();
            assert_eq!(shown.parse::<ClaimId>().ok(), Some(id), "{shown}");
            assert!(id.is_reported_as(&shown) && ClaimId::from_bytes(*id.as_bytes()) == id);
        }
        if generated.is_reported_as(&text) {
            assert_eq!(text.get(..30), generated.to_string().get(..30));
        }
    });
}
