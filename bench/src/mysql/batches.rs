//! Locks without dlock. One batch of statements takes a lock, and another one releases it.

use sqlx::mysql::MySqlConnection;
use tokio::sync::Mutex;

use super::execute;
use crate::contest::{Client, Outcome};

/// Takes and releases the named lock `:name`.
pub(super) const GET_LOCK: [&str; 2] = ["SELECT GET_LOCK(':name', 60)", "SELECT RELEASE_LOCK(':name')"];

/// Takes and releases the named lock `:name`, and draws a token.
pub(super) const GET_LOCK_AND_COMMIT: [&str; 2] = [
    "SELECT GET_LOCK(':name', 60);
     UPDATE dlock_fence SET last = LAST_INSERT_ID(last + 1) WHERE bucket = CRC32(':name') % 1024;
     SELECT LAST_INSERT_ID()",
    "SELECT RELEASE_LOCK(':name')",
];

/// Inserts and deletes one row, which is the least that a lock in the queue costs.
pub(super) const INSERT_AND_DELETE: [&str; 2] = [
    // The keys are new each time, as those of locks are. Repeated keys would stay on the same page
    // of the index.
    "INSERT INTO dlock_queue VALUES (':name', UUID_SHORT(), UNHEX(MD5(UUID())), 'mutex', 1, 1, 1, '')",
    "DELETE FROM dlock_queue WHERE name = ':name'",
];

pub(super) struct Batches {
    session: Mutex<MySqlConnection>,
    batches: [&'static str; 2],
}

impl Batches {
    /// Locks with the first of the batches, and unlocks with the second.
    pub(super) fn on(session: MySqlConnection, batches: [&'static str; 2]) -> Self {
        Self { session: Mutex::new(session), batches }
    }
}

impl Client for Batches {
    /// The lock's name.
    type Held = String;

    async fn lock(&self, name: &str) -> Outcome<String> {
        execute(&mut *self.session.lock().await, &self.batches[0].replace(":name", name)).await?;
        Ok(name.to_owned())
    }

    async fn unlock(&self, held: String) -> Outcome {
        execute(&mut *self.session.lock().await, &self.batches[1].replace(":name", &held)).await
    }
}
