//! One case of the table, the requirements of a case, and the macro that lists the cases of a file.

use std::{fmt, pin::Pin, sync::Arc, time::Duration};

use dlock_core::{Kind, driver::Info};

use crate::{Arena, Clock, Fixture, Row, load, runner::error_chain, wrap::Habit};

/// A statement about locks, with the function that checks it and its requirements.
#[derive(Clone, Copy)]
pub struct Case {
    pub(crate) topic: &'static str,
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) needs: &'static [Need],
    pub(crate) run: fn(Arc<Arena>) -> Running,
}

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A requirement of a case. The case is ignored for stores and fixtures that lack it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Kind(Kind),
    Tokens,
    /// Tokens that keep growing when the store has lost its data.
    TokenFloor,
    /// Locks are granted strictly in order of arrival.
    Order,
    /// The store can downgrade the kind of the case to a read hold.
    Downgrade,
    Inspect,
    /// The store can keep a hold without its client.
    Detach,
    /// The store cannot keep a hold without its client.
    NoDetach,
    /// The fixture counts allocated bytes.
    Allocated,
    /// Claims live as long as the session of their client.
    Session,
    /// The case drives the claims of the plain driver, without a wrapper.
    Driver,
    /// A proxy can be put in front of the server.
    Network,
    /// The server can be restarted.
    Restart,
    /// A waiter sends no requests while nothing changes.
    FreeWaiting,
    /// The case takes the time that the environment sets, in addition to the limit of the fixture.
    Time,
}

/// Capabilities of a store and its fixture.
pub(crate) struct Capabilities {
    info: Info,
    inspects: bool,
    has_members: bool,
    tokens_outlive_data: bool,
    keeps_order: bool,
    counts_bytes: bool,
    has_network: bool,
    restarts: bool,
    skips_time: bool,
    /// Reason why waiters send requests while nothing changes.
    polls: Option<&'static str>,
}

impl Capabilities {
    /// Connects a client and reads the capabilities.
    ///
    /// # Panics
    /// If no client can connect. Also if the store has sessions but the fixture cannot kill a
    /// client, because the cases about crashes would then not test a crash.
    pub(crate) async fn of(fixture: &dyn Fixture) -> Self {
        let connected = fixture.connect().await;
        let store = connected.unwrap_or_else(|error| {
            panic!("no client of {} can connect: {}", fixture.name(), error_chain(&error))
        });
        assert!(
            store.backend.info().session.is_none() || fixture.connect_killable().await.is_some(),
            "{} has sessions, so its fixture must be able to kill a client: see `Fixture::connect_killable`",
            fixture.name()
        );
        let has_members = fixture.connect_with_member(Habit::Deaf).await.is_some();
        Self {
            info: store.backend.info().clone(),
            inspects: store.inspect.is_some(),
            has_members,
            tokens_outlive_data: fixture.tokens_outlive_data(),
            keeps_order: fixture.keeps_order(),
            counts_bytes: fixture.allocated().is_some(),
            has_network: fixture.network().is_some(),
            restarts: fixture.network().is_some_and(|network| network.restart().is_some()),
            skips_time: fixture.clock() == Clock::Paused,
            polls: fixture.polls(),
        }
    }

    /// Returns whether the store has this row.
    pub(crate) fn has_row(&self, row: Row) -> bool {
        self.has_members || !matches!(row, Row::Member(_))
    }
}

impl Case {
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) async fn run(&self, arena: Arc<Arena>) {
        (self.run)(arena).await;
    }

    /// Returns the time that the case takes in addition to the limit of the fixture.
    pub(crate) fn additional_time(&self) -> Duration {
        // Afterwards the tasks of the case end, and their claims are released.
        if self.needs.contains(&Need::Time) { load::duration() * 2 } else { Duration::ZERO }
    }

    /// Returns whether the case must run while no other case of the process runs.
    pub(crate) fn runs_alone(&self) -> bool {
        self.needs.iter().any(|need| matches!(need, Need::Allocated | Need::Restart))
    }

    /// Returns whether the case belongs to this row. A case that misbehaves itself, or tests
    /// something that the rows do not change, runs on the plain store only. Detached holds end by
    /// themselves, so on the real clock their cases take seconds. There they run on the plain store
    /// and with lost replies only, because only lost replies change what a driver must do.
    pub(crate) fn is_in(&self, row: Row, capabilities: &Capabilities) -> bool {
        let only_plain = [Need::Allocated, Need::Driver, Need::Network, Need::Restart];
        match row {
            Row::Plain => true,
            _ if self.needs.iter().any(|need| only_plain.contains(need)) => false,
            Row::Habit(Habit::Flaky) | Row::Member(Habit::Flaky) => true,
            Row::Habit(_) | Row::Member(_) => capabilities.skips_time || !self.needs.contains(&Need::Detach),
        }
    }

    /// Returns the reason why the store or its fixture cannot run the case. `None` if it can.
    pub(crate) fn missing(&self, capabilities: &Capabilities) -> Option<String> {
        let Capabilities { info, inspects, .. } = capabilities;
        let has = |kind| info.kinds.contains(&kind);
        if !has(self.kind) {
            return Some(format!("the store has no {}", self.kind));
        }
        self.needs.iter().find_map(|need| match need {
            Need::Kind(kind) if !has(*kind) => Some(format!("the store has no {kind}")),
            Need::Tokens if !info.tokens => Some("the store has no tokens".to_owned()),
            Need::TokenFloor if !capabilities.tokens_outlive_data => {
                Some("the store's tokens start again after a loss of its data".to_owned())
            }
            Need::Order if !capabilities.keeps_order => Some("the store may grant out of order".to_owned()),
            Need::Downgrade if !info.downgrades.contains(&self.kind) => {
                Some(format!("the store cannot downgrade a {}", self.kind))
            }
            Need::Inspect if !inspects => Some("the store cannot be inspected".to_owned()),
            Need::Detach if !info.detaches => {
                Some("the store cannot keep a lock without its client".to_owned())
            }
            Need::NoDetach if info.detaches => {
                Some("the store can keep a lock without its client".to_owned())
            }
            Need::Allocated if !capabilities.counts_bytes => {
                Some("the fixture does not count bytes".to_owned())
            }
            Need::Session if info.session.is_none() => Some("the store has no sessions".to_owned()),
            Need::Restart if !capabilities.restarts => {
                Some("the fixture cannot restart the server".to_owned())
            }
            Need::FreeWaiting => capabilities.polls.map(str::to_owned),
            Need::Network if !capabilities.has_network => Some("the fixture has no single server".to_owned()),
            _ => None,
        })
    }
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Case({self})")
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.topic, self.name)
    }
}

/// Lists cases, as any number of `topic (kind of the locks) [requirements] { functions }`. The
/// function's name is the name of the case.
macro_rules! cases {
    ($($topic:tt ($kind:expr) $needs:tt { $($case:ident),+ $(,)? })+) => {
        [$(cases!(@of $topic $kind, $needs $($case)+)),+].concat()
    };
    (@of $topic:tt $kind:expr, $needs:tt $($case:ident)+) => {
        vec![$($crate::case::Case {
            topic: $topic,
            name: stringify!($case),
            kind: $kind,
            needs: &$needs,
            run: |arena| Box::pin($case(arena)),
        }),+]
    };
}

pub(crate) use cases;
