//! Steps of the wall clock of single processes, through libfaketime.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Hidden argument of the process that prints its wall clock.
pub(in super::super) const PRINT_CLOCK: &str = "print-wall-clock";

/// Folders below which distributions install the library.
const FOLDERS: [&str; 4] = ["/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib"];

/// Step of the test at the start, in seconds.
const TEST_STEP: i64 = 100_000;

/// Greatest difference of two clocks that are read one after the other, in seconds.
const TOLERANCE: i64 = 1000;

/// The wall clocks of the clients. Dropping the value removes its files.
#[derive(Debug)]
pub(in super::super) struct WallClocks {
    library: PathBuf,
    folder: PathBuf,
}

impl WallClocks {
    /// Prepares clocks that do not differ from the machine's.
    ///
    /// # Errors
    /// The reason why the clock cannot be stepped, and what to install.
    pub(in super::super) fn new() -> Result<Self, String> {
        let library = find_library().ok_or(
            "`clock` needs libfaketime, which is not installed (Debian: apt-get install libfaketime)",
        )?;
        let folder = std::env::temp_dir().join(format!(
            "dlock-soak-{}-{}",
            std::process::id(),
            super::super::clock::now()
        ));
        let failed = |error: io::Error| format!("`clock` cannot write below {}: {error}", folder.display());
        fs::create_dir(&folder).map_err(failed)?;
        let clocks = Self { library, folder: folder.clone() };
        clocks.step(0, TEST_STEP).map_err(failed)?;
        let print = |with_library| clocks.read(with_library).map_err(|error| format!("`clock`: {error}"));
        if (print(true)? - print(false)? - TEST_STEP).abs() > TOLERANCE {
            return Err(format!(
                "`clock` has no effect: {} does not step the clock",
                clocks.library.display()
            ));
        }
        clocks.step(0, 0).map_err(failed)?;
        Ok(clocks)
    }

    /// Makes the clock of a client differ from the machine's by this number of seconds.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(in super::super) fn step(&self, client: usize, seconds: i64) -> io::Result<()> {
        // Renamed into place, because the library reads the file at any time.
        let (new, file) = (self.folder.join(format!("{client}.new")), self.file(client));
        fs::write(&new, format!("{seconds:+}\n"))?;
        fs::rename(new, file)
    }

    /// Returns the environment of a client whose clock is to be stepped.
    pub(in super::super) fn environment(&self, client: usize) -> [(&'static str, PathBuf); 4] {
        [
            ("LD_PRELOAD", self.library.clone()),
            ("FAKETIME_TIMESTAMP_FILE", self.file(client)),
            ("FAKETIME_NO_CACHE", "1".into()),
            // Timers and deadlines use the monotonic clock, which no operator can step.
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ]
    }

    fn file(&self, client: usize) -> PathBuf {
        self.folder.join(client.to_string())
    }

    /// Returns the wall clock of a process, in seconds.
    fn read(&self, with_library: bool) -> io::Result<i64> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(PRINT_CLOCK).stdin(Stdio::null()).stderr(Stdio::null());
        if with_library {
            command.envs(self.environment(0));
        }
        let output = command.output()?;
        String::from_utf8_lossy(&output.stdout).trim().parse().map_err(io::Error::other)
    }
}

impl Drop for WallClocks {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).ok();
    }
}

/// Prints the wall clock of this process in seconds.
#[expect(clippy::disallowed_methods, reason = "the wall clock is what is tested")]
#[expect(clippy::print_stdout, reason = "the process prints for the coordinator")]
pub(in super::super) fn print() {
    let time = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    println!("{}", time.map_or(0, |time| time.as_secs()));
}

fn find_library() -> Option<PathBuf> {
    let in_folder = |folder: &Path| {
        let file = folder.join("faketime/libfaketime.so.1");
        file.is_file().then_some(file)
    };
    FOLDERS.iter().find_map(|folder| {
        let folder = Path::new(folder);
        // Debian has a folder for each architecture.
        let below = fs::read_dir(folder).into_iter().flatten().flatten();
        in_folder(folder).or_else(|| below.into_iter().find_map(|entry| in_folder(&entry.path())))
    })
}
