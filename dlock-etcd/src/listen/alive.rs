//! The part of the task that does the duties of the session when their time comes: signs of life, and deletions of overdue claims.

use std::future::pending;

use dlock_core::{Error, driver::Backoff};
use tokio::time::sleep_until;

use crate::client::Session;

/// Does them without an end.
pub(super) async fn stay_alive(session: &Session) {
    let mut backoff = Backoff::background();
    let mut is_late = false;
    loop {
        let next = session.plan(is_late);
        let wait = async {
            match next {
                Some(next) => sleep_until(next.instant().max(backoff.next_attempt())).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = session.knocked() => continue,
            () = wait => {}
        }
        backoff.note_attempt();
        let told = session.do_duties().await;
        // After a refusal it is time enough with the next sign of life.
        is_late = told.as_ref().is_err_and(Error::is_transient);
        if told.is_ok() {
            backoff.note_answer();
        }
    }
}
