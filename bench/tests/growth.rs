//! A part of growth, on the memory store.

use std::{fs, process::Command};

#[test]
fn a_part_of_growth_prints_its_steps_and_draws_charts() {
    let folder = tempfile::tempdir().expect("a folder");
    let charts = folder.path().join("charts");
    let output = Command::new(env!("CARGO_BIN_EXE_dlock-bench"))
        .args(["growth-memory", "--quick", "--charts"])
        .arg(&charts)
        .output()
        .expect("it starts");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    for size in ["1", "100", "1000"] {
        let is_row = |line: &str| line.split_whitespace().next() == Some(size);
        assert!(stdout.lines().any(is_row), "no step of {size} in {stdout}");
    }
    let chart = fs::read_to_string(charts.join("growth-memory.svg")).expect("a chart");
    assert!(chart.starts_with("<svg") && chart.contains("hand-off, ms"), "{chart}");
    assert!(chart.contains("requests of a hand-off, by number of waiters: no values"), "{chart}");
}
