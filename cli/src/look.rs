//! `dlock ls` and `dlock inspect`: list the locks in a store.

use crate::{
    args::{Inspect, Ls},
    choice::Stores,
    exit::{NO, OK, Outcome},
    json, output, show, store, values,
};

/// Lists locks.
pub(crate) async fn ls(stores: &Stores<'_>, args: Ls) -> Outcome {
    let prefix = values::utf8(&args.prefix, "the prefix of a lock's name")?;
    let states = match store::connect_to_inspect(stores, None).await? {
        Some(locks) => {
            let states = locks.list(prefix).await?;
            store::close(&locks).await;
            states
        }
        None => Vec::new(),
    };
    output::print(if args.json { json::locks(&states)? } else { show::table(&states) })?;
    Ok(OK)
}

/// Shows one lock. Returns [`NO`] if it is free.
pub(crate) async fn inspect(stores: &Stores<'_>, args: Inspect) -> Outcome {
    let name = values::name(&args.name)?;
    let state = match store::connect_to_inspect(stores, Some(name.as_str())).await? {
        Some(locks) => {
            let state = locks.inspect(&name).await?;
            store::close(&locks).await;
            state
        }
        None => None,
    };
    output::print(if args.json {
        json::lock(&name, state.as_ref())?
    } else {
        show::page(&name, state.as_ref())
    })?;
    Ok(if state.is_some() { OK } else { NO })
}
