//! Schema of a queue, and identity of its store.

use parking_lot::Mutex;

/// Location of a client's queue. Each guard carries it, so that a check-in finds the claim in
/// another session.
pub(crate) struct QueueLocation {
    schema: String,
    /// Identity of the store, in the table `store`. It changes if the schema is created again.
    id: Mutex<String>,
}

impl QueueLocation {
    pub(crate) fn new(schema: &str) -> Self {
        Self { schema: schema.to_owned(), id: Mutex::default() }
    }

    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }

    pub(crate) fn set_id(&self, id: &str) {
        id.clone_into(&mut self.id.lock());
    }

    pub(crate) fn has_id(&self, id: &str) -> bool {
        *self.id.lock() == id
    }
}
