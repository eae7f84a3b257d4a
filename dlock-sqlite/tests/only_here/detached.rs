//! Claims that go on without their client, and who has a claim.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use dlock_core::{Contender, LockOptions, LostReason, Ticket, Who};
use tokio::time::{Instant, timeout};

use super::{Place, SOON, connect, run};

/// A process that detaches lock `x` or takes it back. Then it lives until somebody kills it.
struct Process {
    child: Child,
    /// What it has told: a ticket.
    told: String,
}

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

impl Process {
    /// One that detaches lock `x` for some milliseconds. With a limit, `x` is a permit.
    fn detaches(place: &Place, limit: &str, lasting: Duration) -> Self {
        Self::start(place, &[("LIMIT", limit), ("LASTING", &lasting.as_millis().to_string())])
    }

    /// One that takes the lock of a ticket back, and keeps it.
    fn resumes(place: &Place, ticket: &Ticket) -> Self {
        Self::start(place, &[("TICKET", &ticket.to_string())])
    }

    fn start(place: &Place, what: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "detached::the_process"])
            .env("DLOCK_TEST_DETACHES", place.url())
            .envs(what.iter().map(|(key, value)| (format!("DLOCK_TEST_{key}"), value)))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let told = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("told ").map(str::to_owned));
        Self { child, told: told.expect("the process ended before it was done") }
    }

    fn ticket(&self) -> Ticket {
        self.told.parse().unwrap()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Not a test: [`Process`] runs this.
#[tokio::test]
async fn the_process() {
    let var = |key: &str| std::env::var(format!("DLOCK_TEST_{key}")).ok();
    let Some(url) = var("DETACHES") else { return };
    let client = connect(&url).await.unwrap();
    if let Some(ticket) = var("TICKET") {
        let guard = client.resume(&ticket.parse().unwrap()).await.unwrap();
        println!("\ntold {ticket}");
        guard.lost().await;
        return;
    }
    let guard = match var("LIMIT").and_then(|limit| limit.parse().ok()) {
        Some(limit) => client.semaphore("x", limit).acquire().await.unwrap(),
        None => client.mutex("x").lock().await.unwrap(),
    };
    let lasting = Duration::from_millis(var("LASTING").unwrap().parse().unwrap());
    println!("\ntold {}", guard.detach(lasting).await.unwrap());
    std::future::pending().await
}

/// The holder of lock `x`, as a new client sees it.
async fn holder(place: &Place) -> Contender {
    place.client().await.inspect("x").await.unwrap().expect("held").holders.remove(0)
}

#[tokio::test]
async fn a_detached_hold_outlives_its_killed_process() {
    let place = Place::new();
    let mut process = Process::detaches(&place, "", LONG);
    process.kill();
    // The first client that connects removes what a killed client has left: its doorbell, and here nothing else.
    let client = place.client().await;
    assert_eq!(place.bells().len(), 1, "not the new client's bell alone");
    assert!(client.mutex("x").try_lock().await.unwrap().is_none(), "the hold ended with its process");
    let shown = holder(&place).await;
    assert!(shown.ttl_left.is_some_and(|left| LONG - SOON * 6 < left && left <= LONG), "{shown:?}");
    let who = format!(" pid {} ", process.child.id());
    assert!(shown.who.as_deref().is_some_and(|shown| shown.contains(&who)), "{shown:?}");
    client.release(&process.ticket()).await.unwrap();
    assert!(client.mutex("x").try_lock().await.unwrap().is_some(), "released by its ticket");
    let again = client.release(&process.ticket()).await.expect_err("the ticket is used up");
    assert!(matches!(again, dlock_core::Error::Lost { .. }), "{again:?}");
}

#[tokio::test]
async fn its_time_ends_a_detached_hold() {
    let lasting = Duration::from_secs(2);
    let place = Place::new();
    let begun = Instant::now();
    let mut process = Process::detaches(&place, "", lasting);
    process.kill();
    let client = place.client().await;
    let mutex = client.mutex("x");
    let guard =
        timeout(SOON, mutex.lock().ttl(SOON * 12)).await.expect("long before the waiter's ttl").unwrap();
    assert!(begun.elapsed() >= lasting, "free after {:?}", begun.elapsed());
    let lost = client.resume(&process.ticket()).await.expect_err("its time is over");
    assert!(matches!(lost, dlock_core::Error::Lost { reason: LostReason::Taken, .. }), "{lost:?}");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_behind_a_detached_hold_asks_nothing_until_the_release_rings_it() {
    let place = Place::new();
    let mut process = Process::detaches(&place, "", LONG);
    process.kill();
    let (a, b) = (place.client().await, place.client().await);
    let mutex = a.mutex("x");
    let mut waiter = Box::pin(mutex.lock().ttl(SOON * 12).into_future());
    assert!(timeout(Duration::from_millis(300), &mut waiter).await.is_err(), "it is held");
    let mut raw = place.raw().await;
    let version = "PRAGMA data_version";
    let before: i64 = sqlx::query_scalar(version).fetch_one(&mut raw).await.unwrap();
    assert!(timeout(Duration::from_secs(1), &mut waiter).await.is_err());
    let after: i64 = sqlx::query_scalar(version).fetch_one(&mut raw).await.unwrap();
    assert_eq!(before, after, "the file has changed, so the waiter has asked");
    b.release(&process.ticket()).await.unwrap();
    timeout(SOON, waiter).await.expect("the waiter is not rung").unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_hears_that_a_hold_ends_sooner_when_it_is_detached() {
    let place = Place::new();
    let (a, b) = (place.client().await, place.client().await);
    let guard = a.mutex("x").lock().ttl(SOON * 12).await.unwrap();
    let mutex = b.mutex("x");
    let mut waiter = Box::pin(mutex.lock().ttl(SOON * 12).into_future());
    assert!(timeout(Duration::from_millis(300), &mut waiter).await.is_err(), "it is held");
    guard.detach(Duration::from_secs(1)).await.unwrap();
    drop(timeout(SOON, waiter).await.expect("it waits for the end that the hold had before").unwrap());
}

#[tokio::test]
async fn a_hold_that_was_taken_back_ends_with_the_process_that_took_it() {
    for limit in ["", "2"] {
        let place = Place::new();
        let a = Process::detaches(&place, limit, LONG);
        let _b = (!limit.is_empty()).then(|| Process::detaches(&place, limit, LONG));
        let client = place.client().await;
        let (mutex, pool) = (client.mutex("x"), client.semaphore("x", 2));
        let mut waiter = match limit {
            "" => Box::pin(mutex.lock().ttl(SOON * 12).into_future()),
            _ => Box::pin(pool.acquire().ttl(SOON * 12).into_future()),
        };
        assert!(timeout(Duration::from_millis(300), &mut waiter).await.is_err(), "it is held");
        let mut resumes = Process::resumes(&place, &a.ticket());
        let shown = holder(&place).await;
        let who = format!(" pid {} ", resumes.child.id());
        assert!(shown.who.as_deref().is_some_and(|shown| shown.contains(&who)), "{shown:?}");
        assert!(shown.ttl_left.is_some_and(|left| left <= Duration::from_secs(30)), "{shown:?}");
        assert!(timeout(Duration::from_millis(300), &mut waiter).await.is_err(), "it is held");
        resumes.kill();
        drop(timeout(SOON, waiter).await.expect("the waiter does not watch who took it back").unwrap());
    }
}

#[tokio::test]
async fn a_hold_that_was_taken_back_can_be_broken_detached_and_released() {
    let place = Place::new();
    let a = place.client().await;
    // Without a bell its holder would ask again after a third of this ttl.
    let b = place.client().await.with_defaults(LockOptions::new().ttl(SOON * 12));
    let guard = a.mutex("x").lock().await.unwrap();
    let token = guard.token();
    let ticket = guard.detach(LONG).await.unwrap();
    let guard = b.resume(&ticket).await.unwrap();
    assert_eq!(guard.token(), token);
    let ticket = guard.detach(LONG).await.unwrap();
    a.resume(&ticket).await.unwrap().release().await.unwrap();
    let ticket = a.mutex("x").lock().await.unwrap().detach(LONG).await.unwrap();
    let guard = b.resume(&ticket).await.unwrap();
    assert!(a.force_release("x").await.unwrap());
    timeout(SOON, guard.lost()).await.expect("the holder is not told");
    let ticket = a.mutex("x").lock().await.unwrap().detach(LONG).await.unwrap();
    assert!(b.force_release("x").await.unwrap(), "a detached hold cannot be broken");
    assert!(a.resume(&ticket).await.is_err(), "it was broken");
    for client in [a, b] {
        client.close().await;
    }
    assert_eq!(place.bells().len(), 0, "a bell is left by a client that has no claims");
}

#[tokio::test]
async fn a_label_is_stored_with_the_claim_and_changes_with_the_taker() {
    let place = Place::new();
    let (a, b) = (place.client().await, place.client().await.with_who(Who::new("the second").unwrap()));
    let guard = a.mutex("x").lock().label("the nightly run").await.unwrap();
    let mutex = b.mutex("x");
    let mut waiter = Box::pin(mutex.lock().into_future());
    assert!(timeout(Duration::from_millis(300), &mut waiter).await.is_err(), "it is held");
    let state = a.inspect("x").await.unwrap().expect("held");
    assert_eq!(state.holders[0].who.as_deref(), Some("the nightly run"));
    assert_eq!(state.queue[0].who.as_deref(), Some("the second"));
    drop(waiter);
    let ticket = guard.detach(LONG).await.unwrap();
    assert_eq!(holder(&place).await.who.as_deref(), Some("the nightly run"));
    let guard = b.resume(&ticket).await.unwrap();
    assert_eq!(holder(&place).await.who.as_deref(), Some("the second"));
    guard.release().await.unwrap();
}

/// Makes the file as another boot of the host would find it. The clock had other times then.
async fn reboot(place: &Place) {
    run(
        &mut place.raw().await,
        "UPDATE dlock_store SET boot = 'an earlier one';
         UPDATE dlock_queue SET since = since + 1000000000000000, expires = expires + 1000000000000000",
    )
    .await;
}

#[tokio::test]
async fn another_boot_keeps_a_detached_hold_for_what_is_left_of_its_time() {
    let place = Place::new();
    let mut process = Process::detaches(&place, "", LONG);
    process.kill();
    run(
        &mut place.raw().await,
        "INSERT INTO dlock_queue (name, seq, claim, kind, shares, client, pid, host, since, expires)
         SELECT 'y', last + 1, randomblob(16), 'mutex', 0, randomblob(16), 1, 'here', 0, 1 << 62 FROM dlock_store",
    )
    .await;
    for _ in 0..2 {
        reboot(&place).await;
        let client = place.client().await;
        assert!(client.mutex("x").try_lock().await.unwrap().is_none(), "the boot has ended the hold");
        assert_eq!(client.inspect("y").await.unwrap(), None, "nobody from before the boot lives");
        let shown = holder(&place).await;
        assert!(shown.ttl_left.is_some_and(|left| LONG - SOON * 6 < left && left <= LONG), "{shown:?}");
        assert!(shown.since.is_some_and(|since| since < SOON * 6), "{shown:?}");
        client.close().await;
    }
    // On a wall clock that was set back a hundred years, no more is left than the whole time.
    reboot(&place).await;
    run(&mut place.raw().await, "UPDATE dlock_queue SET until = until + 3000000000000000000").await;
    let shown = holder(&place).await;
    assert!(shown.ttl_left.is_some_and(|left| left <= LONG + SOON * 6), "{shown:?}");
    let client = place.client().await;
    let guard = client.resume(&process.ticket()).await.expect("the ticket is good after a boot");
    guard.detach(LONG).await.unwrap();
    client.close().await;
    drop(client);
    // Its time was over while the host was off.
    run(&mut place.raw().await, "UPDATE dlock_queue SET until = 1").await;
    reboot(&place).await;
    assert!(place.client().await.mutex("x").try_lock().await.unwrap().is_some());
}
