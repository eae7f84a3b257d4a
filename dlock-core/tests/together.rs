//! A MultiLock in a store that grants several locks in one step. The tests count its requests, and
//! lose, delay or damage replies.
#![expect(clippy::disallowed_methods, reason = "each contender is a task, which its test awaits")]

mod watchdog;

use std::{collections::VecDeque, future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use dlock_conformance::wrap::Switch;
use dlock_core::{
    DistributedLock, Error, Guard, Kind, LockOptions, Locks, MultiLock, Owner, Result,
    driver::{AttemptAll, Backend, Claim, Info, Request, Store},
    memory::MemoryBackend,
};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};

const S: Duration = Duration::from_secs(1);

/// The course of a joint request, which is a request for several locks.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// The reply arrives at once.
    Reply,
    /// The reply arrives after this time.
    Late(Duration),
    /// The store executes the request, and the reply is lost.
    Lost,
    /// The request does not reach the store.
    Cut,
    /// The store refuses the request.
    Refused,
    /// The driver panics before it sends the request.
    Panic,
    /// The driver panics after the store has executed the request.
    LatePanic,
    /// The driver returns fewer claims than there are requests.
    TooFew,
}

/// A memory store that records its requests, and lets joint requests take a given course.
#[derive(Clone, Debug)]
struct RecordingStore {
    memory: MemoryBackend,
    info: Info,
    /// Courses of the next joint requests. All later ones have [`Fate::Reply`].
    fates: Arc<Mutex<VecDeque<Fate>>>,
    /// Names of each joint request.
    joint: Arc<Mutex<Vec<Vec<String>>>>,
    /// Name of each claim that was created separately.
    separate: Arc<Mutex<Vec<String>>>,
}

impl RecordingStore {
    fn new(fates: impl IntoIterator<Item = Fate>) -> Self {
        watchdog::watch();
        let memory = MemoryBackend::new();
        let info = memory.info().clone();
        let fates = Arc::new(Mutex::new(fates.into_iter().collect()));
        Self { memory, info, fates, joint: Arc::default(), separate: Arc::default() }
    }

    /// Sets the maximum number of locks in one request.
    fn with_locks_per_step(mut self, max: usize) -> Self {
        self.info = self.info.locks_per_step(max);
        self
    }

    fn client(&self) -> Locks {
        Locks::new(Store::new(Arc::new(self.clone())))
    }

    /// Returns another client of the same memory, whose requests are not recorded.
    fn other(&self) -> Locks {
        Locks::new(self.memory.clone().into_store())
    }

    /// Returns the requests since the last call, joint and separate ones.
    fn take_requests(&self) -> (Vec<Vec<String>>, Vec<String>) {
        let take = |all: &Mutex<Vec<String>>| std::mem::take(&mut *all.lock());
        (std::mem::take(&mut *self.joint.lock()), take(&self.separate))
    }
}

#[async_trait]
impl Backend for RecordingStore {
    fn info(&self) -> &Info {
        &self.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        self.separate.lock().push(request.name.to_string());
        self.memory.claim(request)
    }

    async fn attempt_all(&self, requests: Vec<Request>) -> Result<AttemptAll> {
        let names = requests.iter().map(|request| request.name.to_string()).collect();
        self.joint.lock().push(names);
        let fate = self.fates.lock().pop_front().unwrap_or(Fate::Reply);
        let unavailable = || Error::Unavailable { store: "recording", source: "no reply".into() };
        match fate {
            Fate::Cut => return Err(unavailable()),
            Fate::Refused => {
                return Err(Error::Refused { store: "recording", source: "access denied".into() });
            }
            Fate::Panic => panic!("as the test requires"),
            _ => {}
        }
        let result = self.memory.attempt_all(requests).await;
        match fate {
            Fate::Late(span) => sleep(span).await,
            Fate::Lost => return Err(unavailable()),
            Fate::LatePanic => panic!("as the test requires"),
            Fate::TooFew => {
                return result.map(|outcome| match outcome {
                    AttemptAll::Granted(claims) => AttemptAll::Granted(claims.into_iter().skip(1).collect()),
                    busy @ AttemptAll::Busy(_) => busy,
                });
            }
            _ => {}
        }
        result
    }
}

/// A wrapper that forwards the [`Info`] of a store and its claims, but no joint request.
#[derive(Debug)]
struct WithoutJointRequests(RecordingStore);

impl Backend for WithoutJointRequests {
    fn info(&self) -> &Info {
        self.0.info()
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        self.0.claim(request)
    }
}

fn several(locks: &Locks, names: &[&str]) -> MultiLock {
    MultiLock::new(names.iter().map(|name| locks.of(Kind::Mutex, name))).expect("at least one")
}

async fn is_free(locks: &Locks, name: &str) -> bool {
    match locks.mutex(name).try_lock().await.expect("no error") {
        Some(held) => held.release().await.is_ok(),
        None => false,
    }
}

async fn assert_held(store: &RecordingStore, names: &[&str]) {
    for name in names {
        assert!(!is_free(&store.other(), name).await, "{name} is free");
    }
}

/// Releases the guard, and asserts that no claim is left.
async fn assert_leaves_nothing(store: &RecordingStore, client: &Locks, held: Option<Guard>) {
    if let Some(held) = held {
        held.release().await.expect("held until now");
    }
    client.close().await;
    assert_eq!(store.other().list("").await.expect("memory can list"), [], "claims are left");
}

#[tokio::test(start_paused = true)]
async fn locks_of_one_client_are_one_request() {
    let store = RecordingStore::new([]);
    let client = store.client();
    let held = several(&client, &["c", "a", "b"]).lock(&LockOptions::new()).await.expect("free");
    assert_eq!(store.take_requests(), (vec![vec!["a".into(), "b".into(), "c".into()]], vec![]));
    assert_held(&store, &["a", "b", "c"]).await;
    assert_eq!(held.tokens().len(), 3);
    sleep(120 * S).await;
    assert!(!held.is_lost(), "lost although it was renewed");
    assert_held(&store, &["a", "b", "c"]).await;
    assert_leaves_nothing(&store, &client, Some(held)).await;
}

#[tokio::test(start_paused = true)]
async fn more_locks_than_fit_in_a_request_are_several_requests_and_a_single_one_is_separate() {
    let store = RecordingStore::new([]).with_locks_per_step(2);
    let client = store.client();
    let held = several(&client, &["a", "b", "c", "d", "e"]).lock(&LockOptions::new()).await.expect("free");
    let pair = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
    assert_eq!(store.take_requests(), (vec![pair("a", "b"), pair("c", "d")], vec!["e".to_owned()]));
    assert_leaves_nothing(&store, &client, Some(held)).await;
    let store = RecordingStore::new([]).with_locks_per_step(1);
    let client = store.client();
    let held = several(&client, &["a", "b"]).lock(&LockOptions::new()).await.expect("free");
    assert_eq!(
        store.take_requests(),
        (vec![], pair("a", "b")),
        "a store that grants one lock in one step got a joint request"
    );
    assert_leaves_nothing(&store, &client, Some(held)).await;
}

#[tokio::test(start_paused = true)]
async fn locks_of_a_wrapper_that_forwards_no_joint_request_are_requested_separately() {
    let store = RecordingStore::new([]);
    let client = Locks::new(Store::new(Arc::new(WithoutJointRequests(store.clone()))));
    assert!(store.info().locks_per_step > 1, "the wrapper does not announce joint requests");
    let all = several(&client, &["a", "b", "c"]);
    let held = all.try_lock(&LockOptions::new()).await.expect("no error").expect("free");
    let (joint, mut separate) = store.take_requests();
    separate.sort();
    assert_eq!((joint.len(), separate), (0, vec!["a".to_owned(), "b".to_owned(), "c".to_owned()]));
    assert_held(&store, &["a", "b", "c"]).await;
    assert_leaves_nothing(&store, &client, Some(held)).await;
}

#[tokio::test(start_paused = true)]
async fn readers_permits_and_locks_of_owners_or_other_clients_are_requested_separately() {
    let (store, me) = (RecordingStore::new([]), Owner::new());
    let (client, other) = (store.client(), store.client());
    let owned: Arc<dyn DistributedLock> = Arc::new(client.mutex("owned").owned_by(&me));
    let outer = owned.lock(&LockOptions::new()).await.expect("free");
    store.take_requests();
    let kinds =
        [(Kind::Mutex, "mutex"), (Kind::Read, "read"), (Kind::Write, "write"), (Kind::Permit, "permit")];
    let kinds = kinds.into_iter().chain([(Kind::Fair, "fair")]).map(|(kind, name)| client.of(kind, name));
    let members = kinds.chain([owned, other.of(Kind::Mutex, "other")]);
    let all = MultiLock::new(members).expect("at least one");
    let held = all.lock(&LockOptions::new()).await.expect("free, or held by the owner");
    let (joint, mut separate) = store.take_requests();
    separate.sort();
    assert_eq!(joint, [["fair", "mutex", "write"]]);
    assert_eq!(separate, ["other", "permit", "read"]);
    assert_eq!(outer.hold_count(), 2, "the owner has not re-entered its hold");
    held.release().await.expect("held until now");
    other.close().await;
    assert_leaves_nothing(&store, &client, Some(outer)).await;
}

#[tokio::test(start_paused = true)]
async fn a_busy_try_is_one_request_and_a_wait_holds_the_members_before_the_busy_one() {
    let store = RecordingStore::new([]);
    let client = store.client();
    let busy = store.other().mutex("c").lock().await.expect("free");
    let all = several(&client, &["a", "b", "c", "d"]);
    assert!(
        all.try_lock(&LockOptions::new()).await.expect("busy is no error").is_none(),
        "granted although c is held"
    );
    let (joint, separate) = store.take_requests();
    assert_eq!((joint.len(), separate.len()), (1, 0));
    assert_eq!(store.other().list("").await.expect("memory can list").len(), 1, "a busy try left a claim");
    let waiting = tokio::spawn(async move { all.lock(&LockOptions::new()).await });
    sleep(S).await;
    assert_held(&store, &["a", "b"]).await;
    assert!(is_free(&store.other(), "d").await, "d is held while the multilock waits for c");
    let (joint, separate) = store.take_requests();
    assert_eq!(joint, [vec!["a", "b", "c", "d"], vec!["a", "b"]]);
    assert_eq!(separate, ["c"]);
    busy.release().await.expect("held until now");
    let held = waiting.await.expect("no panic").expect("c is free now");
    assert_leaves_nothing(&store, &client, Some(held)).await;
}

#[tokio::test(start_paused = true)]
async fn a_reply_that_is_lost_late_or_wrong_does_not_prevent_the_grant() {
    let late = Fate::Late(31 * S);
    for fate in [Fate::Lost, Fate::Cut, Fate::Refused, Fate::Panic, Fate::LatePanic, Fate::TooFew, late] {
        let store = RecordingStore::new([fate]);
        let client = store.client();
        let all = several(&client, &["a", "b", "c"]);
        let result = all.try_lock(&LockOptions::new()).await;
        let held = result.unwrap_or_else(|error| panic!("{fate:?}: {error}"));
        let held = held.unwrap_or_else(|| panic!("{fate:?}: busy because of its own claims"));
        assert!(!held.is_lost(), "{fate:?}");
        assert_held(&store, &["a", "b", "c"]).await;
        sleep(120 * S).await;
        assert!(!held.is_lost(), "{fate:?}: lost although it was renewed");
        assert_leaves_nothing(&store, &client, Some(held)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_lost_request_a_busy_lock_leaves_no_claim_of_the_others() {
    let store = RecordingStore::new([Fate::Cut]);
    let client = store.client();
    let busy = store.other().mutex("b").lock().await.expect("free");
    let result = several(&client, &["a", "b", "c"]).try_lock(&LockOptions::new()).await;
    assert!(result.expect("busy is no error").is_none(), "granted although b is held");
    busy.release().await.expect("held until now");
    assert_leaves_nothing(&store, &client, None).await;
}

/// Drops a future after this time. Panics if it has completed.
async fn drop_after<T>(span: Duration, future: impl Future<Output = T>) {
    assert!(timeout(span, future).await.is_err(), "the future completed before it was dropped");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_before_the_reply_leaves_no_claim() {
    for fate in [Fate::Late(5 * S), Fate::Late(31 * S)] {
        let store = RecordingStore::new([fate]);
        let client = store.client();
        drop_after(S, several(&client, &["a", "b", "c"]).lock(&LockOptions::new())).await;
        assert_leaves_nothing(&store, &client, None).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_during_separate_retries_leaves_no_claim() {
    let (store, line) = (RecordingStore::new([]), Switch::default());
    let client = Locks::new(line.wrap(Store::new(Arc::new(store.clone()))));
    line.lose_answers();
    let all = several(&client, &["a", "b", "c"]);
    let options = LockOptions::new();
    let mut acquiring = Box::pin(all.lock(&options));
    while store.take_requests().1.is_empty() {
        assert!(
            futures_util::poll!(&mut acquiring).is_pending(),
            "the future completed before it was dropped"
        );
        tokio::task::yield_now().await;
    }
    line.freeze();
    drop(acquiring);
    sleep(S).await;
    line.connect();
    assert_leaves_nothing(&store, &client, None).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_closed_during_a_request_waits_for_the_granted_locks() {
    for (fate, is_granted) in [(Fate::Late(5 * S), true), (Fate::Late(31 * S), false)] {
        let store = RecordingStore::new([fate]);
        let client = store.client();
        let all = several(&client, &["a", "b"]);
        let acquiring = tokio::spawn(async move { all.lock(&LockOptions::new()).await });
        sleep(S).await;
        let closing = client.clone();
        let closed = tokio::spawn(async move { closing.close().await });
        let result = acquiring.await.expect("no panic");
        match is_granted {
            // As for a single lock, the close waits for the guard.
            true => drop(result.expect("the request was in flight")),
            false => assert!(matches!(result, Err(Error::Closed { .. })), "{result:?}"),
        }
        closed.await.expect("no panic");
        assert_leaves_nothing(&store, &client, None).await;
    }
}

#[tokio::test(start_paused = true)]
async fn all_members_of_a_joint_request_stay_taken_for_at_least() {
    let store = RecordingStore::new([]);
    let client = store.client();
    let options = LockOptions::new().at_least(600 * S);
    let held = several(&client, &["a", "b"]).lock(&options).await.expect("free");
    held.release().await.expect("held until now");
    sleep(590 * S).await;
    assert_held(&store, &["a", "b"]).await;
    sleep(11 * S).await;
    assert!(is_free(&store.other(), "a").await && is_free(&store.other(), "b").await);
    assert_leaves_nothing(&store, &client, None).await;
    // No caller received the guard, so the minimum time has not begun.
    let store = RecordingStore::new([Fate::Late(5 * S)]);
    let client = store.client();
    drop_after(S, several(&client, &["a", "b"]).lock(&options)).await;
    assert_leaves_nothing(&store, &client, None).await;
}

/// A runtime polls the future of `block_on` after it has run some of its tasks. When it ends, other
/// tasks have therefore never run.
#[test]
fn a_runtime_that_ends_at_once_leaves_no_guard_that_cannot_be_released() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = Locks::memory();
    let all = MultiLock::new((0..500).map(|number| client.of(Kind::Mutex, number.to_string())));
    let all = all.expect("at least one");
    let first = runtime();
    let held = first.block_on(all.lock(&LockOptions::new())).expect("free");
    drop(first);
    assert!(held.is_lost(), "the locks are not renewed any more, but the guard is not lost");
    let result = runtime().block_on(async { timeout(60 * S, held.release()).await });
    assert!(
        result.expect("the release waits for a keeper that never ran").is_err(),
        "the loss is not reported"
    );
}
