//! Tables of claims, in order of arrival. Each table is a file that is read and written as a whole.
//! The hash of a lock's name selects its table.
//!
//! ```text
//! last 1770000000000004
//! 1770000000000003 mutex 7e0c…36 characters 1770000030000000000 anna@web-3 pid 4711 worker⇥invoice/42
//! number           kind  id                 expires, ns         who, up to the tab          name, up to the end of the line
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

/// The kinds of lock that the store supports.
pub(crate) const KINDS: &[Kind] = &[Kind::Mutex, Kind::Fair, Kind::Read, Kind::Write];

/// Number of tables. Steps on different tables do not wait for each other. The number never
/// changes, because a lock would otherwise move to another table.
const TABLES: u32 = 64;

/// A claim, waiting or held.
pub(crate) struct Row {
    /// Position in the queue, and the token.
    pub(crate) number: u64,
    pub(crate) entry: Entry,
    /// Expiry on the host's clock, since 1970.
    pub(crate) expires: Duration,
    /// Label of the claim. Neither the label nor the name has control characters.
    pub(crate) who: String,
    pub(crate) name: LockName,
}

/// The claims of all locks with one hash, in order of arrival.
pub(crate) struct Table {
    pub(crate) rows: Vec<Row>,
    /// Last number that was drawn.
    last: u64,
    /// Time of this step on the host's clock, since 1970.
    pub(crate) now: Duration,
}

/// The folder with all tables.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// Opens the folder. Creates it if it does not exist, also if two clients do so at the same
    /// time.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        fs::create_dir_all(path).and_then(|()| path.canonicalize()).map(Self).map_err(error::from_io)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Runs one atomic step on the table of a lock. During the step no other process reads or
    /// writes the table. Writes the table if `step` returns `true`.
    ///
    /// If the table's lock is free only after `deadline`, the step is not run. Its caller no longer
    /// waits, and a late step must not change anything.
    pub(crate) fn step<T>(
        &self,
        name: &LockName,
        deadline: Moment,
        step: impl FnOnce(&mut Table) -> (T, bool),
    ) -> Result<T> {
        self.step_on(table_of(name), deadline, step)
    }

    /// Reads every table, one after the other.
    pub(crate) fn each<T>(&self, deadline: Moment, mut read: impl FnMut(&Table) -> T) -> Result<Vec<T>> {
        (0..TABLES).map(|table| self.step_on(table, deadline, |table| (read(table), false))).collect()
    }

    fn step_on<T>(
        &self,
        number: u32,
        deadline: Moment,
        step: impl FnOnce(&mut Table) -> (T, bool),
    ) -> Result<T> {
        let lock_file = File::create(self.0.join(format!("{number}.turn"))).map_err(error::from_io)?;
        // Blocks while another step has the lock. The system unlocks the file when it is closed,
        // even if this process is killed.
        lock_file.lock().map_err(error::from_io)?;
        if deadline.has_passed() {
            return Err(error::timed_out());
        }
        let mut table = self.read(number)?;
        // The step must not find expired claims.
        let before = table.rows.len();
        table.rows.retain(|row| row.expires > table.now);
        let has_expired = table.rows.len() < before;
        let (result, has_changed) = step(&mut table);
        if has_changed || has_expired {
            self.write(number, &table).map_err(error::from_io)?;
        }
        Ok(result)
    }

    fn read(&self, number: u32) -> Result<Table> {
        let text = match fs::read_to_string(self.0.join(format!("{number}.table"))) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            text => text.map_err(error::from_io)?,
        };
        // This is the store's clock, so it is read while the table is locked.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut table = Table { rows: Vec::new(), last: 0, now };
        for line in text.lines() {
            match line.strip_prefix("last ") {
                Some(last) => table.last = last.parse().map_err(|_| error::invalid_line(line))?,
                None => table.rows.push(Row::parse(line).ok_or_else(|| error::invalid_line(line))?),
            }
        }
        Ok(table)
    }

    /// Writes a new file and renames it over the table. If the process is killed, one complete
    /// table remains.
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

/// Returns the number of a lock's table. The hash is FNV-1a, because all programs that share the
/// folder must find the same table, whatever compiler built them.
fn table_of(name: &LockName) -> u32 {
    let mix = |hash: u32, byte: &u8| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    name.as_str().as_bytes().iter().fold(0x811c_9dc5, mix) % TABLES
}

impl Table {
    /// Returns the queue of one lock.
    pub(crate) fn queue(&self, name: &LockName) -> Vec<Entry> {
        self.rows.iter().filter(|row| row.name == *name).map(|row| row.entry).collect()
    }

    /// Returns whether this claim holds the lock. `false` if it waits or does not exist.
    pub(crate) fn holds(&self, name: &LockName, id: ClaimId) -> bool {
        turn(&self.queue(name), id) == Turn::Mine
    }

    pub(crate) fn row(&mut self, id: ClaimId) -> Option<&mut Row> {
        self.rows.iter_mut().find(|row| row.entry.id == id)
    }

    /// Returns a number greater than all earlier numbers, even if the table was lost.
    pub(crate) fn draw_number(&mut self) -> u64 {
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
        // In nanoseconds. A truncated time would end a hold before the deadline of its guard.
        let expires = Duration::from_nanos(words.next()?.parse().ok()?);
        let (who, name) = words.next()?.split_once('\t')?;
        Some(Self { number, entry, expires, who: who.to_owned(), name: LockName::new(name).ok()? })
    }
}
