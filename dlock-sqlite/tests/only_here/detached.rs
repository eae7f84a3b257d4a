//! Tests of claims that outlive their client, and of labels.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use dlock_core::{Contender, LockOptions, LostReason, Ticket, Who};
use tokio::time::{Instant, timeout};

use super::{Place, SOON, connect, run};

/// A process that detaches lock `x` or resumes it, and then lives until it is killed.
struct Process {
    child: Child,
    ticket: Ticket,
}

/// Duration of a hold that outlasts every test.
const LONG: Duration = Duration::from_secs(600);

impl Process {
    /// Starts a process that detaches lock `x` for `lasting`. With a limit, `x` is a permit.
    fn detaches(place: &Place, limit: &str, lasting: Duration) -> Self {
        Self::start(place, &[("LIMIT", limit), ("LASTING", &lasting.as_millis().to_string())])
    }

    /// Starts a process that resumes the hold of a ticket, and keeps it.
    fn resumes(place: &Place, ticket: &Ticket) -> Self {
        Self::start(place, &[("TICKET", &ticket.to_string())])
    }

    fn start(place: &Place, variables: &[(&str, &str)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "detached::the_process"])
            .env("DLOCK_TEST_DETACHES", place.url())
            .envs(variables.iter().map(|(key, value)| (format!("DLOCK_TEST_{key}"), value)))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ticket =
            lines.map_while(Result::ok).find_map(|line| line.strip_prefix("ticket ").map(str::to_owned));
        let ticket = ticket.expect("the process ended before it had a ticket").parse().unwrap();
        Self { child, ticket }
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

/// Not a test: [`Process`] executes this.
#[tokio::test]
async fn the_process() {
    let var = |key: &str| std::env::var(format!("DLOCK_TEST_{key}")).ok();
    let Some(url) = var("DETACHES") else { return };
    let client = connect(&url).await.unwrap();
    if let Some(ticket) = var("TICKET") {
        let guard = client.resume(&ticket.parse().unwrap()).await.unwrap();
        println!("\nticket {ticket}");
        guard.lost().await;
        return;
    }
    let guard = match var("LIMIT").and_then(|limit| limit.parse().ok()) {
        Some(limit) => client.semaphore("x", limit).acquire().await.unwrap(),
        None => client.mutex("x").lock().await.unwrap(),
    };
    let lasting = Duration::from_millis(var("LASTING").unwrap().parse().unwrap());
    println!("\nticket {}", guard.detach(lasting).await.unwrap());
    std::future::pending().await
}

/// Returns the holder of lock `x`, as a new client reports it.
async fn holder(place: &Place) -> Contender {
    place.client().await.inspect("x").await.unwrap().expect("held").holders.remove(0)
}

#[tokio::test]
async fn a_detached_hold_outlives_its_killed_process() {
    let place = Place::new();
    let mut process = Process::detaches(&place, "", LONG);
    process.kill();
    // The first client that connects removes the remains of a killed client, which are only a
    // doorbell in this test.
    let client = place.client().await;
    assert_eq!(place.bells().len(), 1, "there are other doorbells than that of the new client");
    assert!(client.mutex("x").try_lock().await.unwrap().is_none(), "the hold ended with its process");
    let holder = holder(&place).await;
    assert!(holder.ttl_left.is_some_and(|left| LONG - SOON * 6 < left && left <= LONG), "{holder:?}");
    let pid = format!(" pid {} ", process.child.id());
    assert!(holder.who.as_deref().is_some_and(|who| who.contains(&pid)), "{holder:?}");
    client.release(&process.ticket).await.unwrap();
    assert!(
        client.mutex("x").try_lock().await.unwrap().is_some(),
        "not free after the release by its ticket"
    );
    let again = client.release(&process.ticket).await.expect_err("the ticket was used twice");
    assert!(matches!(again, dlock_core::Error::Lost { .. }), "{again:?}");
}

#[tokio::test]
async fn a_detached_hold_ends_after_its_time() {
    let lasting = Duration::from_secs(2);
    let place = Place::new();
    let started_at = Instant::now();
    let mut process = Process::detaches(&place, "", lasting);
    process.kill();
    let client = place.client().await;
    let mutex = client.mutex("x");
    let guard = timeout(SOON, mutex.lock().ttl(SOON * 12))
        .await
        .expect("not granted long before the waiter's ttl")
        .unwrap();
    assert!(started_at.elapsed() >= lasting, "free after {:?}", started_at.elapsed());
    let lost = client.resume(&process.ticket).await.expect_err("resumed after its time");
    assert!(matches!(lost, dlock_core::Error::Lost { reason: LostReason::Deleted, .. }), "{lost:?}");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_behind_a_detached_hold_makes_no_attempt_until_the_release_rings_it() {
    let place = Place::new();
    let mut process = Process::detaches(&place, "", LONG);
    process.kill();
    let (a, b) = (place.client().await, place.client().await);
    let mutex = a.mutex("x");
    let mut waiter = Box::pin(mutex.lock().ttl(SOON * 12).into_future());
    assert!(
        timeout(Duration::from_millis(300), &mut waiter).await.is_err(),
        "granted while the lock is held"
    );
    let mut raw = place.raw().await;
    let version = "PRAGMA data_version";
    let before: i64 = sqlx::query_scalar(version).fetch_one(&mut raw).await.unwrap();
    assert!(timeout(Duration::from_secs(1), &mut waiter).await.is_err());
    let after: i64 = sqlx::query_scalar(version).fetch_one(&mut raw).await.unwrap();
    assert_eq!(before, after, "the file has changed, so the waiter has made an attempt");
    b.release(&process.ticket).await.unwrap();
    timeout(SOON, waiter).await.expect("the waiter was not rung").unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_waiter_is_notified_when_a_detached_hold_ends_sooner() {
    let place = Place::new();
    let (a, b) = (place.client().await, place.client().await);
    let guard = a.mutex("x").lock().ttl(SOON * 12).await.unwrap();
    let mutex = b.mutex("x");
    let mut waiter = Box::pin(mutex.lock().ttl(SOON * 12).into_future());
    assert!(
        timeout(Duration::from_millis(300), &mut waiter).await.is_err(),
        "granted while the lock is held"
    );
    guard.detach(Duration::from_secs(1)).await.unwrap();
    drop(timeout(SOON, waiter).await.expect("the waiter waits for the former end of the hold").unwrap());
}

#[tokio::test]
async fn a_resumed_hold_ends_with_the_process_that_resumed_it() {
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
        assert!(
            timeout(Duration::from_millis(300), &mut waiter).await.is_err(),
            "granted while the lock is held"
        );
        let mut resumes = Process::resumes(&place, &a.ticket);
        let holder = holder(&place).await;
        let pid = format!(" pid {} ", resumes.child.id());
        assert!(holder.who.as_deref().is_some_and(|who| who.contains(&pid)), "{holder:?}");
        assert!(holder.ttl_left.is_some_and(|left| left <= Duration::from_secs(30)), "{holder:?}");
        assert!(
            timeout(Duration::from_millis(300), &mut waiter).await.is_err(),
            "granted while the lock is held"
        );
        resumes.kill();
        drop(
            timeout(SOON, waiter)
                .await
                .expect("the waiter does not watch the process that resumed the hold")
                .unwrap(),
        );
    }
}

#[tokio::test]
async fn a_resumed_hold_can_be_broken_detached_and_released() {
    let place = Place::new();
    let a = place.client().await;
    // Without a ring its keeper would renew after a third of this ttl.
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
    timeout(SOON, guard.lost()).await.expect("the loss was not reported to the holder");
    let ticket = a.mutex("x").lock().await.unwrap().detach(LONG).await.unwrap();
    assert!(b.force_release("x").await.unwrap(), "a detached hold cannot be broken");
    assert!(a.resume(&ticket).await.is_err(), "a broken hold was resumed");
    for client in [a, b] {
        client.close().await;
    }
    assert_eq!(place.bells().len(), 0, "a client without claims has left a doorbell");
}

#[tokio::test]
async fn a_label_is_stored_with_the_claim_and_replaced_by_a_resumption() {
    let place = Place::new();
    let (a, b) = (place.client().await, place.client().await.with_who(Who::new("the second").unwrap()));
    let guard = a.mutex("x").lock().label("the nightly run").await.unwrap();
    let mutex = b.mutex("x");
    let mut waiter = Box::pin(mutex.lock().into_future());
    assert!(
        timeout(Duration::from_millis(300), &mut waiter).await.is_err(),
        "granted while the lock is held"
    );
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

/// Changes the file as if its claims were of an earlier boot of the host, with other times of the
/// clock.
async fn reboot(place: &Place) {
    run(
        &mut place.raw().await,
        "UPDATE dlock_store SET boot = 'an earlier one';
         UPDATE dlock_queue SET since = since + 1000000000000000, expires = expires + 1000000000000000",
    )
    .await;
}

#[tokio::test]
async fn another_boot_keeps_a_detached_hold_for_its_remaining_time() {
    let place = Place::new();
    let mut process = Process::detaches(&place, "", LONG);
    process.kill();
    run(
        &mut place.raw().await,
        "INSERT INTO dlock_queue (name, seq, claim, kind, shares, client, pid, host, since, expires)
         SELECT 'y', last + 1, randomblob(16), 'mutex', 0, randomblob(16), 1, 'host', 0, 1 << 62 FROM dlock_store",
    )
    .await;
    for _ in 0..2 {
        reboot(&place).await;
        let client = place.client().await;
        assert!(client.mutex("x").try_lock().await.unwrap().is_none(), "the boot has ended the hold");
        assert_eq!(client.inspect("y").await.unwrap(), None, "a claim has survived the boot");
        let holder = holder(&place).await;
        assert!(holder.ttl_left.is_some_and(|left| LONG - SOON * 6 < left && left <= LONG), "{holder:?}");
        assert!(holder.since.is_some_and(|since| since < SOON * 6), "{holder:?}");
        client.close().await;
    }
    // After the wall clock was set back a hundred years, the remaining time is limited to the whole
    // duration of the hold.
    reboot(&place).await;
    run(&mut place.raw().await, "UPDATE dlock_queue SET until = until + 3000000000000000000").await;
    let holder = holder(&place).await;
    assert!(holder.ttl_left.is_some_and(|left| left <= LONG + SOON * 6), "{holder:?}");
    let client = place.client().await;
    let guard = client.resume(&process.ticket).await.expect("the ticket is not valid after a boot");
    guard.detach(LONG).await.unwrap();
    client.close().await;
    drop(client);
    // The time of the hold ended while the host was off.
    run(&mut place.raw().await, "UPDATE dlock_queue SET until = 1").await;
    reboot(&place).await;
    assert!(place.client().await.mutex("x").try_lock().await.unwrap().is_some());
}
