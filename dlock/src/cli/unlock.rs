//! `dlock unlock`: takes a lock from whoever holds it.

use super::{
    args::Unlock,
    exit::{Failure, NO, OK, Outcome},
    output, store, values,
};
use crate::Registry;

/// Breaks a lock; says no if nobody held it.
pub(super) async fn unlock(registry: &Registry, args: Unlock) -> Outcome {
    let name = values::name(&args.name)?;
    if !args.force {
        let why = "`unlock` takes the lock from a holder that may still be at work; if you know that it is not, add --force";
        return Err(Failure::usage(why));
    }
    let locks = store::connect(registry, &args.store).await?;
    let held = locks.force_release(&name).await?;
    store::close(&locks).await;
    if !held {
        output::say(&format!("nobody holds lock `{name}`"));
    }
    Ok(if held { OK } else { NO })
}
