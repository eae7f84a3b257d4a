//! Requests that a driver sends once more because their connection broke. The server executes the
//! first one later, after the end of the claim. A proxy holds it back.

use std::{sync::Arc, time::Duration};

use dlock_core::{Guard, Kind, LockOptions, Locks, Result};
use tokio::{task::JoinHandle, time::sleep};

use super::{cancel::rival, detached::detached};
use crate::{
    Arena, Proxy,
    case::{Case, Need, cases},
};

/// The cases of this file.
pub(super) fn cases() -> Vec<Case> {
    let of_one_kind = [
        of("resent", Kind::Mutex, &NEEDS[1..3], &NEEDS[1..]),
        of("resent_write", Kind::Write, &NEEDS[1..3], &NEEDS[1..]),
        of("resent_permit", Kind::Permit, &NEEDS[1..3], &NEEDS[1..]),
        of("resent_read", Kind::Read, &NEEDS[..3], &NEEDS),
    ];
    of_one_kind.into_iter().flatten().collect()
}

/// Requirements of the cases. Only readers need the first, because a writer is the claim that must
/// wait for them.
const NEEDS: [Need; 4] = [Need::Kind(Kind::Write), Need::Network, Need::Driver, Need::Detach];

fn of(
    topic: &'static str,
    kind: Kind,
    needs: &'static [Need],
    to_detach: &'static [Need],
) -> impl Iterator<Item = Case> {
    let of_all = cases! {
        topic (kind) needs {
            an_attempt_that_arrives_twice_leaves_no_hold_after_the_release,
            a_try_that_arrives_twice_leaves_nothing_after_it_found_the_lock_busy,
        }
    };
    let of_detached = cases! {
        topic (kind) to_detach {
            a_resumption_that_arrives_twice_leaves_the_hold_with_its_ticket,
        }
    };
    of_all.into_iter().chain(of_detached)
}

/// Time for which a driver may wait for a reply. The first request may be executed in this time,
/// which is far shorter than [`Arena::long_ttl`].
const CALL_LIMIT: Duration = Duration::from_secs(10);

/// Time in which a request that was held back arrives and takes effect.
const ARRIVAL: Duration = Duration::from_millis(200);

/// A client whose connections break, and another client.
struct Scene<'a> {
    arena: &'a Arena,
    client: Locks,
    proxy: Arc<Proxy>,
    other: Locks,
}

impl<'a> Scene<'a> {
    /// Connects the clients. The first one has used its connections, so that its next request is not
    /// that of a new connection.
    async fn of(arena: &'a Arena) -> Self {
        let (client, proxy) = arena.client_behind_proxy().await;
        let scene = Self { arena, client, proxy, other: arena.client().await };
        let guard = scene.arena.take(&scene.client, arena.kind()).await;
        guard.release().await.expect("the lock is held");
        scene
    }

    fn options(&self) -> LockOptions {
        LockOptions::new().ttl(self.arena.long_ttl(&self.client))
    }

    /// Starts a call of the client, holds its request back, and breaks the connections of the client.
    /// New connections pass, so the client can send the request once more.
    async fn hold_back<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let requested = self.proxy.requested();
        self.proxy.hold_requests();
        let call = self.arena.go(call);
        let is_sent = || self.proxy.requested() > requested;
        self.arena.until("the client sends no request", is_sent).await;
        self.proxy.hold_open_connections();
        self.proxy.cut_clients();
        call
    }

    /// Delivers the first request.
    async fn deliver(&self) {
        self.proxy.pass();
        sleep(ARRIVAL).await;
    }

    /// Takes the lock as the other client. A hold of the late request would keep the lock for the
    /// long ttl.
    async fn is_free_soon(&self) {
        let lock = self.other.of(rival(self.arena), self.arena.name());
        let options = self.options();
        let what = "a request that arrived late left a claim without a client";
        let guard = self.arena.within(CALL_LIMIT, what, lock.lock(&options)).await;
        guard.expect("an acquisition without a limit is granted").release().await.expect("the lock is held");
    }
}

pub(super) async fn an_attempt_that_arrives_twice_leaves_no_hold_after_the_release(arena: Arc<Arena>) {
    let scene = Scene::of(&arena).await;
    let (lock, options) = (arena.lock(&scene.client), scene.options());
    let acquisition = scene.hold_back(async move { lock.lock(&options).await }).await;
    let guard = arena.within(CALL_LIMIT, "the lock is not granted", acquisition).await;
    let guard: Result<Guard> = guard.expect("the task does not panic");
    guard.expect("new connections pass").release().await.expect("the lock is held");
    scene.deliver().await;
    scene.is_free_soon().await;
}

pub(super) async fn a_try_that_arrives_twice_leaves_nothing_after_it_found_the_lock_busy(arena: Arc<Arena>) {
    let scene = Scene::of(&arena).await;
    let holder = arena.take(&scene.other, rival(&arena)).await;
    let (lock, options) = (arena.lock(&scene.client), scene.options());
    let attempt = scene.hold_back(async move { lock.try_lock(&options).await }).await;
    let guard = arena.within(CALL_LIMIT, "the try does not return", attempt).await;
    assert!(!matches!(guard, Ok(Ok(Some(_)))), "two claims hold the lock");
    holder.release().await.expect("the lock is held");
    scene.deliver().await;
    scene.is_free_soon().await;
}

pub(super) async fn a_resumption_that_arrives_twice_leaves_the_hold_with_its_ticket(arena: Arc<Arena>) {
    let scene = Scene::of(&arena).await;
    let ticket = detached(&arena, &scene.other, arena.long_ttl(&scene.other)).await;
    let (client, of_task) = (scene.client.clone(), ticket.clone());
    let resumption = scene.hold_back(async move { client.resume(&of_task).await }).await;
    // The caller leaves. The client sends the request once more, and returns the hold to its ticket.
    resumption.abort();
    sleep(ARRIVAL * 2).await;
    scene.deliver().await;
    let taken_over = async {
        loop {
            match scene.other.resume(&ticket).await {
                Ok(guard) => return guard,
                // The late request has taken the hold over, until it is returned.
                Err(_) => sleep(ARRIVAL).await,
            }
        }
    };
    let what = "a resumption that arrived late keeps the hold from its ticket";
    let guard = arena.within(CALL_LIMIT, what, taken_over).await;
    guard.release().await.expect("the lock is held");
}
