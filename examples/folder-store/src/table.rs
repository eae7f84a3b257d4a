//! The tables: claims in order of arrival, in files that are read and written as a whole. A lock's name tells its table.
//!
//! ```text
//! last 1770000000000004
//! 1770000000000003 mutex 7e0c…36 characters 1770000030000000000 anna@web-3 pid 4711 worker⇥invoice/42
//! number           kind  id                 expires, ns         who, to the tab             name, to the end of the line
//! ```

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use dlock::{
    ClaimId, Kind, LockName, Result,
    driver::{Entry, Moment, Turn, turn},
};

use crate::error;

/// The kinds that the table knows, and their words there. A kind that is not here is not in `Info` either.
pub(crate) const KINDS: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write];

/// How many tables there are: locks in different ones do not wait for each other. Never changed, or one name would have two.
const TABLES: u32 = 64;

/// One claim.
pub(crate) struct Row {
    /// Its place in the queue, and its token.
    pub(crate) number: u64,
    pub(crate) entry: Entry,
    pub(crate) expires: Duration,
    /// Who has it, in words. Neither this nor the name has control characters.
    pub(crate) who: String,
    pub(crate) name: LockName,
}

/// The claims of some of the locks, in order of arrival.
pub(crate) struct Table {
    pub(crate) rows: Vec<Row>,
    /// The last number that was drawn.
    last: u64,
    /// The host's clock, since 1970.
    pub(crate) now: Duration,
}

/// The folder.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Makes it if need be. Two clients that do so at once make one folder.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        fs::create_dir_all(path).and_then(|()| path.canonicalize()).map(Self).map_err(error::from_io)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// One step of the store on the table of a lock: no other process sees that table meanwhile. What the step has changed is
    /// written if it says so.
    ///
    /// A step that gets its turn after `until` does nothing: its caller has given up, and must not be surprised later.
    pub(crate) fn step<T>(
        &self,
        name: &LockName,
        until: Moment,
        step: impl FnOnce(&mut Table) -> (T, bool),
    ) -> Result<T> {
        self.step_on(table_of(name), until, step)
    }

    /// Looks at every table, one after the other.
    pub(crate) fn each<T>(&self, until: Moment, mut look: impl FnMut(&Table) -> T) -> Result<Vec<T>> {
        (0..TABLES).map(|table| self.step_on(table, until, |table| (look(table), false))).collect()
    }

    fn step_on<T>(
        &self,
        number: u32,
        until: Moment,
        step: impl FnOnce(&mut Table) -> (T, bool),
    ) -> Result<T> {
        let turn = File::create(self.0.join(format!("{number}.turn"))).map_err(error::from_io)?;
        // Blocks until the others are through; it is freed when the file is closed, however this process ends.
        turn.lock().map_err(error::from_io)?;
        if until.has_passed() {
            return Err(error::late());
        }
        let mut table = self.read(number)?;
        // Bury, then look.
        let before = table.rows.len();
        table.rows.retain(|row| row.expires > table.now);
        let buried = table.rows.len() < before;
        let (answer, changed) = step(&mut table);
        if changed || buried {
            self.write(number, &table).map_err(error::from_io)?;
        }
        Ok(answer)
    }

    fn read(&self, number: u32) -> Result<Table> {
        let text = match fs::read_to_string(self.0.join(format!("{number}.table"))) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text.map_err(error::from_io)?,
        };
        // The clock is read within the turn: it is the store's.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut table = Table { rows: Vec::new(), last: 0, now };
        for line in text.lines() {
            match line.strip_prefix("last ") {
                Some(last) => table.last = last.parse().map_err(|_| error::garbled(line))?,
                None => table.rows.push(Row::parse(line).ok_or_else(|| error::garbled(line))?),
            }
        }
        Ok(table)
    }

    /// Beside the table, and then into its place: who is killed meanwhile leaves a whole table.
    fn write(&self, number: u32, table: &Table) -> io::Result<()> {
        let mut text = format!("last {}\n", table.last);
        for Row { number, entry, expires, who, name } in &table.rows {
            let (kind, id, expires) = (entry.kind, entry.id, expires.as_nanos());
            text.push_str(&format!("{number} {kind} {id} {expires} {who}\t{name}\n"));
        }
        let new = self.0.join(format!("{number}.new"));
        fs::write(&new, text)?;
        fs::rename(&new, self.0.join(format!("{number}.table")))
    }
}

/// The table of a lock: FNV-1a, because every program that shares the folder must find the same, whatever built it.
fn table_of(name: &LockName) -> u32 {
    let mix = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    name.as_str().as_bytes().iter().fold(0x811c_9dc5, mix) % TABLES
}

impl Table {
    /// The queue of one lock.
    pub(crate) fn queue(&self, name: &LockName) -> Vec<Entry> {
        self.rows.iter().filter(|row| row.name == *name).map(|row| row.entry).collect()
    }

    /// Whether this claim holds the lock, and does not wait for it.
    pub(crate) fn holds(&self, name: &LockName, id: ClaimId) -> bool {
        turn(&self.queue(name), id) == Turn::Mine
    }

    pub(crate) fn row(&mut self, id: ClaimId) -> Option<&mut Row> {
        self.rows.iter_mut().find(|row| row.entry.id == id)
    }

    /// A number that is greater than every one before, also if the table was lost.
    pub(crate) fn draw(&mut self) -> u64 {
        let floor = u64::try_from(self.now.as_micros()).unwrap_or(u64::MAX / 2);
        self.last = (self.last + 1).max(floor);
        self.last
    }
}

impl Row {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(5, ' ');
        let number = words.next()?.parse().ok()?;
        let kind = words.next()?;
        let kind = KINDS.iter().copied().find(|known| known.to_string() == kind)?;
        let id = u128::from_str_radix(&words.next()?.replace('-', ""), 16).ok()?;
        let entry = Entry::new(ClaimId::from_bytes(id.to_be_bytes()), kind);
        // To the nanosecond: a time that is cut ends a hold before its guard says so.
        let expires = Duration::from_nanos(words.next()?.parse().ok()?);
        let (who, name) = words.next()?.split_once('\t')?;
        Some(Self { number, entry, expires, who: who.to_owned(), name: LockName::new(name).ok()? })
    }
}
