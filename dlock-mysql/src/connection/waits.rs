//! Doorbells of other clients, and the sessions that wait for them. These are few: a claim that gets none polls.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dlock_core::Result;
use futures_util::future::BoxFuture;
use sqlx::{AssertSqlSafe, mysql::MySqlConnection};
use tokio::sync::Semaphore;

use super::Dial;
use crate::{error, sql::AWAIT_BELL};

/// The sessions of one client that wait.
#[derive(Clone)]
pub(crate) struct Waits(Arc<Shared>);

struct Shared {
    dial: Arc<Dial>,
    /// Sessions that wait for nothing at the moment.
    idle: Mutex<Vec<MySqlConnection>>,
    places: Arc<Semaphore>,
}

impl Waits {
    pub(super) fn new(dial: Arc<Dial>) -> Self {
        let places = Arc::new(Semaphore::new(dial.config.waits));
        let waits = Self(Arc::new(Shared { dial, idle: Mutex::default(), places }));
        if !waits.were_on() {
            waits.give_up();
        }
        waits
    }

    /// Whether doorbells are in use, or were.
    pub(crate) fn were_on(&self) -> bool {
        self.0.dial.config.waits > 0
    }

    /// Whether doorbells are in use.
    pub(crate) fn are_on(&self) -> bool {
        !self.0.places.is_closed()
    }

    /// Whether a session is left to wait for one more doorbell.
    pub(crate) fn has_place(&self) -> bool {
        self.are_on() && self.0.places.available_permits() > 0
    }

    /// From now on nobody waits for a doorbell, and claims take none. Those who wait for one go on.
    pub(crate) fn give_up(&self) {
        self.0.places.close();
    }

    /// A wait for a doorbell, if a session is left for it. It ends when the doorbell rings, or its client is gone. Dropping it ends
    /// its session: the server gives up the wait within a second.
    pub(crate) fn for_bell(&self, bell: &str) -> Option<BoxFuture<'static, ()>> {
        let place = Arc::clone(&self.0.places).try_acquire_owned().ok()?;
        let (shared, batch) = (Arc::clone(&self.0), AWAIT_BELL.with(&[("bell", bell)]));
        Some(Box::pin(async move {
            // What fails is told like a ring: the claim looks, and asks from then on.
            shared.wait(&batch).await.ok();
            drop(place);
        }))
    }
}

impl Shared {
    /// Waits with a session that was kept, or with a new one if there is none, or if the server has ended it or is read-only now.
    async fn wait(&self, batch: &str) -> Result<()> {
        let kept = self.idle().pop();
        if let Some(session) = kept {
            match self.wait_with(session, batch).await {
                Err(error) if error::is_broken(&error) => {}
                waited => return waited.map_err(error::explain),
            }
        }
        let (session, _) = self.dial.session(None).await?;
        self.wait_with(session, batch).await.map_err(error::explain)
    }

    async fn wait_with(&self, mut session: MySqlConnection, batch: &str) -> sqlx::Result<()> {
        sqlx::raw_sql(AssertSqlSafe(batch)).execute(&mut session).await?;
        self.idle().push(session);
        Ok(())
    }

    fn idle(&self) -> MutexGuard<'_, Vec<MySqlConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
