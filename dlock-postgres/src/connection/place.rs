//! The place of a queue: its schema, and the identity of the store.

use std::sync::{Mutex, PoisonError};

/// Where the queue of a client is. A guard carries it, so that its claim can be found in a
/// transaction of the user.
pub(crate) struct Place {
    schema: String,
    /// Identity of the store, in the table `store`. It changes if the schema is created again.
    id: Mutex<String>,
}

impl Place {
    pub(crate) fn new(schema: &str) -> Self {
        Self { schema: schema.to_owned(), id: Mutex::default() }
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    pub(crate) fn set_id(&self, id: &str) {
        id.clone_into(&mut self.id.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn has_id(&self, id: &str) -> bool {
        *self.id.lock().unwrap_or_else(PoisonError::into_inner) == id
    }
}
