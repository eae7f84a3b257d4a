//! `dlock run` and `dlock try`: a command under a lock.

use std::{ffi::OsString, process::Command, time::Duration};

use tokio::time::timeout;

use super::{
    args::{HoldArgs, KindArgs},
    child::{self, Child},
    exec,
    exit::{self, Failure, Outcome, chain},
    held::{self, Above, Held},
    output,
    signals::Signals,
    store, values, wait,
};
use crate::{Error, Guard, LockName, LockOptions, Locks, LostReason, Registry, Wait};

/// How long the store may take to confirm a release.
const RELEASE: Duration = Duration::from_secs(5);

/// The checked arguments.
struct Job {
    name: LockName,
    kind: KindArgs,
    options: LockOptions,
    wait: Wait,
    above: Above,
    words: Vec<OsString>,
    kill_after: Duration,
}

/// Runs a command under a lock.
pub(super) async fn run(registry: &Registry, wait: Wait, args: HoldArgs) -> Outcome {
    if args.command().is_empty() {
        return Err(Failure::usage(
            "no command; write `dlock run NAME -- CMD ARGS…` or `dlock run NAME -c 'shell text'`",
        ));
    }
    take(registry, wait, args).await
}

/// Runs a command if the lock is free, or only says whether it is.
pub(super) async fn attempt(registry: &Registry, args: HoldArgs) -> Outcome {
    take(registry, Wait::Never, args).await
}

async fn take(registry: &Registry, wait: Wait, args: HoldArgs) -> Outcome {
    let job = Job {
        name: values::name(&args.name)?,
        kind: args.kind,
        options: LockOptions::new().ttl(args.ttl).wait(wait),
        wait,
        above: Above::from_env()?,
        words: args.command(),
        kill_after: args.kill_after,
    };
    let mut signals = Signals::listen()?;
    let locks = signals.unless(store::connect(registry, &args.store)).await?;
    let outcome = job.run(&locks, &mut signals).await;
    store::close(&locks).await;
    drop(locks);
    match outcome {
        Ok(End::Status(status)) => Ok(status),
        Ok(End::Become(words, (name, token))) => {
            Err(exec::replace(&words, |command| tell(command, &name, token)))
        }
        Err(failure) => Err(failure.busy_as(args.busy_status)),
    }
}

/// How a job ends.
enum End {
    Status(u8),
    /// A dlock among the parent processes holds the lock, and holds it until the command has ended. So this process only
    /// has to become the command.
    Become(Vec<OsString>, (LockName, Option<u64>)),
}

impl Job {
    async fn run(self, locks: &Locks, signals: &mut Signals) -> Outcome<End> {
        let Self { name, kind, .. } = &self;
        if let Some(held) = signals.unless(self.above.enter(locks, name, kind.kind())).await? {
            let told = (name.clone(), held.token());
            return Ok(if self.words.is_empty() {
                End::Status(exit::OK)
            } else {
                End::Become(self.words, told)
            });
        }
        let lock = kind.of(locks, name);
        let guard = signals.unless(wait::acquire(locks, &*lock, &self.options, self.wait)).await?;
        if self.words.is_empty() {
            release(guard).await;
            return Ok(End::Status(exit::OK));
        }
        self.under(guard, locks, signals).await.map(End::Status)
    }

    /// Runs the command; the lock is released when it has ended, not before.
    async fn under(self, guard: Guard, locks: &Locks, signals: &mut Signals) -> Outcome {
        let token = guard.token();
        let mut command = exec::tied(&self.words);
        tell(&mut command, &self.name, token.map(crate::Token::get));
        command.env(held::VARIABLE, self.above.with(Held::new(locks, self.kind.kind(), &guard))?);
        let mut child = Child::spawn(command, signals)?;
        tokio::select! {
            biased;
            status = child.ended(signals) => {
                let status = status?;
                // After a suspend of the machine the command may end before the keeper has noticed the loss.
                let lost = if guard.is_lost() { Some(guard.lost().await) } else { release(guard).await };
                if let Some(reason) = lost {
                    let then = format!("the command had ended by itself, with status {}, when that was noticed", child::code(status));
                    return Err(Failure::lost(&self.name, reason, &then));
                }
                child::likewise(status)
            }
            reason = guard.lost() => {
                let failure = Failure::lost(&self.name, reason, "stopping the command").said();
                child.stop(self.kill_after, signals).await?;
                Err(failure)
            }
        }
    }
}

/// Tells the command which lock it runs under.
fn tell(command: &mut Command, name: &LockName, token: Option<u64>) {
    command.env("DLOCK_NAME", name.as_str());
    match token {
        Some(token) => command.env("DLOCK_TOKEN", token.to_string()),
        // Without a token of its own, the command must not see that of another lock that a parent holds.
        None => command.env_remove("DLOCK_TOKEN"),
    };
}

/// Why the lock was lost, if the release finds that it was. Other failures of the release do not change the status of the
/// command, which has ended.
async fn release(guard: Guard) -> Option<LostReason> {
    match timeout(RELEASE, guard.release()).await {
        Ok(Ok(())) => {}
        Ok(Err(Error::Lost { reason, .. })) => return Some(reason),
        Ok(Err(error)) => {
            output::say(&format!("the lock may not be released before its ttl ends: {}", chain(&error)))
        }
        Err(_) => {} // What goes on in the background is waited for, and told, by `store::close`.
    }
    None
}
