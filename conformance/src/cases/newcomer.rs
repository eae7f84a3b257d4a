//! A newcomer to a lock whose holder died long ago. No client waited in between, so the death was
//! not noticed.

use std::sync::Arc;

use dlock_core::{Guard, Kind, Token};
use tokio::time::sleep;

use crate::{
    Arena,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    cases! {
        "newcomer" (Kind::Mutex) [] { a_try_gets_a_lock_whose_holder_died_unnoticed }
        "newcomer" (Kind::Mutex) [Need::Tokens] {
            a_newcomers_token_is_greater_than_that_of_a_holder_that_died,
        }
    }
}

/// Returns the token of a holder that died and whose ttl is over, and the guard of the next holder.
async fn after_a_death(arena: &Arena) -> (Option<Token>, Guard) {
    let ((a, switch), b) = (arena.client_with_switch().await, arena.client().await);
    let dead = arena.lock(&a).lock(&arena.short()).await.expect("the lock is free");
    switch.kill();
    sleep(arena.forgotten_after(&b, arena.short_ttl()) + arena.short_ttl() / 2).await;
    let tried = async {
        loop {
            if let Some(held) = arena.try_take(&b, arena.kind()).await {
                return held;
            }
            sleep(arena.short_ttl() / 20).await;
        }
    };
    let next = arena.within(arena.short_ttl(), "a dead holder blocks other clients", tried).await;
    (dead.token(), next)
}

pub(super) async fn a_try_gets_a_lock_whose_holder_died_unnoticed(arena: Arc<Arena>) {
    let (_, next) = after_a_death(&arena).await;
    assert!(!next.is_lost(), "the lock was lost right after its grant");
}

pub(super) async fn a_newcomers_token_is_greater_than_that_of_a_holder_that_died(arena: Arc<Arena>) {
    let (dead, next) = after_a_death(&arena).await;
    assert!(next.token() > dead, "the token did not grow: {next:?} after {dead:?}");
}
