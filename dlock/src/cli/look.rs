//! `dlock ls` and `dlock inspect`: what the store says.

use super::{
    args::{Inspect, Ls},
    exit::{NO, OK, Outcome},
    output, show, store, values,
};
use crate::Registry;

/// Lists locks.
pub(super) async fn ls(registry: &Registry, args: Ls) -> Outcome {
    let prefix = values::utf8(&args.prefix, "the beginning of a lock's name")?;
    let locks = store::connect(registry, &args.store).await?;
    let states = locks.list(prefix).await?;
    store::close(&locks).await;
    output::print(if args.json { show::all_json(&states)? } else { show::table(&states) })?;
    Ok(OK)
}

/// Shows one lock; says no if it is free.
pub(super) async fn inspect(registry: &Registry, args: Inspect) -> Outcome {
    let name = values::name(&args.name)?;
    let locks = store::connect(registry, &args.store).await?;
    let state = locks.inspect(&name).await?;
    store::close(&locks).await;
    output::print(if args.json {
        show::one_json(&name, state.as_ref())?
    } else {
        show::page(&name, state.as_ref())
    })?;
    Ok(if state.is_some() { OK } else { NO })
}
