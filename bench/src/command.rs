//! What `dlock run true` costs beside `flock FILE true`, as whole processes, in turn.

use std::{
    env,
    error::Error,
    path::{Path, PathBuf},
    process::Command,
};

use tokio::time::Instant;

use crate::{Effort, figures::Figures};

pub(crate) fn bench(effort: Effort) -> Result<(), Box<dyn Error>> {
    let Some(dlock) = beside_us("dlock") else {
        println!("dlock run: not measured, build the command first: cargo build --release");
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let store = format!("sqlite:{}", folder.path().join("locks.db").display());
    let flock = Command::new("flock").arg("--version").output().is_ok();
    let (mut ours, mut theirs, mut bare) = (Figures::default(), Figures::default(), Figures::default());
    for round in 0..effort.rounds * 10 + 1 {
        let ms = |command: &mut Command| -> Result<f64, Box<dyn Error>> {
            let begun = Instant::now();
            let status = command.status()?;
            status
                .success()
                .then(|| begun.elapsed().as_secs_f64() * 1e3)
                .ok_or_else(|| format!("{command:?} failed").into())
        };
        let run = ms(Command::new(&dlock).args(["run", "x", "--", "true"]).env("DLOCK_STORE", &store))?;
        let plain = ms(&mut Command::new("true"))?;
        let rival = if flock {
            ms(Command::new("flock").arg(folder.path().join("f")).arg("true"))?
        } else {
            f64::NAN
        };
        // The first round, which does not count, warms the caches and makes the file.
        if round > 0 {
            ours.add(run);
            bare.add(plain);
            theirs.add(rival);
        }
    }
    println!("whole processes, ms");
    println!("  dlock run x -- true  {ours}   aim: at most 10 more than flock");
    println!("  flock f true         {theirs}");
    println!("  true                 {bare}");
    Ok(())
}

/// The path of a binary of the same build.
fn beside_us(name: &str) -> Option<PathBuf> {
    let here = env::current_exe().ok()?;
    Some(here.parent().map(Path::to_path_buf)?.join(name)).filter(|path| path.exists())
}
