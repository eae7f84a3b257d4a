//! What goes to stdout and stderr.

use std::io::{self, ErrorKind, Write};

use super::exit::{Failure, Outcome};

/// Writes one line to stderr. Ignores a failure: there is no other place to report it.
pub(super) fn say(message: &str) {
    // Written in one piece, so that it is not mixed with the output of the command.
    io::stderr().write_all(format!("dlock: {message}\n").as_bytes()).ok();
}

/// Writes the answer to stdout. A reader that closes the pipe early (`dlock ls | head -1`) is no failure.
pub(super) fn print(answer: impl AsRef<[u8]>) -> Outcome<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(answer.as_ref()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::internal("cannot write the answer", &error))
        }
        _ => Ok(()),
    }
}
