//! The changes that make inputs from the entries of a corpus.

use std::ops::{Bound, Range};

use bolero::{Driver, ValueGenerator};

use super::input::{Input, NUMBERS};

/// Maximum number of changes of one entry.
const MOST_CHANGES: usize = 4;

/// Maximum length of an input in bytes.
const MAX_LEN: usize = 8192;

/// Texts that have a meaning to some parser, or that some encoding has to escape.
const PIECES: &[&[u8]] = &[
    b":",
    b"/",
    b"//",
    b"@",
    b"?",
    b"&",
    b"=",
    b"%",
    b"%2F",
    b"%25",
    b"%2f",
    b"%00",
    b"%0A",
    b"%ff",
    b"%C3%A9",
    b"%zz",
    b",",
    b".",
    b"..",
    b"+",
    b"-",
    b"_",
    b" ",
    b"\t",
    b"\n",
    b"\r\n",
    b"\0",
    b"\"",
    b"'",
    b"`",
    b"\\",
    b"*",
    b"*/",
    b"/*",
    b"#",
    b"$",
    b"${",
    b"${HOME}",
    b"~",
    b"^",
    b"|",
    b"!",
    b";",
    b"<",
    b">",
    b"{",
    b"}",
    b"[",
    b"]",
    b"(",
    b")",
    b"{}",
    b"[::1]",
    b"lock-",
    b"\xc3\xa9",
    b"\xf0\x9f\x94\x92",
    b"\xef\xbb\xbf",
    b"\xe2\x80\xae",
    b"\xef\xbf\xbf",
    b"\xc2\x85",
    b"\x7f",
    b"\xff",
    b"\xc3",
    b"\xcc\x81",
    b"\xc4\xb0",
    b"null",
    b"true",
    b"nil",
    b"-1",
    b"0",
    b"1",
    b"NaN",
    b"inf",
    b"1e400",
];

/// Numbers at which some parser may overflow, wrap, or accept more than was written.
const NUMBER_TEXTS: &[&[u8]] = &[
    b"0",
    b"1",
    b"-1",
    b"+1",
    b"-0",
    b"00",
    b"007",
    b"0x10",
    b"1e3",
    b"1.5",
    b" 1",
    b"255",
    b"256",
    b"65535",
    b"65536",
    b"2147483647",
    b"2147483648",
    b"-2147483648",
    b"4294967295",
    b"4294967296",
    b"9007199254740993",
    b"9223372036854775807",
    b"9223372036854775808",
    b"-9223372036854775808",
    b"-9223372036854775809",
    b"18446744073709551615",
    b"18446744073709551616",
    b"340282366920938463463374607431768211456",
    b"99999999999999999999999999999999999999999999999999",
];

/// Limits of the integer types, and of what the stores count.
const LIMITS: &[u64] = &[
    0,
    1,
    2,
    9,
    10,
    999,
    1000,
    1001,
    i32::MAX as u64,
    i32::MAX as u64 + 1,
    u32::MAX as u64,
    u32::MAX as u64 + 1,
    1 << 53,
    (1 << 53) + 1,
    i64::MAX as u64 / 1_000_000,
    i64::MAX as u64 / 1000,
    i64::MAX as u64,
    i64::MAX as u64 + 1,
    u64::MAX - 1,
    u64::MAX,
];

/// The generator of inputs.
#[derive(Debug)]
pub(crate) struct Inputs {
    pub(crate) corpus: Vec<Vec<u8>>,
}

impl ValueGenerator for Inputs {
    type Output = Input;

    fn generate<D: Driver>(&self, driver: &mut D) -> Option<Input> {
        let mut choice = Choice(driver);
        let mut bytes = self.corpus[choice.below(self.corpus.len())].clone();
        self.change(&mut choice, &mut bytes);
        // A property of two inputs is most likely to fail for inputs that differ little.
        let mut other = match choice.below(4) {
            0 => self.corpus[choice.below(self.corpus.len())].clone(),
            _ => bytes.clone(),
        };
        self.change(&mut choice, &mut other);
        let numbers = [(); NUMBERS].map(|()| choice.number());
        Some(Input { bytes, other, numbers })
    }
}

impl Inputs {
    fn change<D: Driver>(&self, choice: &mut Choice<'_, D>, bytes: &mut Vec<u8>) {
        for _ in 0..choice.below(MOST_CHANGES + 1) {
            let all = parts(bytes);
            let part = choice.of(&all).unwrap_or(0..0);
            let at = choice.below(bytes.len() + 1);
            match choice.below(14) {
                // A part is missing, repeated at the end, at another position, or from another entry.
                0 => drop(bytes.drain(part)),
                1 => bytes.extend_from_within(part),
                2 => {
                    let moved: Vec<_> = bytes.drain(part).collect();
                    insert(bytes, at.min(bytes.len()), &moved);
                }
                3 => {
                    let source = &self.corpus[choice.below(self.corpus.len())];
                    let replacement = choice.of(&parts(source)).unwrap_or(0..0);
                    drop(bytes.splice(part, source[replacement].iter().copied()));
                }
                4 => bytes.truncate(at),
                5 => drop(bytes.drain(..at)),
                // The beginning of one entry with the end of another.
                6 => {
                    let source = &self.corpus[choice.below(self.corpus.len())];
                    bytes.truncate(at);
                    bytes.extend_from_slice(&source[choice.below(source.len() + 1)..]);
                }
                7 => {
                    let numbers: Vec<_> =
                        all.into_iter().filter(|part| bytes[part.start].is_ascii_digit()).collect();
                    let number = choice.of(&numbers).unwrap_or(part);
                    let text = choice.of(NUMBER_TEXTS).unwrap_or_default();
                    drop(bytes.splice(number, text.iter().copied()));
                }
                8 | 9 => insert(bytes, at, choice.of(PIECES).unwrap_or_default()),
                10 => drop(bytes.splice(part, choice.of(PIECES).unwrap_or_default().iter().copied())),
                11 => {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte = choice.byte();
                    }
                }
                12 => {
                    if let Some(byte) = bytes.get_mut(at) {
                        // The other case of a letter.
                        *byte ^= 0x20;
                    }
                }
                _ => {
                    let run = [choice.of(PIECES).unwrap_or_default(), b"x"][choice.below(2)];
                    insert(bytes, at, &run.repeat([20, 100, 600, 1100][choice.below(4)]));
                }
            }
        }
        bytes.truncate(MAX_LEN);
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, inserted: &[u8]) {
    drop(bytes.splice(at..at, inserted.iter().copied()));
}

/// Splits an input into runs of letters, runs of digits, and single other bytes.
fn parts(bytes: &[u8]) -> Vec<Range<usize>> {
    let class = |byte: u8| match byte {
        b'0'..=b'9' => 0,
        b'a'..=b'z' | b'A'..=b'Z' | 0x80.. => 1,
        _ => 2,
    };
    let mut parts: Vec<Range<usize>> = Vec::new();
    for (at, byte) in bytes.iter().enumerate() {
        match parts.last_mut() {
            Some(part) if class(*byte) < 2 && class(bytes[part.start]) == class(*byte) => part.end = at + 1,
            _ => parts.push(at..at + 1),
        }
    }
    parts
}

/// A source of decisions: random, or the bytes of an engine that is guided by coverage.
struct Choice<'a, D>(&'a mut D);

impl<D: Driver> Choice<'_, D> {
    fn byte(&mut self) -> u8 {
        self.0.gen_u8(Bound::Unbounded, Bound::Unbounded).unwrap_or_default()
    }

    /// Returns a number below `end`, or 0 if `end` is 0.
    fn below(&mut self, end: usize) -> usize {
        let end = u16::try_from(end).unwrap_or(u16::MAX);
        match end {
            0 | 1 => 0,
            end => self.0.gen_u16(Bound::Included(&0), Bound::Excluded(&end)).unwrap_or_default().into(),
        }
    }

    fn of<T: Clone>(&mut self, values: &[T]) -> Option<T> {
        let at = self.below(values.len());
        values.get(at).cloned()
    }

    fn number(&mut self) -> u64 {
        match self.below(3) {
            0 => self.byte().into(),
            1 => self.of(LIMITS).unwrap_or_default(),
            _ => {
                let any = self.0.gen_u64(Bound::Unbounded, Bound::Unbounded).unwrap_or_default();
                any >> self.below(64)
            }
        }
    }
}
