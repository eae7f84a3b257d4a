//! A connection to a member, and its login.
//!
//! A login costs the server a bcrypt, about 65 ms of a core. When a member restarts, its clients log
//! in to the other members at the same time, and a login may then take longer than the timeout of a
//! call. If clients gave such logins up and began others, the servers would compute mostly logins
//! that no client waits for, and hardly any would succeed. A connection therefore has one login. It
//! continues while calls time out, for as long as the member responds.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use dlock_core::ClaimId;
use etcd_client::{Client as Etcd, Error as EtcdError};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};
use tonic::Status;

use super::read_through_majority;
use crate::error;

/// Pause after the first of several logins. Each further login doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Maximum pause between two logins.
const MAX_PAUSE: Duration = Duration::from_secs(16);

/// Time without logins after which the next one needs no pause.
const CALM: Duration = Duration::from_secs(60);

/// Time for which a connection is kept for its login. A caller that waits for the login may be on a
/// runtime that does not run.
const MAX_LOGIN_TIME: Duration = Duration::from_secs(30);

/// Paces the logins of a client. Members that are busy with logins may lose their leader. They then
/// fail the logins that they have computed, and the clients that are logged in change the member. If
/// all clients logged in again at once, this would not end.
#[derive(Clone, Default)]
pub(super) struct LoginPace(Arc<Mutex<Recent>>);

/// The recent logins, each less than [`CALM`] after the one before it.
#[derive(Clone, Copy, Default)]
struct Recent {
    count: u32,
    last: Option<Instant>,
    /// Earliest time of the next login. `None` if no login is recent.
    next: Option<Instant>,
}

impl Recent {
    /// Adds a login that begins or has ended now.
    fn add(self) -> Self {
        let is_calm = self.last.is_none_or(|last| last.elapsed() >= CALM);
        let count = if is_calm { 0 } else { self.count };
        let longest = (FIRST_PAUSE * 2_u32.saturating_pow(count)).min(MAX_PAUSE);
        // Half of the pause is random.
        let pause = longest.mul_f64(0.5 + f64::from(ClaimId::random().as_bytes()[0]) / 512.0);
        let now = Instant::now();
        Self { count: count.saturating_add(1), last: Some(now), next: Some(now + pause) }
    }
}

impl LoginPace {
    /// Waits until a login may begin. Each caller waits with a timer of its own runtime.
    async fn pause(&self) {
        let next = self.0.lock().next;
        if let Some(next) = next {
            sleep_until(next).await;
        }
    }

    /// Logs in.
    ///
    /// # Errors
    /// Those of the login.
    async fn log_in(self, login: Running) -> Result<Etcd, EtcdError> {
        let before = *self.0.lock();
        // Also counted if the login is given up with its connection.
        *self.0.lock() = before.add();
        let result = login.await;
        *self.0.lock() = match &result {
            // The member has refused to compute the login.
            Err(error) if error::lacks_leader(error) => before,
            // A refusal of the password shows that the member is not overloaded.
            Err(error) if error::is_permanent(error) => Recent::default(),
            _ => before.add(),
        };
        result
    }
}

/// A connection to a member.
#[derive(Clone)]
pub(crate) struct Member {
    current: Arc<Mutex<Current>>,
    login: Arc<tokio::sync::Mutex<Login>>,
    pace: LoginPace,
    opened_at: Instant,
}

/// The connection on which requests are sent now.
struct Current {
    etcd: Etcd,
    is_logged_in: bool,
}

type Running = Pin<Box<dyn Future<Output = Result<Etcd, EtcdError>> + Send>>;

/// State of the login. The caller that waits for it holds the lock.
enum Login {
    Planned(Running),
    /// Begun. It proceeds while a caller polls it.
    Running(Running),
    /// Finished, or not necessary.
    Done,
    Failed(Status),
}

impl Member {
    /// Creates a connection that needs no login.
    pub(super) fn without_user(etcd: Etcd) -> Self {
        Self::new(Current { etcd, is_logged_in: true }, Login::Done, LoginPace::default())
    }

    /// Creates a connection that has no login yet. `login` returns a second connection, which then
    /// replaces `etcd`. It starts when a caller first waits for it.
    pub(super) fn with_user<F>(etcd: Etcd, pace: LoginPace, login: F) -> Self
    where
        F: Future<Output = Result<Etcd, EtcdError>> + Send + 'static,
    {
        let running = pace.clone().log_in(Box::pin(login));
        Self::new(Current { etcd, is_logged_in: false }, Login::Planned(Box::pin(running)), pace)
    }

    fn new(current: Current, login: Login, pace: LoginPace) -> Self {
        let login = Arc::new(tokio::sync::Mutex::new(login));
        Self { current: Arc::new(Mutex::new(current)), login, pace, opened_at: Instant::now() }
    }

    /// Returns the connection with the login, or else the one without.
    pub(super) fn current(&self) -> Etcd {
        self.current.lock().etcd.clone()
    }

    pub(super) fn is_logged_in(&self) -> bool {
        self.current.lock().is_logged_in
    }

    /// Checks that a majority responds through this member. Needs no login.
    ///
    /// # Errors
    /// If there is no such response.
    pub(super) async fn confirm_majority(&self, key: &str) -> Result<(), EtcdError> {
        let (etcd, has_login) = {
            let current = self.current.lock();
            (current.etcd.clone(), current.is_logged_in)
        };
        match read_through_majority(&etcd, key).await {
            Err(error) if !error::is_denied(&error) && (has_login || !error::lacks_login(&error)) => {
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Returns whether the login may still succeed, because the member responds.
    pub(super) async fn may_log_in(&self, key: &str) -> bool {
        self.opened_at.elapsed() < MAX_LOGIN_TIME && self.confirm_majority(key).await.is_ok()
    }

    /// Waits for the login.
    ///
    /// # Errors
    /// Of the login. Later calls return the same error.
    ///
    /// # Cancel safety
    /// Safe. The next caller continues to wait for the same login.
    pub(super) async fn logged_in(&self) -> Result<Etcd, Status> {
        if self.is_logged_in() {
            return Ok(self.current());
        }
        let mut login = self.login.lock().await;
        if let Login::Planned(_) = &*login {
            self.pace.pause().await;
        }
        *login = match std::mem::replace(&mut *login, Login::Done) {
            Login::Planned(running) => Login::Running(running),
            other => other,
        };
        if let Login::Running(running) = &mut *login {
            *login = match running.await {
                Ok(etcd) => {
                    *self.current.lock() = Current { etcd, is_logged_in: true };
                    Login::Done
                }
                Err(EtcdError::GRpcStatus(status)) => Login::Failed(status),
                Err(error) => Login::Failed(Status::unavailable(error.to_string())),
            };
        }
        match &*login {
            Login::Failed(status) => Err(status.clone()),
            _ => Ok(self.current()),
        }
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("is_logged_in", &self.is_logged_in()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    fn fails(status: Status) -> Running {
        Box::pin(async { Err(status.into()) })
    }

    #[tokio::test(start_paused = true)]
    async fn each_login_doubles_the_pause_unless_it_is_refused_or_long_ago() {
        let pace = LoginPace::default();
        let pause_before = async |login: Running| {
            let planned_at = Instant::now();
            pace.pause().await;
            let pause = planned_at.elapsed();
            let _ = timeout(MAX_LOGIN_TIME, pace.clone().log_in(login)).await;
            pause
        };
        let dropped = || fails(Status::unknown("raft proposal dropped"));
        let no_leader = || fails(Status::unavailable("etcdserver: no leader"));
        let wrong = || fails(Status::invalid_argument("authentication failed, invalid user ID or password"));
        let succeeds = || -> Running { Box::pin(Etcd::connect(["127.0.0.1:1"], None)) };
        assert_eq!(pause_before(no_leader()).await, Duration::ZERO);
        assert_eq!(pause_before(succeeds()).await, Duration::ZERO);
        for seconds in [1, 2, 4, 8, 16, 16] {
            let (pause, longest) = (pause_before(dropped()).await, Duration::from_secs(seconds));
            assert!(longest / 2 <= pause && pause <= longest, "{pause:?} instead of {longest:?}");
        }
        pause_before(wrong()).await;
        // This login is given up.
        assert_eq!(pause_before(Box::pin(std::future::pending())).await, Duration::ZERO);
        assert_eq!(pace.0.lock().count, 1);
        tokio::time::sleep(CALM).await;
        assert_eq!(pause_before(dropped()).await, Duration::ZERO);
        assert_eq!(pace.0.lock().count, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_login_continues_after_its_caller_has_left() {
        let etcd = || Etcd::connect(["127.0.0.1:1"], None);
        let began = Instant::now();
        let login = async move {
            sleep_until(began + FIRST_PAUSE).await;
            etcd().await
        };
        let anonymous = etcd().await.expect("the client connects lazily");
        let member = Member::with_user(anonymous, LoginPace::default(), login);
        timeout(FIRST_PAUSE / 2, member.logged_in()).await.err().expect("it takes longer");
        assert!(!member.is_logged_in());
        assert!(member.logged_in().await.is_ok() && member.is_logged_in());
        assert_eq!(began.elapsed(), FIRST_PAUSE);
    }
}
