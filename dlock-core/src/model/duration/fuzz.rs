//! Fuzz targets of the notation of durations.

use super::*;

#[test]
fn a_duration_is_read_back_from_its_text() {
    dlock_fuzz::target!("duration").check(|input| {
        for duration in parse(&input.text()).into_iter().chain([input.duration(0)]) {
            let shown = text(duration);
            let read = parse(&shown).unwrap_or_else(|| panic!("{shown} of {duration:?} is not a duration"));
            let rounded = duration - read;
            let unit = if duration.as_nanos() > u64::MAX.into() { 1000 } else { 1 };
            assert!(rounded < Duration::from_millis(unit), "{shown} is {read:?}, not {duration:?}");
            assert!(rounded.is_zero() || read >= Duration::from_millis(1), "{shown} of {duration:?}");
            assert_eq!(text(read), shown);
        }
    });
}
