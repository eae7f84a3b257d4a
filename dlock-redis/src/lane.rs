//! One connection that many share: opened when it is first needed, opened again when it breaks, by one of them at a time.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use dlock_core::{Error, Result, driver::Retold};
use redis::{aio::MultiplexedConnection, cluster_async::ClusterConnection};
use tokio::time::{Instant, sleep_until, timeout};

use crate::{dial::Dial, error::STORE, hub::Hub, pace::Pace};

/// How long whoever needs a connection waits for the time of the next attempt. If that is later, the last failure is told at
/// once: it is news to a caller who has little time.
const SOON: Duration = Duration::from_millis(250);

/// A connection that is opened again when it breaks.
pub(crate) struct Lane {
    dial: Arc<Dial>,
    /// Told when this connection was opened again, because messages may then come from elsewhere too.
    listeners: Option<Arc<Hub>>,
    /// Empty at first and after it broke.
    slot: Mutex<Option<Live>>,
    /// Held by whoever opens it, so that one does.
    gate: tokio::sync::Mutex<Gate>,
    /// How many attempts to open it have failed.
    failures: AtomicU64,
    /// Why there is none that works, unless there was one since.
    last: Mutex<Option<Retold>>,
    /// Whether the server has answered on the connection that is there now.
    is_proven: AtomicBool,
}

struct Gate {
    pace: Pace,
    /// How often it was opened.
    number: u64,
}

/// A connection as it is now.
#[derive(Clone)]
pub(crate) struct Live {
    number: u64,
    pub(crate) line: Line,
}

/// What commands go through.
#[derive(Clone)]
pub(crate) enum Line {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

impl Lane {
    pub(crate) fn new(dial: Arc<Dial>, listeners: Option<Arc<Hub>>) -> Self {
        Self {
            dial,
            listeners,
            slot: Mutex::new(None),
            gate: tokio::sync::Mutex::new(Gate { pace: Pace::quick(), number: 0 }),
            failures: AtomicU64::new(0),
            last: Mutex::new(None),
            is_proven: AtomicBool::new(false),
        }
    }

    /// A lane on a connection that is open already.
    pub(crate) fn open(dial: Arc<Dial>, line: Line) -> Self {
        let lane = Self::new(dial, None);
        *lane.slot() = Some(Live { number: 0, line });
        lane
    }

    /// The connection, opened if it is not there. Whoever comes while another opens it waits for that one's success or failure,
    /// for the time of a command at most; whoever comes long before the next attempt is told why the last one failed.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(crate) async fn live(&self) -> Result<Live> {
        if let Some(live) = self.slot().clone() {
            return Ok(live);
        }
        let (limit, failures) = (self.dial.limit(), self.failures.load(Relaxed));
        let mut gate = timeout(limit, self.gate.lock()).await.map_err(|_| STORE.late(limit))?;
        if let Some(live) = self.slot().clone() {
            return Ok(live);
        }
        if self.is_proven.swap(false, Relaxed) {
            gate.pace.note_answer();
            *self.last() = None;
        }
        let next = gate.pace.next();
        if let Some(told) = &*self.last()
            && (self.failures.load(Relaxed) != failures || next > Instant::now() + SOON)
        {
            return Err(told.error());
        }
        sleep_until(next).await;
        gate.pace.note_attempt();
        let began = Instant::now();
        let line = match self.dial.line().await {
            Ok(line) => line,
            Err(error) => {
                let told = STORE.retell(&error);
                *self.last() = Some(told);
                self.failures.fetch_add(1, Relaxed);
                return Err(error);
            }
        };
        gate.number += 1;
        let live = Live { number: gate.number, line };
        *self.slot() = Some(live.clone());
        if let (true, Some(listeners)) = (gate.number > 1, &self.listeners) {
            listeners.commands_moved(began);
        }
        Ok(live)
    }

    /// Notes that the server has answered something else than that it cannot serve this connection.
    pub(crate) fn note_answer(&self) {
        if !self.is_proven.load(Relaxed) {
            self.is_proven.store(true, Relaxed);
        }
    }

    /// Gives a connection up because of this error, so that the next command opens another.
    pub(crate) fn forget(&self, live: &Live, error: Error) -> Error {
        let told = STORE.retell(&error);
        // A cluster's connection mends itself.
        let given_up =
            self.slot().take_if(|now| now.number == live.number && matches!(now.line, Line::Server(_)));
        if given_up.is_some() && !self.is_proven.load(Relaxed) {
            *self.last() = Some(told);
        }
        error
    }

    fn last(&self) -> MutexGuard<'_, Option<Retold>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self) -> MutexGuard<'_, Option<Live>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
