//! What goes to stdout and stderr.

use std::io::{self, ErrorKind, Write};

use crate::exit::{Failure, Outcome};

/// Writes one line to stderr. Ignores a failure: there is no other place to report it.
pub(crate) fn say(message: &str) {
    // Written in one piece, so that it is not mixed with the output of the command.
    io::stderr().write_all(format!("dlock: {message}\n").as_bytes()).ok();
}

/// Writes to stdout what somebody must get: a closed pipe is a failure too.
pub(crate) fn hand_over(answer: impl AsRef<[u8]>) -> Outcome<()> {
    write(answer.as_ref()).map_err(|error| Failure::internal("cannot write the answer", &error))
}

/// Writes the answer to stdout. A reader that closes the pipe early (`dlock ls | head -1`) is no failure.
pub(crate) fn print(answer: impl AsRef<[u8]>) -> Outcome<()> {
    match write(answer.as_ref()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::internal("cannot write the answer", &error))
        }
        _ => Ok(()),
    }
}

fn write(answer: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(answer).and_then(|()| stdout.flush())
}
