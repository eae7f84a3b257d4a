//! The table of cases: each a sentence that can be false, in the file of its topic.

mod exclusive;

use std::{fmt, pin::Pin, sync::Arc};

use dlock_core::{Info, Kind};

use crate::Arena;

/// One case: a behaviour, and what a store must have for it.
#[derive(Clone, Copy)]
pub struct Case {
    topic: &'static str,
    name: &'static str,
    kind: Kind,
    needs: &'static [Need],
    run: fn(Arc<Arena>) -> Running,
}

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a store must have for a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Kind(Kind),
    Tokens,
    Downgrade,
}

impl Case {
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    pub(crate) async fn run(&self, arena: Arc<Arena>) {
        (self.run)(arena).await;
    }

    /// What the store lacks for it.
    pub(crate) fn missing(&self, info: &Info) -> Option<String> {
        let has = |kind| info.kinds.contains(&kind);
        if !has(self.kind) {
            return Some(format!("the store has no {}", self.kind));
        }
        self.needs.iter().find_map(|need| match need {
            Need::Kind(kind) if !has(*kind) => Some(format!("the store has no {kind}")),
            Need::Tokens if !info.tokens => Some("the store has no tokens".to_owned()),
            Need::Downgrade if !info.downgrades => Some("the store cannot downgrade".to_owned()),
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

/// Rows of the table: `file "topic" (kind of the locks) needs { cases }`; a case is the function of its name in `file`.
macro_rules! table {
    ($($file:ident $topic:literal ($kind:ident) $needs:tt { $($case:ident),+ $(,)? })+) => {
        [$(table!(@topic $file $topic $kind $needs $($case)+)),+].concat()
    };
    (@topic $file:ident $topic:literal $kind:ident $needs:tt $($case:ident)+) => {
        vec![$(Case {
            topic: $topic,
            name: stringify!($case),
            kind: Kind::$kind,
            needs: &$needs,
            run: |arena| Box::pin($file::$case(arena)),
        }),+]
    };
}

/// The rows that hold for every exclusive kind.
macro_rules! exclusive {
    ($topic:literal, $kind:ident) => {
        table! {
            exclusive $topic ($kind) [] {
                a_second_contender_waits_until_the_release,
                a_try_of_a_held_lock_is_busy,
            }
        }
    };
}

/// All of them, in the order in which they are run.
pub fn all() -> Vec<Case> {
    [exclusive!("mutex", Mutex), exclusive!("fair", Fair), exclusive!("write", Write)].concat()
}
