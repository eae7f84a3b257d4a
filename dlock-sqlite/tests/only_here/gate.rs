//! Tests of the gate, the queue of writers, and of a writer that is suspended there.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::fs::{FlockOperation, flock};
use tokio::time::{Instant, sleep, timeout};

use super::{Place, SOON, run};

#[tokio::test]
async fn a_process_that_stops_at_the_gate_does_not_block_other_writers() {
    let place = Place::new();
    let client = place.client().await;
    let gate = File::open(format!("{}-bells", place.path().display())).unwrap();
    flock(&gate, FlockOperation::LockExclusive).unwrap();
    let mutex = client.mutex("x");
    let guard = timeout(SOON, mutex.lock().into_future())
        .await
        .expect("the client waits for a gate that stays closed")
        .unwrap();
    timeout(SOON, guard.release()).await.expect("the client waits for a gate that stays closed").unwrap();
    flock(&gate, FlockOperation::Unlock).unwrap();
    assert!(timeout(SOON, mutex.try_lock().into_future()).await.unwrap().unwrap().is_some());
}

#[tokio::test]
async fn the_next_writer_passes_the_gate_when_a_writer_has_finished() {
    let place = Place::new();
    let client = place.client().await;
    let gate = File::open(format!("{}-bells", place.path().display())).unwrap();
    flock(&gate, FlockOperation::LockExclusive).unwrap();
    let mutex = client.mutex("x");
    let mut waiter = Box::pin(mutex.lock().into_future());
    assert!(
        timeout(Duration::from_millis(100), &mut waiter).await.is_err(),
        "granted while another writer has the lock of the gate"
    );
    let opened = Instant::now();
    drop(gate);
    waiter.await.unwrap().release().await.unwrap();
    println!("through the gate after {:?}", opened.elapsed());
}

/// Returns the number of handles that this process has of a folder. Each thread that waits at the
/// gate has one.
fn handle_count(folder: &Path) -> usize {
    let handles = fs::read_dir("/proc/self/fd").unwrap().flatten();
    handles.filter(|handle| fs::read_link(handle.path()).is_ok_and(|target| target == folder)).count()
}

#[tokio::test]
async fn calls_behind_a_closed_gate_share_one_wait() {
    let place = Place::new();
    let client = place.client().await;
    let folder = place.path().with_file_name("locks.db-bells").canonicalize().unwrap();
    let gate = File::open(&folder).unwrap();
    let before = handle_count(&folder);
    flock(&gate, FlockOperation::LockExclusive).unwrap();
    for _ in 0..4 {
        let round = async { client.mutex("x").lock().await.unwrap().release().await.unwrap() };
        timeout(SOON, round).await.expect("the client waits for a gate that stays closed");
    }
    let waits = handle_count(&folder) - before;
    assert!(waits <= 1, "{waits} waits are left from 8 calls of one client");
    flock(&gate, FlockOperation::Unlock).unwrap();
    let ended = async {
        while handle_count(&folder) > before {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, ended).await.expect("a wait continues although the gate is open");
    flock(&gate, FlockOperation::NonBlockingLockExclusive).expect("a client without a call has the lock");
}

#[tokio::test]
async fn a_writer_passes_a_closed_gate_although_others_write_without_its_lock() {
    let place = Place::new();
    let client = place.client().await;
    let gate = File::open(format!("{}-bells", place.path().display())).unwrap();
    flock(&gate, FlockOperation::LockExclusive).unwrap();
    let mut other = place.raw().await;
    let writing = async {
        loop {
            run(&mut other, "UPDATE dlock_store SET last = last + 1").await;
            sleep(Duration::from_millis(100)).await;
        }
    };
    let mutex = client.mutex("x");
    let rounds = async {
        for _ in 0..20 {
            let guard = mutex.try_lock().await.expect("the writes of others starve the client");
            guard.expect("the lock is free").release().await.expect("the lock is still held");
        }
    };
    tokio::select! {
        () = writing => {}
        // Only the first call waits until shortly before its deadline.
        rounds = timeout(SOON * 4, rounds) => rounds.expect("each call waits for almost all of its time"),
    }
}

/// A process that is suspended while it has the file locked.
struct Stopped(Child);

impl Stopped {
    fn of(place: &Place) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "gate::the_stopped_process"])
            .env("DLOCK_TEST_STOPS", place.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let locked = lines.map_while(Result::ok).any(|line| line == "locked");
        assert!(locked, "the process ended before it locked the file");
        let stopped = Self(process);
        stopped.signal("-STOP");
        stopped
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.0.id().to_string()]).status().unwrap().success());
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Not a test: the process of [`Stopped`] executes this.
#[tokio::test]
async fn the_stopped_process() {
    let Ok(path) = std::env::var("DLOCK_TEST_STOPS") else { return };
    use sqlx::{ConnectOptions, sqlite::SqliteConnectOptions};
    let mut raw = SqliteConnectOptions::new().filename(path).connect().await.unwrap();
    run(&mut raw, "BEGIN IMMEDIATE").await;
    println!("\nlocked");
    sleep(Duration::from_secs(600)).await;
}

#[tokio::test]
async fn a_process_that_is_stopped_during_a_change_is_named() {
    let place = Place::new();
    let client = place.client().await;
    let stopped = Stopped::of(&place);
    let mutex = client.mutex("x");
    let error =
        timeout(SOON * 2, mutex.try_lock().into_future()).await.expect("the call did not end").unwrap_err();
    let text = std::error::Error::source(&error).unwrap().to_string();
    let pid = stopped.0.id();
    assert!(text.contains(&format!("process {pid} is stopped")), "{text}");
    assert!(text.contains(&format!("kill -CONT {pid}")), "{text}");
    let mut waiter = Box::pin(mutex.lock().into_future());
    assert!(timeout(Duration::from_millis(100), &mut waiter).await.is_err());
    drop(stopped);
    timeout(SOON, waiter)
        .await
        .expect("the waiter does not continue after the end of the stopped process")
        .unwrap()
        .release()
        .await
        .unwrap();
}
