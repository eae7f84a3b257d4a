//! A failover to a replica, which replicates asynchronously.

use dlock_core::{Locks, Registry};
use dlock_mysql::DRIVER;
use dlock_testbed::servers::{
    Running,
    mysql::{
        Brand::{self, Mariadb, Mysql},
        Flavour, start,
    },
};
use libtest_mimic::Failed;
use sqlx::{AssertSqlSafe, Row as _, mysql::MySqlConnection};
use tokio::time::timeout;

use crate::{
    SOON, execute,
    named::{LONG, until_watched},
    or_failed, plain_session, until, until_reply,
};

const CLAIMS: &str = "SELECT COUNT(*) FROM dlock_queue";
const FENCE: &str = "SELECT COUNT(*) FROM dlock_fence";

/// A primary, and a replica that is read-only.
struct Replicated {
    brand: Brand,
    primary: Running,
    replica: Running,
    /// A session at the replica.
    session: MySqlConnection,
}

impl Replicated {
    async fn start(brand: Brand) -> Result<Self, Failed> {
        let primary = or_failed(start(brand, Flavour::Logged).await)?;
        let replica = or_failed(start(brand, Flavour::Logged).await)?;
        let logs = "SHOW BINARY LOGS";
        let logs = sqlx::raw_sql(logs).fetch_all(&mut plain_session(&primary).await).await?;
        let last = logs.last().ok_or("the primary has no binary log")?;
        let (file, position): (String, u64) = (last.try_get_unchecked(0)?, last.try_get_unchecked(1)?);
        let (change, source, option) = match brand {
            Mariadb => ("MASTER", "MASTER", "MASTER_USE_GTID = no, MASTER_SSL = 0"),
            Mysql => ("REPLICATION SOURCE", "SOURCE", "GET_SOURCE_PUBLIC_KEY = 1"),
        };
        let replicate = format!(
            "SET GLOBAL server_id = 2;
            CHANGE {change} TO {source}_HOST = '127.0.0.1', {source}_PORT = {},
                {source}_USER = 'dlock', {source}_PASSWORD = 's3cret:/',
                {source}_LOG_FILE = '{file}', {source}_LOG_POS = {position}, {option};
            START REPLICA;
            SET GLOBAL read_only = 1",
            primary.servers()[0].address().port()
        );
        let mut session = plain_session(&replica).await;
        sqlx::raw_sql(AssertSqlSafe(replicate)).execute(&mut session).await?;
        Ok(Self { brand, primary, replica, session })
    }

    async fn connect(&self) -> Locks {
        self.connect_to([&self.primary, &self.replica], "").await
    }

    /// Connects with a URL that names the servers in this order.
    async fn connect_to(&self, servers: [&Running; 2], params: &str) -> Locks {
        let hosts = servers.map(|server| server.servers()[0].address().to_string());
        let url = format!("mysql://dlock:s3cret%3A%2F@{}/dlock{params}", hosts.join(","));
        Registry::new().with(DRIVER).connect(&url).await.expect("one of the servers accepts writes")
    }

    /// Waits until the replica has received the tables with all rows of the fence, and `claims` claims.
    async fn until_replicated(&mut self, claims: i64) {
        let created = async {
            // The tables may not be replicated yet.
            while sqlx::raw_sql(FENCE).fetch_one(&mut self.session).await.is_err()
                || sqlx::raw_sql(CLAIMS).fetch_one(&mut self.session).await.is_err()
            {}
        };
        timeout(SOON, created).await.expect("the replica receives the tables");
        let of_primary = sqlx::raw_sql(FENCE).fetch_one(&mut plain_session(&self.primary).await).await;
        let rows = of_primary.expect("the primary has the tables").get_unchecked(0);
        until(&mut self.session, FENCE, rows).await;
        until(&mut self.session, CLAIMS, claims).await;
    }

    /// Kills the primary, and lets the replica accept writes.
    async fn fail_over(&mut self) {
        self.primary.servers()[0].kill().await.expect("the primary runs");
        let reset = match self.brand {
            Mariadb => "RESET SLAVE ALL",
            Mysql => "RESET REPLICA ALL",
        };
        execute(&mut self.session, &format!("STOP REPLICA; {reset}; SET GLOBAL read_only = 0")).await;
    }
}

pub(crate) async fn a_hold_outlives_a_failover_to_a_replica_that_has_received_it(
    brand: Brand,
) -> Result<(), Failed> {
    let mut servers = Replicated::start(brand).await?;
    let (holder, other) = (servers.connect().await, servers.connect().await);
    let held = holder.mutex("job").lock().ttl(SOON * 6).await?;
    let token = held.token();
    servers.until_replicated(1).await;
    servers.fail_over().await;
    assert!(
        until_reply(SOON * 2, || async { other.mutex("job").try_lock().await }).await.is_none(),
        "two hold after the failover"
    );
    held.release().await.expect("the replica has the hold");
    let next = other.mutex("job").lock().wait(SOON).await.expect("the lock is free");
    assert!(next.token() > token, "{:?} follows {token:?}", next.token());
    next.release().await?;
    Ok(())
}

/// A limit of asynchronous replication that the README documents.
pub(crate) async fn a_replica_forgets_the_holds_that_it_has_not_received(brand: Brand) -> Result<(), Failed> {
    let mut servers = Replicated::start(brand).await?;
    let (holder, other) = (servers.connect().await, servers.connect().await);
    holder.mutex("job").lock().await?.release().await?;
    servers.until_replicated(0).await;
    execute(&mut servers.session, "STOP REPLICA").await;
    let held = holder.mutex("job").lock().ttl(SOON).await?;
    servers.fail_over().await;
    let next = until_reply(SOON * 2, || async { other.mutex("job").try_lock().await })
        .await
        .expect("the replica has not received the hold");
    assert!(next.token() > held.token(), "{:?} follows {:?}", next.token(), held.token());
    timeout(SOON * 3, held.lost()).await.expect("the first holder is notified");
    next.release().await?;
    Ok(())
}

pub(crate) async fn a_named_lock_is_lost_with_its_server(brand: Brand) -> Result<(), Failed> {
    let mut servers = Replicated::start(brand).await?;
    let hosts = [&servers.primary, &servers.replica];
    let holder = servers.connect_to(hosts, "?mode=session").await;
    let other = servers.connect_to(hosts, "?mode=session").await;
    let held = holder.mutex("job").lock().ttl(LONG).await?;
    until_watched(&holder, "job").await;
    // Named locks are not replicated.
    servers.until_replicated(0).await;
    servers.fail_over().await;
    timeout(SOON, held.lost()).await.expect("the holder is notified long before the next renewal");
    let next = until_reply(SOON * 2, || async { other.mutex("job").try_lock().await })
        .await
        .expect("the lock is free on the replica");
    next.release().await?;
    Ok(())
}

/// A limit of replication that the README documents. The URL of the second client names the replica
/// first, and the replica is not read-only.
pub(crate) async fn a_replica_that_lags_behind_and_accepts_writes_grants_a_held_lock(
    brand: Brand,
) -> Result<(), Failed> {
    let mut servers = Replicated::start(brand).await?;
    let holder = servers.connect().await;
    holder.mutex("job").lock().await?.release().await?;
    servers.until_replicated(0).await;
    execute(&mut servers.session, "STOP REPLICA; SET GLOBAL read_only = 0").await;
    let held = holder.mutex("job").lock().ttl(LONG).await?;
    let other = servers.connect_to([&servers.replica, &servers.primary], "").await;
    let next = other.mutex("job").try_lock().await?.expect("the replica has not received the hold");
    assert!(!held.is_lost(), "the server of the first holder still runs");
    next.release().await?;
    held.release().await?;
    Ok(())
}
