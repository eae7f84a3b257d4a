//! Measures hand-offs, and pairs of acquire and release, beside plain `GET_LOCK`.

use std::time::Duration;

use dlock_core::Locks;
use dlock_testbed::servers::Running;
use sqlx::mysql::MySqlConnection;
use tokio::time::{Instant, sleep};

use crate::{connect, plain_session, query, status};

const ROUNDS: usize = 3;
const PAIRS: u32 = 100;
const HANDOFFS: usize = 10;

/// Measurements of one way to lock.
#[derive(Default)]
struct Figures {
    pairs: Vec<Duration>,
    handoffs: Vec<Duration>,
    commits: i64,
}

fn p50(mut all: Vec<Duration>) -> Duration {
    all.sort_unstable();
    all[all.len() / 2]
}

/// Without doorbells, a waiter of another client would poll every 50 to 200 ms. With a doorbell
/// that does not ring, it would poll every two seconds.
#[expect(clippy::print_stdout, reason = "prints the measurements")]
pub(crate) async fn a_waiter_is_woken_by_the_server(server: &Running) {
    let mut other = plain_session(server).await;
    let mut clients = Vec::new();
    for params in ["", "?mode=session"] {
        clients.push([
            connect(server, params).await.expect("the server runs"),
            connect(server, params).await.expect("the server runs"),
        ]);
    }
    let mut bare = [plain_session(server).await, plain_session(server).await];
    let mut figures = [Figures::default(), Figures::default(), Figures::default()];
    for _ in 0..ROUNDS {
        for (pair, figures) in clients.iter().zip(&mut figures) {
            let before = commits(&mut other).await;
            lock(&pair[0], figures).await;
            figures.commits += commits(&mut other).await - before;
            hand_over(pair, figures).await;
        }
        get_lock(&mut bare, &mut figures[2]).await;
    }
    for (name, Figures { pairs, handoffs, commits }) in ["queue", "session", "GET_LOCK"].iter().zip(figures) {
        let grants = ROUNDS as f64 * f64::from(PAIRS);
        let (pair, handoff) = (p50(pairs), p50(handoffs));
        println!(
            "{name:8} acquire + release {pair:?}, hand-off {handoff:?}, commits for a grant {:.2}",
            commits as f64 / grants
        );
        assert!(handoff < Duration::from_millis(40), "the median hand-off took {handoff:?}");
    }
}

/// Returns the number of commits that changed rows.
async fn commits(session: &mut MySqlConnection) -> i64 {
    let all = status(session, &["Com_commit", "Com_delete", "Com_update"]).await;
    // The update of an explicit transaction is not a commit of its own.
    all - status(session, &["Com_begin"]).await
}

async fn lock(locks: &Locks, figures: &mut Figures) {
    for _ in 0..PAIRS {
        let began = Instant::now();
        locks
            .mutex("pair")
            .lock()
            .await
            .expect("the lock is free")
            .release()
            .await
            .expect("the lock is still held");
        figures.pairs.push(began.elapsed());
    }
}

async fn hand_over([a, b]: &[Locks; 2], figures: &mut Figures) {
    for _ in 0..HANDOFFS {
        let held = a.mutex("job").lock().await.expect("the lock is free");
        let waits = tokio::spawn({
            let job = b.mutex("job");
            async move { job.lock().await.map(|held| (held, Instant::now())) }
        });
        // A waiter that starts after the release would find the lock free.
        sleep(Duration::from_millis(20)).await;
        let began = Instant::now();
        held.release().await.expect("the lock is still held");
        let (held, woken) = waits.await.expect("the task does not panic").expect("the lock is granted");
        figures.handoffs.push(woken - began);
        held.release().await.expect("the lock is still held");
    }
}

async fn get_lock([a, b]: &mut [MySqlConnection; 2], figures: &mut Figures) {
    let (take, release) = ("SELECT GET_LOCK('bare', 60)", "SELECT RELEASE_LOCK('bare')");
    for _ in 0..PAIRS {
        let began = Instant::now();
        query(a, take).await;
        query(a, release).await;
        figures.pairs.push(began.elapsed());
    }
    for _ in 0..HANDOFFS {
        query(a, take).await;
        let (woken, began) = tokio::join!(
            async {
                query(b, take).await;
                Instant::now()
            },
            async {
                sleep(Duration::from_millis(20)).await;
                let began = Instant::now();
                query(a, release).await;
                began
            }
        );
        query(b, release).await;
        figures.handoffs.push(woken - began);
    }
}
