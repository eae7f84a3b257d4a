//! Fuzz targets of the names of marks.

use super::*;

#[test]
fn a_name_is_no_mark_or_the_mark_of_its_parts() {
    dlock_fuzz::target!("mark").check(|input| {
        let Ok(mark) = LockName::new(input.text()) else { return };
        if let Some((name, key)) = parse(&mark) {
            assert!(is_mark(&mark));
            assert_eq!(mark_name(&name, &key).ok(), Some(mark), "of `{name}` and `{key}`");
        }
    });
}

#[test]
fn two_occurrences_never_have_the_same_mark() {
    dlock_fuzz::names!("mark-name").check(|input| {
        let (Ok(first), Ok(second)) = (LockName::new(input.text()), LockName::new(input.other_text())) else {
            return;
        };
        // Each name with the other as its key.
        let pairs = [(&first, second.as_str()), (&second, first.as_str()), (&first, first.as_str())];
        let marks = pairs.map(|(name, key)| mark_name(name, key).ok());
        for ((name, key), mark) in pairs.iter().zip(&marks) {
            let Some(mark) = mark else { continue };
            assert_eq!(parse(mark), Some(((*name).clone(), (*key).to_owned())));
        }
        assert!(first == second || marks[0].is_none() || marks[0] != marks[1], "{marks:?}");
    });
}
