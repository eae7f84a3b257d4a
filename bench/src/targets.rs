//! The bounds that measurements should keep, and their reasons.

use crate::arguments::Part;

/// A bound for one measured value.
#[derive(Debug)]
pub(crate) struct Target {
    /// Name in files of results.
    pub(crate) id: &'static str,
    /// The part that measures it.
    pub(crate) part: Part,
    pub(crate) name: &'static str,
    pub(crate) bound: Bound,
    /// Unit of the value. A ratio names what it is relative to.
    pub(crate) unit: &'static str,
    /// Reason for the bound.
    pub(crate) reason: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

/// Returns the targets of a part.
pub(crate) fn of(part: Part) -> impl Iterator<Item = &'static Target> {
    ALL.iter().copied().filter(move |target| target.part == part)
}

/// Declares one static for each target, and `ALL`, the list of them.
macro_rules! targets {
    ($($id:ident: $part:ident, $name:literal, $bound:ident $value:literal, $unit:literal, $reason:literal;)*) => {
        $(pub(crate) static $id: Target = Target {
            id: stringify!($id),
            part: Part::$part,
            name: $name,
            bound: Bound::$bound($value),
            unit: $unit,
            reason: $reason,
        };)*

        /// All targets, in the order in which they are printed.
        pub(crate) static ALL: &[&Target] = &[$(&$id),*];
    };
}

targets! {
    ENGINE_PAIR: Engine, "lock + release on the memory store", AtMost 2.5, "× spawn, reply",
        "an acquisition starts one task, which replies twice: to the lock and to the release";

    MEMORY_BYTES: Held, "memory of a held lock, memory store", AtMost 2048.0, "bytes",
        "100 000 held locks then take 200 MB, with the store's own records";

    SQLITE_HANDOFF: Sqlite, "hand-off between two clients, p50", AtMost 5.0, "ms",
        "a waiter is woken through a file, and does not wait for its next poll";

    REDIS_PAIR: Redis, "lock + release by one task, fenced", AtMost 1.10, "× limit",
        "the limit sends the same two scripts, so the rest is the cost of the engine";
    REDIS_PLAIN_PAIR: Redis, "lock + release by one task, plain", AtMost 1.05, "× plain limit",
        "the limit sends SET NX PX and one script, as rslock and redsync do";
    REDIS_TASKS: Redis, "rate of 64 tasks, own names, fenced", AtLeast 0.9, "× limit",
        "tasks on names of their own have nothing to wait for but the server";
    REDIS_PLAIN_TASKS: Redis, "rate of 64 tasks, own names, plain", AtLeast 0.8, "× plain limit",
        "the commands cost the server less than scripts, so the engine's share is larger";
    REDIS_HANDOFF: Redis, "hand-off to a waiting client, p50", AtMost 1.5, "× limit",
        "the release publishes a message, and the waiter sends one script after it";
    REDIS_WAITS: Redis, "p99 wait, 8 tasks of one client", AtMost 3.0, "× strict order",
        "the waiters of one client are woken one by one";
    REDIS_FAIR_WAITS: Redis, "p99 wait, 8 clients, fair", AtMost 2.0, "× strict order",
        "a fair lock is granted in order of arrival";
    REDIS_WAITER: Redis, "requests of a waiter", AtMost 0.0, "a second",
        "a subscribed waiter waits for the message of the release";

    REDIS_WORKERS: RedisWorkers, "lock + release, two worker threads", AtMost 1.15, "× limit",
        "a task that moves to another thread costs a wake-up of that thread";

    REDIS_DISTANT_1: RedisDistant, "lock + release, distant, 1 task", AtMost 1.10, "× limit",
        "an acquisition and a release are one round trip each";
    REDIS_DISTANT_8: RedisDistant, "lock + release, distant, 8 tasks", AtMost 1.15, "× limit",
        "tasks that share a connection do not wait for each other's replies";
    REDIS_DISTANT_64: RedisDistant, "lock + release, distant, 64 tasks", AtMost 1.10, "× limit",
        "tasks that share a connection do not wait for each other's replies";

    REDIS_CROWD: RedisCrowd, "requests of up to 10 000 waiters", AtMost 0.0, "",
        "all waiters of a client for one name share one subscription";

    REDIS_PERMIT: RedisPermits, "lock + release of a permit", AtMost 1.10, "× mutex",
        "a free permit takes one script, as a free mutex does";

    MULTILOCK: RedisSeveral, "MultiLock of ten names, one server", AtMost 1.5, "× one name",
        "one batch of requests can take ten free names of one server, and release them";
    REDLOCK_3: RedisSeveral, "RedLock of 3 servers", AtMost 1.0, "× fastest rival",
        "rslock and redsync send the same commands to the same servers";
    REDLOCK_5: RedisSeveral, "RedLock of 5 servers", AtMost 1.0, "× fastest rival",
        "rslock and redsync send the same commands to the same servers";

    REDIS_RENEWALS: RedisHeld, "renewals of 100 000 held locks", AtMost 1000.0, "requests a pass",
        "one request renews a hundred locks or more";
    REDIS_HELD_CPU: RedisHeld, "processor time of 100 000 held locks", AtMost 5.0, "% of a core",
        "held locks leave the processor to the work that they protect";
    REDIS_HELD_BYTES: RedisHeld, "memory of a held lock", AtMost 2048.0, "bytes",
        "100 000 held locks then take 200 MB";
    REDIS_HELD_LOST: RedisHeld, "lost ones of 100 000 held locks", AtMost 0.0, "locks",
        "a renewal that is due is never late because of the number of locks";

    ETCD_PAIR: Etcd, "lock + release of a free lock", AtMost 1.05, "× fastest rival",
        "Go's Mutex and the lock service create and delete the same keys";
    ETCD_HANDOFF: Etcd, "hand-off to a waiting client, p50", AtMost 1.0, "× fastest rival",
        "the rivals watch from a past revision, which etcd serves every 100 ms only";
    ETCD_REQUESTS: Etcd, "requests of a lock + release", AtMost 2.0, "requests",
        "one transaction to lock, and one to release";

    MYSQL_SESSION_PAIR: Mysql, "lock + release, session mode", AtMost 1.15, "× limit",
        "the limit is GET_LOCK with the commit of a token in one batch";
    MYSQL_QUEUE_PAIR: Mysql, "lock + release, queue mode", AtMost 1.5, "× limit",
        "the limit inserts and deletes one row, with a commit each";
    MYSQL_QUEUE_HANDOFF: Mysql, "hand-off, queue mode, p50", AtMost 1.5, "ms",
        "a doorbell wakes the waiter, which does not wait for its next poll";
    MYSQL_SESSION_REQUESTS: Mysql, "lock + release, session mode", AtMost 2.0, "round trips",
        "one batch of statements to lock, and one to release";
    MYSQL_QUEUE_REQUESTS: Mysql, "lock + release, queue mode", AtMost 2.0, "round trips",
        "one batch of statements to lock, and one to release";

    POSTGRES_FUNCTIONS: Postgres, "lock + release, queue mode", AtMost 1.15, "× functions",
        "the same functions of the schema, called without dlock";
    POSTGRES_QUEUE_PAIR: Postgres, "lock + release, queue mode, on a disk", AtMost 1.0, "× limit",
        "the limit inserts and deletes one row, with a commit each; a release of dlock waits for no disk";
    POSTGRES_TASKS: Postgres, "lock + release by 64 tasks", AtLeast 0.9, "× functions",
        "calls of several tasks share the four connections";
    POSTGRES_SESSION_PAIR: Postgres, "lock + release, session mode", AtMost 1.2, "× limit",
        "the limit is pg_advisory_lock with the commit of a token in one statement";
    POSTGRES_SESSION_HANDOFF: Postgres, "hand-off, session mode", AtMost 1.2, "× limit",
        "the server hands the lock over, and dlock sends one statement after it";
    POSTGRES_QUEUE_HANDOFF: Postgres, "hand-off, queue mode", AtMost 1.5, "× release + attempt",
        "a notification wakes the waiter, which calls one function";
    POSTGRES_REFUSED_TRY: Postgres, "refused try, queue mode", AtMost 3.0, "× SELECT 1",
        "a refused try writes nothing and locks nothing";
    POSTGRES_QUEUE_REQUESTS: Postgres, "lock + release, queue mode", AtMost 2.0, "round trips",
        "one function to lock, and one to release";
    POSTGRES_SESSION_REQUESTS: Postgres, "lock + release, session mode", AtMost 2.0, "round trips",
        "one statement to lock, and one to release";

    ZOOKEEPER_PAIR_CURATOR: Zookeeper, "lock + release of a free lock", AtMost 1.0, "× Curator",
        "the create and the list of the children are sent together";
    ZOOKEEPER_PAIR_RECIPE: Zookeeper, "lock + release of a free lock", AtMost 1.0, "× recipe",
        "the recipe of the client crate does not wait for its release";
    ZOOKEEPER_HANDOFF: Zookeeper, "hand-off to a waiting client, p50", AtMost 1.0, "× recipe",
        "both watch the node ahead of the waiter";
    ZOOKEEPER_REQUESTS: Zookeeper, "requests of a lock + release", AtMost 3.0, "requests",
        "a create, a list of the children and a delete";

    PROCESSES_REDIS_RATE: ProcessesRedis, "rate of ten processes", AtLeast 0.9, "× fastest peer",
        "a process that waits for the lock keeps no other process from it";
    PROCESSES_REDIS_FAIR_RATE: ProcessesRedis, "rate of ten processes, fair", AtLeast 0.9, "× Redisson, fair",
        "both keep the same queue, and publish one message for each release";
    PROCESSES_REDIS_FAIR_WAIT: ProcessesRedis, "p99 wait of ten processes, fair", AtMost 2.0, "× strict order",
        "a fair lock is granted in order of arrival";
    PROCESSES_ETCD_RATE: ProcessesEtcd, "rate of ten processes", AtLeast 0.9, "× fastest peer",
        "Go's Mutex and the lock service create and delete the same keys";
    PROCESSES_ETCD_WAIT: ProcessesEtcd, "p99 wait of ten processes", AtMost 2.0, "× strict order",
        "keys are granted in order of their creation";
    PROCESSES_MYSQL_SESSION_RATE: ProcessesMysql, "rate of ten processes, session mode", AtLeast 0.9, "× GET_LOCK",
        "both hold a GET_LOCK; dlock commits a token, too";
    PROCESSES_MYSQL_QUEUE_RATE: ProcessesMysql, "rate of ten processes, queue mode", AtLeast 0.9, "× GET_LOCK",
        "GET_LOCK is the lock that users of MariaDB have without dlock";
    PROCESSES_MYSQL_WAIT: ProcessesMysql, "p99 wait of ten processes, queue mode", AtMost 2.0, "× strict order",
        "the queue is granted in order of arrival";
    PROCESSES_POSTGRES_SESSION_RATE: ProcessesPostgres, "rate of ten processes, session mode", AtLeast 0.9, "× fastest peer",
        "both hold an advisory lock; dlock commits a token, too";
    PROCESSES_POSTGRES_QUEUE_RATE: ProcessesPostgres, "rate of ten processes, queue mode", AtLeast 0.9, "× fastest peer",
        "an advisory lock is what users of PostgreSQL have without dlock";
    PROCESSES_POSTGRES_WAIT: ProcessesPostgres, "p99 wait of ten processes, queue mode", AtMost 2.0, "× strict order",
        "the queue is granted in order of arrival";
    PROCESSES_ZOOKEEPER_RATE: ProcessesZookeeper, "rate of ten processes", AtLeast 0.9, "× fastest peer",
        "Curator and the recipe create and delete the same nodes";
    PROCESSES_ZOOKEEPER_WAIT: ProcessesZookeeper, "p99 wait of ten processes", AtMost 2.0, "× strict order",
        "nodes are granted in order of their creation";

    COMMAND_FLOCK: Command, "`dlock run` on SQLite", AtMost 2.5, "× flock",
        "a shell script that uses flock today can afford the difference";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_a_finite_bound_and_a_reason() {
        for target in ALL {
            let (Bound::AtMost(bound) | Bound::AtLeast(bound)) = target.bound;
            assert!(bound.is_finite() && bound >= 0.0, "{}: {bound} is no bound", target.id);
            assert!(!target.reason.is_empty(), "{}: no reason", target.id);
        }
    }

    #[test]
    fn the_rows_of_a_part_differ_in_name_or_unit() {
        for (index, target) in ALL.iter().enumerate() {
            let row = |target: &Target| (target.part, target.name, target.unit);
            assert!(ALL[..index].iter().all(|other| row(other) != row(target)), "{} twice", target.id);
        }
    }
}
