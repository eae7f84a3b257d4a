//! A majority of servers that know nothing of each other.

use async_trait::async_trait;
use dlock_conformance::{Fixture, Unreachable, wrap::Habit};
use dlock_core::{RedLock, Result, driver::Store};
use futures_util::future::try_join_all;

use crate::common::{connect, nodes::Nodes};

pub(crate) struct Majority(Nodes);

impl Majority {
    /// A majority of so many servers.
    pub(crate) async fn of(count: usize) -> Result<Self, Unreachable> {
        Nodes::new(count, "").await.map(Self)
    }
}

#[async_trait]
impl Fixture for Majority {
    fn name(&self) -> &str {
        "redis"
    }

    async fn connect(&self) -> Result<Store> {
        connect(self.0.url()).await
    }

    async fn connect_with_member(&self, habit: Habit) -> Option<Result<Store>> {
        let joined = async {
            let mut members = try_join_all(self.0.urls().into_iter().map(connect)).await?;
            let last = members.pop().expect("there are some");
            members.push(habit.wrap(last));
            RedLock::new(members).map(RedLock::into_store)
        };
        Some(joined.await)
    }
}
