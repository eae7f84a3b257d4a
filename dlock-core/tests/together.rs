//! A MultiLock whose store grants several locks in one step: how often it asks, and what it does when the answer is lost, late, or
//! wrong.
#![expect(clippy::disallowed_methods, reason = "contenders are tasks; each test awaits its own")]

mod watchdog;

use std::{
    collections::VecDeque,
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use dlock_conformance::wrap::Switch;
use dlock_core::{
    DistributedLock, Error, Guard, Kind, LockOptions, Locks, MultiLock, Owner, Result,
    driver::{AttemptAll, Backend, Claim, Info, Request, Store},
    memory::MemoryBackend,
};
use tokio::time::{sleep, timeout};

const S: Duration = Duration::from_secs(1);

/// What becomes of a request for several locks.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It is answered.
    Answer,
    /// It is answered after this time.
    Late(Duration),
    /// The store acts, and the answer is lost.
    Lost,
    /// It does not reach the store.
    Cut,
    /// The store refuses it.
    Refused,
    /// The driver panics before it asks.
    Panic,
    /// The driver panics when the store has acted.
    LatePanic,
    /// The driver gives back fewer claims than were asked for.
    TooFew,
}

/// A memory store that notes how it is asked for several locks, and answers as it is told.
#[derive(Clone, Debug)]
struct Counting {
    memory: MemoryBackend,
    info: Info,
    fates: Arc<Mutex<VecDeque<Fate>>>,
    /// The names of each request for several locks.
    together: Arc<Mutex<Vec<Vec<String>>>>,
    /// The name of each claim that was made by itself.
    alone: Arc<Mutex<Vec<String>>>,
}

impl Counting {
    fn new(fates: impl IntoIterator<Item = Fate>) -> Self {
        watchdog::watch();
        let memory = MemoryBackend::new();
        let info = memory.info().clone();
        let fates = Arc::new(Mutex::new(fates.into_iter().collect()));
        Self { memory, info, fates, together: Arc::default(), alone: Arc::default() }
    }

    /// The same, with fewer locks for each request.
    fn with_most(mut self, most: usize) -> Self {
        self.info = self.info.locks_per_step(most);
        self
    }

    fn client(&self) -> Locks {
        Locks::new(Store::new(Arc::new(self.clone())))
    }

    /// Another client of the same memory.
    fn other(&self) -> Locks {
        Locks::new(self.memory.clone().into_store())
    }

    /// What it was asked for since the last call: together, and alone.
    fn asked(&self) -> (Vec<Vec<String>>, Vec<String>) {
        let take = |all: &Mutex<Vec<String>>| std::mem::take(&mut *all.lock().expect("no panic"));
        (std::mem::take(&mut *self.together.lock().expect("no panic")), take(&self.alone))
    }
}

#[async_trait]
impl Backend for Counting {
    fn info(&self) -> &Info {
        &self.info
    }

    fn claim(&self, request: Request) -> Box<dyn Claim> {
        self.alone.lock().expect("no panic").push(request.name.to_string());
        self.memory.claim(request)
    }

    async fn attempt_all(&self, requests: Vec<Request>) -> Result<AttemptAll> {
        let names = requests.iter().map(|request| request.name.to_string()).collect();
        self.together.lock().expect("no panic").push(names);
        let fate = self.fates.lock().expect("no panic").pop_front().unwrap_or(Fate::Answer);
        let away = || Error::Unavailable { store: "counting", source: "no answer".into() };
        match fate {
            Fate::Cut => return Err(away()),
            Fate::Refused => return Err(Error::Refused { store: "counting", source: "not you".into() }),
            Fate::Panic => panic!("as the test says"),
            _ => {}
        }
        let answer = self.memory.attempt_all(requests).await;
        match fate {
            Fate::Late(span) => sleep(span).await,
            Fate::Lost => return Err(away()),
            Fate::LatePanic => panic!("as the test says"),
            Fate::TooFew => {
                return answer.map(|told| match told {
                    AttemptAll::Granted(claims) => AttemptAll::Granted(claims.into_iter().skip(1).collect()),
                    busy @ AttemptAll::Busy(_) => busy,
                });
            }
            _ => {}
        }
        answer
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

async fn assert_held(store: &Counting, names: &[&str]) {
    for name in names {
        assert!(!is_free(&store.other(), name).await, "{name} is free");
    }
}

/// Releases the guard, and sees that nothing is left.
async fn assert_leaves_nothing(store: &Counting, client: &Locks, held: Option<Guard>) {
    if let Some(held) = held {
        held.release().await.expect("held until now");
    }
    client.close().await;
    assert_eq!(store.other().list("").await.expect("memory can list"), [], "left behind");
}

#[tokio::test(start_paused = true)]
async fn locks_of_one_client_are_one_request() {
    let store = Counting::new([]);
    let client = store.client();
    let held = several(&client, &["c", "a", "b"]).lock(&LockOptions::new()).await.expect("free");
    assert_eq!(store.asked(), (vec![vec!["a".into(), "b".into(), "c".into()]], vec![]));
    assert_held(&store, &["a", "b", "c"]).await;
    assert_eq!(held.tokens().len(), 3);
    sleep(120 * S).await;
    assert!(!held.is_lost(), "lost although it was renewed");
    assert_held(&store, &["a", "b", "c"]).await;
    assert_leaves_nothing(&store, &client, Some(held)).await;
}

#[tokio::test(start_paused = true)]
async fn more_locks_than_fit_are_several_requests_and_one_is_none() {
    let store = Counting::new([]).with_most(2);
    let client = store.client();
    let held = several(&client, &["a", "b", "c", "d", "e"]).lock(&LockOptions::new()).await.expect("free");
    let pair = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
    assert_eq!(store.asked(), (vec![pair("a", "b"), pair("c", "d")], vec!["e".to_owned()]));
    assert_leaves_nothing(&store, &client, Some(held)).await;
    let store = Counting::new([]).with_most(1);
    let client = store.client();
    let held = several(&client, &["a", "b"]).lock(&LockOptions::new()).await.expect("free");
    assert_eq!(
        store.asked(),
        (vec![], pair("a", "b")),
        "a store that grants one lock in one step was asked for two"
    );
    assert_leaves_nothing(&store, &client, Some(held)).await;
}

#[tokio::test(start_paused = true)]
async fn readers_permits_and_locks_of_owners_or_other_clients_are_asked_for_one_by_one() {
    let (store, me) = (Counting::new([]), Owner::new());
    let (client, other) = (store.client(), store.client());
    let owned: Arc<dyn DistributedLock> = Arc::new(client.mutex("owned").owned_by(&me));
    let outer = owned.lock(&LockOptions::new()).await.expect("free");
    store.asked();
    let kinds =
        [(Kind::Mutex, "mutex"), (Kind::Read, "read"), (Kind::Write, "write"), (Kind::Permit, "permit")];
    let kinds = kinds.into_iter().chain([(Kind::Fair, "fair")]).map(|(kind, name)| client.of(kind, name));
    let members = kinds.chain([owned, other.of(Kind::Mutex, "other")]);
    let all = MultiLock::new(members).expect("at least one");
    let held = all.lock(&LockOptions::new()).await.expect("free, or the owner's own");
    let (together, mut alone) = store.asked();
    alone.sort();
    assert_eq!(together, [["fair", "mutex", "write"]]);
    assert_eq!(alone, ["other", "permit", "read"]);
    assert_eq!(outer.hold_count(), 2, "the owner has not entered its own hold");
    held.release().await.expect("held until now");
    other.close().await;
    assert_leaves_nothing(&store, &client, Some(outer)).await;
}

#[tokio::test(start_paused = true)]
async fn a_refused_try_is_one_request_and_a_wait_keeps_those_before_the_busy_one() {
    let store = Counting::new([]);
    let client = store.client();
    let busy = store.other().mutex("c").lock().await.expect("free");
    let all = several(&client, &["a", "b", "c", "d"]);
    assert!(all.try_lock(&LockOptions::new()).await.expect("busy is no error").is_none(), "c is held");
    let (together, alone) = store.asked();
    assert_eq!((together.len(), alone.len()), (1, 0));
    assert_eq!(
        store.other().list("").await.expect("memory can list").len(),
        1,
        "a refused try left something"
    );
    let waiting = tokio::spawn(async move { all.lock(&LockOptions::new()).await });
    sleep(S).await;
    assert_held(&store, &["a", "b"]).await;
    assert!(is_free(&store.other(), "d").await, "d is held while the multilock waits for c");
    let (together, alone) = store.asked();
    assert_eq!(together, [vec!["a", "b", "c", "d"], vec!["a", "b"]]);
    assert_eq!(alone, ["c"]);
    busy.release().await.expect("held until now");
    let held = waiting.await.expect("no panic").expect("c is free now");
    assert_leaves_nothing(&store, &client, Some(held)).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_lost_late_or_wrong_costs_no_lock() {
    let late = Fate::Late(31 * S);
    for fate in [Fate::Lost, Fate::Cut, Fate::Refused, Fate::Panic, Fate::LatePanic, Fate::TooFew, late] {
        let store = Counting::new([fate]);
        let client = store.client();
        let all = several(&client, &["a", "b", "c"]);
        let tried = all.try_lock(&LockOptions::new()).await;
        let held = tried.unwrap_or_else(|error| panic!("{fate:?}: {error}"));
        let held = held.unwrap_or_else(|| panic!("{fate:?}: its own claims keep it out"));
        assert!(!held.is_lost(), "{fate:?}");
        assert_held(&store, &["a", "b", "c"]).await;
        sleep(120 * S).await;
        assert!(!held.is_lost(), "{fate:?}: lost although it was renewed");
        assert_leaves_nothing(&store, &client, Some(held)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_lost_answer_a_busy_lock_leaves_nothing_of_the_others() {
    let store = Counting::new([Fate::Cut]);
    let client = store.client();
    let busy = store.other().mutex("b").lock().await.expect("free");
    let tried = several(&client, &["a", "b", "c"]).try_lock(&LockOptions::new()).await;
    assert!(tried.expect("busy is no error").is_none(), "two hold b");
    busy.release().await.expect("held until now");
    assert_leaves_nothing(&store, &client, None).await;
}

/// Drops a future in flight.
async fn drop_after<T>(span: Duration, future: impl Future<Output = T>) {
    assert!(timeout(span, future).await.is_err(), "it was to be dropped in flight");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_before_the_answer_leaves_nothing() {
    for fate in [Fate::Late(5 * S), Fate::Late(31 * S)] {
        let store = Counting::new([fate]);
        let client = store.client();
        drop_after(S, several(&client, &["a", "b", "c"]).lock(&LockOptions::new())).await;
        assert_leaves_nothing(&store, &client, None).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_while_each_asks_again_leaves_nothing() {
    let (store, line) = (Counting::new([]), Switch::default());
    let client = Locks::new(line.wrap(Store::new(Arc::new(store.clone()))));
    line.lose_answers();
    let all = several(&client, &["a", "b", "c"]);
    let options = LockOptions::new();
    let mut asking = Box::pin(all.lock(&options));
    while store.asked().1.is_empty() {
        assert!(futures_util::poll!(&mut asking).is_pending(), "it was to be dropped in flight");
        tokio::task::yield_now().await;
    }
    line.freeze();
    drop(asking);
    sleep(S).await;
    line.connect();
    assert_leaves_nothing(&store, &client, None).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_closed_in_flight_waits_for_what_was_granted() {
    for (fate, is_granted) in [(Fate::Late(5 * S), true), (Fate::Late(31 * S), false)] {
        let store = Counting::new([fate]);
        let client = store.client();
        let all = several(&client, &["a", "b"]);
        let asking = tokio::spawn(async move { all.lock(&LockOptions::new()).await });
        sleep(S).await;
        let closing = client.clone();
        let closed = tokio::spawn(async move { closing.close().await });
        let told = asking.await.expect("no panic");
        match is_granted {
            // As with one lock: the close waits for the guard.
            true => drop(told.expect("it was under way")),
            false => assert!(matches!(told, Err(Error::Closed { .. })), "{told:?}"),
        }
        closed.await.expect("no panic");
        assert_leaves_nothing(&store, &client, None).await;
    }
}

#[tokio::test(start_paused = true)]
async fn several_locks_that_are_held_for_at_least_some_time_stay() {
    let store = Counting::new([]);
    let client = store.client();
    let options = LockOptions::new().at_least(600 * S);
    let held = several(&client, &["a", "b"]).lock(&options).await.expect("free");
    held.release().await.expect("held until now");
    sleep(590 * S).await;
    assert_held(&store, &["a", "b"]).await;
    sleep(11 * S).await;
    assert!(is_free(&store.other(), "a").await && is_free(&store.other(), "b").await);
    assert_leaves_nothing(&store, &client, None).await;
    // Nobody has the guard, so nobody's time has begun.
    let store = Counting::new([Fate::Late(5 * S)]);
    let client = store.client();
    drop_after(S, several(&client, &["a", "b"]).lock(&options)).await;
    assert_leaves_nothing(&store, &client, None).await;
}

/// A runtime runs some of its tasks and then looks at what it waits for. So when it ends, some have not run yet.
#[test]
fn a_runtime_that_ends_at_once_leaves_no_guard_that_cannot_be_released() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = Locks::memory();
    let all = MultiLock::new((0..500).map(|number| client.of(Kind::Mutex, number.to_string())));
    let all = all.expect("at least one");
    let first = runtime();
    let held = first.block_on(all.lock(&LockOptions::new())).expect("free");
    drop(first);
    assert!(held.is_lost(), "nobody keeps the locks any more");
    let told = runtime().block_on(async { timeout(60 * S, held.release()).await });
    assert!(told.expect("the release waits for a keeper that never ran").is_err(), "it was lost");
}
