//! Cost of `dlock run true` beside `flock FILE true`, as whole processes that run alternately.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use tokio::time::Instant;

use crate::{Effort, arguments::Part, contest::Outcome, figures::Figures, results::Results, targets};

pub(crate) fn bench(effort: Effort, results: &Results) -> Outcome {
    let Some(dlock) = sibling_binary("dlock") else {
        return results.part_missing(Part::Command, "build the command first: cargo build --release");
    };
    let folder = tempfile::tempdir()?;
    let store = format!("sqlite:{}", folder.path().join("locks.db").display());
    let has_flock = Command::new("flock").arg("--version").output().is_ok();
    let [mut dlock_times, mut flock_times, mut bare_times, mut ratios] = [const { Figures::new() }; 4];
    for round in 0..effort.rounds * 10 + 1 {
        let run_ms = |command: &mut Command| -> Outcome<f64> {
            let started_at = Instant::now();
            let status = command.status()?;
            status
                .success()
                .then(|| started_at.elapsed().as_secs_f64() * 1e3)
                .ok_or_else(|| format!("{command:?} failed").into())
        };
        let dlock_ms =
            run_ms(Command::new(&dlock).args(["run", "x", "--", "true"]).env("DLOCK_STORE", &store))?;
        let bare_ms = run_ms(&mut Command::new("true"))?;
        let flock_ms = if has_flock {
            run_ms(Command::new("flock").arg(folder.path().join("f")).arg("true"))?
        } else {
            f64::NAN
        };
        // The first round warms the caches and creates the files. It does not count.
        if round > 0 {
            dlock_times.add(dlock_ms);
            bare_times.add(bare_ms);
            flock_times.add(flock_ms);
            ratios.add(dlock_ms / flock_ms);
        }
    }
    println!("whole processes, ms");
    println!("  dlock run x -- true  {dlock_times}");
    println!("  flock f true         {flock_times}");
    println!("  true                 {bare_times}");
    println!("  ratio to flock       {ratios}\n");
    if !has_flock {
        return results.missing(&targets::COMMAND_FLOCK, "flock is not installed");
    }
    results.measured(&targets::COMMAND_FLOCK, &ratios)
}

/// Returns the path of a binary of the same build, or `None` if it does not exist.
fn sibling_binary(name: &str) -> Option<PathBuf> {
    let this_binary = env::current_exe().ok()?;
    Some(this_binary.parent().map(Path::to_path_buf)?.join(name)).filter(|path| path.exists())
}
