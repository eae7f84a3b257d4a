//! One case of the table, what a store must have for it, and how a file of cases lists its own.

use std::{fmt, pin::Pin, sync::Arc};

use dlock_core::{Kind, driver::Info};

use crate::{Arena, Clock, Fixture, Row, runner::told, wrap::Habit};

/// One case: a behaviour, and what a store must have for it.
#[derive(Clone, Copy)]
pub struct Case {
    pub(crate) topic: &'static str,
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) needs: &'static [Need],
    pub(crate) run: fn(Arc<Arena>) -> Running,
}

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a store must have for a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Kind(Kind),
    Tokens,
    /// Tokens that keep growing when the store has lost its data.
    TokenFloor,
    /// That locks are granted strictly in order of arrival.
    Order,
    /// That the kind of the case can be turned into a read hold.
    Downgrade,
    Inspect,
    /// That the store can keep a lock without its holder.
    Detach,
    /// That it cannot.
    NoDetach,
    /// That allocated bytes are counted.
    Allocated,
    /// That claims live as long as their client's session.
    Session,
    /// That nothing stands between the case and the driver.
    Driver,
    /// That a proxy can stand before the server.
    Network,
    /// That the server can be restarted.
    Restart,
    /// That a waiter sends no requests while nothing changes.
    FreeWaiting,
}

/// What a store can do.
pub(crate) struct Able {
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

impl Able {
    /// Finds out by a client of the store.
    ///
    /// # Panics
    /// If no client can connect. Also if the store has sessions but its clients cannot be killed: the cases about crashes
    /// would then not test what a crash does.
    pub(crate) async fn of(fixture: &dyn Fixture) -> Self {
        let connected = fixture.connect().await;
        let store = connected
            .unwrap_or_else(|error| panic!("no client of {} can connect: {}", fixture.name(), told(&error)));
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

    /// Whether the cases are to run in this row.
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

    /// Whether no other case of the process may run at the same time.
    pub(crate) fn runs_alone(&self) -> bool {
        self.needs.iter().any(|need| matches!(need, Need::Allocated | Need::Restart))
    }

    /// Whether the case is in this row. Some cases do themselves what the rows do, or test something that the rows do not
    /// change. They are not repeated in each row. Detached holds end by themselves, so on the wall's clock their cases take
    /// seconds: there only lost answers are tried beside the plain store, since only these change what a driver must do.
    pub(crate) fn is_in(&self, row: Row, able: &Able) -> bool {
        let only_plain = [Need::Allocated, Need::Driver, Need::Network, Need::Restart];
        match row {
            Row::Plain => true,
            _ if self.needs.iter().any(|need| only_plain.contains(need)) => false,
            Row::Habit(Habit::Flaky) | Row::Member(Habit::Flaky) => true,
            Row::Habit(_) | Row::Member(_) => able.skips_time || !self.needs.contains(&Need::Detach),
        }
    }

    /// What the store lacks for the case.
    pub(crate) fn missing(&self, able: &Able) -> Option<String> {
        let Able { info, inspects, .. } = able;
        let has = |kind| info.kinds.contains(&kind);
        if !has(self.kind) {
            return Some(format!("the store has no {}", self.kind));
        }
        self.needs.iter().find_map(|need| match need {
            Need::Kind(kind) if !has(*kind) => Some(format!("the store has no {kind}")),
            Need::Tokens if !info.tokens => Some("the store has no tokens".to_owned()),
            Need::TokenFloor if !able.tokens_outlive_data => {
                Some("the store's tokens begin anew when it lost its data".to_owned())
            }
            Need::Order if !able.keeps_order => Some("the store may grant out of order".to_owned()),
            Need::Downgrade if !info.downgrades.contains(&self.kind) => {
                Some(format!("the store cannot downgrade a {}", self.kind))
            }
            Need::Inspect if !inspects => Some("the store cannot be looked into".to_owned()),
            Need::Detach if !info.detaches => {
                Some("the store cannot keep a lock without its holder".to_owned())
            }
            Need::NoDetach if info.detaches => {
                Some("the store can keep a lock without its holder".to_owned())
            }
            Need::Allocated if !able.counts_bytes => Some("the fixture does not count bytes".to_owned()),
            Need::Session if info.session.is_none() => Some("the store has no sessions".to_owned()),
            Need::Restart if !able.restarts => Some("the fixture cannot restart the server".to_owned()),
            Need::FreeWaiting => able.polls.map(str::to_owned),
            Need::Network if !able.has_network => Some("the fixture has no one server".to_owned()),
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

/// A list of cases: `topic (kind of the locks) [needs] { functions }`, as often as need be. The name of a case is that of
/// its function.
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
