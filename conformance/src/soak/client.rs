//! A client process. Its tasks lock, hold and wait until its stdin ends. It writes each event on its
//! stdout.

mod place;
mod task;

use std::{
    io::{self, Write},
    process::ExitCode,
    sync::{Arc, atomic::AtomicU64},
};

use dlock_core::{Locks, Registry, Result};
use tokio::{sync::watch, task::JoinSet};

use super::{event::Event, plan::Plan};
use task::Task;

/// Runs the client of the plan on stdin. The end of stdin ends the client.
pub(super) fn run(registry: &Registry) -> ExitCode {
    // A client that is stopped cannot notice the end of its stdin.
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).ok();
    let mut first_line = String::new();
    let plan =
        io::stdin().read_line(&mut first_line).ok().and_then(|_| serde_json::from_str(&first_line).ok());
    let Some(plan) = plan else {
        record(&Event::Failed { error: "there is no plan on stdin".to_owned() });
        return ExitCode::from(2);
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime.map(|runtime| runtime.block_on(work(registry, plan))) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => failed(&describe(&error)),
        Err(error) => failed(&error.to_string()),
    }
}

fn failed(error: &str) -> ExitCode {
    record(&Event::Failed { error: error.to_owned() });
    ExitCode::FAILURE
}

async fn work(registry: &Registry, plan: Plan) -> Result<()> {
    let store = registry.open(&plan.url).await?;
    let locks = Locks::new(place::watch(store));
    let excluded = match &plan.held_by_coordinator {
        None => None,
        Some(name) => Some(locks.of(plan.names[0].kinds[0], name).try_lock(&plan.options()).await?.is_none()),
    };
    record(&Event::Ready { excluded });

    let (stop, stopping) = watch::channel(false);
    let numbers = Arc::new(AtomicU64::new(0));
    let plan = Arc::new(plan);
    let mut tasks = JoinSet::new();
    for number in 0..plan.tasks {
        let task = Task {
            plan: Arc::clone(&plan),
            locks: locks.clone(),
            numbers: Arc::clone(&numbers),
            stopping: stopping.clone(),
        };
        tasks.spawn(task.run(number));
    }
    end_of_stdin().await;
    stop.send_replace(true);
    while let Some(ended) = tasks.join_next().await {
        // A panic must be seen. The coordinator reports the exit status.
        if let Err(error) = ended
            && let Ok(panic) = error.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
    }
    locks.close().await;
    record(&Event::Closed { at: super::clock::now() });
    Ok(())
}

/// Waits for the end of stdin on a thread of its own, because no read of stdin can be cancelled.
async fn end_of_stdin() {
    let (ended, end) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        io::copy(&mut io::stdin(), &mut io::sink()).ok();
        ended.send(()).ok();
    });
    end.await.ok();
}

/// Writes an event. The line is in the pipe when the call returns, so a kill does not lose it.
fn record(event: &Event) {
    let mut line = serde_json::to_vec(event).expect("an event is JSON");
    line.push(b'\n');
    // Without a coordinator there is nothing to record for.
    if io::stdout().write_all(&line).is_err() {
        std::process::exit(1);
    }
}

/// Formats an error with its sources.
pub(super) fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
