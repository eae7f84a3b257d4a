-- Makes an empty file a store, inside the transaction that found the file empty. Binds: none. Answer: none.
-- The fence: one row that draws the numbers of all names. So it does not grow with the names.
CREATE TABLE dlock_store (
    one INTEGER NOT NULL PRIMARY KEY CHECK (one = 1),
    last INTEGER NOT NULL, -- the number drawn last
    boot TEXT NOT NULL     -- the boot of the host from which the times below count
) STRICT;
INSERT INTO dlock_store (one, last, boot) VALUES (1, 0, '');

-- Who holds and who waits, in order of arrival.
CREATE TABLE dlock_queue (
    name TEXT NOT NULL,
    seq INTEGER NOT NULL,    -- drawn from the fence: place in the queue and fencing token
    claim BLOB NOT NULL UNIQUE CHECK (length(claim) = 16),
    kind TEXT NOT NULL CHECK (kind IN ('mutex', 'fair', 'read', 'write')),
    shares INTEGER NOT NULL CHECK (shares = (kind = 'read')),
    client BLOB NOT NULL CHECK (length(client) = 16),
    pid INTEGER NOT NULL,
    host TEXT NOT NULL,
    since INTEGER NOT NULL,  -- nanoseconds on the host's clock
    expires INTEGER NOT NULL, -- nanoseconds on the host's clock
    -- The limit of a permit, else NULL. The kind of a permit is 'mutex', so that a dlock without permits waits for it.
    slots INTEGER CHECK (slots IS NULL OR slots > 0 AND kind = 'mutex'),
    -- Of a detached claim: when it expires, in nanoseconds since 1970. Else NULL. The client of a detached claim is all zeros.
    until INTEGER,
    who TEXT, -- who has the claim, in words; NULL if a dlock made it that does not say
    PRIMARY KEY (name, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX dlock_queue_expires ON dlock_queue (name, expires);
-- With this index a sweep finds expired claims of names for which nobody asks any more.
CREATE INDEX dlock_queue_left ON dlock_queue (expires);
CREATE INDEX dlock_queue_client ON dlock_queue (client);
-- With this index a reader finds the nearest claim that does not share, without a walk over other readers.
CREATE INDEX dlock_queue_shares ON dlock_queue (name, shares, seq);

PRAGMA application_id = 1684824939;
PRAGMA user_version = 1;
