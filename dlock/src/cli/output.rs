//! What goes to stdout and stderr.

use std::io::{self, ErrorKind, Write};

use super::exit::{Failure, Outcome};

/// One line on stderr. If that is gone, there is nobody to tell.
pub(super) fn say(message: &str) {
    // Written at once, so that it is not mixed with what the command says.
    io::stderr().write_all(format!("dlock: {message}\n").as_bytes()).ok();
}

/// The answer, on stdout. A reader who has seen enough (`dlock ls | head -1`) is no failure.
pub(super) fn print(answer: impl AsRef<[u8]>) -> Outcome<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(answer.as_ref()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::internal("cannot write the answer", &error))
        }
        _ => Ok(()),
    }
}
