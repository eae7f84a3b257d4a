//! The soak tool on the stores of dlock. `conformance/README.md` describes it, and `--help` lists its
//! arguments. It is a crate of its own, because `dlock-conformance` depends on no store.

fn main() -> std::process::ExitCode {
    dlock_conformance::soak::main(&dlock::registry())
}
