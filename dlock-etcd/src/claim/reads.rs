//! The reads of held keys, many in one request.
//!
//! After a break of the connection, no watch proves any more that the keys of a client's holds
//! exist. Each hold is then read once. A client with thousands of holds would otherwise send as many
//! requests, just when all of its waiters attempt again, and some holds would not be verified before
//! the end of their ttl.

use std::sync::Arc;

use dlock_core::{Error, Result, driver::Batch};
use etcd_client::{GetOptions, KeyValue, Txn, TxnOp};
use tokio::sync::Semaphore;

use crate::{connection::Connection, queue::ranges};

/// Maximum number of keys in one request. A server allows 128 operations.
const MAX_KEYS: usize = 100;

/// Maximum number of these requests of one client in flight. They share no bound with other
/// requests, so neither attempts nor releases delay them in the client.
const IN_FLIGHT: usize = 16;

/// The reads of one client. The reply to each is the key, or `None` if it does not exist.
pub(crate) struct HoldReads {
    connection: Arc<Connection>,
    in_flight: Semaphore,
}

impl HoldReads {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        Self { connection, in_flight: Semaphore::new(IN_FLIGHT) }
    }
}

impl Batch for HoldReads {
    type Request = String;
    type Reply = Option<KeyValue>;
    type Group = ();

    fn group(&self, _: &String) {}

    fn max_size(&self) -> usize {
        MAX_KEYS
    }

    async fn send_one(&self, key: &String) -> Result<Option<KeyValue>> {
        // The semaphore is never closed.
        let _permit = self.in_flight.acquire().await.ok();
        Ok(self.connection.get(key.as_bytes(), GetOptions::new()).await?.take_kvs().pop())
    }

    /// Returns `None` for all keys if the cluster refuses the request. The user may lack the right to
    /// read one of them, or the cluster may allow fewer operations.
    async fn send_many(&self, keys: &[Arc<String>]) -> Result<Vec<Option<Option<KeyValue>>>> {
        let reads: Vec<_> = keys.iter().map(|key| TxnOp::get(key.as_str(), None)).collect();
        let _permit = self.in_flight.acquire().await.ok();
        match self.connection.txn(Txn::new().and_then(reads)).await {
            Ok(response) => {
                let mut found = ranges(&response.body).into_iter();
                Ok(keys.iter().map(|_| found.next().map(|mut found| found.pop())).collect())
            }
            Err(Error::Refused { .. }) => Ok(keys.iter().map(|_| None).collect()),
            Err(error) => Err(error),
        }
    }
}
