//! Fuzz targets of the kinds and names in the file.

use super::*;

#[test]
fn every_name_with_a_prefix_is_below_its_end_and_no_other() {
    dlock_fuzz::names!("end-of-prefix").check(|input| {
        let (prefix, name) = (input.text(), input.other_text());
        let is_below = end_of_prefix(&prefix).is_none_or(|end| name.as_bytes() < end.as_bytes());
        let is_between = name.as_bytes() >= prefix.as_bytes() && is_below;
        assert_eq!(is_between, name.starts_with(&*prefix), "{prefix} {name}");
        let limit = NonZeroU32::new(input.number(0) as u32);
        if let Some(kind) = kind(&name, limit) {
            assert_eq!((word(kind).ok(), limit.is_some()), (Some(&*name), kind == Kind::Permit));
        }
        if check_path(Path::new(&*name)).is_ok() {
            assert!(!name.contains(char::is_control));
        }
    });
}
