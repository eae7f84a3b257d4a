//! Fuzz targets of the values on the command line.

use std::os::unix::ffi::OsStrExt as _;

use super::*;

#[test]
fn a_range_has_two_durations_in_order() {
    dlock_fuzz::target!("range").check(|input| {
        let text = input.text();
        if let Ok(range) = range(&text) {
            assert!(!range.start.is_zero() && range.start <= range.end, "{range:?}");
            let (start, end) = text.split_once("..").expect("two parts");
            assert_eq!((duration(start), duration(end)), (Ok(range.start), Ok(range.end)));
        }
        assert_eq!(ttl(&text).ok(), duration(&text).ok().filter(|ttl| !ttl.is_zero()), "{text}");
    });
}

#[test]
fn a_name_or_ticket_is_legal_or_refused_in_printable_words() {
    dlock_fuzz::target!("argument").check(|input| {
        let argument = OsStr::from_bytes(input.bytes());
        match name(argument) {
            Ok(name) => assert_eq!(name.as_str().as_bytes(), input.bytes()),
            Err(failure) => {
                let shown = format!("{failure:?}");
                assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown}");
            }
        }
        if let Ok(ticket) = ticket(argument) {
            assert_eq!(ticket.to_string().parse().ok(), Some(ticket));
        }
    });
}
