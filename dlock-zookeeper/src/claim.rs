//! One claim: a node in its lock's directory. Over the usual length, so that all calls of a claim are in one file.

use std::{future::poll_fn, sync::Arc, task::Poll, time::Duration};

use async_trait::async_trait;
use dlock_core::{
    Error, Kind, Result, Token, Wait,
    driver::{Attempt, Claim, Grant, Moment, Release, Renewal, Request},
};
use futures_util::future::{BoxFuture, OptionFuture, join_all};
use tokio::time::timeout;
use zookeeper_client::{
    Client as ZkClient, CreateMode, Error as ZkError, EventType, MultiWriteError, OneshotWatcher,
};

use self::watch::Watch;
use crate::{
    client::{Client, Place, Queue, Source},
    connection::{Record, Session, WatchedPath},
    error::{self, STORE},
    keys::{self, Node},
};

mod watch;

/// How many nodes a claim tries to watch in one attempt. A claim that is not done then asks again at once.
const STEPS: usize = 32;

/// How many nodes in a row may be gone before the claim lists the queue again: a whole client may have died.
const MISSES: usize = 2;

/// How soon a claim looks again that has no room to watch all nodes ahead of it.
const POLL: Duration = Duration::from_secs(1);

/// How long a renewal waits for a look at the claim's own node, in parts of the ttl. The heartbeats tell enough.
const QUICK: u32 = 12;

const ASK_AGAIN: Attempt = Attempt::Busy { retry_in: Duration::ZERO };

/// The answer to a claim that watches whoever is ahead.
const UNTIL_WOKEN: Attempt = Attempt::Busy { retry_in: Duration::MAX };

pub(crate) struct ZooKeeperClaim {
    client: Arc<Client>,
    request: Request,
    /// The session in which the claim has its node. No claim spans two sessions.
    session: Option<Arc<Session>>,
    /// Kept while the claim waits, so that other claims of the client share what it knows.
    queue: Option<Arc<Queue>>,
    /// The nodes ahead of which one must leave first.
    ahead: Vec<Watch>,
    /// Whether the session had no room to watch all of them.
    is_partly_blind: bool,
    /// The claim's own node, once it holds the lock.
    own: Option<Watch>,
    /// A request of a renewal for the node of this name, which was under way when the renewal's time was over.
    looking: Option<(String, BoxFuture<'static, Result<Look>>)>,
}

/// The claim's own node as a renewal found it. `None` if it is gone, `Some(None)` if the session has no room to watch it.
type Look = Option<Option<(Vec<u8>, OneshotWatcher, WatchedPath)>>;

impl ZooKeeperClaim {
    pub(crate) fn new(client: Arc<Client>, request: Request) -> Self {
        Self {
            client,
            request,
            session: None,
            queue: None,
            ahead: Vec::new(),
            is_partly_blind: false,
            own: None,
            looking: None,
        }
    }

    /// How long an attempt may take. A new connection may be under way, so the call does not give up early. But the next
    /// attempt of a waiting claim must begin before the ttl has passed, or the reaper takes the claim for silent.
    fn limit(&self) -> Duration {
        self.client.config.timeout.min(self.request.ttl * 3 / 4)
    }

    async fn ask(&mut self) -> Result<Attempt> {
        self.client.info.check_kind(self.request.kind)?;
        let directory = self.client.directory(&self.request.name)?;
        let session = self.enter(&directory).await?;
        let Request { id, ttl, kind, wait, .. } = self.request;
        // Before anything that may take long: the keeper of the claim is alive, also while the session has no connection.
        if !session.touch(id, ttl) {
            return Err(being_deleted());
        }
        let zk = session.client().await?;
        let queue = Arc::clone(self.queue.get_or_insert_with(|| session.queue(&directory)));
        let mut is_fresh = false;
        let (node, token) = match self.known(&session, &zk).await? {
            Some((node, token)) if kind == Kind::Read && node.kind != kind => {
                return self.downgrade(&session, &zk, (node, token)).await;
            }
            Some(known) => {
                if self.is_parked() {
                    // Nobody ahead has left, so nothing has changed if the session lives.
                    return session.left().map(|_| UNTIL_WOKEN);
                }
                if self.is_partly_blind {
                    queue.list_after(&zk, queue.lists(), Source::Server).await?;
                    is_fresh = true;
                }
                known
            }
            None => {
                if wait == Wait::Never {
                    // The client's server may be behind, and still show a lock that was released.
                    queue.list_after(&zk, queue.lists(), Source::Leader).await?;
                    if queue.is_busy(self.request.entry()) {
                        session.forget(id);
                        return Ok(UNTIL_WOKEN);
                    }
                }
                let (made, is_listed) = self.join(&session, &zk, &queue).await?;
                is_fresh = is_listed;
                made
            }
        };
        let mut misses = 0;
        for _ in 0..STEPS {
            match queue.place(&node) {
                Place::First if is_fresh || self.watch_own(&session, &zk, &node).await? => {
                    self.stop_waiting();
                    let valid_for = session.left()?.min(ttl);
                    return Ok(Attempt::Granted(Grant { token: Token::new(token), valid_for }));
                }
                Place::Unknown if !is_fresh => {
                    queue.list_after(&zk, queue.lists(), Source::Server).await?;
                    is_fresh = true;
                }
                // Nobody here knows whether somebody has deleted the node. A try leaves nothing behind. Any other claim looks
                // for its node in the next attempt, and joins the queue again if the leader has no such node.
                Place::First | Place::Unknown => {
                    self.stop_waiting();
                    if wait == Wait::Never {
                        session.remove(id).await?;
                        return Ok(UNTIL_WOKEN);
                    }
                    session.doubt(id);
                    return Ok(ASK_AGAIN);
                }
                Place::Foreign(found) => return Err(error::wrong_kind(&self.request.name, kind, &found)),
                Place::Behind(_) if wait == Wait::Never => {
                    session.remove(id).await?;
                    return Ok(UNTIL_WOKEN);
                }
                Place::Behind(names) => {
                    if self.park(&session, &zk, &queue, names).await? {
                        let answer =
                            if self.is_partly_blind { Attempt::Busy { retry_in: POLL } } else { UNTIL_WOKEN };
                        return session.left().map(|_| answer);
                    }
                    misses += 1;
                    is_fresh = misses % MISSES == 0;
                    if is_fresh {
                        queue.list_after(&zk, queue.lists(), Source::Server).await?;
                    }
                }
            }
        }
        Ok(ASK_AGAIN)
    }

    /// The session of the claim. A claim that waited in a session which is over begins anew in another. A read claim that is to
    /// take the place of a hold goes into the session of the hold.
    async fn enter(&mut self, directory: &Arc<str>) -> Result<Arc<Session>> {
        let id = self.request.id;
        if let Some(session) = self.session.take_if(|session| session.end_if_silent()) {
            session.forget(id);
            self.leave_session();
        }
        let bytes = self.client.path_bytes(directory, &self.request);
        if let Some(session) = &self.session {
            if session.paths.reserve(id, bytes) {
                return Ok(Arc::clone(session));
            }
            // The claim has nothing there any more, and others have taken its room.
            self.leave_session();
        }
        let session = match self.client.connection.session_of(id) {
            Some(session) => session,
            None => self.client.connection.session_for(id, bytes, self.limit()).await?,
        };
        Ok(Arc::clone(self.session.insert(session)))
    }

    fn leave_session(&mut self) {
        self.stop_waiting();
        (self.session, self.own, self.looking) = (None, None, None);
    }

    /// The claim's node and token. Looks for the node if nobody knows whether the servers have it: they may have acted on a
    /// request whose answer was lost.
    async fn known(&mut self, session: &Session, zk: &ZkClient) -> Result<Option<(Node, u64)>> {
        let Some(record) = session.record(self.request.id) else { return Ok(None) };
        if record.node.is_some() {
            return Ok(record.node);
        }
        let mut found = None;
        for name in session.search(zk, self.request.id, &record.directory).await? {
            let read = zk.get_data(&format!("{}/{name}", record.directory)).await;
            let (data, stat) = match read {
                Err(ZkError::NoNode) => continue,
                read => read.map_err(error::explain)?,
            };
            match Node::of(name.clone()) {
                Some(node) if found.is_none() && stat.ephemeral_owner == zk.session_id().0 => {
                    found = Some((node, token_of(&data, stat.czxid)));
                }
                // A second one from a request that was sent twice, or that of a session before.
                _ => drop(session.delete(zk, &record.directory, &name).await?),
            }
        }
        match &found {
            Some(_) => session.set_record(self.request.id, Record { node: found.clone(), ..record }),
            None => session.drop_record(self.request.id),
        }
        Ok(found)
    }

    /// Makes the claim's node, at the end of the queue. If no other claim of this client is there, the list of the queue is
    /// sent together with the request: then the second part of the answer is true.
    async fn join(
        &mut self,
        session: &Session,
        zk: &ZkClient,
        queue: &Arc<Queue>,
    ) -> Result<((Node, u64), bool)> {
        let Request { id, kind, limit, ref who, .. } = self.request;
        let (directory, prefix) = (&queue.directory, keys::prefix(id, kind, limit));
        let path = format!("{directory}/{prefix}");
        let all = keys::ancestors(directory);
        // The directory is there more often than not; the nodes above it are missing for the first lock only. Once more, since
        // the server removes empty directories at any moment.
        for missing in [0, 1, all.len(), all.len()] {
            let (sent, record) = (Moment::now(), session.begin_record(id, directory));
            let container = self.client.container(session);
            let made =
                join_all(all[all.len() - missing..].iter().map(|path| zk.create(path, b"", &container)));
            let options = CreateMode::EphemeralSequential.with_acls(self.client.acls());
            let create = zk.create(&path, who.text().as_bytes(), &options);
            let is_alone = Arc::strong_count(queue) <= 2;
            let list = OptionFuture::from(is_alone.then(|| queue.list(zk)));
            let (made, created, listed) = tokio::join!(made, create, list);
            match created {
                Ok((stat, number)) => {
                    session.note_answer(sent);
                    let name = format!("{prefix}{number}");
                    let node = Node { name, kind, limit, number: number.into_i64() };
                    let known = (node, stat.czxid.unsigned_abs());
                    session.set_record(id, Record { node: Some(known.clone()), ..record });
                    if keys::is_used_up(known.0.number) {
                        session.delete(zk, directory, &known.0.name).await?;
                        session.drop_record(id);
                        Self::renew_directory(zk, directory).await?;
                        continue;
                    }
                    return Ok((known, listed.is_some_and(|listed| listed.is_ok())));
                }
                Err(ZkError::NoNode) => {}
                Err(error) => {
                    if error::is_refusal(&error) {
                        session.drop_record(id);
                    }
                    return Err(error::explain(error));
                }
            }
            let refusal = made.into_iter().filter_map(std::result::Result::err);
            if let Some(error) = refusal.into_iter().find(|error| !error::is_about_existence(error)) {
                session.drop_record(id);
                return Err(error::explain(error));
            }
        }
        session.drop_record(id);
        Err(error::explain(ZkError::NoNode))
    }

    /// Deletes a directory whose counter is used up, so that the next one begins at zero. The server does the same with
    /// containers that it finds empty, and refuses to delete a directory that is not empty. Curator makes a missing directory
    /// again.
    ///
    /// # Errors
    /// If other claims are there.
    async fn renew_directory(zk: &ZkClient, directory: &str) -> Result<()> {
        match zk.delete(directory, None).await {
            Ok(()) | Err(ZkError::NoNode) => Ok(()),
            Err(ZkError::NotEmpty) => Err(error::is_used_up(directory)),
            Err(error) => Err(error::explain(error)),
        }
    }

    /// Turns the claim's hold into a read hold with the same number, in one step.
    async fn downgrade(
        &mut self,
        session: &Session,
        zk: &ZkClient,
        (old, token): (Node, u64),
    ) -> Result<Attempt> {
        let Request { id, ref who, .. } = self.request;
        let directory = self.client.directory(&self.request.name)?;
        let name = format!("{}{}", keys::prefix(id, Kind::Read, old.limit), keys::digits(old.number));
        let node = Node { name, kind: Kind::Read, ..old.clone() };
        let (sent, record) = (Moment::now(), session.begin_record(id, &directory));
        let options = CreateMode::Ephemeral.with_acls(self.client.acls());
        let mut step = zk.new_multi_writer();
        step.add_delete(&format!("{directory}/{}", old.name), None).map_err(error::explain)?;
        step.add_create(&format!("{directory}/{}", node.name), &data_with(token, who.text()), &options)
            .map_err(error::explain)?;
        match step.commit().await {
            Ok(_) => {}
            Err(MultiWriteError::OperationFailed { source: ZkError::NoNode, .. }) => {
                // The hold was gone. No new one is made.
                session.forget(id);
                return Ok(UNTIL_WOKEN);
            }
            Err(error) => return Err(error::explain(error.into())),
        }
        session.note_answer(sent);
        session.set_record(id, Record { node: Some((node, token)), ..record });
        self.stop_waiting();
        let valid_for = session.left()?.min(self.request.ttl);
        Ok(Attempt::Granted(Grant { token: Token::new(token), valid_for }))
    }

    /// Watches those ahead of whom one must leave first. `false` if one of them has left.
    async fn park(
        &mut self,
        session: &Session,
        zk: &ZkClient,
        queue: &Queue,
        names: Vec<String>,
    ) -> Result<bool> {
        self.ahead.retain(|watch| !watch.has_fired() && names.contains(&watch.name));
        let missing = names.into_iter().filter(|name| !self.ahead.iter().any(|watch| watch.name == *name));
        let mut with_room = Vec::new();
        self.is_partly_blind = false;
        for name in missing {
            let path = format!("{}/{name}", queue.directory);
            match session.paths.watch(&path) {
                Some(room) => with_room.push((name, path, room)),
                None => self.is_partly_blind = true,
            }
        }
        // A permit watches many: in one round trip.
        let look = async |(name, path, room): (String, String, WatchedPath)| {
            (zk.get_and_watch_data(&path).await, name, room)
        };
        let found = join_all(with_room.into_iter().map(look)).await;
        let (mut are_there, mut failure) = (true, None);
        for (found, name, room) in found {
            match found {
                Ok((.., watcher)) => self.ahead.push(Watch::new(name, watcher, room)),
                Err(ZkError::NoNode) => {
                    queue.note_gone(&name);
                    are_there = false;
                }
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(are_there), |error| Err(error::explain(error)))
    }

    /// Whether the claim watches those ahead and all of them are still there.
    fn is_parked(&mut self) -> bool {
        let Some(queue) = self.queue.as_ref().filter(|_| !self.ahead.is_empty()) else { return false };
        let mut is_parked = !self.is_partly_blind;
        for watch in &mut self.ahead {
            if let Some(event) = watch.poll_now() {
                is_parked = false;
                if event == EventType::NodeDeleted {
                    queue.note_gone(&watch.name);
                }
            }
        }
        is_parked
    }

    /// Watches the claim's own node, unless that is done. `false` if the node is gone.
    async fn watch_own(&mut self, session: &Session, zk: &ZkClient, node: &Node) -> Result<bool> {
        if self.own.as_mut().is_some_and(|own| own.name == node.name && own.poll_now().is_none()) {
            return Ok(true);
        }
        let Some(record) = session.record(self.request.id) else { return Ok(false) };
        let path = format!("{}/{}", record.directory, node.name);
        let Some(room) = session.paths.watch(&path) else {
            return Ok(zk.check_stat(&path).await.map_err(error::explain)?.is_some());
        };
        match zk.get_and_watch_data(&path).await {
            Ok((data, _, watcher)) => {
                self.own = Some(Watch::new(node.name.clone(), watcher, room));
                if data == keys::REVOKE {
                    self.client.note_revocation(&self.request);
                }
                Ok(true)
            }
            Err(ZkError::NoNode) => Ok(false),
            Err(error) => Err(error::explain(error)),
        }
    }

    fn stop_waiting(&mut self) {
        (self.queue, self.is_partly_blind) = (None, false);
        self.ahead.clear();
    }

    async fn check(&mut self, session: &Arc<Session>) -> Result<Renewal> {
        let Request { id, ttl, .. } = self.request;
        let valid_for = session.left()?.min(ttl);
        if !session.touch(id, ttl) {
            return Ok(Renewal::Lost);
        }
        let renewed = Renewal::Renewed { valid_for };
        if let Some(Record { node: Some((node, _)), directory, .. }) = session.record(id) {
            if self.own.as_mut().is_some_and(|own| own.name == node.name && own.poll_now().is_none()) {
                return Ok(renewed);
            }
            if let Ok(is_there) = timeout(ttl / QUICK, self.look(session, &directory, &node)).await {
                if is_there? {
                    return Ok(renewed);
                }
                session.forget(id);
                return Ok(Renewal::Lost);
            }
            // The node lives as long as its session unless somebody deletes it. Heartbeats that are answered tell that the
            // session lives, and a later renewal gets the reply. Without a connection the servers may have lost their data.
            return if session.is_well() { Ok(renewed) } else { Err(error::session_is_silent()) };
        }
        let zk = session.client().await?;
        if let Some((node, _)) = self.known(session, &zk).await?
            && self.watch_own(session, &zk, &node).await?
        {
            return Ok(renewed);
        }
        session.forget(id);
        Ok(Renewal::Lost)
    }

    /// Watches the claim's own node. `false` if it is gone. If the future is dropped, the request stays under way, and the next
    /// call waits for its reply.
    async fn look(&mut self, session: &Arc<Session>, directory: &str, node: &Node) -> Result<bool> {
        let path = format!("{directory}/{}", node.name);
        if self.looking.as_ref().is_none_or(|(name, _)| *name != node.name) {
            let room = session.paths.watch(&path);
            let session = Arc::clone(session);
            let look = async move {
                let zk = session.client().await?;
                let found = match room {
                    None => zk.check_stat(&path).await.map(|stat| stat.map(|_| None)),
                    Some(room) => match zk.get_and_watch_data(&path).await {
                        Err(ZkError::NoNode) => Ok(None),
                        found => found.map(|(data, _, watcher)| Some(Some((data, watcher, room)))),
                    },
                };
                found.map_err(error::explain)
            };
            self.looking = Some((node.name.clone(), Box::pin(look)));
        }
        let found = match &mut self.looking {
            Some((_, look)) => look.as_mut().await,
            None => return Ok(false),
        };
        self.looking = None;
        match found? {
            None => return Ok(false),
            Some(None) => {}
            Some(Some((data, watcher, room))) => {
                self.own = Some(Watch::new(node.name.clone(), watcher, room));
                if data == keys::REVOKE {
                    self.client.note_revocation(&self.request);
                }
            }
        }
        Ok(true)
    }
}

fn being_deleted() -> Error {
    STORE.unavailable("the claim was silent for its ttl, and is being deleted")
}

/// The data of a node that was made by a downgrade: who has it, and the token of the hold before.
fn data_with(token: u64, who: &str) -> Vec<u8> {
    format!("{who}\n{token}").into_bytes()
}

/// The token of a node: the one in its data, or else its own transaction's number.
pub(crate) fn token_of(data: &[u8], created: i64) -> u64 {
    let told = std::str::from_utf8(data).ok().and_then(|text| text.split_once('\n')?.1.parse().ok());
    told.unwrap_or(created.unsigned_abs())
}

#[async_trait]
impl Claim for ZooKeeperClaim {
    async fn attempt(&mut self) -> Result<Attempt> {
        let answer = STORE.in_time(self.limit(), self.ask()).await;
        let Some(session) = self.session.as_ref().filter(|session| session.record(self.request.id).is_some())
        else {
            return answer;
        };
        // What follows begins now: the hold, the wait, or the pause before the next attempt. The reaper may have found nothing of a
        // claim that asked for longer than its ttl, and forgotten it.
        if session.touch(self.request.id, self.request.ttl) {
            answer
        } else {
            answer.and(Err(being_deleted()))
        }
    }

    async fn renew(&mut self) -> Result<Renewal> {
        let Some(session) = self.session.clone().filter(|session| !session.end_if_silent()) else {
            return Ok(Renewal::Lost);
        };
        let began = Moment::now();
        // The keeper asks again several times before the deadline.
        let checked =
            STORE.in_time(self.client.config.timeout.min(self.request.ttl / 3), self.check(&session)).await;
        match checked {
            // The node could not be read, which says nothing about the hold.
            Err(error) if error.is_transient() && session.is_well() && session.has_node(self.request.id) => {
                let left = session.left().map_err(|_| error)?;
                // The caller counts from the beginning of the call.
                let valid_for = (left + began.elapsed()).min(self.request.ttl);
                Ok(Renewal::Renewed { valid_for })
            }
            checked => checked,
        }
    }

    async fn release(&mut self) -> Result<Release> {
        let id = self.request.id;
        let Some(session) = self.session.clone().filter(|session| !session.end_if_silent()) else {
            return Ok(Release::Gone);
        };
        // After a request whose outcome is unknown an earlier release may have removed the node.
        let is_sure = session.record(id).is_none_or(|record| record.node.is_some());
        // However short the ttl is: the keeper asks until a server has confirmed it.
        let was_there = STORE.in_time(self.client.config.timeout, session.remove(id)).await?;
        // Only now: a watch that is dropped before its node is gone costs a request.
        (self.own, self.looking) = (None, None);
        self.stop_waiting();
        Ok(if was_there || !is_sure { Release::Done } else { Release::Gone })
    }

    async fn changed(&mut self) {
        poll_fn(|context| {
            let watches = self.ahead.iter_mut().chain(&mut self.own);
            // All are polled, so that each wakes this task.
            let fired = watches.filter_map(|watch| watch.poll(context)).count();
            if fired > 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_that_of_the_hold_before_a_downgrade() {
        assert_eq!(token_of(&data_with(7, "anna@web-3 pid 4711"), 9), 7);
        for data in [&b"anna@web-3"[..], b"", b"__REVOKE__", b"\xff\n7", b"anna\nx"] {
            assert_eq!(token_of(data, 9), 9);
        }
    }
}
