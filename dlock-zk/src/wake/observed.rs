//! The watch of an observer, who has no claim.

use std::{
    future::{pending, poll_fn},
    sync::Arc,
    task::Poll,
};

use async_trait::async_trait;
use dlock_core::{LockName, Result, driver};
use zookeeper_client::Error as ZkError;

use super::Watch;
use crate::{client::Client, error, inspect::connected_session, session::Session};

/// A watch on the nodes in the directory of a lock.
pub(crate) struct ObservedDirectory {
    client: Arc<Client>,
    directory: Arc<str>,
    /// The active watch, and its session, which it keeps open.
    active: Option<(Watch, Arc<Session>)>,
}

impl ObservedDirectory {
    /// Creates a watch that has not started. `None` for a name that the store cannot represent.
    pub(crate) fn new(client: &Arc<Client>, name: &LockName) -> Option<Self> {
        let directory = client.directory(name).ok()?;
        Some(Self { client: Arc::clone(client), directory, active: None })
    }
}

/// Sets a watch on a directory, which fires once. `None` if the session has no room for it.
async fn start(client: &Client, directory: &str) -> Result<Option<(Watch, Arc<Session>)>> {
    let (session, zk) = connected_session(client).await?;
    let Some(room) = session.paths.watch(directory) else { return Ok(None) };
    loop {
        let watcher = match zk.list_and_watch_children(directory).await {
            Ok((_, watcher)) => watcher,
            Err(ZkError::NoNode) => match zk.check_and_watch_stat(directory).await {
                Ok((None, watcher)) => watcher,
                // The directory was created between the two requests.
                Ok((Some(_), _)) => continue,
                Err(error) => return Err(error::explain(error)),
            },
            Err(error) => return Err(error::explain(error)),
        };
        return Ok(Some((Watch::new(directory.to_owned(), watcher, room), session)));
    }
}

#[async_trait]
impl driver::Watch for ObservedDirectory {
    async fn changed(&mut self) {
        if let Some((watch, _)) = &mut self.active {
            poll_fn(|context| watch.poll(context).map_or(Poll::Pending, |_| Poll::Ready(()))).await;
            self.active = None;
        }
        // The next watch is active before the observer reads the directory, so no change is missed.
        match start(&self.client, &self.directory).await {
            Ok(Some(active)) => self.active = Some(active),
            // Makes the observer read the directory. If that fails too, the engine waits before it
            // calls this method again.
            Err(error) if error.is_transient() => {}
            // There is no room or no right for the watch. The observer reads at intervals.
            Ok(None) | Err(_) => pending().await,
        }
    }
}
