//! Doorbells: they ring waiters, and tell which clients are dead.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use tokio::time::{Instant, timeout};

use dlock_core::{
    Wait,
    driver::{Attempt, Backend},
};

use super::{Place, SOON, connect, request};

/// A process that holds lock `x` until somebody kills it. It has started another process, its heir, which outlives it.
pub(crate) struct Holder {
    process: Child,
    heir: String,
}

impl Holder {
    pub(crate) fn of(place: &Place) -> Self {
        Self::with(place, "")
    }

    /// One that holds one of two permits.
    fn of_a_permit(place: &Place) -> Self {
        Self::with(place, "2")
    }

    fn with(place: &Place, limit: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "doorbells::the_holder_process"])
            .env("DLOCK_TEST_HOLDS", place.url())
            .env("DLOCK_TEST_LIMIT", limit)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let heir = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("heir ").map(str::to_owned));
        Self { process, heir: heir.expect("the process ended before it held the lock") }
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
        Command::new("kill").arg(&self.heir).status().ok();
    }
}

/// Not a test: the process of [`Holder`] runs this.
#[tokio::test]
async fn the_holder_process() {
    let Ok(url) = std::env::var("DLOCK_TEST_HOLDS") else { return };
    let client = connect(&url).await.unwrap();
    let limit = std::env::var("DLOCK_TEST_LIMIT").ok().and_then(|limit| limit.parse().ok());
    let guard = match limit {
        Some(limit) => client.semaphore("x", limit).acquire().await.unwrap(),
        None => client.mutex("x").lock().await.unwrap(),
    };
    #[expect(clippy::zombie_processes, reason = "it outlives this process, as a careless user's child may")]
    let mut heir =
        Command::new("sh").args(["-c", "echo; exec sleep 600"]).stdout(Stdio::piped()).spawn().unwrap();
    // `spawn` may return while the new process still has what it inherits, the bell too. Once it speaks, it has closed that.
    BufReader::new(heir.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    println!("\nheir {}", heir.id());
    guard.lost().await;
}

#[tokio::test]
async fn a_waiter_gets_a_killed_holders_lock_long_before_its_ttl() {
    let place = Place::new();
    let client = place.client().await;
    let mut holder = Holder::of(&place);
    let mutex = client.mutex("x");
    let mut waiter = Box::pin(mutex.lock().into_future());
    assert!(timeout(Duration::from_millis(300), &mut waiter).await.is_err(), "the holder lives");
    let killed = Instant::now();
    holder.kill();
    let guard = timeout(SOON, waiter).await.expect("long before its ttl").unwrap();
    println!("a killed holder's lock was free after {:?}", killed.elapsed());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_gets_a_killed_holders_permit_whichever_holder_is_killed() {
    let place = Place::new();
    let mut holders = [Holder::of_a_permit(&place), Holder::of_a_permit(&place)];
    let mut held = Vec::new();
    for holder in &mut holders {
        let pool = place.client().await.semaphore("x", 2);
        // Without a bell it would ask again after a third of its ttl.
        let mut waiter = Box::pin(pool.acquire().ttl(SOON * 12).into_future());
        assert!(timeout(Duration::from_millis(300), &mut waiter).await.is_err(), "both permits are held");
        holder.kill();
        held.push(timeout(SOON, waiter).await.expect("long before its ttl").unwrap());
    }
    assert!(held.iter().all(|guard| !guard.is_lost()), "both are held at once");
}

#[tokio::test]
async fn a_try_gets_a_killed_holders_lock_at_once() {
    let place = Place::new();
    let client = place.client().await;
    let mut holder = Holder::of(&place);
    assert!(client.mutex("x").try_lock().await.unwrap().is_none(), "the holder lives");
    holder.kill();
    assert_eq!(client.inspect("x").await.unwrap(), None, "a dead holder is shown");
    assert!(client.mutex("x").try_lock().await.unwrap().is_some(), "the holder is dead");
}

#[tokio::test]
async fn what_a_killed_client_left_is_cleared_away_by_the_next() {
    let place = Place::new();
    Holder::of(&place).kill();
    let client = place.client().await;
    assert_eq!(place.bells().len(), 1, "not the new client's bell alone");
    let claims: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM dlock_queue")
        .fetch_one(&mut place.raw().await)
        .await
        .unwrap();
    assert_eq!(claims, 0);
    drop(client);
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_bell_along() {
    let place = Place::new();
    let client = place.client().await;
    client.mutex("x").lock().await.unwrap().release().await.unwrap();
    assert!(client.mutex("x").try_lock().await.unwrap().is_some());
    client.close().await;
    drop(client);
    assert_eq!(place.bells(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn a_client_whose_runtime_ends_lets_go_at_once() {
    let place = Place::new();
    let url = place.url();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let guard = runtime.block_on(async { connect(&url).await.unwrap().mutex("x").lock().await.unwrap() });
        drop(runtime);
        guard
    });
    let guard = thread.join().unwrap();
    assert!(guard.is_lost(), "nobody renews the hold, and the guard does not say so");
    let client = place.client().await;
    assert!(
        client.mutex("x").try_lock().await.unwrap().is_some(),
        "held, and the client of the holder is gone"
    );
}

#[tokio::test]
async fn a_client_may_go_on_in_another_runtime_than_it_was_connected_in() {
    let place = Place::new();
    let url = place.url();
    let connected = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let client = runtime.block_on(async {
            let client = connect(&url).await.unwrap();
            let guard = client.mutex("x").lock().await.unwrap();
            assert!(client.mutex("x").try_lock().await.unwrap().is_none());
            guard.release().await.unwrap();
            client
        });
        drop(runtime);
        client
    });
    let (a, b) = (connected.join().unwrap(), place.client().await);
    let guard = b.mutex("x").lock().await.unwrap();
    let mutex = a.mutex("x");
    let mut waiter = Box::pin(mutex.lock().into_future());
    assert!(timeout(Duration::from_millis(200), &mut waiter).await.is_err());
    let released = Instant::now();
    guard.release().await.unwrap();
    let guard = timeout(SOON, waiter).await.expect("the waiter is not rung").unwrap();
    assert!(
        released.elapsed() < Duration::from_secs(5),
        "the waiter was not rung, and asked by itself after a third of its ttl"
    );
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_asks_nothing_while_it_waits() {
    let place = Place::new();
    let (a, b) = (place.client().await, place.client().await);
    let guard = a.mutex("x").lock().await.unwrap();
    let mutex = b.mutex("x");
    let mut waiter = Box::pin(mutex.lock().into_future());
    assert!(timeout(Duration::from_millis(200), &mut waiter).await.is_err());
    let mut raw = place.raw().await;
    let version = "PRAGMA data_version";
    let before: i64 = sqlx::query_scalar(version).fetch_one(&mut raw).await.unwrap();
    assert!(timeout(Duration::from_secs(1), &mut waiter).await.is_err());
    let after: i64 = sqlx::query_scalar(version).fetch_one(&mut raw).await.unwrap();
    assert_eq!(before, after, "the file has changed, so the waiter has asked, which renews its claim");
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
}

#[test]
fn a_lock_is_handed_over_without_delay() {
    const ROUNDS: usize = 200;
    let place = Place::new();
    let (sender, released) = std::sync::mpsc::channel::<Instant>();
    let side = |url: String, note: Box<dyn Fn(Instant) + Send>| {
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = connect(&url).await.unwrap();
                let mut times = Vec::new();
                for _ in 0..ROUNDS {
                    let guard = client.fair("x").lock().await.unwrap();
                    times.push(Instant::now());
                    // Waits until the other side waits for the lock.
                    while client.inspect("x").await.unwrap().unwrap().queue.is_empty() {
                        if times.len() == ROUNDS {
                            break;
                        }
                        tokio::task::yield_now().await;
                    }
                    note(Instant::now());
                    guard.release().await.unwrap();
                }
                times
            })
        })
    };
    let other = sender.clone();
    let a = side(place.url(), Box::new(move |at| sender.send(at).unwrap()));
    let b = side(place.url(), Box::new(move |at| other.send(at).unwrap()));
    let mut granted = [a.join().unwrap(), b.join().unwrap()].concat();
    let mut released: Vec<_> = released.iter().collect();
    granted.sort();
    released.sort();
    let mut took: Vec<_> = granted[1..].iter().zip(&released).map(|(next, last)| *next - *last).collect();
    took.sort();
    let (p50, p99) = (took[took.len() / 2], took[took.len() * 99 / 100]);
    println!("hand-off from before the release to the next grant: p50 {p50:?}, p99 {p99:?}");
    assert!(p50 < Duration::from_millis(50), "p50 {p50:?}");
}

/// A file that has the name of a doorbell, and is no FIFO, is neither written nor removed.
#[tokio::test]
async fn a_file_that_is_no_fifo_is_no_doorbell() {
    let place = Place::new();
    let holder = place.backend().await;
    let mut waits = holder.claim(request(Wait::Forever));
    let guard = place.client().await.mutex("x").lock().await.unwrap();
    assert!(matches!(waits.attempt().await.unwrap(), Attempt::Busy { .. }));
    let precious = place.0.path().join("precious");
    std::fs::write(&precious, "of somebody else").unwrap();
    for bell in place.bells() {
        std::fs::remove_file(&bell).unwrap();
        std::os::unix::fs::symlink(&precious, &bell).unwrap();
        std::fs::write(bell.with_extension("new"), "").unwrap();
    }
    let left = place.bells().len();
    guard.release().await.unwrap();
    assert!(matches!(waits.attempt().await.unwrap(), Attempt::Granted(_)));
    drop((waits, holder, place.client().await));
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "of somebody else");
    assert_eq!(place.bells().len(), left);
}
