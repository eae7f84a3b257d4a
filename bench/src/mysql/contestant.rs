//! The ways to lock that are measured.

use std::{cell::Cell, net::SocketAddr, time::Duration};

use dlock::{Guard, Locks};
use futures_util::future::try_join;
use sqlx::mysql::MySqlConnection;
use tokio::{
    sync::{Mutex, Semaphore},
    time::{Instant, sleep},
};

use super::{Outcome, Place, tell};

/// How long a contender keeps the lock that another waits for.
const HOLD: Duration = Duration::from_millis(10);

const TTL: Duration = Duration::from_secs(20);

/// How a lock is taken.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// With dlock, with these parameters in the URL.
    Dlock(&'static str, &'static str),
    /// With two batches on a session of its own: what the way is called, and what takes and releases the lock `:name`.
    Batches(&'static str, [&'static str; 2]),
}

/// All, each after those that it is compared with by its place.
pub(super) const CONTESTANTS: [Way; 5] = [
    Way::Dlock("queue", ""),
    Way::Dlock("session", "?mode=session"),
    Way::Batches("GET_LOCK", ["SELECT GET_LOCK(':name', 60)", "SELECT RELEASE_LOCK(':name')"]),
    Way::Batches(
        "GET_LOCK + one commit",
        [
            "SELECT GET_LOCK(':name', 60);
             UPDATE dlock_fence SET last = LAST_INSERT_ID(last + 1) WHERE bucket = CRC32(':name') % 1024;
             SELECT LAST_INSERT_ID()",
            "SELECT RELEASE_LOCK(':name')",
        ],
    ),
    // It excludes nobody, and cannot wait: the least that a row put and removed costs.
    Way::Batches(
        "INSERT, DELETE",
        [
            // Each time new keys, as locks have them: the server would put the same keys in the same place.
            "INSERT INTO dlock_queue VALUES (':name', UUID_SHORT(), UNHEX(MD5(UUID())), 'mutex', 1, 1, 1, '')",
            "DELETE FROM dlock_queue WHERE name = ':name'",
        ],
    ),
];

/// Two clients that lock in one way.
pub(super) struct Contestant {
    pub(super) way: Way,
    clients: [Client; 2],
}

enum Client {
    Dlock(Box<Locks>),
    Session(Box<Mutex<MySqlConnection>>),
}

impl Contestant {
    pub(super) async fn connect(way: Way, place: Place<'_>, address: SocketAddr) -> Outcome<Self> {
        let client = async || -> Outcome<Client> {
            Ok(match way {
                Way::Dlock(_, params) => {
                    Client::Dlock(Box::new(dlock::connect(&place.url_at(address, params)).await?))
                }
                Way::Batches(..) => Client::Session(Box::new(Mutex::new(place.session_at(address).await?))),
            })
        };
        Ok(Self { way, clients: [client().await?, client().await?] })
    }

    pub(super) fn name(&self) -> &'static str {
        match self.way {
            Way::Dlock(name, _) | Way::Batches(name, _) => name,
        }
    }

    pub(super) fn can_wait(&self) -> bool {
        !matches!(self.way, Way::Batches(_, [take, _]) if !take.contains("GET_LOCK"))
    }

    pub(super) async fn acquire(&self, me: usize, name: &str) -> Outcome<Option<Guard>> {
        match &self.clients[me] {
            Client::Dlock(locks) => Ok(Some(locks.mutex(name).lock().ttl(TTL).await?)),
            Client::Session(session) => self.do_batch(0, session, name).await.map(|()| None),
        }
    }

    pub(super) async fn release(&self, me: usize, name: &str, held: Option<Guard>) -> Outcome {
        match &self.clients[me] {
            Client::Dlock(_) => Ok(held.ok_or("nothing is held")?.release().await?),
            Client::Session(session) => self.do_batch(1, session, name).await,
        }
    }

    async fn do_batch(&self, which: usize, session: &Mutex<MySqlConnection>, name: &str) -> Outcome {
        let Way::Batches(_, batches) = self.way else { return Err("dlock has no batches".into()) };
        tell(&mut *session.lock().await, &batches[which].replace(":name", name)).await
    }

    /// How long each of so many pairs of lock and unlock takes, with nobody else there.
    pub(super) async fn pairs(&self, name: &str, pairs: usize) -> Outcome<Vec<Duration>> {
        let mut took = Vec::new();
        for _ in 0..pairs {
            let begun = Instant::now();
            self.release(0, name, self.acquire(0, name).await?).await?;
            took.push(begun.elapsed());
        }
        Ok(took)
    }

    /// How long it takes from when one of two clients lets go until the other has it, who waited meanwhile.
    pub(super) async fn handoff(&self, name: &str, turns: usize) -> Outcome<Vec<Duration>> {
        // Whose turn it is to ask: as soon as the other one has the lock.
        let asks = [Semaphore::new(1), Semaphore::new(0)];
        let released = Cell::new(None::<Instant>);
        let part = async |me: usize| -> Outcome<Vec<Duration>> {
            let mut took = Vec::new();
            for _ in 0..turns {
                asks[me].acquire().await?.forget();
                let held = self.acquire(me, name).await?;
                took.extend(released.take().map(|released| released.elapsed()));
                asks[1 - me].add_permits(1);
                sleep(HOLD).await;
                released.set(Some(Instant::now()));
                self.release(me, name, held).await?;
            }
            Ok(took)
        };
        let (one, other) = try_join(part(0), part(1)).await?;
        Ok([one, other].concat())
    }
}
