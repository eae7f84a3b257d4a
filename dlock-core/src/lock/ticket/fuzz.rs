//! Fuzz targets of the text of tickets.

use super::*;

#[test]
fn a_text_is_no_ticket_or_the_ticket_of_another_text() {
    dlock_fuzz::target!("ticket").check(|input| {
        let text = input.text();
        match text.parse::<Ticket>() {
            Ok(ticket) => {
                let shown = ticket.to_string();
                assert_eq!(shown.parse::<Ticket>().ok(), Some(ticket.clone()), "{shown}");
                assert!(ticket.name.check().is_ok(), "{shown}");
                let written = ticket.kind == Kind::Permit || ticket.limit == NonZeroU32::MIN;
                assert!(written, "{shown} does not show its limit");
            }
            Err(Error::InvalidOptions { reason }) => {
                assert!(reason.starts_with("not a ticket: "), "{reason}")
            }
            Err(Error::InvalidName { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
    });
}

#[test]
fn two_tickets_never_have_the_same_text() {
    dlock_fuzz::names!("ticket-name").check(|input| {
        let ticket = |name: &str, shift: usize| {
            let kind = input.pick(shift, Kind::ALL);
            let limit = NonZeroU32::new(input.number(2) as u32).filter(|_| kind == Kind::Permit);
            Some(Ticket {
                name: LockName::new(name).ok()?,
                kind,
                limit: limit.unwrap_or(NonZeroU32::MIN),
                id: ClaimId::from_bytes(u128::from(input.number(3)).to_le_bytes()),
                token: Token::new(input.number(4 + shift)),
                locator: [None, Some("v.w.v"), Some("0")][input.number(5) as usize % 3].map(Into::into),
            })
        };
        let (first, second) = (ticket(&input.text(), 0), ticket(&input.other_text(), 1));
        for ticket in [&first, &second].into_iter().flatten() {
            assert_eq!(ticket.to_string().parse::<Ticket>().ok().as_ref(), Some(ticket));
        }
        if let (Some(first), Some(second)) = (first, second) {
            assert_eq!(first == second, first.to_string() == second.to_string(), "{first} {second}");
        }
    });
}
