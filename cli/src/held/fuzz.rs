//! Fuzz target of the variable with the locks of the outer dlocks.

use super::*;

#[test]
fn the_variable_is_read_as_it_was_written_or_is_refused() {
    dlock_fuzz::target!("held").check(|input| {
        let Ok(held) = serde_json::from_str::<Vec<Held>>(&input.text()) else { return };
        let name = LockName::new("x").expect("legal");
        for each in &held {
            for kind in Kind::ALL {
                let is_refused = each.kind == "read" && *kind != Kind::Read
                    || each.kind == "permit" && *kind != Kind::Permit;
                assert_eq!(each.admits(&name, *kind).is_err(), is_refused, "{each:?} {kind}");
            }
        }
        let mut again = OuterHolds(Vec::new());
        for each in &held {
            let text = again.clone().with(each.clone()).expect("JSON");
            let read: Vec<Held> = serde_json::from_str(&text).expect("its own text");
            assert_eq!(read.last(), Some(each), "{text}");
            let is_same = |other: &&Held| (&other.store, &other.name) == (&each.store, &each.name);
            assert_eq!(read.iter().filter(is_same).count(), 1, "{text}");
            again = OuterHolds(read);
        }
    });
}
