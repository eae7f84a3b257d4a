//! The format of a corpus: one input per line, in the escapes of a string literal of Rust. Empty lines
//! and lines that begin with `#` are ignored.

/// Parses a corpus.
///
/// # Errors
/// The line with an invalid escape.
pub(crate) fn parse(text: &str) -> Result<Vec<Vec<u8>>, String> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| unescape(line).ok_or_else(|| format!("an invalid escape: {line}"))).collect()
}

fn unescape(line: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, escape)) = rest.split_once('\\') {
        bytes.extend_from_slice(before.as_bytes());
        let (code, after) = escape.split_at_checked(1)?;
        rest = after;
        bytes.push(match code {
            "n" => b'\n',
            "r" => b'\r',
            "t" => b'\t',
            "0" => 0,
            "\\" => b'\\',
            "x" => {
                let (digits, after) = rest.split_at_checked(2)?;
                rest = after;
                u8::from_str_radix(digits, 16).ok()?
            }
            // An empty input, or an input that begins or ends with a space.
            "e" => continue,
            _ => return None,
        });
    }
    bytes.extend_from_slice(rest.as_bytes());
    Some(bytes)
}

/// Returns an input as a line of a corpus.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut line = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => line.push_str("\\n"),
                '\r' => line.push_str("\\r"),
                '\t' => line.push_str("\\t"),
                '\\' => line.push_str("\\\\"),
                '#' if line.is_empty() => line.push_str("\\x23"),
                c if c.is_ascii_control() => line.push_str(&format!("\\x{:02x}", u32::from(c))),
                c => line.push(c),
            }
        }
        chunk.invalid().iter().for_each(|byte| line.push_str(&format!("\\x{byte:02x}")));
    }
    if line.is_empty() { "\\e".to_owned() } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_one_line_and_is_read_back() {
        for input in [&b"a"[..], b"", b"\r\n\t\\\0", b"# x", b"\xff\xc3\xa9 \xe2\x82", "é🔒 ".as_bytes()] {
            let line = escape(input);
            assert_eq!(parse(&line), Ok(vec![input.to_vec()]), "{line}");
        }
        assert_eq!(parse("# a\n\nb\n"), Ok(vec![b"b".to_vec()]));
        for line in ["\\", "\\q", "\\x1", "\\xzz", "\\é"] {
            parse(line).expect_err(line);
        }
    }
}
