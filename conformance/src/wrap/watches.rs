//! Hints for observers that never arrive, or that arrive without end and without a cause.

use std::{future::pending, time::Duration};

use async_trait::async_trait;
use dlock_core::driver::Watch;
use tokio::time::sleep;

use super::Habit;

/// Interval of hints without a cause.
const INTERVAL: Duration = Duration::from_millis(20);

/// Returns the watch of a store with this habit.
pub(super) fn of_habit(habit: Option<Habit>, watch: Option<Box<dyn Watch>>) -> Option<Box<dyn Watch>> {
    match habit {
        Some(Habit::Deaf) => Some(Box::new(Deaf)),
        Some(Habit::Chatty) => Some(Box::new(Chatty)),
        _ => watch,
    }
}

struct Deaf;

#[async_trait]
impl Watch for Deaf {
    async fn changed(&mut self) {
        pending().await
    }
}

struct Chatty;

#[async_trait]
impl Watch for Chatty {
    async fn changed(&mut self) {
        sleep(INTERVAL).await;
    }
}
