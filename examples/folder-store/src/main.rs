//! The command `dlock` with one more store: `dlock-folder run --store folder:/srv/locks NAME --
//! CMD`.

fn main() -> std::process::ExitCode {
    dlock_cli::main(dlock::registry().with(folder_store::DRIVER))
}
