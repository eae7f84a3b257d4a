//! Tests of doorbells, which wake waiters and show which clients are dead.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use tokio::time::{Instant, timeout};

use dlock_core::{
    LockOptions, Wait,
    driver::{Attempt, Backend},
};

use super::{Place, SOON, connect, request};

/// Ttl of a hold whose end a test waits for.
const SHORT_TTL: Duration = Duration::from_secs(3);

/// A process that holds lock `x` until it is killed. It has started a child process that outlives
/// it.
pub(crate) struct Holder {
    process: Child,
    child: String,
}

impl Holder {
    pub(crate) fn of(place: &Place) -> Self {
        Self::with(place, &[])
    }

    /// Starts a process that holds one of two permits.
    fn of_a_permit(place: &Place) -> Self {
        Self::with(place, &[("DLOCK_TEST_LIMIT", "2")])
    }

    /// Starts a process that holds the lock with a ttl of [`SHORT_TTL`].
    fn of_a_short_ttl(place: &Place) -> Self {
        Self::with(place, &[("DLOCK_TEST_TTL", &SHORT_TTL.as_secs().to_string())])
    }

    fn with(place: &Place, variables: &[(&str, &str)]) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "doorbells::the_holder_process"])
            .env("DLOCK_TEST_HOLDS", place.url())
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let child =
            lines.map_while(Result::ok).find_map(|line| line.strip_prefix("child ").map(str::to_owned));
        Self { process, child: child.expect("the process ended before it held the lock") }
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
        Command::new("kill").arg(&self.child).status().ok();
    }
}

/// Not a test: the process of [`Holder`] executes this.
#[tokio::test]
async fn the_holder_process() {
    let Ok(url) = std::env::var("DLOCK_TEST_HOLDS") else { return };
    let number = |variable| std::env::var(variable).ok().map(|number| number.parse().unwrap());
    let ttl = number("DLOCK_TEST_TTL").map(|seconds| Duration::from_secs(u64::from(seconds)));
    let options = ttl.into_iter().fold(LockOptions::new(), LockOptions::ttl);
    let client = connect(&url).await.unwrap().with_defaults(options);
    let guard = match number("DLOCK_TEST_LIMIT") {
        Some(limit) => client.semaphore("x", limit).acquire().await.unwrap(),
        None => client.mutex("x").lock().await.unwrap(),
    };
    #[expect(clippy::zombie_processes, reason = "it outlives this process, as a user's child process may")]
    let mut child =
        Command::new("sh").args(["-c", "echo; exec sleep 600"]).stdout(Stdio::piped()).spawn().unwrap();
    // `spawn` may return while the new process still has the inherited handles, among them that of
    // the FIFO. Once the process has written a line, it has closed them.
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    println!("\nchild {}", child.id());
    guard.lost().await;
}

#[tokio::test]
async fn a_waiter_gets_a_killed_holders_lock_long_before_its_ttl() {
    let place = Place::new();
    let client = place.client().await;
    let mut holder = Holder::of(&place);
    let mutex = client.mutex("x");
    let mut waiter = Box::pin(mutex.lock().into_future());
    assert!(
        timeout(Duration::from_millis(300), &mut waiter).await.is_err(),
        "granted while the holder lives"
    );
    let killed_at = Instant::now();
    holder.kill();
    let guard = timeout(SOON, waiter).await.expect("not granted long before the ttl").unwrap();
    println!("a killed holder's lock was free after {:?}", killed_at.elapsed());
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_gets_a_killed_holders_permit_whichever_holder_is_killed() {
    let place = Place::new();
    let mut holders = [Holder::of_a_permit(&place), Holder::of_a_permit(&place)];
    let mut held = Vec::new();
    for holder in &mut holders {
        let pool = place.client().await.semaphore("x", 2);
        // Without a ring it would attempt again after a third of its ttl.
        let mut waiter = Box::pin(pool.acquire().ttl(SOON * 12).into_future());
        assert!(
            timeout(Duration::from_millis(300), &mut waiter).await.is_err(),
            "granted while both permits are held"
        );
        holder.kill();
        held.push(timeout(SOON, waiter).await.expect("not granted long before the ttl").unwrap());
    }
    assert!(held.iter().all(|guard| !guard.is_lost()), "one of the two permits is lost");
}

#[tokio::test]
async fn a_try_gets_a_killed_holders_lock_at_once() {
    let place = Place::new();
    let client = place.client().await;
    let mut holder = Holder::of(&place);
    assert!(client.mutex("x").try_lock().await.unwrap().is_none(), "granted while the holder lives");
    holder.kill();
    assert_eq!(client.inspect("x").await.unwrap(), None, "a dead holder is reported");
    assert!(client.mutex("x").try_lock().await.unwrap().is_some(), "not granted although the holder is dead");
}

/// Kills a holder with a short ttl, and asserts that a waiter gets its lock when the ttl has ended.
/// `began_at` is a time before the grant.
async fn is_free_after_its_ttl(place: &Place, mut holder: Holder, began_at: Instant) {
    let client = place.client().await;
    let mutex = client.mutex("x");
    let mut waiter = Box::pin(mutex.lock().into_future());
    assert!(
        timeout(Duration::from_millis(100), &mut waiter).await.is_err(),
        "granted while the holder lives"
    );
    holder.kill();
    let guard = timeout(SOON, waiter).await.expect("not granted after the ttl").unwrap();
    assert!(began_at.elapsed() >= SHORT_TTL, "granted before the ttl has ended");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn without_its_doorbell_the_lock_of_a_killed_holder_ends_with_its_ttl() {
    let place = Place::new();
    let began_at = Instant::now();
    let holder = Holder::of_a_short_ttl(&place);
    for bell in place.bells() {
        std::fs::remove_file(bell).unwrap();
    }
    is_free_after_its_ttl(&place, holder, began_at).await;
}

/// A forked child has the handles of its parent until it executes another program.
#[tokio::test]
async fn while_its_doorbell_is_open_elsewhere_the_lock_of_a_killed_holder_ends_with_its_ttl() {
    let place = Place::new();
    let began_at = Instant::now();
    let holder = Holder::of_a_short_ttl(&place);
    let open = |bell| File::options().read(true).write(true).open(bell).unwrap();
    let handles: Vec<_> = place.bells().into_iter().map(open).collect();
    is_free_after_its_ttl(&place, holder, began_at).await;
    assert_eq!(handles.len(), 1, "there are other doorbells than that of the holder");
}

#[tokio::test]
async fn the_next_client_removes_the_claims_and_the_doorbell_of_a_killed_one() {
    let place = Place::new();
    Holder::of(&place).kill();
    let client = place.client().await;
    assert_eq!(place.bells().len(), 1, "there are other doorbells than that of the new client");
    let claims: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM dlock_queue")
        .fetch_one(&mut place.raw().await)
        .await
        .unwrap();
    assert_eq!(claims, 0);
    drop(client);
}

#[tokio::test]
async fn a_client_that_ends_removes_its_doorbell() {
    let place = Place::new();
    let client = place.client().await;
    client.mutex("x").lock().await.unwrap().release().await.unwrap();
    assert!(client.mutex("x").try_lock().await.unwrap().is_some());
    client.close().await;
    drop(client);
    assert_eq!(place.bells(), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn the_locks_of_a_client_are_free_as_soon_as_its_runtime_ends() {
    let place = Place::new();
    let url = place.url();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let guard = runtime.block_on(async { connect(&url).await.unwrap().mutex("x").lock().await.unwrap() });
        drop(runtime);
        guard
    });
    let guard = thread.join().unwrap();
    assert!(guard.is_lost(), "the hold is not renewed any more, and the guard does not report it");
    let client = place.client().await;
    assert!(
        client.mutex("x").try_lock().await.unwrap().is_some(),
        "the lock is held although the holder's client has ended"
    );
}

#[tokio::test]
async fn a_client_works_in_another_runtime_than_it_was_connected_in() {
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
    let released_at = Instant::now();
    guard.release().await.unwrap();
    let guard = timeout(SOON, waiter).await.expect("the waiter was not rung").unwrap();
    assert!(
        released_at.elapsed() < Duration::from_secs(5),
        "the waiter was not rung, and attempted by itself after a third of its ttl"
    );
    guard.release().await.unwrap();
}

#[test]
fn a_release_in_flight_outlives_the_runtime_of_its_caller() {
    let place = Place::new();
    let current_thread = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (caller, other) = (current_thread(), current_thread());
    let guard = caller.block_on(async {
        let client = connect(&place.url()).await.unwrap();
        client.mutex("x").lock().ttl(Duration::from_secs(600)).await.unwrap()
    });
    let mut raw = other.block_on(async {
        let mut raw = place.raw().await;
        sqlx::query("BEGIN IMMEDIATE").execute(&mut raw).await.unwrap();
        raw
    });
    caller.block_on(async {
        // During this time the keeper passes the release to the client's thread.
        let released = timeout(Duration::from_millis(200), guard.release()).await;
        assert!(released.is_err(), "released while the file was locked");
    });
    drop(caller);
    other.block_on(async {
        sqlx::query("COMMIT").execute(&mut raw).await.unwrap();
        let client = place.client().await;
        let wait = client.mutex("x").lock().wait(SOON);
        assert!(wait.await.is_ok(), "the release ended with the runtime of its caller");
    });
}

#[tokio::test]
async fn a_waiter_makes_no_attempt_while_it_waits() {
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
    assert_eq!(
        before, after,
        "the file has changed, so the waiter has made an attempt, which renews its claim"
    );
    guard.release().await.unwrap();
    waiter.await.unwrap().release().await.unwrap();
}

#[test]
fn a_lock_is_handed_over_without_delay() {
    const ROUNDS: usize = 200;
    let place = Place::new();
    let (sender, released) = std::sync::mpsc::channel::<Instant>();
    let contender = |url: String, report: Box<dyn Fn(Instant) + Send>| {
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = connect(&url).await.unwrap();
                let mut granted_at = Vec::new();
                for _ in 0..ROUNDS {
                    let guard = client.fair("x").lock().await.unwrap();
                    granted_at.push(Instant::now());
                    // Waits until the other contender waits for the lock.
                    while client.inspect("x").await.unwrap().unwrap().queue.is_empty() {
                        if granted_at.len() == ROUNDS {
                            break;
                        }
                        tokio::task::yield_now().await;
                    }
                    report(Instant::now());
                    guard.release().await.unwrap();
                }
                granted_at
            })
        })
    };
    let other = sender.clone();
    let a = contender(place.url(), Box::new(move |at| sender.send(at).unwrap()));
    let b = contender(place.url(), Box::new(move |at| other.send(at).unwrap()));
    let mut granted = [a.join().unwrap(), b.join().unwrap()].concat();
    let mut released: Vec<_> = released.iter().collect();
    granted.sort();
    released.sort();
    let mut delays: Vec<_> = granted[1..].iter().zip(&released).map(|(next, last)| *next - *last).collect();
    delays.sort();
    let (p50, p99) = (delays[delays.len() / 2], delays[delays.len() * 99 / 100]);
    println!("hand-off from before the release to the next grant: p50 {p50:?}, p99 {p99:?}");
    assert!(p50 < Duration::from_millis(50), "p50 {p50:?}");
}

/// A file that has the name of a doorbell but is not a FIFO is neither written nor removed.
#[tokio::test]
async fn a_file_that_is_no_fifo_is_no_doorbell() {
    let place = Place::new();
    let backend = place.backend().await;
    let mut waiter = backend.claim(request(Wait::Forever));
    let guard = place.client().await.mutex("x").lock().await.unwrap();
    assert!(matches!(waiter.attempt().await.unwrap(), Attempt::Busy { .. }));
    let precious = place.0.path().join("precious");
    std::fs::write(&precious, "another user's data").unwrap();
    for bell in place.bells() {
        std::fs::remove_file(&bell).unwrap();
        std::os::unix::fs::symlink(&precious, &bell).unwrap();
        std::fs::write(bell.with_extension("new"), "").unwrap();
    }
    let left = place.bells().len();
    guard.release().await.unwrap();
    assert!(matches!(waiter.attempt().await.unwrap(), Attempt::Granted(_)));
    drop((waiter, backend, place.client().await));
    assert_eq!(std::fs::read_to_string(&precious).unwrap(), "another user's data");
    assert_eq!(place.bells().len(), left);
}
