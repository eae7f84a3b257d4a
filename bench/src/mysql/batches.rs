//! Locks by hand: one batch of statements takes a lock, one releases it.

use sqlx::mysql::MySqlConnection;
use tokio::sync::Mutex;

use super::tell;
use crate::contest::{Client, Outcome};

/// What takes the lock `:name`, and what releases it.
pub(super) const GET_LOCK: [&str; 2] = ["SELECT GET_LOCK(':name', 60)", "SELECT RELEASE_LOCK(':name')"];

/// The same with a token.
pub(super) const GET_LOCK_AND_COMMIT: [&str; 2] = [
    "SELECT GET_LOCK(':name', 60);
     UPDATE dlock_fence SET last = LAST_INSERT_ID(last + 1) WHERE bucket = CRC32(':name') % 1024;
     SELECT LAST_INSERT_ID()",
    "SELECT RELEASE_LOCK(':name')",
];

/// The least that a row put and removed costs.
pub(super) const INSERT_AND_DELETE: [&str; 2] = [
    // Each time new keys, as locks have them: the server would put the same keys in the same place.
    "INSERT INTO dlock_queue VALUES (':name', UUID_SHORT(), UNHEX(MD5(UUID())), 'mutex', 1, 1, 1, '')",
    "DELETE FROM dlock_queue WHERE name = ':name'",
];

pub(super) struct Batches {
    session: Mutex<MySqlConnection>,
    batches: [&'static str; 2],
}

impl Batches {
    pub(super) fn on(session: MySqlConnection, batches: [&'static str; 2]) -> Self {
        Self { session: Mutex::new(session), batches }
    }
}

impl Client for Batches {
    /// The name.
    type Held = String;

    async fn lock(&self, name: &str) -> Outcome<String> {
        tell(&mut *self.session.lock().await, &self.batches[0].replace(":name", name)).await?;
        Ok(name.to_owned())
    }

    async fn unlock(&self, held: String) -> Outcome {
        tell(&mut *self.session.lock().await, &self.batches[1].replace(":name", &held)).await
    }
}
