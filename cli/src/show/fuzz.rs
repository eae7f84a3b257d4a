//! Fuzz target of texts of other programs in the output.

use super::*;

#[test]
fn a_text_of_another_program_misleads_no_terminal() {
    dlock_fuzz::names!("printable").check(|input| {
        let (text, other) = (input.text(), input.other_text());
        let shown = printable(&text);
        assert!(!shown.contains(is_misleading), "{shown:?}");
        assert!(text.contains(is_misleading) || shown == text, "{shown:?}");
        let Ok(name) = LockName::new(&*text) else { return };
        let contender =
            Contender::new(&*other, dlock::Kind::Mutex).since(input.duration(0)).ttl_left(input.duration(2));
        let mut state = LockState::new(name.clone());
        (state.holders, state.queue) = (vec![contender.clone().who(&*other)], vec![contender]);
        for shown in [
            table(std::slice::from_ref(&state)),
            page(&name, Some(&state)),
            holders(&state).unwrap_or_default(),
        ] {
            assert!(!shown.contains(|c| c != '\n' && is_misleading(c)), "{shown:?}");
        }
        assert_eq!(table(&[state]).lines().count(), 2, "{text:?}");
    });
}
